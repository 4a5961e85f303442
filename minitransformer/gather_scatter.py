"""One array used in several places: the gradient is the sum over the places. In pairs, forward and backward."""

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from minitransformer.ranges import so_many
from minitransformer.typing import Array, Float, checked


def by_offset(bias: Array, n: int, m: int) -> Array:
    """B_ij = bias_{j − i + n − 1}: one number for each offset, (…, n + m − 1), as a matrix (…, n, m), without a copy."""
    bias = np.broadcast_to(bias, (*bias.shape[:-1], max(n + m - 1, 0)))
    if n == 0 or m == 0:
        return np.zeros((*bias.shape[:-1], n, m), bias.dtype)
    return sliding_window_view(bias, m, axis=-1)[..., n - 1 :: -1, :]


def sum_by_offset(dB: Array) -> Array:
    """dbias_o = Σ_{j − i + n − 1 = o} dB_ij: the sums along the diagonals, (…, n, m) to (…, n + m − 1)."""
    *batch, n, m = dB.shape
    dbias = np.zeros((*batch, max(n + m - 1, 0)), dB.dtype)
    for i in range(n):
        dbias[..., n - 1 - i : n - 1 - i + m] += dB[..., i, :]
    return dbias


def sum_by_index(dX: Array, index: Array, size: int) -> Array:
    """dtable_b = Σ_{index_k = b} dX_k: back through X = table[…, index], (…, *index.shape) to (…, size).

    Batch axes in front are kept; samples that share a table are cheaper if they are summed first. If each row i of a matrix
    has a table of its own, index + size · i is its index into all of them, one after another.
    """
    batch = dX.shape[: dX.ndim - index.ndim]
    flat, rows = index.ravel().astype(np.intp, copy=False), dX.reshape(math.prod(batch), index.size)
    dtable = np.zeros((len(rows), size), dX.dtype)
    for row, sums in zip(rows, dtable, strict=True):
        sums[:] = np.bincount(flat, row, size)
    return dtable.reshape(*batch, size)


@checked
def split_heads(X: Float[Array, "*batch n D"], heads: int) -> Float[Array, "*batch {heads} n d"]:
    """(*batch, n, H·d) to (*batch, H, n, d): head h gets columns h·d … (h+1)·d − 1. Its gradient is `merge_heads`."""
    if X.shape[-1] % heads:
        raise ValueError(f"heads: {so_many(X.shape[-1], 'column')} can't be divided into {heads} heads")
    X = X.reshape(*X.shape[:-1], heads, X.shape[-1] // heads)
    return np.ascontiguousarray(X.swapaxes(-2, -3))


@checked
def merge_heads(X: Float[Array, "*batch heads n d"]) -> Float[Array, "*batch n D"]:
    """(*batch, H, n, d) to (*batch, n, H·d): the inverse of `split_heads`, and so also its gradient."""
    X = X.swapaxes(-2, -3)
    return X.reshape(*X.shape[:-2], X.shape[-2] * X.shape[-1])


def for_each_head(K: Array, batch: tuple[int, ...]) -> Array:
    """Keys of G heads for H = G r heads of queries: head h has the keys of h // r. (…, G, m, d) to (…, H, m, d)."""
    return K if K.shape[:-2] == batch else np.repeat(K, batch[-1] // K.shape[-3], axis=-3)


def sum_over_heads(dK: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the r heads that share their keys: (…, H, m, d) to (…, G, m, d)."""
    return dK if dK.shape == shape else dK.reshape(*shape[:-2], dK.shape[-3] // shape[-3], *shape[-2:]).sum(-3)


def heads_fit(K: Array, batch: tuple[int, ...]) -> bool:
    """Whether K has keys for each head of a batch of queries (*batch, n, d), or for each group of r neighbouring heads."""
    own = K.shape[:-2]
    if own == batch:
        return True
    return len(own) == len(batch) and own[:-1] == batch[:-1] and own[-1] > 0 and batch[-1] % own[-1] == 0


def refuse_other_heads(Q: Array, heads: int) -> None:
    """Raise ValueError unless Q is (…, H, n, d) with this H, as a layer needs that has something for each head."""
    if Q.ndim < 3 or Q.shape[-3] != heads:
        raise ValueError(f"Q: shape {Q.shape} should be (…, {heads}, n, d), with {so_many(heads, 'head')}")


def unbroadcast(dX: Array, shape: tuple[int, ...]) -> Array:
    """The gradient of an array of this shape that NumPy has broadcast: dX summed over the axes along which it was repeated."""
    dX = dX.sum(tuple(range(dX.ndim - len(shape))))
    repeated = tuple(axis for axis, length in enumerate(shape) if length == 1 and dX.shape[axis] != 1)
    return dX.sum(repeated, keepdims=True)
