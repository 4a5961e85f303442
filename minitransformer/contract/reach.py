"""The rules for what must reach nothing: later tokens, padding, what a mask hides, and other samples."""

import numpy as np

from minitransformer.attention import Core, Mixer, padding_mask
from minitransformer.attention.core import Part
from minitransformer.backend import backend
from minitransformer.checks import must_be_pair
from minitransformer.contract.parts import (
    N,
    can,
    differ,
    heads_for,
    keep,
    mixer,
    padding,
    rows,
    sizes_of,
    some,
    way,
)
from minitransformer.pullback import tree_items
from minitransformer.typing import Array


def later_changes_nothing(part: Part, *, tier: str) -> None:
    """Later tokens change no earlier row of Y; if a part says that it looks ahead, they have to, in some text."""
    # Where all keys fit into what is seen, there is nothing to compete for: then a longer text is tried
    lengths = (N, 4 * N, 16 * N) if part.looks_ahead and not hasattr(part, "longest") else (N,)
    for n in lengths:
        seen, own = _changed_by_later(part, n, tier)
        if seen.any():
            break
    if part.looks_ahead:
        keep(
            seen.any(),
            f"it says that it looks ahead, and with {n} tokens it does not; if an option lets it see so many, "
            "ask again with a smaller one, as 'reformer:chunk=6'",
        )
    else:
        keep(
            not seen.any(),
            f"the future leaks: tokens 40 to {N - 1} were changed, and with them Y of token {seen.argmax()}",
        )
    keep(own, "tokens 40 and later were changed, and their own Y was not")


def _changed_by_later(part: Part, n: int, tier: str) -> tuple[Array, bool]:
    """Which of the first tokens of n, all but 30, get another Y if the others are changed; and whether those do themselves."""
    layer, X, there = mixer(part), rows(part, 2, n, dtype=np.float32), n - 30
    later = X.copy()
    later[:, there:] += 1
    with backend(tier):
        Y, _ = layer(some(layer, np.float32), X, causal=True)
        Z, _ = layer(some(layer, np.float32), later, causal=True)
    return (Y[:, :there] != Z[:, :there]).any(-1).any(0), bool((Y[:, there:] != Z[:, there:]).any())


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
        f"the mask is not kept: the padding was changed, and with it Y of token {seen.argmax()}, {way(causal)}",
    )
    keep(
        not dX[1, there:].any(),
        f"the mask is not kept in the backward pass: the padding gets a gradient, {way(causal)}",
    )
    _padding_left_out(layer, X.astype(np.float64), dY.astype(np.float64), there, causal=causal, tier=tier)


def _padding_left_out(layer: Mixer, X: Array, dY: Array, there: int, *, causal: bool, tier: str) -> None:
    """A sample that is padded gives what its tokens give alone, but for rounding."""
    with backend(tier):
        Y, pullback = layer(some(layer), X, causal=causal, mask=padding(X.shape[1]))
        alone, back = layer(some(layer), X[1, :there], causal=causal)
        padded, single = pullback(dY)[1], back(dY[1, :there])[1]
    far = differ(Y[1, :there], alone, 1e-10)
    keep(not far, f"the padding counts: where it is left out instead of masked, Y differs {far}, {way(causal)}")
    far = differ(padded[1, :there], single, 1e-10)
    keep(not far, f"the padding counts: where it is left out instead of masked, dX differs {far}, {way(causal)}")


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
            returned = core(some(core), *arrays, causal=causal, mask=mask, rng=None)
            Y, pullback = must_be_pair(returned, f"{type(core).__name__}:")
            found.append(dict(tree_items({"Y": Y, "gradients": pullback(dY)})))
    for value, other in zip(values[1:], found[1:], strict=True):
        for path, array in found[0].items():
            same = np.allclose(other[path], array, rtol=1e-7, atol=1e-11, equal_nan=True)
            what = f"{value} in keys and values that the mask hides changes {path}, {way(causal)}"
            keep(
                same,
                f"{what} (if the scores keep the mask: those_seen, in minitransformer/arrays.py, makes zeros of them)",
            )


def nothing_to_see(part: Part, *, causal: bool, tier: str) -> None:
    """Of two samples the second is all padding, where a sum of weights to divide by is zero. Y and all gradients stay finite."""
    layer, X, mask = mixer(part), rows(part, 2, N), padding_mask(np.array([N, 0]), N)[:, None]
    with backend(tier), np.errstate(invalid="ignore", divide="ignore"):  # what comes of it is said below
        Y, pullback = layer(some(layer), X, causal=causal, mask=mask)
        dparams, dX = pullback(rows(part, 2, N, seed=3))
    for path, array in tree_items({"Y": Y, "dparams": dparams, "dX": dX}):
        keep(np.isfinite(array).all(), f"where all keys of a sample are hidden, {path} is not finite, {way(causal)}")


def samples_apart(part: Part) -> None:
    """Each sample of a batch gives what it gives alone."""
    layer, X, dY = mixer(part), rows(part, 3, 2, 9), rows(part, 3, 2, 9, seed=3)
    params, causal = some(layer), not can(part, False)
    Y, pullback = layer(params, X, causal=causal)
    _, dX = pullback(dY)
    for sample in np.ndindex(3, 2):
        alone, back = layer(params, X[sample], causal=causal)
        far = differ(Y[sample], alone, 1e-12)
        keep(not far, f"samples are mixed: alone, sample {sample} gives a Y that differs {far}")
        dalone = back(dY[sample])[1]
        far = differ(dX[sample], dalone, 1e-12)
        keep(not far, f"samples are mixed in the backward pass: alone, sample {sample} gets a dX that differs {far}")
