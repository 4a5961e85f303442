"""The rules for what must reach nothing: later tokens, padding, what a mask hides, and other samples."""

import numpy as np

from minitransformer.attention import Core, Mixer, padding_mask
from minitransformer.attention.core import Part
from minitransformer.backend import backend
from minitransformer.contract.parts import (
    N,
    called,
    can,
    differ,
    heads_for,
    keep,
    mixer,
    padding,
    rows,
    some,
    way,
    with_gradients,
)
from minitransformer.typing import Array

THOSE = "if the scores keep the mask: those_seen, in minitransformer/arrays.py, makes zeros of keys and values"
WHERE = "where_seen, in minitransformer/attention/core.py, makes zeros of what a mask of keys hides"


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
            f"the future leaks: tokens 40 to {N - 1} were changed, and with them Y of token {seen.argmax()} (causal_mask(n, m), "
            "in minitransformer/attention/masks.py, says which of m keys the last n queries see)",
        )
    keep(own, "tokens 40 and later were changed, and their own Y was not")


def _changed_by_later(part: Part, n: int, tier: str) -> tuple[Array, bool]:
    """Which of the first tokens of n, all but 30, get another Y if the others are changed; and whether those do themselves."""
    layer, X, there = mixer(part), rows(part, 2, n, dtype=np.float32), n - 30
    later = X.copy()
    later[:, there:] += 1
    with backend(tier):
        Y, _ = called(layer, some(layer, np.float32), X, causal=True)
        Z, _ = called(layer, some(layer, np.float32), later, causal=True)
    return (Y[:, :there] != Z[:, :there]).any(-1).any(0), bool((Y[:, there:] != Z[:, there:]).any())


def padding_changes_nothing(part: Part, *, causal: bool, tier: str) -> None:
    """Padding changes neither Y of the real tokens nor Y of the other sample, and gets no gradient; and it may be left out."""
    layer, X = mixer(part), rows(part, 2, N, dtype=np.float32)
    other, there = X.copy(), N - 5
    other[1, there:] = 9
    dY = rows(part, 2, N, dtype=np.float32, seed=3)
    dY[1, there:] = 0
    with backend(tier):
        Y, pullback = called(layer, some(layer, np.float32), X, causal=causal, mask=padding(N))
        Z, _ = called(layer, some(layer, np.float32), other, causal=causal, mask=padding(N))
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
    for few in (7, there):
        _padding_left_out(layer, X[:1].astype(np.float64), dY[:1].astype(np.float64), few, causal=causal, tier=tier)


def _padding_left_out(layer: Mixer, X: Array, dY: Array, there: int, *, causal: bool, tier: str) -> None:
    """A sample that is padded gives what its tokens give alone, but for rounding; and so do all gradients."""
    params, n = some(layer), X.shape[1]
    dY = np.where(np.arange(n)[:, None] < there, dY, 0)
    with backend(tier):
        Y, pullback = called(layer, params, X, causal=causal, mask=padding_mask(np.array([there]), n)[:, None])
        alone, back = called(layer, params, X[:, :there], causal=causal)
        (dparams, dX), (dparams_alone, dX_alone) = pullback(dY), back(dY[:, :there])
    padded = with_gradients(Y[:, :there], (dX[:, :there], dparams), "X", "params")
    single = with_gradients(alone, (dX_alone, dparams_alone), "X", "params")
    keep(padded.keys() == single.keys(), f"with a mask, other parameters get a gradient than without, {way(causal)}")
    for path, array in single.items():
        far = differ(padded[path], array, 1e-10 * max(1, np.abs(array).max(initial=0)))
        where = f"where all tokens but {there} are left out instead of masked"
        keep(not far, f"the padding counts: {where}, {path} differs {far}, {way(causal)}")


def hidden_reaches_nothing(part: Part, *, causal: bool, tier: str) -> None:
    """What stands in a hidden token, be it NaN or infinite, changes Y of no other; of a core, its key and its value change no Y.

    Where all of Y is as it was, so is every gradient of a core: 0 · NaN would be another.
    """
    params, rng = some(part), np.random.default_rng(5)
    if isinstance(part, Core):
        given = dict(zip(("Q", "K", "V", *part.streams), heads_for(part, 20), strict=True))
    else:
        given = {"X": rows(part, 2, 20)}
    mask = padding(20)
    dY = rng.standard_normal(given["V" if isinstance(part, Core) else "X"].shape)
    hidden = np.zeros((2, *(1,) * (dY.ndim - 3), 20, 1), bool)
    hidden[1, ..., 15:, :] = True

    def everything(name: str, value: float) -> dict[str, Array]:
        arrays = given | {name: np.where(hidden, value, given[name])}
        if isinstance(part, Core) and part.queries_are_keys:
            arrays["K"] = arrays["Q"]
        with backend(tier), np.errstate(invalid="ignore"):  # ∞ − ∞, in a score that is hidden
            Y, pullback = called(part, params, *arrays.values(), causal=causal, mask=mask, rng=None)
            return with_gradients(Y, pullback(dY), "params", *given)

    def same(a: Array, b: Array) -> bool:
        return np.allclose(a, b, rtol=1e-7, atol=1e-11, equal_nan=True)

    for name in given:
        if name == "K" and isinstance(part, Core) and part.queries_are_keys:
            continue
        expected = everything(name, 9.0)
        for value in (np.nan, np.inf):
            found = everything(name, value)
            what = f"{value} in {name} of a token that the mask hides changes"
            hint = THOSE if name in ("K", "V") else WHERE
            there = np.where(hidden, 0, found["Y"]), np.where(hidden, 0, expected["Y"])
            keep(same(*there), f"{what} Y of others, {way(causal)} ({hint})")
            own = name not in ("K", "V") and not same(found["Y"], expected["Y"])  # its own Y, which nobody reads
            for path, array in () if own or name == "X" else expected.items():
                keep(same(found[path], array), f"{what} {path}, {way(causal)} ({hint})")


def nothing_to_see(part: Part, *, causal: bool, tier: str) -> None:
    """Of two samples the second is all padding, where a sum of weights to divide by is zero. Y and all gradients stay finite."""
    layer, X, mask = mixer(part), rows(part, 2, N), padding_mask(np.array([N, 0]), N)[:, None]
    with backend(tier), np.errstate(invalid="ignore", divide="ignore"):  # what comes of it is said below
        Y, pullback = called(layer, some(layer), X, causal=causal, mask=mask)
        found = with_gradients(Y, pullback(rows(part, 2, N, seed=3)), "params", "X")
    for path, array in found.items():
        keep(np.isfinite(array).all(), f"where all keys of a sample are hidden, {path} is not finite, {way(causal)}")


def samples_apart(part: Part) -> None:
    """Each sample of a batch gives what it gives alone."""
    layer, X, dY = mixer(part), rows(part, 3, 2, 9), rows(part, 3, 2, 9, seed=3)
    params, causal = some(layer), not can(part, False)
    Y, pullback = called(layer, params, X, causal=causal)
    _, dX = pullback(dY)
    for sample in np.ndindex(3, 2):
        alone, back = called(layer, params, X[sample], causal=causal)
        far = differ(Y[sample], alone, 1e-12)
        keep(not far, f"samples are mixed: alone, sample {sample} gives a Y that differs {far}")
        dalone = back(dY[sample])[1]
        far = differ(dX[sample], dalone, 1e-12)
        keep(not far, f"samples are mixed in the backward pass: alone, sample {sample} gets a dX that differs {far}")
