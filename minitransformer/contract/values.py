"""The rules for pairs, values and gradients: they are there and right, in every tier and at any length."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from minitransformer.attention import Core, Mixer, MultiHeadAttention, Pattern
from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.core import Part
from minitransformer.backend import available, backend
from minitransformer.checker import GradientError, check_pullback
from minitransformer.contract.parts import (
    LONGEST,
    Broken,
    N,
    called,
    can,
    differ,
    enough,
    heads_for,
    keep,
    mixer,
    padding,
    refused,
    rows,
    sizes_of,
    some,
    way,
    with_gradients,
)
from minitransformer.positions import place
from minitransformer.pullback import Pullback, Tree, tree_get, tree_items, tree_map, tree_set
from minitransformer.typing import Array

DRAWN = "what is drawn comes from rng, and without one from a fixed seed"
ONE_WIDTH = "if they have to be as wide, its class says one_width = True"
QUOTIENT = "the difference quotient"  # what `check_pullback` says of a gradient that differs from one


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
                    f"t = {t} and k = {k}, the tiles of {TILE} that they are in ({way(causal)})"
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


def form_is_kept(core: Core, *, causal: bool, dtype: type) -> None:
    """Y and all gradients of a core, called without a mixer, have the shape and dtype of what they belong to."""
    arrays = [X.astype(dtype) for X in heads_for(core, 9)]
    given = {"params": some(core, dtype), **dict(zip(("Q", "K", "V", *core.streams), arrays, strict=True))}
    Y, pullback = called(core, *given.values(), causal=causal, mask=None, rng=None)
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


def values_have_a_width(core: Core, *, causal: bool, tier: str) -> None:
    """Values that are narrower or wider than keys give a Y of their width, in a call and in a step; or `one_width` says no."""
    params, (Q, K, V, *streams) = some(core), heads_for(core, 9)
    core(params, Q, K, V, *streams, causal=causal, mask=None, rng=None)
    as_wide = core.encoding is not None and "values" in core.encoding.acts_on
    for width in () if as_wide else (1, V.shape[-1] + 1):
        other = np.random.default_rng(6).standard_normal((*V.shape[:-1], width))
        said = f"values of width {width} beside keys of width {K.shape[-1]}, {way(causal)}"
        if core.one_width:
            refused(partial(core, params, Q, K, other, *streams, causal=causal, mask=None, rng=None), said)
            continue
        try:
            with backend(tier):
                Y, pullback = called(core, params, Q, K, other, *streams, causal=causal, mask=None, rng=None)
                dV = dict(zip("pQKV", pullback(np.ones_like(Y)), strict=False)).get("V", other)
                step = core.step(params, Q, K, other, *streams, state=None)[0] if causal and core.decodes else Y
        except Exception as error:
            raise Broken(f"{said}: {type(error).__name__}: {error} ({ONE_WIDTH})") from error
        for what, array in (("Y", Y), ("dV", dV), ("Y of a step", step)):
            keep(
                array.shape == other.shape,
                f"{said}: {what} has the shape {array.shape} instead of {other.shape} ({ONE_WIDTH})",
            )
        far = differ(step, Y, 1e-9) if core.decodes and not core.looks_ahead else ""
        keep(not far, f"{said}: Y of a step differs {far} from that of a call")


def gradients(part: Part, *, causal: bool, n: int, padded: bool) -> None:
    """The gradients of every parameter and of X agree with difference quotients."""
    layer, given = mixer(part), {"params": some(part)}
    if isinstance(part, Core):
        given |= dict(zip(("Q", "K", "V", *part.streams), heads_for(part, n), strict=True))
    else:
        given["X"] = rows(part, 2, n)
    before = tree_map(np.copy, given)
    Y, pullback = called(part, *given.values(), causal=causal, mask=None, rng=None)
    dY = np.ones_like(Y)
    pullback(dY)
    keep((dY == 1).all(), "dY: changed by the pullback")
    for (path, old), (_, now) in zip(tree_items(before), tree_items(given), strict=True):
        keep(np.array_equal(old, now), f"{path}: changed by the forward pass or by its pullback")
    try:
        _checked(layer, n, causal=causal, padded=padded)
    except GradientError as error:
        drawn = f" ({DRAWN})" if "gave another value" in str(error) else ""
        raise Broken(f"{error}{drawn} ({way(causal)}{', with a mask' * padded})") from error


def _checked(layer: Mixer, n: int, *, causal: bool, padded: bool = False) -> None:
    """Hold its gradients against difference quotients, of n tokens, or where its parameters have an effect."""
    untrained, zero = ([f"params.{path}" for path in paths] for paths in (layer.untrained, _without_gradient(layer)))

    def check(n: int, **drawn: Any) -> None:
        function = partial(layer, causal=causal, mask=padding(n) if padded else None)
        agrees(function, some(layer, **drawn), rows(layer, 2, n), untrained=untrained, zero=zero)

    _somewhere(check, n)


def _somewhere(check: Callable[..., None], n: int) -> None:
    """Call a check of gradients with other and smaller parameters, and more than n tokens, until every derivative counts."""
    said = ""
    for (seed, size), more in product(enumerate((0.6, 0.06, 0.006, 0.6, 0.06), 1), sorted({n, N, 2 * N})):
        try:
            check(more, size=size, seed=seed)
            return
        except GradientError as error:
            found, depends_on_nothing, _ = str(error).partition(": every derivative is zero")
            if seed == 1 and not depends_on_nothing:
                raise
            said = said or found
    raise GradientError(
        f"{said}: every derivative is zero, for {n} to {2 * N} tokens and for several parameters. Softmax does not see what all "
        "scores of a row have in common. If an option hides it, ask again with another, as 'span:limit=8'; if it has to be so, "
        "name it in `apart` of the core or `unseen` of the encoding"
    )


def _without_gradient(layer: Mixer) -> tuple[str, ...]:
    """Paths of parameters that get the gradient zero: only an added loss moves them, or softmax does not see them."""
    core: Any = getattr(layer, "core", None)
    encoding = getattr(core, "encoding", None)
    return (*layer.apart, *(f"core.{core.encoding_at}{path}" for path in getattr(encoding, "unseen", ())))


class OfOnePullback(Pullback):
    """The gradient of one array alone: of the parameter at a path, or of X, which has none."""

    layer: Pullback
    path: str | None

    def __call__(self, dY: Array) -> Array:
        dparams, dX = self.layer(dY)
        return dX if self.path is None else tree_get(dparams, self.path)


def agrees(function: Callable[..., Any], params: Tree, X: Array, *, untrained: Any = (), zero: Any = ()) -> None:
    """`check_pullback` on a few entries. If quotients differ from the pullback, each array is asked alone, and in other steps.

    Where Y bends sharply a step is too long, and where a derivative is tiny it is too short for the rounding of Y. A wrong
    gradient is wrong whatever the step.
    """
    try:
        with backend("numpy"):
            check_pullback(function, params, X, untrained=untrained, zero=zero, entries=3)
        return
    except GradientError as error:
        if QUOTIENT not in str(error):
            raise
        first = error

    def of_one(path: str | None, own: Array) -> tuple[Array, Pullback]:
        cast = tree_map(lambda a: a.astype(own.dtype), params)
        given = (cast, own) if path is None else (tree_set(cast, path, own), X.astype(own.dtype))
        Y, pullback = function(*given)
        return Y, OfOnePullback(pullback, path)

    for path, own in [*tree_items(params), (None, X)]:
        name = "X" if path is None else f"params.{path}"
        if name not in untrained:
            _agrees_in_a_step(partial(of_one, path), own, name, first, ("own",) if name in zero else ())


def _agrees_in_a_step(function: Callable[..., Any], own: Array, name: str, otherwise: GradientError, zero: Any) -> None:
    """Raise GradientError unless the gradient of one array agrees with difference quotients of some step."""
    for step in (1e-6, 1e-7, 1e-5):
        try:
            with backend("numpy"):
                check_pullback(function, own, step=step, zero=zero, entries=3)
            return
        except GradientError as error:
            if QUOTIENT not in str(error):
                raise GradientError(str(error).replace("own", name, 1)) from None
    raise otherwise


class AtPathPullback(Pullback):
    """The gradients of one part of a layer's parameters, and of X."""

    layer: Pullback
    path: str

    def __call__(self, dY: Array) -> tuple[Tree, Array]:
        dparams, dX = self.layer(dY)
        return tree_get(dparams, self.path), dX


