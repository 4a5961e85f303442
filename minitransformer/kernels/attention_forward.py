"""Softmax attention forwards, tile by tile.

    for each tile of 64 queries, in parallel:
        top, total, Y = −∞, 0, 0                             one entry, or one row of Y, for each query; b, 1, 0 with a sink b
        for each tile of 64 keys that some of these queries see, or of a list:
            S = scale · K Qᵀ                                 one small matrix, a key a row, a query a column; or c tanh(S/c)
            shrink total and Y by exp(old top − new top)     the largest score so far has changed
            P = exp(S − top);  total += Σ P;  Y += Pᵀ V
        Y = Y / total,  L = top + ln total                   L is all that the backward pass needs to find P again

Why this is fast. A tile of scores (16 KiB in float32) stays in the first-level cache: it is made, exponentiated and used up
there, where the matrix A passes to or from memory ten times in NumPy (chapter 17 counts). With the queries side by side, the
maximum and the sum over keys run down columns, so 4, 8 or 16 queries (as many as a vector register holds) are handled
by one instruction. Memory is linear in n, and half of the work falls away when attention is causal, because tiles that
nobody sees are skipped.
"""

import numpy as np

from minitransformer.kernels.attention_pairs import ALL_QUARTERS, BELOW_LEFT
from minitransformer.kernels.attention_scores import add_bias, cap_scores, columns_of, hide, quarters_of, strips_of
from minitransformer.kernels.compiling import compiled, inlined
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.threads import borrowed, claimed
from minitransformer.kernels.tiles import LANES, fours, larger, product_from, rows_of, tile, transpose_into, turn


@inlined
def exponentiate(S, YT, rows):
    """Online softmax: from scores S (in base 2) to weights exp2(S − top), when top may have grown.

    rows     top, total, and two rows of scratch
    Four keys are compared at a time, so that top is read and written less often. A query that has seen no key yet has
    top = −∞; it subtracts 0 instead, so that its weights are 2^−∞ = 0, not NaN.
    """
    top, total, before, base = rows[0], rows[1], rows[2], rows[3]
    for i in range(LANES):
        before[i] = top[i]
    s = S.reshape(-1)
    for j in range(0, len(S), 4):
        r = rows_of(s, j * LANES, (j + 4) * LANES)
        for i in range(LANES):
            first, last = max(r[i], r[i + LANES]), max(r[i + 2 * LANES], r[i + 3 * LANES])
            top[i] = larger(top[i], max(first, last))
    grown = False
    for i in range(LANES):
        grown |= top[i] > before[i]
        base[i] = top[i] if top[i] > -np.inf else top.dtype.type(0)
        before[i] = exp2(before[i] - base[i])
        total[i] *= before[i]
    for j in range(len(S)):
        p = rows_of(s, j * LANES, (j + 1) * LANES)
        for i in range(LANES):
            p[i] = exp2(p[i] - base[i])
            total[i] += p[i]
    if grown:  # the more keys have been seen, the less often
        for c in range(YT.shape[0]):
            for i in range(LANES):
                YT[c, i] *= before[i]


@inlined
def attend(Q, K, V, pairs, b, t, m, scale, loops, Y, L):
    """Fill rows 64 t … 64 t + 63 of Y[b] and L[b]: tile t of the queries of head b."""
    kv, its_bias, its_mask, its_list = pairs.of[b]
    q, k, v, bias, mask, i0 = Q[b], K[kv], V[kv], pairs.bias[its_bias], pairs.mask[its_mask], t * LANES
    n, d, dv = L.shape[1], K.shape[2], V.shape[2]
    rows = min(LANES, n - i0)
    room = tile(d + dv + LANES + 4, Q)
    QT, YT, room = rows_of(room, 0, d), rows_of(room, d, d + dv), rows_of(room, d + dv, len(room))
    space, numbers = rows_of(room, 0, LANES), rows_of(room, LANES, LANES + 4)
    transpose_into(QT, rows_of(q, i0, i0 + rows), Q.dtype.type(scale * LOG2E))
    sink, cap = pairs.sink[b], Q.dtype.type(pairs.cap)
    for i in range(LANES):
        numbers[0, i] = sink
        numbers[1, i] = 1 if sink > -np.inf else 0
    end = i0 + rows + m - n if pairs.causal else m  # the keys from here on are seen by no query of the tile
    listed = pairs.starts.size > 0
    start, stop = (
        (pairs.starts[its_list, t], pairs.starts[its_list, t + 1]) if listed else (0, (end + LANES - 1) // LANES)
    )
    for number in range(start, stop):
        j0 = (pairs.tiles[number] if listed else number) * LANES
        if j0 >= end:
            break
        S = rows_of(space, 0, min(LANES, fours(end - j0)))
        some = quarters_of(pairs, number, i0 + m - n, j0, BELOW_LEFT) if len(S) == LANES else ALL_QUARTERS
        first, last, strip = strips_of(len(S), some)
        for j in range(first, last, strip):
            its, (left, right) = rows_of(S, j, j + strip), columns_of(j, some)
            product_from(rows_of(S, 0, 0), rows_of(k, j0 + j, j0 + j + strip), QT, its, left, min(right, rows), loops)
        if bias.size:
            add_bias(S, bias, i0 - j0 + m - 1 + LANES, -1)
        if cap > 0:
            cap_scores(S, cap)
        for j in range(len(S)):
            hidden = j0 + j - (m - n) - i0 if pairs.causal else 0  # from how many queries, the first ones
            for i in range(min(hidden, LANES) if j0 + j < m else LANES):
                S[j, i] = -np.inf
        if mask.size:
            hide(S[: m - j0], rows, mask, j0, i0)
        if listed and pairs.which[number] >= 0:
            hide(rows_of(S, first, last), rows, pairs.blocks[pairs.which[number]], first, 0)
        exponentiate(rows_of(S, first, last), YT, numbers)
        for j in range(first, last, strip):
            its, (left, right) = rows_of(S, j, j + strip), columns_of(j, some)
            product_from(YT, rows_of(v, j0 + j, j0 + j + strip).T, its, YT, left, min(right, rows), loops)
    write_rows(YT, numbers[0], numbers[1], i0, Y[b], L[b])


@inlined
def write_rows(YT, top, total, i0, Y, L):
    """Y = YT / total and L = top + log total, for the queries of a tile that exist."""
    rows, shares = min(LANES, len(L) - i0), np.empty(LANES, Y.dtype)
    for i in range(rows):
        L[i0 + i] = (top[i] + np.log2(total[i])) / LOG2E if total[i] != 0 else -np.inf
        shares[i] = Y.dtype.type(1 / total[i] if total[i] != 0 else 0)
    turn(YT, shares, rows_of(Y, i0, i0 + rows))


@compiled
def forward(Q, K, V, pairs, m, scale, loops, Y, L, queue):
    """Fill Y and L, with a task for each tile of queries of each head. Masks have keys on their rows, as S has."""
    Q, K, V, pairs, Y, L = borrowed((Q, K, V, pairs, Y, L))
    tiles = (Y.shape[1] + LANES - 1) // LANES
    for task in claimed(queue, len(Y) * tiles):
        b, t = task // tiles, task % tiles
        t = t // 2 if t % 2 == 0 else tiles - 1 - t // 2  # first, last, second, …: late tiles cost more when causal
        attend(Q, K, V, pairs, b, t, m, scale, loops, Y, L)
