"""Rows and pairs at indices that differ from sample to sample, and the way back. An index of −1, or of n or more, stands for no
row: "nobody" below.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import as_one_axis, must_broadcast
from minitransformer.typing import Array


def who_is_there(mask: Array | None, shape: tuple[int, ...]) -> tuple[Array | None, Array]:
    """The mask, with two axes at least, or None; and which of the m keys any query sees, (…, m).

    raises   ValueError for a mask that does not broadcast to the shape, (*batch, n, m)
    """
    if mask is None:
        return None, np.ones(shape[-1], bool)
    mask = np.atleast_2d(must_broadcast(mask, shape))
    return mask, np.any(mask, axis=-2)


def only_those_there(there: Array, *arrays: Array) -> tuple[Array, ...]:
    """The arrays with zeros in the rows that are not there, so that no NaN spreads from these.

    there    (…, m); an array of fewer rows, such as Q, has the last of them
    """
    if there.all():
        return arrays
    return tuple(np.where(there[..., there.shape[-1] - X.shape[-2] :, None], X, X.dtype.type(0)) for X in arrays)


def rows_at(X: Array, index: Array) -> Array:
    """The rows of X (*batch, n, w) at an index (*batch, groups, a): (*batch, groups, a, w); for nobody, any row of X."""
    *batch, n, _ = X.shape  # rows are copied whole: NumPy would look up number by number
    first = n * np.arange(math.prod(batch)).reshape(*batch, 1, 1)
    return as_one_axis(X, 0, -1)[first + np.clip(index, 0, n - 1)]


def sum_rows(dX: Array, index: Array, n: int) -> Array:
    """Back through `rows_at`: (*batch, groups, a, w) to (*batch, n, w). No row may be twice in a group."""
    *batch, groups, _, w = dX.shape
    rows, index = as_one_axis(dX, 0, -3), as_one_axis(index, 0, -2)
    whole = np.zeros((len(rows), n + 1, w), dX.dtype)  # the last row is nobody's
    samples = np.arange(len(rows))[:, None]
    for group in range(groups):
        whole[samples, index[:, group]] += rows[:, group]
    return whole[:, :n].reshape(*batch, n, w)


def sum_of_rows(dX: Array, index: Array, n: int) -> Array:
    """Back through `rows_at` where a row may be in a group several times; a column at a time."""
    *batch, _, _, w = dX.shape
    samples = np.arange(math.prod(batch)).reshape(*batch, 1, 1)
    place = (np.where(index < 0, n, index) + (n + 1) * samples).ravel().astype(np.intp, copy=False)
    columns = np.moveaxis(dX, -1, 0).reshape(w, place.size)
    whole = np.empty((math.prod(batch) * (n + 1), w), dX.dtype)
    for c, column in enumerate(columns):
        whole[:, c] = np.bincount(place, column, len(whole))
    return whole.reshape(*batch, n + 1, w)[..., :n, :]


def of_pairs(X: Array, index: Array) -> Array:
    """The numbers of X (…, n) at an index (…, groups, a, b) of positions, in the shape of the index; for nobody, any of them."""
    flat = as_one_axis(np.clip(index, 0, X.shape[-1] - 1), -3)
    return np.take_along_axis(np.broadcast_to(X, (*flat.shape[:-1], X.shape[-1])), flat, -1).reshape(index.shape)


def at_pairs(mask: Array | None, shape: tuple[int, ...], i: Array, j: Array) -> Any:
    """The mask, broadcast to (*batch, n, m), at rows i (…, groups, a, 1) and columns j (…, groups, 1, b); True without a mask.

    True also for a mask with one row: the keys that it hides are not there at all, and left out elsewhere.
    """
    if mask is None or mask.shape[-2] == 1:
        return True
    *batch, n, m = shape
    samples = np.arange(np.prod(batch, dtype=int)).reshape(*batch, 1, 1, 1)
    rows, columns = np.clip(i, 0, n - 1), np.clip(j, 0, m - 1)
    return as_one_axis(np.broadcast_to(mask, shape), 0, -2)[samples, rows, columns]