def encodings_act(core: Core, *, positions: str) -> None:
    """The parameters of an encoding of positions are where it says, and their gradients are right."""
    D, H = sizes_of(core)
    both = replace(core, encoding=place(positions, width=D, heads=H, longest=LONGEST).in_attention)  # type: ignore[type-var]
    there = [path for path, _ in tree_items(both.init(np.random.default_rng(0), np.float64))]
    for path in both.shared:
        keep(
            path in there,
            f"with positions {positions} its parameters are {', '.join(there) or 'none'}: among them is no {path}, where "
            f"encoding_at = {both.encoding_at!r} has one of the encoding",
        )
    layer, at, causal = mixer(both), f"core.{both.encoding_at}".rstrip("."), can(both, True)

    def check(n: int, **drawn: Any) -> None:
        params = some(layer, **drawn)

        def with_own(encoding: Tree, X: Array) -> tuple[Array, AtPathPullback]:
            own = tree_map(lambda a: a.astype(X.dtype), params)
            Y, pullback = layer(tree_set(own, at, encoding), X, causal=causal)
            return Y, AtPathPullback(pullback, at)

        agrees(with_own, tree_get(params, at), rows(both, 2, n))

    try:
        _somewhere(check, enough(both, 7))
    except GradientError as error:
        raise Broken(f"with positions {positions}: {error} ({way(causal)})") from error


