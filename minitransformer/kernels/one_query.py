"""One new token of two cores that keep keys and values, for all heads in one call. K and V get one row more.

    forgetting       c = c − ln(1 + e^−x),     c / ln 2 = whole + rest          x the logit of its gate
                     the key is [1, −whole, −rest, k],   y = softmax(q Kᵀ/√d + c − c_j) V
    differential     key and value of a pair of heads stand side by side
                     y = norm(softmax(q₁ K₁ᵀ/√d) V − λ softmax(q₂ K₂ᵀ/√d) V)

Why this is fast. There are a few numbers to compute for each head: NumPy spends its time on starting two dozen operations.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.attention import LONG
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.few_queries import attend_few, attend_plainly
from minitransformer.kernels.few_rows import norm_rows
from minitransformer.kernels.step import softplus
from minitransformer.kernels.tiles import LANES
from minitransformer.typing import Array

UNIT = math.log(2)


@compiled
def fade_one(Q, K, V, logits, c, keys, values, m, scale):
    """(Y, c after it), Q, K and V (B, 1, …); row m − 1 of `keys` (B, room, 3 + d) and of `values` is filled."""
    B, d, zero, no_sink = len(Q), Q.shape[2], V.dtype.type(0), V.dtype.type(-np.inf)
    Y, L, after = np.empty(V.shape, V.dtype), np.empty(1, V.dtype), np.empty(B, np.float64)
    query, fades, mask = np.zeros((1, 3 + d), V.dtype), np.zeros(LANES + m, V.dtype), np.empty((1, 0), np.bool_)
    for b in range(B):
        after[b] = c[b] - softplus(-logits[b], zero)
        units = after[b] / UNIT
        whole, row = V.dtype.type(np.rint(units)), keys[b, m - 1]
        rest = V.dtype.type(units - np.rint(units))
        row[0], row[1], row[2] = 1, -whole, -rest
        for i in range(d):
            row[3 + i], query[0, 3 + i] = K[b, 0, i], Q[b, 0, i]
        for i in range(V.shape[2]):
            values[b, m - 1, i] = V[b, 0, i]
        for j in range(m):  # scores are powers of two: c is in these units
            fades[LANES + j] = (whole + keys[b, j, 1]) + (rest + keys[b, j, 2])
        attend_few(query, keys[b], values[b], fades, mask, True, 0, m, 0, scale, no_sink, zero, Y[b], L)
    return Y, after


@compiled
def differ_one(Q, K, V, keys, values, m, lambda_, left, gain, eps, scale):
    """Y (2P, 1, d), Q, K and V likewise; row m − 1 of `keys` and `values` (P, room, 2d) is filled."""
    heads, d = len(Q), Q.shape[2]
    queries, both = np.zeros((heads, 1, 2 * d), V.dtype), np.empty((heads // 2, 2 * d), V.dtype)
    for h in range(heads):  # a query is beside zeros
        for i in range(d):
            at = h % 2 * d + i
            queries[h, 0, at], keys[h // 2, m - 1, at], values[h // 2, m - 1, at] = Q[h, 0, i], K[h, 0, i], V[h, 0, i]
    Y = attend_plainly(queries, keys, values, np.empty((1, 0), V.dtype), m, scale)
    for p in range(len(both)):
        for i in range(2 * d):
            both[p, i] = Y[2 * p, 0, i] - lambda_ * Y[2 * p + 1, 0, i]
    both = norm_rows(both, gain, np.zeros(2 * d, V.dtype), eps, False)
    for p in range(len(both)):
        for i in range(2 * d):
            both[p, i] *= left
    return both.reshape(heads, 1, d)


def _rooms(past: Any, heads: tuple[int, ...], width: int, value_width: int) -> tuple[Any, Array, Array] | None:
    """The state with room for one row more, and its keys and values as (B, room, width); None if it is not of such heads.

    None also if it is long, so that several threads should read it.
    """
    K, V, B = past.K, past.V, math.prod(heads)
    room = K.shape[-2]
    if (K.shape, V.shape) != ((*heads, room, width), (*heads, room, value_width)):
        return None
    if not (K.flags.carray and V.flags.carray) or B * (past.length + 1) * max(width, value_width) > LONG:
        return None
    longer = past.with_room(1)
    room = longer.K.shape[-2]
    return longer, longer.K.reshape(B, room, width), longer.V.reshape(B, room, value_width)


def fade_and_attend(
    Q: Array, K: Array, V: Array, logits: Array, c: Array, past: Any, scale: float
) -> tuple[Array, Any, Array] | None:
    """(Y, keys and values with one row more, c after it) of one token; None if this loop can't do it."""
    heads, dtypes = V.shape[:-2], {X.dtype for X in (Q, K, V, logits, past.K, past.V)}
    fits = (c.shape, c.dtype, logits.shape, len(dtypes)) == (heads, np.float64, (*heads, 1, 1), 1)
    if not fits or (rooms := _rooms(past, heads, 3 + K.shape[-1], V.shape[-1])) is None:
        return None
    longer, *buffers = rooms
    B = math.prod(heads)
    q, k, v = (for_reading(X.reshape(B, 1, X.shape[-1])) for X in (Q, K, V))
    gates = for_reading(logits.reshape(B)), for_reading(c.reshape(B))
    Y, after = fade_one(q, k, v, *gates, *buffers, longer.length, float(scale))
    return Y.reshape(V.shape), longer, after.reshape(heads)


def attend_and_differ(
    Q: Array, K: Array, V: Array, past: Any, lambda_: Any, left: Any, gain: Array, eps: float
) -> tuple[Array, Any] | None:
    """(Y, keys and values with one row more) of one token; None if this loop can't do it."""
    (*batch, H, _, d), dtypes = V.shape, {X.dtype for X in (Q, K, V, past.K, past.V, gain)}
    fits = (Q.shape, K.shape, gain.shape, H % 2, len(dtypes)) == (V.shape, V.shape, (2 * d,), 0, 1)
    if not fits or (rooms := _rooms(past, (*batch, H // 2), 2 * d, 2 * d)) is None:
        return None
    longer, *buffers = rooms
    size = math.prod(V.shape[:-2]), 1, d
    q, k, v = (for_reading(X.reshape(size)) for X in (Q, K, V))
    number = V.dtype.type
    numbers = longer.length, number(lambda_), number(left), for_reading(gain), eps, max(d, 1) ** -0.5
    return differ_one(q, k, v, *buffers, *numbers).reshape(V.shape), longer
