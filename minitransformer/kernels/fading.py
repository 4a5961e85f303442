"""One new token of attention that forgets (attention/linear/forgetting.py), for all heads in one call:

    c = c − ln(1 + e^−x),     c / ln 2 = whole + rest                   x the logit of its gate
    the row [1, −whole, −rest, k] behind the keys, v behind the values
    y = softmax(q Kᵀ/√d + c − c_j) V

Why this is fast. There are a dozen numbers to compute for each head: NumPy spends its time on starting two dozen operations.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.attention import LONG
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.few_queries import attend_few
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
        attend_few(query, keys[b], values[b], fades, mask, True, m, scale, no_sink, zero, Y[b], L)
    return Y, after


def fade_and_attend(
    Q: Array, K: Array, V: Array, logits: Array, c: Array, past: Any, scale: float
) -> tuple[Array, Any, Array] | None:
    """(Y, keys and values with one row more, c after it) of one token; None for what has to go the usual way."""
    heads, d, dv = V.shape[:-2], K.shape[-1], V.shape[-1]
    of_keys, of_values = ((*X.shape[:-2], X.shape[-1]) for X in (past.K, past.V))
    fits = (of_keys, of_values, c.shape, logits.shape) == ((*heads, 3 + d), (*heads, dv), heads, (*heads, 1, 1))
    fits &= {X.dtype for X in (Q, K, V, logits, past.K, past.V)} == {V.dtype} and c.dtype == np.float64
    fits &= past.K.flags.carray and past.V.flags.carray
    B = math.prod(heads)
    if not fits or B * (past.length + 1) * max(3 + d, dv) > LONG:
        return None
    longer = past.with_room(1)
    q, k, v = (for_reading(X.reshape(B, 1, X.shape[-1])) for X in (Q, K, V))
    keys, values = (X.reshape(B, *X.shape[-2:]) for X in (longer.K, longer.V))
    numbers = for_reading(logits.reshape(B)), for_reading(c.reshape(B)), keys, values, longer.length, float(scale)
    Y, after = fade_one(q, k, v, *numbers)
    return Y.reshape(V.shape), longer, after.reshape(heads)
