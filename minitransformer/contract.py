"""What every kind of attention has to keep, rule by rule, and `check_attention`, which holds one against all the rules.

A rule is a function of a core or a mixer. It raises `Broken` with a sentence that says what is wrong, and where. The tests of
the book (tests/attention/test_contract.py) try the same rules on all that is registered, in more lengths and combinations;
`tests/test_contract_rules.py` holds a bank of wrong cores, each of which must be caught.
"""

import re
import sysconfig
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import shorten
from time import monotonic
from typing import Any

import numpy as np

from minitransformer.attention import (
    ATTENTIONS,
    Core,
    Mixer,
    MultiHeadAttention,
    Pattern,
    SoftmaxAttention,
    attention_of,
    padding_mask,
)
from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.core import Part
from minitransformer.backend import available, backend
from minitransformer.checker import GradientError, check_pullback
from minitransformer.data.text import Text
from minitransformer.extensions import named_classes
from minitransformer.models import LanguageModel, SequenceModel
from minitransformer.positions import IN_ATTENTION, Encoding
from minitransformer.pullback import Tree, random_like, tree_items, tree_leaves, tree_map
from minitransformer.registry import named
from minitransformer.training.checkpoint import Checkpoint, load, save
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

WIDTH, HEADS, LONGEST = 12, 2, 160
SAID = 400  # letters of an error that are printed
N = 70  # tokens: more than a tile, and no multiple of one
LETTERS = np.frombuffer(b"abcdefgh ijkl. ", np.uint8) % 40
NOT_THE_READERS = (str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<")
PIECES = ((0, 80, 1, 0, 1, 1), (1, 1, 5, 70, 1), (3, 64, 2, 2))  # new tokens, step after step


class Broken(AssertionError):
    """A rule is broken; the message is a sentence that says how."""


class AttentionError(AssertionError):
    """Some rules are broken; the message names them."""


def check_attention(attention: Any) -> None:
    """Check a kind of attention against every rule, print which rules it keeps, and say of the others what is wrong.

    It takes a few seconds. An encoding of positions that acts inside attention is checked inside that of softmax.
    attention   a name, with options or without; a class, which is then made for two heads of width 6; or an object of your own
    raises      AttentionError at the end, if a rule is broken; ValueError for what is no attention
    """
    start_time, broken, part, told = monotonic(), [], _made(attention), set()
    print(f"{attention if isinstance(attention, str) else type(part).__name__}: {part}")
    rules = list(_rules(part))
    for says, holds in rules:
        try:
            holds()
        except Exception as error:  # whatever a wrong core does
            what = shorten(str(error), SAID)
            if not isinstance(error, AssertionError):
                what = f"{type(error).__name__}: {what}"
                cause = re.sub(r"\d+", "", what)  # the same at other lengths
                what = "the same error as above" if cause in told else what + _where(error)
                told.add(cause)
            print(f"BROKEN  {says}\n        {what}")
            broken.append(says)
        else:
            print(f"kept    {says}")
    print(f"{len(rules) - len(broken)} of {len(rules)} rules kept, in {monotonic() - start_time:.1f} s.")
    if broken:
        are = "is" if len(broken) == 1 else "are"
        raise AttentionError("\n".join([f"{len(broken)} of {len(rules)} rules {are} broken:", *broken]))


def _where(error: Exception) -> str:
    """The last line outside of the package that was reached before an error, and what was tried, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f"{one.name}, line {one.lineno}: {one.line}" for one in frames if not one.filename.startswith(NOT_THE_READERS)
    ]
    said = "; ".join([*own[-1:], *getattr(error, "__notes__", ())])
    return f" ({said})" if said else ""


def _made(attention: Any) -> Part:
    sizes = {"width": WIDTH, "heads": HEADS, "d": WIDTH // HEADS, "longest": LONGEST}
    if isinstance(attention, type):
        attention = named("attention", {attention.__name__: attention}, attention.__name__, sizes)
    if isinstance(attention, str):
        both = ATTENTIONS | IN_ATTENTION | ATTENTIONS  # an attention is listed first, and chosen
        attention = named("attention", both, attention, sizes)
    return attention_of(SoftmaxAttention(encoding=attention) if isinstance(attention, Encoding) else attention, sizes)


def _rules(part: Part) -> Iterator[tuple[str, Callable[[], None]]]:
    """The rules that are meant for such a part: a sentence that is true if it keeps the rule, and how to find out."""
    ways, tiers, writes = directions(part), available(), can(part, True)

    def each(rule: Callable[..., None], **grid: Iterable[Any]) -> Callable[[], None]:
        def all_cases() -> None:
            for values in product(*grid.values()):
                case = dict(zip(grid, values, strict=True))
                try:
                    rule(part, **case)
                except Exception as error:
                    error.add_note(
                        ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in case.items())
                    )
                    raise

        return all_cases

    if (pattern := pattern_of(part)) is not None:
        yield (
            "The tiles of its pattern, and what it keeps, have the pairs that it sees, whatever follows.",
            partial(pairs_are_there, pattern),
        )
    if isinstance(part, Core):
        yield (
            "Y and the gradients have the shapes and the dtype that they should have.",
            each(form_is_kept, causal=ways, dtype=(np.float32, np.float64)),
        )
    yield (
        "Every gradient is the derivative of the value, and no argument is changed.",
        lambda: each(gradients, causal=ways, n=(enough(part, 7),), padded=(False, True))(),
    )
    yield (
        "All tiers give the same values and gradients, in float32 and in float64.",
        each(tiers_agree, causal=ways, dtype=(np.float32, np.float64)),
    )
    if writes:
        yield (
            "Where it is causal, what comes later changes no bit of what was before.",
            each(later_changes_nothing, tier=tiers),
        )
    yield (
        "Where a mask hides padding, the padding changes no bit of what is there.",
        each(padding_changes_nothing, causal=ways, tier=tiers),
    )
    if isinstance(part, Core):
        yield (
            "What stands in a hidden key or value, be it NaN, reaches nothing.",
            each(hidden_reaches_nothing, causal=ways, tier=tiers),
        )
    yield "Where a query sees no key, nothing becomes NaN.", each(nothing_to_see, causal=ways, tier=tiers)
    yield "Samples know nothing of each other.", each(samples_apart)
    yield "It works for any length.", each(any_length, n=(1, 2, 63, 64, 65))
    if isinstance(part, Core) and not part.queries_are_keys and part.key_heads is None:
        yield "Heads can share their keys and values.", each(groups_share_keys, causal=ways, groups=(1,))
    if writes:
        yield (
            "Written token by token, a text gives the same numbers as read at once.",
            each(one_by_one, positions=positions_for(part), pieces=PIECES, tier=tiers),
        )
        yield "A state is as it was after somebody has gone on from it.", each(state_continued_twice)
    yield "A model with it learns: its loss falls within ten steps.", each(learns, tier=tiers)
    inside = (part, getattr(part, "pattern", None), getattr(part, "encoding", None))
    if {type(own).__name__ for own in inside if own is not None} <= named_classes().keys():
        yield "A model with it can be saved and loaded.", each(saved_and_loaded)
    yield "What does not fit is refused.", each(refuses)
    if isinstance(part, Core):
        yield "Heads that do not fit each other are refused.", each(refuses_other_heads, tier=tiers)


# ----------------------------------------------------------------------------------------------- the ingredients


def keep(kept: Any, otherwise: str) -> None:
    """Raise Broken with this sentence unless a rule is kept."""
    if not kept:
        raise Broken(otherwise)


def can(part: Part, causal: bool) -> bool:
    """Whether it can be called with this value of `causal`."""
    return part.causal != ("never" if causal else "always")


def directions(part: Part) -> list[bool]:
    """The values of `causal` with which it can be called."""
    return [causal for causal in (False, True) if can(part, causal)]


def sizes_of(part: Part) -> tuple[int, int]:
    """Width and heads of a model that it fits into: its own, where it has some."""
    if isinstance(part, Mixer):
        return part.width, getattr(part, "heads", 1)
    within = (getattr(part, name, None) for name in ("encoding", "rotate", "pattern"))
    inside = [vars(own) for own in (part, *within) if own is not None]
    heads = [own["heads"] for own in inside if own.get("heads", 1) > 1]
    rules = getattr(getattr(part, "pattern", None), "rules", 1)
    H = heads[0] if heads else rules if rules > 1 else HEADS
    return H * next((own["d"] for own in inside if "d" in own), WIDTH // HEADS), H


def pattern_of(part: Part) -> Pattern | None:
    """The rule for pairs that it has, if any."""
    pattern = getattr(part, "pattern", None)
    return pattern if isinstance(pattern, Pattern) else None


def enough(part: Part, n: int) -> int:
    """How many tokens it takes until a query of each head has a choice: n, or more if a pattern lets it see few of them.

    A query that sees one key gives it all its weight, whatever the score, and there would be no gradient to test.
    """
    pattern = pattern_of(part)
    if pattern is not None:
        for more in (n, 20, N, 2 * N, 4 * N):
            seen = pattern(more, more, causal=can(part, True)).mask
            if (seen.sum(-1) > 1).any(-1).all():
                return more
    return n


def mixer(part: Part) -> Mixer:
    """The part as a layer; without biases, because a softmax cancels that of the keys, which would have no gradient."""
    return part if isinstance(part, Mixer) else MultiHeadAttention(*sizes_of(part), bias=False, core=part)  # type: ignore[arg-type]


def some(layer: Any, dtype: type = np.float64) -> Tree:
    """Random parameters: at the initial zeros and ones a wrong gradient could stay hidden."""
    rng = np.random.default_rng(1)
    drawn = layer.init(rng, np.float64)
    for path, array in tree_items({"params": drawn}):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"init: {path} is {array!r}, and should be an array of the dtype that it is asked for")
    return tree_map(lambda a: (0.6 * a).astype(dtype), random_like(drawn, rng))


def rows(part: Part, *shape: int, dtype: type = np.float64, seed: int = 2) -> Array:
    """Rows of random numbers, as wide as its model."""
    return np.random.default_rng(seed).standard_normal((*shape, sizes_of(part)[0])).astype(dtype)


def heads_for(core: Core, n: int) -> list[Array]:
    """Q, K, V and what else it wants of n tokens."""
    D, H = sizes_of(core)
    rng, shape = np.random.default_rng(4), (2, H, n)
    Q, K, V = rng.standard_normal((3, *shape, D // H))
    Q, K = Q[:, : core.key_heads], K[:, : core.key_heads]
    return [Q, Q if core.queries_are_keys else K, V, *(rng.standard_normal((*shape, w)) for w in core.streams.values())]


def padding(n: int) -> Array:
    """The mask of two samples, the second of which has five tokens fewer, (2, 1, 1, n)."""
    return padding_mask(np.array([n, n - 5]), n)[:, None]


def positions_for(part: Part) -> list[str]:
    """Encodings to try, by name: one at the embeddings, and RoPE if the part has queries and keys that can be turned."""
    D, H = sizes_of(part)
    turned = isinstance(part, Core) and D // H % 2 == 0 and part.rotate is None
    return ["none" if D % 2 else "sinusoidal", *["rope"] * turned]


def model_with(part: Part, **options: Any) -> SequenceModel:
    """A small model around it; one that sees both sides, where it can't be causal."""
    D, H = sizes_of(part)
    kind = LanguageModel if can(part, True) else SequenceModel
    options.setdefault("positions", positions_for(part)[-1])
    return kind(vocabulary=40, context=96, width=D, depth=2, heads=H, hidden=10, attention=part, **options)


def _differ(a: Array, b: Array, allowed: float) -> str:
    """The largest difference of two arrays, in words; "" if they are close."""
    if a.shape != b.shape:
        return f"in shape, {a.shape} and {b.shape}"
    return "" if np.isfinite(allowed) and np.allclose(a, b, atol=allowed) else f"by {np.abs(a - b).max():.2g}"


def _refused(call: Callable[[], Any], what: str, word: str = "", kinds: Any = (TypeError, ValueError)) -> None:
    """Raise Broken unless the call is refused, with an error that says this word."""
    try:
        call()
    except kinds as error:
        keep(word in str(error), f"{what}: the error should speak of {word!r}, and says {str(error)[:200]!r}")
    else:
        raise Broken(f"{what}: nothing was refused")


# ---------------------------------------------------------------------------------------------------- the pairs


def pairs_are_there(pattern: Pattern) -> None:
    """The tiles have the pairs of the rule `sees`, in every row whatever follows, and decoding keeps what it can see."""
    longest = getattr(pattern, "longest", 3000)
    for causal in (causal for causal in (False, True) if pattern.causal != ("never" if causal else "always")):
        for n, m in ((1, 1), (N, N), (65, 150), (200, 200), (700, 700), (3, 3000)):
            n, m = min(n, longest), min(m, longest)
            i, j = np.arange(m - n, m)[:, None], np.arange(m)[None]
            mask = pattern(n, m, causal=causal).mask
            rule = pattern.sees(i, j, m, causal=causal) & (j <= i if causal else np.True_)
            for *head, row, key in np.argwhere(np.broadcast_to(rule, mask.shape) != mask)[:1]:
                query, of = m - n + row, pattern.of_heads[head[0]] if head else pattern
                t, k = query // TILE, key // TILE
                keep(
                    not (
                        mask[*head, row, key] or of.near(np.full((1, 1), t), np.full((1, 1), k), m, causal=causal).all()
                    ),
                    f"sees says one thing of query {query} and key {key} of {m} when it is asked for all pairs, and another "
                    f"when it is asked for a tile of {TILE} × {TILE}: it should depend on i, j, m and causal alone",
                )
                raise Broken(
                    f"sees lets query {query} see key {key} of {m}, and no tile has the pair: near should be True for "
                    f"t = {t} and k = {k}, the tiles of {TILE} that they are in ({_way(causal)})"
                )
    if pattern.causal == "never":
        return
    n, m = min(130, longest), min(200, longest)
    i, j = np.arange(m)[:, None], np.arange(m)[None]
    whole = pattern(m, m, causal=True).mask
    for *_, row, _ in np.argwhere(pattern(n, n, causal=True).mask != whole[..., :n, :n])[:1]:
        raise Broken(f"what query {row} sees of {n} tokens is not what it sees of {m}, though it is causal")
    if (kept := pattern.kept) is not None:
        for *_, row, key in np.argwhere(whole & (j >= kept.first) & (i - j >= kept.last))[:1]:
            raise Broken(
                f"query {row} sees key {key}, and kept says that the first {kept.first} and the last {kept.last} are enough"
            )


# ---------------------------------------------------------------------------------------- values and gradients


def form_is_kept(core: Core, *, causal: bool, dtype: type) -> None:
    """Y and all gradients of a core, called without a mixer, have the shape and dtype of what they belong to."""
    arrays = [X.astype(dtype) for X in heads_for(core, 9)]
    given = {"params": some(core, dtype), **dict(zip(("Q", "K", "V", *core.streams), arrays, strict=True))}
    Y, pullback = core(*given.values(), causal=causal, mask=None, rng=None)
    wanted = arrays[2].shape
    keep(Y.shape == wanted, f"Y has the shape {Y.shape} instead of {wanted}")
    keep(Y.dtype == dtype, f"Y is {Y.dtype}, for {np.dtype(dtype)}")
    found = pullback(np.ones_like(Y))
    count = len(found) if type(found) is tuple else type(found).__name__
    keep(
        count == len(given),
        f"the pullback should give {len(given)} gradients, of {', '.join(given)}, and gives {count}",
    )
    untrained = {f"params{'.' * bool(path)}{path}" for path in core.untrained}
    gradients = dict(tree_items(dict(zip(given, found, strict=True))))
    for path, array in tree_items(given):
        if path in untrained:
            continue
        keep(path in gradients, f"the pullback gives no gradient of {path}")
        d = gradients[path]
        keep(np.shape(d) == array.shape, f"the gradient of {path} has the shape {np.shape(d)} instead of {array.shape}")
        keep(d.dtype == dtype, f"the gradient of {path} is {d.dtype}, for {np.dtype(dtype)}")


def gradients(part: Part, *, causal: bool, n: int, padded: bool) -> None:
    """The gradients of every parameter and of X agree with difference quotients."""
    layer, X = mixer(part), rows(part, 2, n)
    if isinstance(part, Core):
        given = {"params": some(part), **dict(zip(("Q", "K", "V", *part.streams), heads_for(part, n), strict=True))}
        before = tree_map(np.copy, given)
        Y, pullback = part(*given.values(), causal=causal, mask=None, rng=None)
        pullback(np.ones_like(Y))
        for (path, old), (_, now) in zip(tree_items(before), tree_items(given), strict=True):
            keep(np.array_equal(old, now), f"{path}: changed by the forward pass or by its pullback")
    function = partial(layer, causal=causal, mask=padding(n) if padded else None)
    untrained, apart = ([f"params.{path}" for path in paths] for paths in (layer.untrained, layer.apart))
    with backend("numpy"):
        try:
            check_pullback(function, some(layer), X, untrained=untrained, zero=apart, entries=3)
        except GradientError as error:
            raise Broken(f"{error} ({_way(causal)}{', with a mask' * padded})") from error


def _way(causal: bool) -> str:
    return "causal" if causal else "not causal"


def tiers_agree(part: Part, *, causal: bool, dtype: type) -> None:
    """All tiers give the same values and gradients, in the dtype of X."""
    layer, X, dY = mixer(part), rows(part, 2, N, dtype=dtype), rows(part, 2, N, dtype=dtype, seed=3)
    params, found = some(layer, dtype), {}
    for tier in available():
        with backend(tier):
            Y, pullback = layer(params, X, causal=causal, mask=padding(N))
            found[tier] = dict(tree_items({"Y": Y, "gradients": pullback(dY)}))
    first, *others = found
    for tier in others:
        keep(
            found[tier].keys() == found[first].keys(),
            f"the tiers {first} and {tier} have gradients of other parameters",
        )
        for path, array in found[first].items():
            other, size = found[tier][path], np.abs(array).max()
            keep(other.dtype == dtype, f"{path} is {other.dtype}, for {np.dtype(dtype)}")
            far = _differ(other, array, (1e-4 if dtype == np.float32 else 1e-11) * size)
            keep(not far, f"{path} differs {far} between the tiers {first} and {tier}, {_way(causal)}")


def later_changes_nothing(part: Part, *, tier: str) -> None:
    """Later tokens change no earlier row of Y; if a part says that it looks ahead, they have to."""
    layer, X = mixer(part), rows(part, 2, N, dtype=np.float32)
    later = X.copy()
    later[:, 40:] += 1
    with backend(tier):
        Y, _ = layer(some(layer, np.float32), X, causal=True)
        Z, _ = layer(some(layer, np.float32), later, causal=True)
    seen = (Y[:, :40] != Z[:, :40]).any(-1).any(0)
    if part.looks_ahead:
        keep(seen.any(), "it says that it looks ahead, and does not")
    else:
        keep(
            not seen.any(),
            f"the future leaks: tokens 40 to {N - 1} were changed, and with them Y of token {seen.argmax()}",
        )
    keep((Y[:, 40:] != Z[:, 40:]).any(), "tokens 40 and later were changed, and their own Y was not")


def padding_changes_nothing(part: Part, *, causal: bool, tier: str) -> None:
    """Padding changes neither Y of the real tokens nor Y of the other sample, and gets no gradient; and it may be left out."""
    layer, X = mixer(part), rows(part, 2, N, dtype=np.float32)
    other, there = X.copy(), N - 5
    other[1, there:] = 9
    dY = rows(part, 2, N, dtype=np.float32, seed=3)
    dY[1, there:] = 0
    with backend(tier):
        Y, pullback = layer(some(layer, np.float32), X, causal=causal, mask=padding(N))
        Z, _ = layer(some(layer, np.float32), other, causal=causal, mask=padding(N))
        _, dX = pullback(dY)
    keep((Y[0] == Z[0]).all(), "what stands in one sample changes Y of the other")
    seen = (Y[1, :there] != Z[1, :there]).any(-1)
    keep(
        not seen.any(),
        f"the mask is not kept: the padding was changed, and with it Y of token {seen.argmax()}, {_way(causal)}",
    )
    keep(
        not dX[1, there:].any(),
        f"the mask is not kept in the backward pass: the padding gets a gradient, {_way(causal)}",
    )
    _padding_left_out(layer, X.astype(np.float64), dY.astype(np.float64), there, causal=causal, tier=tier)


def _padding_left_out(layer: Mixer, X: Array, dY: Array, there: int, *, causal: bool, tier: str) -> None:
    """A sample that is padded gives what its tokens give alone, but for rounding."""
    with backend(tier):
        Y, pullback = layer(some(layer), X, causal=causal, mask=padding(X.shape[1]))
        alone, back = layer(some(layer), X[1, :there], causal=causal)
        padded, single = pullback(dY)[1], back(dY[1, :there])[1]
    far = _differ(Y[1, :there], alone, 1e-10)
    keep(not far, f"the padding counts: where it is left out instead of masked, Y differs {far}, {_way(causal)}")
    far = _differ(padded[1, :there], single, 1e-10)
    keep(not far, f"the padding counts: where it is left out instead of masked, dX differs {far}, {_way(causal)}")


def hidden_reaches_nothing(core: Core, *, causal: bool, tier: str) -> None:
    """A hidden key or value changes neither Y nor a gradient, even if it is NaN or infinite."""
    mask, found = padding(20), []
    D, H = sizes_of(core)
    dY = np.random.default_rng(5).standard_normal((2, H, 20, D // H))
    values = (9.0, np.nan, np.inf)
    with backend(tier), np.errstate(invalid="ignore"):  # ∞ − ∞, in a score that is hidden
        for value in values:
            arrays = heads_for(core, 20)
            for X in arrays[2:3] if core.queries_are_keys else arrays[1:3]:
                X[1, :, 15:] = value
            Y, pullback = core(some(core), *arrays, causal=causal, mask=mask, rng=None)
            found.append(dict(tree_items({"Y": Y, "gradients": pullback(dY)})))
    for value, other in zip(values[1:], found[1:], strict=True):
        for path, array in found[0].items():
            same = np.allclose(other[path], array, rtol=1e-7, atol=1e-11, equal_nan=True)
            keep(same, f"{value} in keys and values that the mask hides changes {path}, {_way(causal)}")


def nothing_to_see(part: Part, *, causal: bool, tier: str) -> None:
    """Of two samples the second is all padding, where a sum of weights to divide by is zero. Y and all gradients stay finite."""
    layer, X, mask = mixer(part), rows(part, 2, N), padding_mask(np.array([N, 0]), N)[:, None]
    with backend(tier), np.errstate(invalid="ignore", divide="ignore"):  # what comes of it is said below
        Y, pullback = layer(some(layer), X, causal=causal, mask=mask)
        dparams, dX = pullback(rows(part, 2, N, seed=3))
    for path, array in tree_items({"Y": Y, "dparams": dparams, "dX": dX}):
        keep(np.isfinite(array).all(), f"where all keys of a sample are hidden, {path} is not finite, {_way(causal)}")


def samples_apart(part: Part) -> None:
    """Each sample of a batch gives what it gives alone."""
    layer, X, dY = mixer(part), rows(part, 3, 2, 9), rows(part, 3, 2, 9, seed=3)
    params, causal = some(layer), not can(part, False)
    Y, pullback = layer(params, X, causal=causal)
    _, dX = pullback(dY)
    for sample in np.ndindex(3, 2):
        alone, back = layer(params, X[sample], causal=causal)
        far = _differ(Y[sample], alone, 1e-12)
        keep(not far, f"samples are mixed: alone, sample {sample} gives a Y that differs {far}")
        dalone = back(dY[sample])[1]
        far = _differ(dX[sample], dalone, 1e-12)
        keep(not far, f"samples are mixed in the backward pass: alone, sample {sample} gets a dX that differs {far}")


def any_length(part: Part, *, n: int) -> None:
    """Y and the gradients of n tokens have their shapes and are finite: a tile of tokens, one more, one fewer, a single one."""
    layer, causal = mixer(part), not can(part, False)
    Y, pullback = layer(some(layer), rows(part, 2, n), causal=causal)
    dparams, dX = pullback(rows(part, 2, n, seed=3))
    keep(Y.shape == dX.shape == (2, n, layer.width), f"of {n} tokens, Y has the shape {Y.shape} and dX {dX.shape}")
    for path, array in tree_items({"Y": Y, "dparams": dparams, "dX": dX}):
        keep(np.isfinite(array).all(), f"of {n} tokens, {path} is not finite")


def groups_share_keys(core: Core, *, causal: bool, groups: int, width: int = 0, heads: int = 0) -> None:
    """Y is as if each head of queries had a copy of the keys and values of its group, and the gradients are right."""
    D, H = (width, heads) if width else sizes_of(core)
    few = MultiHeadAttention(D, H, bias=False, core=core, groups=groups)
    params, X = some(few), np.random.default_rng(2).standard_normal((2, enough(core, 9), D))
    W_k, W_v = (np.repeat(W.reshape(D, groups, D // H), H // groups, 1).reshape(D, D) for W in (params.W_k, params.W_v))
    Y, _ = few(params, X, causal=causal)
    many = MultiHeadAttention(D, H, bias=False, core=core)
    Z, _ = many(params._replace(W_k=W_k, W_v=W_v), X, causal=causal)
    keep(np.allclose(Y, Z, atol=1e-12), f"{H} heads that share {groups} keys give another Y than with copies of them")
    untrained, apart = ([f"params.{path}" for path in paths] for paths in (few.untrained, few.apart))
    with backend("numpy"):
        check_pullback(partial(few, causal=causal), params, X, untrained=untrained, zero=apart, entries=3)


# ------------------------------------------------------------------------------------------------- one by one


def one_by_one(part: Part, *, positions: str, pieces: Sequence[int], tier: str) -> None:
    """A model that goes on from a state says the same as when it reads all at once."""
    positions = positions if positions in positions_for(part) else positions_for(part)[0]
    model = model_with(part, positions=positions)
    params = model.init(np.random.default_rng(0), np.float64)
    tokens = np.random.default_rng(1).integers(0, 40, (2, sum(pieces)))
    with backend(tier):
        whole, _ = model(params, tokens)
        state = None
        for n in pieces:
            first = 0 if state is None else state.length
            logits, state = model.step(params, tokens[:, first : first + n], state)
            keep(state.length == first + n, f"{n} tokens after {first}, and a state of length {state.length}")
            if part.looks_ahead:  # then what follows must not be there
                whole, _ = model(params, tokens[:, : state.length])
            there = whole[:, first : state.length]
            far = _differ(logits, there, 1e-10)
            keep(not far, f"step differs from the whole: {n} tokens after {first}, positions {positions}, {far}")


def state_continued_twice(part: Part) -> None:
    """Two ways to go on from one state don't get into each other's way, and the state is as it was."""
    model = model_with(part, positions=positions_for(part)[0])
    params = model.init(np.random.default_rng(0), np.float64)
    first, a, b = np.random.default_rng(1).integers(0, 40, (3, 1, 6))
    _, state = model.step(params, first)
    alone = model.step(params, b, model.step(params, first)[1])[1]  # where nobody else goes on
    expected, _ = model.step(params, a, alone)
    said = [model.step(params, tokens, state) for tokens in (a, b, a)]
    onwards, _ = model.step(params, a, said[1][1])
    far = _differ(said[0][0], said[2][0], 1e-10)
    keep(not far, f"a state was changed: going on from it as before gives numbers that differ {far}")
    far = _differ(onwards, expected, 1e-10)
    keep(not far, f"a state was changed by another that goes on from the same one: its numbers differ {far}")
    keep(_differ(onwards, said[0][0], 1e-10), "a state does not know what was read")
    keep(state.length == 6, f"the state of 6 tokens has the length {state.length}")


# ---------------------------------------------------------------------------------------------------- in a model


def trained(part: Part, steps: int = 10) -> tuple[Any, Any, Any, Any]:
    """A model after a few steps: model, objective, training, state."""
    letters = np.resize(LETTERS, 4000)
    model, objective = model_with(part), NextByte(Text(letters, letters[:600], "letters", ""), 24)
    training = Training(steps, 4, Cosine(2e-2, steps, 1), parts=2, look_every=steps)
    return model, objective, training, train(model, objective, training, progress=False)


def learns(part: Part, *, tier: str) -> None:
    """The loss falls, everything stays finite, and what no gradient moves is moved by hand, if it says so, or stays."""
    with backend(tier):
        model, _, training, after = trained(part)
        before = start(model, training)
    first, last = after.losses[0], after.losses[-1]
    keep(last < first, f"the loss was {first:.3f} before ten steps of training and is {last:.3f} after them")
    for path, array in tree_items(after.params):
        keep(np.isfinite(array).all(), f"after ten steps of training, {path} is not finite")
    pairs = zip(tree_items(before.params), tree_items(after.params), strict=True)
    moved = {path for (path, a), (_, b) in pairs if (a != b).any()}
    still = [path for path in model.body.untrained if f"stack.{path}" not in moved]
    keep(not (model.body.moves and still), f"it says that after_step moves its parameters, and {still} stay")
    own = type(part).after_step is not Part.after_step
    keep(isinstance(part, MultiHeadAttention) or own == part.moves, "after_step does something: it needs moves = True")


def saved_and_loaded(part: Part) -> None:
    """Model and state come back from a file as they were."""
    model, objective, training, state = trained(part, steps=2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        save(path, Checkpoint(model, training, state, objective.data))
        found = load(path)
    keep(found.model == model, f"the model comes back as another one: {found.model}")
    for (where, a), (_, b) in zip(tree_items(found.state), tree_items(state), strict=True):
        keep(np.array_equal(a, b), f"{where} comes back with other numbers")


# ------------------------------------------------------------------------------------------------- what is refused


def refuses(part: Part) -> None:
    """It refuses X of another width or of integers, parameters of another dtype, a wrong mask, a `causal` that it can't have."""
    layer, causal = mixer(part), not can(part, False)
    params, X = some(layer), rows(part, 2, 5)

    def call(X: Array, causal: bool = causal, **options: Any) -> Callable[[], Any]:
        return lambda: layer(params, X, causal=causal, **options)

    _refused(call(X[..., :-1]), f"X of width {layer.width - 1} instead of {layer.width}", kinds=TypeError)
    _refused(call(np.ones(X.shape, int)), "X of whole numbers", kinds=TypeError)
    if tree_leaves(params):  # a layer with nothing to learn takes either
        _refused(call(X.astype(np.float32)), "X in float32, parameters in float64", kinds=TypeError)
    _refused(call(X, mask=np.ones((2, 1, 1, 4), bool)), "a mask for 4 keys of 5", "mask", ValueError)
    if not can(part, not causal):
        _refused(call(X, not causal), f"causal={not causal}", "causal", ValueError)


def refuses_other_heads(core: Core, *, tier: str) -> None:
    """A core that is called without a mixer refuses heads that don't fit, before a loop that checks no index reads them."""
    with backend(tier):
        params, arrays, causal = some(core), heads_for(core, 9), not can(core, False)

        def call(*arrays: Any, mask: Any = None) -> Callable[[], Any]:
            return lambda: core(params, *arrays, causal=causal, mask=mask, rng=None)

        def step(*arrays: Any) -> Callable[[], Any]:
            return lambda: core.step(params, *arrays, state=None)

        call(*arrays)()
        names = ["Q", "K", "V", *core.streams]
        for k, (name, X) in enumerate(zip(names, arrays, strict=True)):
            for what, other in _other_heads(k, X):
                given = [other if i == k else A for i, A in enumerate(arrays)]
                _refused(call(*given), f"{name} {what}")
                if core.decodes:
                    _refused(step(*given), f"step, {name} {what}")
        if core.decodes:
            _refused(step(arrays[0][:, :, :5], *arrays[1:]), "step, 5 new queries for 9 new keys")
        H = sizes_of(core)[1]
        for mask in (np.ones((9, 9), int), np.ones((9, 8), bool), np.ones((3, 2, H, 9, 9), bool)):
            _refused(call(*arrays, mask=mask), f"a mask {mask.dtype} {mask.shape}, for 9 tokens", "mask")
        for what, few in (("too few", arrays[:-1]), ("too many", [*arrays, arrays[-1]])):
            _refused(call(*few), f"{what} arrays")


def _other_heads(k: int, X: Array) -> list[tuple[str, Any]]:
    """What could be given instead of the k-th of Q, K, V and the streams, and does not fit the others."""
    wrong = [
        ("of one sample for two", X[:1]),
        ("of another number of heads", X[:, :1] if X.shape[1] > 1 else X[:, :0]),
        ("without samples and heads", X[0, 0]),
        ("in float32 beside float64", X.astype(np.float32)),
        ("of whole numbers", X.astype(int)),
        ("as a list", X.tolist()),
    ]
    if k != 0:  # fewer queries will do, and groups of heads
        wrong += [
            ("of 5 tokens for 9", X[:, :, :5]),
            ("of twice as many heads", np.repeat(X, 2, 1)),
            ("of twice as many tokens", np.repeat(X, 2, 2)),
        ]
    if k != 2:  # values may have a width of their own
        wrong += [("of width 0", X[..., :0]), ("of twice the width", np.repeat(X, 2, 3))]
    return wrong
