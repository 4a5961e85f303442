"""Helpers of definitions and compiled loops: dtypes, shapes, initial weights, scales, 1 / D where D may be 0, hidden NaNs."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.ranges import so_many
from minitransformer.typing import Array

FEW = 4  # up to so many new tokens count as generation; more of them are a text that is read


def one_dtype(**arrays: Array | None) -> None:
    """Refuse a mixture of float32 and float64, which NumPy would quietly turn into float64."""
    if len({a.dtype for a in arrays.values() if a is not None}) > 1:
        dtypes = {name: str(a.dtype) for name, a in arrays.items() if a is not None}
        raise TypeError(f"{', '.join(dtypes)}: should have one dtype, got {', '.join(dtypes.values())}")


def row_of_integers(X: Any, name: str) -> None:
    """Raise ValueError unless X is a one-dimensional array of integers."""
    if not isinstance(X, np.ndarray) or X.ndim != 1 or X.dtype.kind not in "iu":
        got = f"{X.dtype} of shape {X.shape}" if isinstance(X, np.ndarray) else type(X).__name__
        raise ValueError(f"{name}: should be a one-dimensional array of integers, got {got}")


def for_reading(X: Array) -> Array:
    """X, C-contiguous and aligned, for a loop that only reads.

    Numba compiles a loop again for a read-only array, such as the value of a public function. If the array that owns its memory
    is writable, the loop gets a view of that one, with the same entries. Otherwise it gets a copy.
    """
    if X.flags.carray:
        return X
    owner = X.base
    if not X.flags.writeable and type(owner) is np.ndarray and owner.flags.carray:
        X = np.ndarray(X.shape, X.dtype, owner, X.ctypes.data - owner.ctypes.data, X.strides)
    return np.require(X, requirements=["C", "A", "W"])


def as_one_axis(X: Array, start: int, stop: int | None = None) -> Array:
    """X with its axes start … stop − 1 merged into one, also if X is empty, where reshape(−1) can't infer the length."""
    start, stop, _ = slice(start, stop).indices(X.ndim)
    return X.reshape(*X.shape[:start], math.prod(X.shape[start:stop]), *X.shape[stop:])


def one_batch(X: Array) -> Array:
    """Batch axes merged into one, for a loop: (*batch, n, d) to (B, n, d). A copy only if a loop can't read X in place."""
    return for_reading(X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]))


def uniform(rng: np.random.Generator, shape: tuple[int, ...], dtype: type) -> Array:
    """A matrix (or a stack of them) with entries of variance 1 / rows: it keeps the variance of what it multiplies."""
    return rng.uniform(-1, 1, shape).astype(dtype) * dtype(math.sqrt(3 / shape[-2]))


def outer_sum(X: Array, dY: Array) -> Array:
    """Σ x_rᵀ dy_r over all rows of all samples, (…, D) and (…, E) to (D, E): the gradient of W in Y = X W."""
    rows = tuple(range(X.ndim - 1))
    return np.tensordot(X, dY, (rows, rows))


def scale_for(d: int, given: float | None = None) -> float:
    """The factor for scores ⟨q, k⟩ of vectors of width d: the scale that is given, or 1/√d (1 if d is 0).

    A sum of d products of variance 1 has variance d; divided by √d, variance 1.
    """
    return 1 / math.sqrt(max(d, 1)) if given is None else given


def orders(rng: np.random.Generator, size: int, n: int) -> Array:
    """(size, n): each row is a random permutation of 0 … n − 1."""
    return rng.permuted(np.tile(np.arange(n), (size, 1)), axis=1)