def tiers_agree(part: Part, *, causal: bool, dtype: type) -> None:
    """All tiers give the same values and gradients, in the dtype of X."""
    layer, X, dY = mixer(part), rows(part, 2, N, dtype=dtype), rows(part, 2, N, dtype=dtype, seed=3)
    params = some(layer, dtype)

    def everything(X: Array, tier: str) -> dict[str, Array]:
        with backend(tier):
            Y, pullback = called(layer, params, X, causal=causal, mask=padding(N))
            return with_gradients(Y, pullback(dY), "params", "X")

    found = {tier: everything(X, tier) for tier in available()}
    first, *others = found
    largest = max(np.abs(array).max(initial=0) for array in found[first].values())
    for tier in others:
        keep(
            found[tier].keys() == found[first].keys(),
            f"the tiers {first} and {tier} have gradients of other parameters",
        )
        for path, array in found[first].items():
            other, size = found[tier][path], max(np.abs(array).max(), 0.01 * largest)  # 0, and rounding, has no size
            keep(other.dtype == dtype, f"{path} is {other.dtype}, for {np.dtype(dtype)}")
            far = differ(other, array, (1e-4 if dtype == np.float32 else 1e-11) * size)
            if far and (moved := _moved_by_rounding(everything, X, array, path, first)):
                far = differ(other, array, 4 * moved)
            keep(not far, f"{path} differs {far} between the tiers {first} and {tier}, {way(causal)}")


def _moved_by_rounding(everything: Callable[..., Any], X: Array, before: Array, path: str, tier: str) -> float:
    """How far an array moves in one tier if X is changed by a bit; 0 if it comes out otherwise with the same X.

    Where rounding decides, such as whether a query has settled, tiers can't be closer to each other than one is to itself.
    """
    if not np.array_equal(everything(X, tier)[path], before):
        return 0.0
    rng, eps = np.random.default_rng(6), np.finfo(X.dtype).eps
    others = [X * (1 + eps * rng.integers(-1, 2, X.shape)).astype(X.dtype) for _ in range(6)]
    return float(max(np.abs(everything(other, tier)[path] - before).max() for other in others))


def any_length(part: Part, *, n: int) -> None:
    """Y and the gradients of n tokens have their shapes and are finite: a tile of tokens, one more, one fewer, a single one."""
    layer, causal = mixer(part), not can(part, False)
    Y, pullback = called(layer, some(layer), rows(part, 2, n), causal=causal)
    dparams, dX = pullback(rows(part, 2, n, seed=3))
    found = with_gradients(Y, (dparams, dX), "params", "X")
    keep(Y.shape == dX.shape == (2, n, layer.width), f"of {n} tokens, Y has the shape {Y.shape} and dX {dX.shape}")
    for path, array in found.items():
        keep(np.isfinite(array).all(), f"of {n} tokens, {path} is not finite")


def groups_share_keys(core: Core, *, causal: bool, groups: int, width: int = 0, heads: int = 0) -> None:
    """Y is as if each head of queries had a copy of the keys and values of its group, and the gradients are right."""
    D, H = (width, heads) if width else sizes_of(core)
    few = MultiHeadAttention(D, H, bias=False, core=core, groups=groups)
    n = enough(core, 9)
    params, X = some(few), np.random.default_rng(2).standard_normal((2, n, D))
    W_k, W_v = (np.repeat(W.reshape(D, groups, D // H), H // groups, 1).reshape(D, D) for W in (params.W_k, params.W_v))
    Y, _ = few(params, X, causal=causal)
    many = MultiHeadAttention(D, H, bias=False, core=core)
    Z, _ = many(params._replace(W_k=W_k, W_v=W_v), X, causal=causal)
    those = f"{H} heads with keys for {groups}"
    keep(np.allclose(Y, Z, atol=1e-12), f"{those} give another Y than with copies of them")
    try:
        _checked(few, n, causal=causal)
    except GradientError as error:
        raise Broken(f"{those}: {error} ({way(causal)})") from error
