"""What the rules have in common: the sentence of a broken rule, what a part is asked, and the numbers it is tried with."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.attention import Core, Mixer, MultiHeadAttention, Pattern, causal_mask, padding_mask
from minitransformer.attention.core import Part
from minitransformer.checks import must_be_pair
from minitransformer.models import LanguageModel, SequenceModel
from minitransformer.pullback import Pullback, Tree, random_like, tree_items, tree_map
from minitransformer.typing import Array

WIDTH, HEADS, LONGEST = 12, 2, 160
N = 70  # tokens: more than a tile, and no multiple of one


class Broken(AssertionError):
    """A rule is broken; the message is a sentence that says how."""


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
    """How many tokens it takes until a query of each head has a choice, and a pattern hides a key from one: n, or more.

    A query that sees one key gives it all its weight, whatever the score, and there would be no gradient to test. If nothing is
    hidden from anybody, a gradient that ignores the pattern would be right.
    """
    pattern, causal = pattern_of(part), can(part, True)
    if pattern is not None:
        fewest = 0
        for more in (n, *(m for m in (20, N, 2 * N, 4 * N) if n < m <= getattr(pattern, "longest", 4 * N))):
            mask = pattern(more, more, causal=causal).mask
            choice = (mask.sum(-1) > 1).any(-1)
            if choice.all():
                fewest = fewest or more
                if not (mask | ~causal_mask(more, more) if causal else mask).all():
                    return more
        if fewest:
            return fewest
        keep(
            choice.any(),
            "no query sees more than one key, which gets all its weight: there is nothing to be tested. Ask again with an "
            "option that lets it see more, as 'window:radius=9'",
        )
    return n


def called(part: Any, *args: Any, **options: Any) -> tuple[Array, Pullback]:
    """Y and the pullback of a call; an error that names the part if it returns something else."""
    return must_be_pair(part(*args, **options), f"{type(part).__name__}:")


def with_gradients(Y: Array, gradients: Any, *names: str) -> dict[str, Array]:
    """Y and all gradients by what they are called in a sentence; the names are those of the arguments."""
    found = tree_items(dict(zip(names, gradients, strict=False)))
    return {"Y": Y, **{f"the gradient of {path}": array for path, array in found}}


def mixer(part: Part) -> Mixer:
    """The part as a layer; without biases, because a softmax cancels that of the keys, which would have no gradient."""
    return part if isinstance(part, Mixer) else MultiHeadAttention(*sizes_of(part), bias=False, core=part)  # type: ignore[arg-type]


def some(layer: Any, dtype: type = np.float64, size: float = 0.6, seed: int = 1) -> Tree:
    """Random parameters of this size: at the initial zeros and ones a wrong gradient could stay hidden."""
    rng = np.random.default_rng(seed)
    drawn = layer.init(rng, np.float64)
    for path, array in tree_items({"params": drawn}):
        if not isinstance(array, np.ndarray):
            raise TypeError(f"init: {path} is {array!r}, and should be an array of the dtype that it is asked for")
    return tree_map(lambda a: (size * a).astype(dtype), random_like(drawn, rng))


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


def way(causal: bool) -> str:
    """In which of the two ways a part was called, for a sentence that says what is wrong."""
    return "causal" if causal else "not causal"


def differ(a: Array, b: Array, allowed: float) -> str:
    """The largest difference of two arrays, in words; "" if they are close."""
    if a.shape != b.shape:
        return f"in shape, {a.shape} and {b.shape}"
    relative = 1e-5 if a.dtype == np.float32 else 1e-9
    same = np.isfinite(allowed) and np.allclose(a, b, rtol=relative, atol=allowed)
    return "" if same else f"by {np.abs(a - b).max():.2g}"


def refused(call: Callable[[], Any], what: str, word: str = "", kinds: Any = (TypeError, ValueError)) -> None:
    """Raise Broken unless the call is refused, with an error of one of these kinds that says this word."""
    try:
        call()
    except kinds as error:
        keep(word in str(error), f"{what}: the error should speak of {word!r}, and says {str(error)[:200]!r}")
    except Exception as error:
        wanted = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        raise Broken(f"{what}: {wanted} is asked for, it is {type(error).__name__}: {str(error)[:150]}") from error
    else:
        raise Broken(f"{what}: nothing was refused")