def in_blocks(X: Array, block: int) -> Array:
    """(*batch, n, w) to (*batch, ⌈n/block⌉, block, w), the last block filled up with zeros."""
    *batch, n, w = X.shape
    if n % block:
        X = np.concatenate([X, np.zeros((*batch, -n % block, w), X.dtype)], -2)
    return X.reshape(*batch, -(-n // block), block, w)


def from_blocks(X: Array, n: int) -> Array:
    """The inverse of `in_blocks`, and so also its gradient."""
    return as_one_axis(X, -3, -1)[..., :n, :]


def inverse(D: Array) -> Array:
    """1 / D, and 0 where D is zero, or nearly: a query whose weights sum to zero gives zeros.

    Where |D| is below 5 · 10⁻³¹ in float32, 1 / D, or a product with it in the backward pass, could overflow.
    """
    nearly_zero = np.abs(D) < np.finfo(D.dtype).tiny ** 0.8
    return np.divide(1, D, out=np.zeros_like(D), where=~nearly_zero)


def finite(X: Array) -> bool:
    """Whether all numbers are finite, and so is the sum of their squares: one pass, without a temporary array."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.vdot(X, X)))


def zero_if_minus_infinite(X: Array) -> Array:
    """X, with 0 in place of −∞: a largest score or a ln Σ exp of no keys, from which −∞ − (−∞) would be NaN."""
    return np.where(np.isneginf(X), X.dtype.type(0), X)


def without_the_hidden(Y: Array, weights: Callable[[], Array], V: Array) -> Array:
    """Y = A V, corrected so that a value of weight zero does not count, even if it is NaN: in a matrix product 0 · NaN is NaN.

    The rows of Y that are not finite are summed again, in place. `weights` gives A, and is called only if there are any.
    """
    if finite(Y):
        return Y
    A = weights()
    for row in zip(*np.nonzero(~np.isfinite(Y).all(-1)), strict=True):
        counts = A[row] != 0
        Y[row] = A[row][counts] @ V[row[:-1]][counts]
    return Y


def times(A: Array, V: Array) -> Array:
    """The product A V, in which a row of V does not count where its weight is zero, even if it holds NaN."""
    with np.errstate(invalid="ignore"):  # 0 · ∞
        Y = A @ V
    return without_the_hidden(Y, lambda: A, V)


def unless_hidden(dA: Array, A: Array) -> Array:
    """dA, the gradient of weights, with 0 where a weight is zero and a NaN or ∞ in its hidden value made dA not finite."""
    if finite(dA):
        return dA
    return np.where((A == 0) & ~np.isfinite(dA), dA.dtype.type(0), dA)


def those_seen(mask: Array | None, *arrays: Array) -> tuple[Array, ...]:
    """Arrays (*batch, m, w) with zeros at the keys that no query sees by this mask, so that no NaN of theirs goes anywhere."""
    if mask is None:
        return arrays
    there = np.any(np.atleast_2d(mask), -2)[..., None]
    return arrays if there.all() else tuple(np.where(there, X, X.dtype.type(0)) for X in arrays)


def must_be_for_heads(X: Array, batch: tuple[int, ...], name: str) -> None:
    """Raise ValueError unless X is one number for all heads, or an array that broadcasts to (*batch,), one number for each."""
    if X.ndim:
        must_broadcast(X, batch, name, "one number for each head")


def refuse_more_queries(n: int, m: int) -> None:
    """Raise ValueError unless n queries can be the last of m positions."""
    if n > m:
        raise ValueError(
            f"Q: {n} queries for {so_many(m, 'key')}: should be at most {m}, at the last of their positions"
        )


def refuse_indivisible(width: int, heads: int) -> None:
    """Raise ValueError unless rows of this width can be split into this number of heads."""
    if width % heads:
        raise ValueError(f"width: {width} is not divisible into {heads} heads")


def refuse_other_lengths(Q: Array, K: Array, because: str) -> None:
    """Raise ValueError unless there are as many keys as queries."""
    n, m = Q.shape[-2], K.shape[-2]
    if n != m:
        queries = "1 query" if n == 1 else f"{n} queries"
        raise ValueError(f"K: {so_many(m, 'key')} for {queries} should be as many: {because}")


def must_broadcast(mask: Array, shape: tuple[int, ...], name: str = "mask", what: str = "the scores") -> Array:
    """The mask (or another array), if it broadcasts to the shape of the scores without making them larger.

    raises   ValueError with both shapes, if not
    """
    try:
        fits = mask.ndim > 0 and np.broadcast_shapes(mask.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        does_not = "does not" if mask.ndim else "should have an axis at least, and"
        raise ValueError(f"{name}: shape {mask.shape} {does_not} broadcast to the shape of {what}, {tuple(shape)}")
    return mask
