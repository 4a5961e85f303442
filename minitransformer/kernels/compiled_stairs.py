"""The stairs of chapter 17 that are compiled, and its ceilings.

    dot_order        `three_loops` of staircase.py, compiled
    saxpy_order      the same sums with the loops in another order
    tiles_by_rows    tiles and the online softmax, each query on a row of a tile of scores
    tiles_by_lanes   each query in a column, so that a vector instruction serves many of them
    multiply_adds    the ceiling of arithmetic: how many multiply-adds a core can do
    copy             the ceiling of memory: how fast numbers come from there and go back

The stairs compute Y = softmax(Q Kᵀ / √d) V for one head: Q (n, d), K (m, d), V (m, dv). The tiles need n and m in multiples of
64, d in multiples of four and dv = 64. The stairs above them are `attention_forward.py`, which needs nothing of the kind.
"""

import math

import numpy as np

from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.staircase import three_loops
from minitransformer.kernels.threads import claimed
from minitransformer.kernels.tiles import LANES, add_product, product, tile, transpose_into

dot_order = compiled(three_loops)


@compiled
def saxpy_order(Q, K, V):
    """The innermost loop is y += a x, on rows: no step waits for another."""
    KT, Y = np.ascontiguousarray(K.T), np.zeros((len(Q), V.shape[1]), Q.dtype)
    for i in range(len(Q)):
        s, y = np.zeros(len(K), Q.dtype), Y[i]
        for c in range(Q.shape[1]):
            for j in range(len(K)):
                s[j] += Q[i, c] * KT[c, j]
        w = np.exp((s - s.max()) / math.sqrt(Q.shape[1]))
        for j in range(len(V)):
            for c in range(V.shape[1]):
                y[c] += w[j] * V[j, c]
        y /= w.sum()
    return Y


@compiled
def online_by_rows(S, Y, top, total):
    """Scores become exp(S − top), a query a row; the sums shrink if top has grown."""
    for i in range(LANES):
        s, before = S[i], top[i]
        for j in range(LANES):
            top[i] = max(top[i], s[j])
        shrink = math.exp(before - top[i])
        total[i] *= shrink
        Y[i] *= shrink
        for j in range(LANES):
            s[j] = math.exp(s[j] - top[i])
            total[i] += s[j]


@compiled
def tiles_by_rows(Q, K, V):
    """Tiles of 64 × 64; the products are the plain loops of `tiles.py`."""
    Q, Y, KT = Q * Q.dtype.type(1 / math.sqrt(Q.shape[1])), np.empty((len(Q), LANES), Q.dtype), tile(Q.shape[1], Q)
    S, V_tile, y = tile(LANES, Q), tile(LANES, Q), tile(LANES, Q)
    for i in range(0, len(Q), LANES):
        top, total, y[:] = np.full(LANES, -np.inf, Q.dtype), np.zeros(LANES, Q.dtype), 0
        for j in range(0, len(K), LANES):
            transpose_into(KT, K[j : j + LANES], Q.dtype.type(1))
            product(Q[i : i + LANES], KT, S, LANES, True)
            online_by_rows(S, y, top, total)
            V_tile[:] = V[j : j + LANES]
            add_product(S, V_tile, y, LANES, True)
        Y[i : i + LANES] = y / total.reshape(LANES, 1)
    return Y


@compiled
def online_by_lanes(S, YT, top, total):
    """The same, a key a row: inner loops run along queries, and none of them waits."""
    before = top.copy()
    for j in range(LANES):
        for i in range(LANES):
            top[i] = max(top[i], S[j, i])
    for i in range(LANES):
        before[i] = math.exp(before[i] - top[i])
        total[i] *= before[i]
    YT *= before
    for j in range(LANES):
        for i in range(LANES):
            S[j, i] = math.exp(S[j, i] - top[i])
            total[i] += S[j, i]


@compiled
def tiles_by_lanes(Q, K, V):
    """As `tiles_by_rows`, but with S = K Qᵀ instead of Q Kᵀ, and so Yᵀ = Vᵀ P."""
    Y, QT, S, YT = np.empty((len(Q), LANES), Q.dtype), tile(Q.shape[1], Q), tile(LANES, Q), tile(LANES, Q)
    for i in range(0, len(Q), LANES):
        top, total, YT[:] = np.full(LANES, -np.inf, Q.dtype), np.zeros(LANES, Q.dtype), 0
        transpose_into(QT, Q[i : i + LANES], Q.dtype.type(1 / math.sqrt(Q.shape[1])))
        for j in range(0, len(K), LANES):
            product(K[j : j + LANES], QT, S, LANES, True)
            online_by_lanes(S, YT, top, total)
            add_product(V[j : j + LANES].T, S, YT, LANES, True)
        Y[i : i + LANES] = (YT / total).T
    return Y


# ------------------------------------------------------------------------------------------- the ceilings


@compiled
def multiply_adds(A, B, times, loops, C, queue):
    """C[t] += A B, `times` times, for each task t: what a core reaches if nothing has to be fetched."""
    for t in claimed(queue, len(C)):
        for _ in range(times):
            add_product(A, B, C[t], LANES, loops)


@compiled
def copy(X, Y, queue):
    """Y = X, in queue[1] parts of equal length; what is left over is not copied."""
    length = len(X) // queue[1]
    for part in claimed(queue, queue[1]):
        Y[part * length : (part + 1) * length] = X[part * length : (part + 1) * length]
