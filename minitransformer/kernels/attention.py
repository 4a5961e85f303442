"""Softmax attention, tile by tile, without ever holding the matrix A.

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

The backward pass makes each tile again from L, P = exp(S − L), now with a query on each row and 64 keys side by side:

    for each tile of 64 keys, in parallel; for each tile of 64 queries that see some of them:
        P = exp(S − L);  dS = P ⊙ (dY Vᵀ − D)                D_i = ⟨dy_i, y_i⟩, which is Σ_j P_ij dP_ij; times 1 − (S/c)²
        dV += Pᵀ dY;  dK += scale · dSᵀ Q;  dQ += scale · dS K

Sparse attention is the same loop over a list of tiles: local, window, dilated, strided, global, BigBird, and whatever has been
sorted. A tile costs what it costs in dense attention; there are fewer. For a tile at an edge of the pattern, a mask of 64 × 64
says which pairs count; a quarter without any is left out, as it is on the diagonal of causal attention. The backward pass takes
the same list, sorted by keys instead of queries.

No two tasks write to the same place, and sums are always taken in the same order: the same input gives the same bits,
whatever the number of threads. To walk through these loops with a debugger set NUMBA_DISABLE_JIT=1.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import (
    FEW,
    as_one_axis,
    finite,
    for_reading,
    heads,
    times,
    unless_hidden,
    without_the_hidden,
)
from minitransformer.gather_scatter import by_offset, for_each_head, sum_by_offset, sum_over_heads, unbroadcast
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2, tanh
from minitransformer.kernels.few_queries import attend_plainly, forward_few, in_base_2, merge_parts, retrieve
from minitransformer.kernels.threads import ENOUGH, borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import (
    HALF,
    LANES,
    add_product,
    fours,
    larger,
    plain_loops,
    product_from,
    rows_of,
    tile,
    transpose_into,
    turn,
)
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

LONG = 2**17  # numbers in the keys, or values, of a few queries: with more, the heads are shared among threads
PART = 1024  # keys of a few queries that are one task, at the least
FAINT = -64  # a weight below 2⁻⁶⁴ counts as zero in the backward pass, see `weights_and_slopes`

# ------------------------------------------------------------------------------------------ what loops are given


class Pairs(NamedTuple):
    """Which pairs of a query and a key count, and what is done to their scores. "In base 2" means multiplied by log₂ e.

    of             (B, 4): for each of the B heads, its row in K and V, in `bias`, in `mask` and in `starts`
    causal         whether query i sees only keys j ≤ i + m − n
    bias           (biases, n + m − 1 + 128), in base 2, with room for a tile at both ends; (1, 0) if there is none
    mask           (masks, n or 1, m or 1), with 1 where it is broadcast; (1, 1, 0) if there is none
    sink           (B,): b of each head, in base 2; −∞ if there is none
    cap            c of S → c tanh(S/c), in base 2; it is applied after the bias and before anything is hidden; 0 if there is none
    starts, tiles  list p says which tiles tile t is paired with: tiles[starts[p, t] : starts[p, t + 1]]. No starts: all of them
    which, blocks  the pairs that count in tiles[s] are blocks[which[s]], 64 × 64; all of them if which[s] is −1
    quarters       in which quarters of tiles[s] any pair counts, as four bits
    """

    of: Array
    causal: bool
    bias: Array
    mask: Array
    sink: Array
    cap: float
    starts: Array
    tiles: Array
    which: Array
    blocks: Array
    quarters: Array


class Known(NamedTuple):
    """What the backward pass starts from, with the batch axes as one. D_i = ⟨dy_i, y_i⟩."""

    Q: Array
    K: Array
    V: Array
    dY: Array  # noqa: N815
    L: Array
    D: Array


class Gradients(NamedTuple):
    """What the backward pass fills: dQ (parts, B, tiles, panels, LANES, LANES), dK (B, m, d), dV (B, m, dv) and
    dbias (parts, B, n + m − 1 + 128, or 0).

    B counts the heads of Q: where heads share keys, what each of them gives to dK and dV is summed afterwards.
    """

    dQ: Array  # noqa: N815
    dK: Array  # noqa: N815
    dV: Array  # noqa: N815
    dbias: Array


# ------------------------------------------------------------------------------------- the parts of a tile


@inside
def hide(S, columns, mask, r0, c0):
    """S[r, c] = −∞ where mask[r0 + r, c0 + c] is False, for c < columns. An axis of the mask with length 1 is broadcast."""
    hidden = S.dtype.type(-np.inf)
    for r in range(len(S)):
        s, row = S[r], mask[r0 + r if len(mask) > 1 else 0]
        if len(row) > 1:
            seen = rows_of(row, c0, c0 + columns)
            for c in range(columns):
                s[c] = s[c] if seen[c] else hidden
        elif not row[0]:
            for c in range(columns):
                s[c] = hidden


@inside
def add_bias(S, bias, start, step):
    """S[r, c] += bias[start + step · r + c]. (With `rows_of` in the place of the slice it takes longer.)"""
    for r in range(len(S)):
        b = bias[start + step * r : start + step * r + LANES]
        for c in range(LANES):
            S[r, c] += b[c]


@inside
def cap_scores(S, cap):
    """S = c tanh(S/c)."""
    s, inverse = S.reshape(-1), S.dtype.type(1) / cap
    for i in range(len(s)):
        s[i] = cap * tanh(s[i] * inverse)


@inlined
def slopes_of_cap(S, cap, slopes):
    """slopes = 1 − (S/c)², the slope of the cap, from scores S that have been capped."""
    s, to, one = S.reshape(-1), slopes.reshape(-1), S.dtype.type(1)
    inverse = one / cap
    for i in range(len(s)):
        t = s[i] * inverse
        to[i] = one - t * t


@inlined
def multiply(dS, slopes):
    """dS = dS ⊙ slopes."""
    d, by = dS.reshape(-1), slopes.reshape(-1)
    for i in range(len(d)):
        d[i] *= by[i]


# Of a tile whose pairs do not all count, some quarters may be empty: on the diagonal of causal attention one, at the edge of a
# window up to three. Such a tile is computed in strips of half its rows, each in those columns where any pair counts. Bits 0 and
# 1 of a number say of the left and right half of the upper rows whether any does; bits 2 and 3, below.
ABOVE_RIGHT, BELOW_LEFT, ALL_QUARTERS = 2, 4, 15


@inlined
def quarters_of(pairs, number, i, j, ahead):
    """The quarters of tile `number`, whose first query and key stand at i and j; `ahead` is that of early queries, late keys."""
    some = pairs.quarters[number] if pairs.starts.size > 0 else ALL_QUARTERS
    return some & ~ahead if pairs.causal and i == j else some


@inside
def strips_of(rows, some):
    """Which rows of a tile are computed, from where to where, and how many at a time."""
    if some == ALL_QUARTERS:
        return 0, rows, rows
    return 0 if some & 3 else HALF, LANES if some & 12 else HALF, HALF


@inside
def columns_of(r, some):
    """From where to where a strip of rows that begins at row r has columns in which any pair counts."""
    some >>= r // HALF * 2
    return 0 if some & 1 else HALF, LANES if some & 2 else HALF


@inside
def clear(X):
    """X = 0."""
    for r in range(len(X)):
        for c in range(X.shape[1]):
            X[r, c] = 0


# --------------------------------------------------------------------------------------------- forwards


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


# -------------------------------------------------------------------------------------------- backwards


@inlined
def in_panels(X, space):
    """The rows of X cut into panels of LANES columns: space[p, r, c] = X[r, p · LANES + c]."""
    for r in range(X.shape[0]):
        for c in range(X.shape[1]):
            space[c // LANES, r, c % LANES] = X[r, c]


@inlined
def weights_and_slopes(P, dS, L, D):
    """From scores P (in base 2) and dS = dP: P = exp(S − L) and dS = P ⊙ (dP − D), row by row.

    Weights below 2⁻⁶⁴ count as zero. Beside a row's sum of one they are less than half a last digit. Their products would
    often be smaller than 2⁻¹²⁶, the smallest normal float32, and a processor takes ten times longer over such numbers, or
    more; the attention of a trained model is full of them.
    """
    zero, faint = P.dtype.type(0), P.dtype.type(FAINT)
    for i in range(len(L)):
        base = zero if L[i] == -np.inf else P.dtype.type(L[i] * LOG2E)
        D_i = D[i]
        for j in range(LANES):
            x = P[i, j] - base
            x = zero if x > zero else x  # when scores are huge, rounding may say more than 0; a NaN stays one
            p = zero if x < faint else exp2(x)
            P[i, j] = p
            dS[i, j] = p * (dS[i, j] - D_i)  # undoes p = exp2(s − base), later divided by the row's total


@inlined
def collect(Q, dY, K_panels, left, right, P, dS, loops, dQ, i, dKT, dVT):
    """dV += Pᵀ dY,  dK += dSᵀ Q (both transposed),  dQ += dS K (in panels), from a strip of weights P and slopes dS.

    left, right   from where to where its queries see keys of the tile
    i             its first row in the tile
    """
    product_from(dVT, dY.T, P, dVT, left, right, loops)  # undoes Y += P V
    product_from(dKT, Q.T, dS, dKT, left, right, loops)  # undoes S = Q Kᵀ, for K
    for p in range(len(dQ)):
        columns, dQ_p = min(LANES, Q.shape[1] - p * LANES), rows_of(dQ[p], i, i + len(P))
        add_product(dS[:, left:right], K_panels[p, left:right], dQ_p, columns, loops)  # and for Q


@inside
def write_columns(XT, factor, X):
    """X = factor · XTᵀ, for as many rows and columns as X has."""
    factors = np.empty(len(X), X.dtype)
    for r in range(len(X)):
        factors[r] = factor
    turn(XT, factors, X)


@inlined
def attend_back(known, pairs, b, part, t, scale, loops, gradients):
    """Fill 64 rows of dK[b] and dV[b], for tile t of the keys; add what the tile gives to dQ[part, b] and dbias[part, b]."""
    kv, its_bias, its_mask, its_list = pairs.of[b]
    Q, K, V, dY, L, D = known.Q[b], known.K[kv], known.V[kv], known.dY[b], known.L[b], known.D[b]
    dQ, dK, dV, dbias = gradients.dQ[part, b], gradients.dK[b], gradients.dV[b], gradients.dbias[part, b]
    bias, mask, j0 = pairs.bias[its_bias], pairs.mask[its_mask], t * LANES
    n, m, d, dv = len(L), len(dK), K.shape[1], V.shape[1]
    keys, panels, cap = min(LANES, m - j0), dQ.shape[1], Q.dtype.type(pairs.cap)
    room = tile(2 * (d + dv) + (2 + panels + (cap > 0)) * LANES, Q)
    KT, VT, room = rows_of(room, 0, d), rows_of(room, d, d + dv), rows_of(room, d + dv, len(room))
    dKT, dVT, room = rows_of(room, 0, d), rows_of(room, d, d + dv), rows_of(room, d + dv, len(room))
    P_space, dS_space = rows_of(room, 0, LANES), rows_of(room, LANES, 2 * LANES)
    room = rows_of(room, 2 * LANES, len(room))
    K_panels = rows_of(room, 0, panels * LANES).reshape(panels, LANES, LANES)
    slopes = rows_of(room, panels * LANES, len(room))
    transpose_into(KT, rows_of(K, j0, j0 + keys), Q.dtype.type(scale * LOG2E))
    transpose_into(VT, rows_of(V, j0, j0 + keys), Q.dtype.type(1))
    in_panels(rows_of(K, j0, j0 + keys), K_panels)
    listed = pairs.starts.size > 0
    start = max(0, j0 - (m - n)) // LANES if pairs.causal else 0  # no query before this tile sees any of the keys
    first, stop = (
        (pairs.starts[its_list, t], pairs.starts[its_list, t + 1]) if listed else (start, (n + LANES - 1) // LANES)
    )
    for number in range(first, stop):
        i0 = (pairs.tiles[number] if listed else number) * LANES
        if i0 < start * LANES:
            continue
        rows = min(LANES, n - i0)
        P, dS = rows_of(P_space, 0, fours(rows)), rows_of(dS_space, 0, fours(rows))
        Q_tile, dY_tile = rows_of(Q, i0, i0 + len(P)), rows_of(dY, i0, i0 + len(P))
        some = quarters_of(pairs, number, i0 + m - n, j0, ABOVE_RIGHT) if len(P) == LANES else ALL_QUARTERS
        above, below, strip = strips_of(len(P), some)
        if strip < len(P):
            clear(dS)
        for i in range(above, below, strip):
            until, (left, right) = i + strip, columns_of(i, some)
            its_P, its_dS = rows_of(P, i, until), rows_of(dS, i, until)
            # S = Q Kᵀ once more, in base 2; and dP = dY Vᵀ, which undoes Y += P V
            product_from(rows_of(P, 0, 0), rows_of(Q_tile, i, until), KT, its_P, left, right, loops)
            product_from(rows_of(dS, 0, 0), rows_of(dY_tile, i, until), VT, its_dS, left, right, loops)
        if bias.size:
            add_bias(rows_of(P, 0, rows), bias, j0 - i0 + n - 1 + LANES, -1)
        if cap > 0:
            cap_scores(P, cap)
            slopes_of_cap(P, cap, slopes)
        for i in range(rows):
            seen = min(m, i0 + i + m - n + 1) if pairs.causal else m
            for j in range(max(0, seen - j0), LANES):
                P[i, j] = -np.inf
        if mask.size:
            hide(rows_of(P, 0, rows), keys, mask, i0, j0)
        until = min(below, rows)
        if listed and pairs.which[number] >= 0:
            hide(rows_of(P, above, until), keys, pairs.blocks[pairs.which[number]], above, 0)
        its_L, its_D = rows_of(L, i0 + above, i0 + until), rows_of(D, i0 + above, i0 + until)
        weights_and_slopes(rows_of(P, above, until), rows_of(dS, above, until), its_L, its_D)
        if cap > 0:
            multiply(dS, slopes)  # undoes cap_scores(S)
        for i in range(above, below, strip):
            until, (left, right) = i + strip, columns_of(i, some)
            its_Q, its_dY, right = rows_of(Q_tile, i, until), rows_of(dY_tile, i, until), min(right, fours(keys))
            its_P, its_dS = rows_of(P, i, until), rows_of(dS, i, until)
            collect(its_Q, its_dY, K_panels, left, right, its_P, its_dS, loops, dQ[i0 // LANES], i, dKT, dVT)
        for i in range(rows if dbias.size else 0):
            db = dbias[j0 - i0 - i + n - 1 + LANES : j0 - i0 - i + n - 1 + 2 * LANES]
            for j in range(LANES):
                db[j] += dS[i, j]  # undoes add_bias(S)
    write_columns(dKT, Q.dtype.type(scale), rows_of(dK, j0, j0 + keys))
    write_columns(dVT, Q.dtype.type(1), rows_of(dV, j0, j0 + keys))


@compiled
def backward(known, pairs, scale, loops, gradients, queue):
    """Fill the gradients, with a task for each part of the keys of each head. Each part has a dQ and a dbias of its own."""
    known, pairs, gradients = borrowed((known, pairs, gradients))
    parts = len(gradients.dQ)
    for task in claimed(queue, len(gradients.dK) * parts):
        b, part = task // parts, task % parts
        for t in range(part, (gradients.dK.shape[1] + LANES - 1) // LANES, parts):
            attend_back(known, pairs, b, part, t, scale, loops, gradients)


# ------------------------------------------------------------------------------------------- in and out


def padded(X: Array) -> Array:
    """X (*batch, rows, columns) as (B, rows, columns) for the loops: contiguous, with zeros up to multiples of four."""
    X = as_one_axis(X, 0, -2)
    B, rows, columns = X.shape
    if rows % 4 == 0 and columns % 4 == 0:
        return for_reading(X)
    wider = np.zeros((B, rows + -rows % 4, columns + -columns % 4), X.dtype)
    wider[:, :rows, :columns] = X
    return wider


def _distinct(X: Array, batch: tuple[int, ...], keep: int) -> tuple[Array, Array]:
    """X without the copies that broadcasting made, (few, *last `keep` axes); and which of the few each of the batch has, (B,)."""
    X = X.reshape((1,) * (len(batch) + keep - X.ndim) + X.shape)
    if 0 in X.strides:  # undo np.broadcast_to
        X = X[tuple(slice(0, 1) if step == 0 else slice(None) for step in X.strides)]
    own = X.shape[: X.ndim - keep]
    which = np.arange(math.prod(own)).reshape(own)
    few = for_reading(X.reshape(which.size, *X.shape[X.ndim - keep :]))
    return few, (which if own == batch else np.broadcast_to(which, batch)).reshape(math.prod(batch))


NONE = np.empty(0, np.int64)
NOT_LISTED = np.empty((0, 0), np.int64), NONE, NONE, np.empty((0, 0, 0), bool), NONE


@functools.lru_cache
def _groups(heads: int, of_keys: int) -> Array:
    """`Pairs.of` with its first column, for neighbouring heads that share keys and values; the other columns are zero."""
    of = np.zeros((heads, 4), np.int64)
    of[:, 0] = np.arange(heads) // max(1, heads // max(of_keys, 1))
    return of


@functools.lru_cache
def _nothing(dtype: str, heads: int) -> tuple[Array, Array, Array]:
    """What `Pairs` holds where there is no bias, no mask and no sink."""
    return np.empty((1, 0), dtype), np.empty((1, 1, 0), bool), np.full(heads, -np.inf, dtype)


def _pairs(
    Q: Array, K: Array, m: int, bias: Array | None, mask: Array | None, causal: bool,
    sink: Array | None = None, cap: float | None = None,
) -> Pairs:  # fmt: skip
    """All pairs of the queries and the first m keys, less those that `mask` hides and, if causal, those in the future."""
    batch, n = Q.shape[:-2], Q.shape[-2]
    of = _groups(math.prod(batch), math.prod(K.shape[:-2]))
    biases, masks, sinks = _nothing(Q.dtype.char, len(of))
    if bias is not None or mask is not None:
        of = of.copy()
    if bias is not None:
        few, of[:, 1] = _distinct(bias, batch, 1)
        offsets = max(n + m - 1, 0)
        biases = np.zeros((len(few), offsets + 2 * LANES), Q.dtype)
        np.multiply(few, LOG2E, out=biases[:, LANES:-LANES], casting="same_kind")
    if mask is not None:
        masks, of[:, 2] = _distinct(mask, batch, 2)
    if sink is not None:
        sinks = np.multiply(np.broadcast_to(sink, batch), LOG2E, dtype=Q.dtype).reshape(len(of))
    return Pairs(of, causal, biases, masks, sinks, float(cap or 0) * LOG2E, *NOT_LISTED)


def _forwards(pairs: Pairs, pattern: Any) -> Pairs:
    """These pairs as `forward` takes them: keys on the rows of masks, biases reversed, and the lists of the pattern."""
    turned = pairs._replace(bias=np.ascontiguousarray(pairs.bias[:, ::-1]), mask=np.ascontiguousarray(pairs.mask.mT))
    if pattern is None:
        return turned
    return _listed(turned, pattern, pattern.starts, pattern.tiles, pattern.which, pattern.masks.mT)


def _backwards(pairs: Pairs, pattern: Any) -> Pairs:
    """These pairs as `backward` takes them: the lists of the pattern turned round, query tiles for each key tile."""
    if pattern is None:
        return pairs
    lists, tiles, columns = len(pattern.starts), pattern.starts.shape[1] - 1, -(-pattern.m // LANES)
    row = np.repeat(np.arange(lists * tiles), np.diff(pattern.starts).ravel())
    key = row // tiles * columns + pattern.tiles if tiles else row
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(lists)[:, None] * columns + np.arange(columns + 1))
    return _listed(pairs, pattern, starts, row[order] % max(tiles, 1), pattern.which[order], pattern.masks)


def _listed(pairs: Pairs, pattern: Any, starts: Array, tiles: Array, which: Array, blocks: Array) -> Pairs:
    of = pairs.of.copy()
    # one list for all heads, or one for each of the last batch axis
    of[:, 3] = np.arange(len(of)) % len(pattern.starts)
    starts, tiles, which = (np.require(X, np.int64, ["C", "W"]) for X in (starts, tiles, which))
    blocks = np.require(blocks, bool, ["C", "W"])
    eight_pairs = blocks.view(np.int64).reshape(len(blocks), 2, HALF, 2, HALF // 8)
    of_blocks = eight_pairs.any((2, 4)).reshape(-1, 4) @ np.array([1, 2, 4, 8])
    quarters = np.append(of_blocks, ALL_QUARTERS)[which]  # which is −1 for a tile without a block
    return pairs._replace(of=of, starts=starts, tiles=tiles, which=which, blocks=blocks, quarters=quarters)


def matrix(
    Q: Array, K: Array, scale: float, sees: Array, bias: Array | None = None, sink: Array | None = None,
    cap: float | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The attention matrix A, (*batch, n, m), which the loops never hold, made in NumPy; and the slopes of the cap, or 1."""
    S, slopes = (scale * Q) @ for_each_head(K, Q.shape[:-2]).mT, Q.dtype.type(1)
    if bias is not None:
        S += by_offset(bias, *S.shape[-2:])
    if cap:
        S = np.tanh(S / S.dtype.type(cap))
        S, slopes = S.dtype.type(cap) * S, 1 - S * S
    S = np.where(sees, S, S.dtype.type(-np.inf))
    beside = S.dtype.type(-np.inf) if sink is None else sink[..., None, None]
    top = np.maximum(S.max(-1, keepdims=True, initial=-np.inf), beside)
    top = np.where(top == -np.inf, S.dtype.type(0), top)
    A = np.exp(S - top)
    total = A.sum(-1, keepdims=True) + np.exp(beside - top)
    return A / np.maximum(total, 1), slopes  # at least exp(0), except in a row that sees nothing


def from_panels(dQ: Array, scale: float, shape: tuple[int, ...]) -> Array:
    """The parts of dQ, (parts, B, tiles, panels, LANES, LANES), summed and times `scale`, in the shape of Q."""
    B, n, d = math.prod(shape[:-2]), *shape[-2:]
    whole = (dQ[0] if len(dQ) == 1 else dQ.sum(0)).swapaxes(-3, -2)
    whole = whole.reshape(B, whole.shape[1] * LANES, whole.shape[3] * LANES)[:, :n, :d]
    return np.multiply(scale, whole, order="C").reshape(shape)


class TiledAttentionPullback(Pullback):
    """dV = Aᵀ dY,  dA = dY Vᵀ,  dS = A ⊙ (dA − D),  dQ = scale · dS K,  dK = scale · dSᵀ Q,  dbias = diagonal sums of dS.

    A_ij = exp(S_ij − L_i) is found again from L_i = ln Σ_j exp S_ij, which is −∞ if query i sees no key.
    D_i = Σ_j A_ij dA_ij = ⟨dy_i, Σ_j A_ij v_j⟩ = ⟨dy_i, y_i⟩ needs no row of A. A pair that is not seen has A_ij = 0.
    With a sink b, L_i includes e^b. The sink takes the weight e^{b − L_i}, but its value is zero: db = Σ_i e^{b − L_i} (0 − D_i).
    With a cap c, dS is also multiplied by 1 − (S/c)².
    """

    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    scale: float
    causal: bool
    mask: Array | None
    bias: Array | None
    pattern: Any
    sink: Array | None = None
    cap: float | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrix, (*batch, n, m), made again by the definition, in NumPy."""
        return self._weights_and_slopes()[0]

    def _weights_and_slopes(self) -> tuple[Array, Array]:
        n, m = self.Q.shape[-2], self.K.shape[-2]
        sees = np.ones((n, m), bool) if self.mask is None else self.mask
        if self.pattern is not None:
            sees = sees & self.pattern.mask
        if self.causal:
            sees = sees & (np.arange(m) <= np.arange(n)[:, None] + (m - n))
        return matrix(self.Q, self.K, self.scale, sees, self.bias, self.sink, self.cap)

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        dY = dY.astype(self.Y.dtype, copy=False)
        batch, n, m, d = self.Q.shape[:-2], self.Q.shape[-2], self.K.shape[-2], self.Q.shape[-1]
        B, dv = math.prod(batch), self.V.shape[-1]
        pairs = _pairs(self.Q, self.K, m, self.bias, self.mask, self.causal, self.sink, self.cap)
        pairs = _backwards(pairs, self.pattern)
        Q, K, V, padded_dY = (padded(X) for X in (self.Q, self.K, self.V, dY))
        D = np.vecdot(dY, self.Y)
        known = Known(Q, K, V, padded_dY, self.L.reshape(B, n), D.reshape(B, n))
        parts = max(1, min(-(-8 // max(B, 1)), -(-m // LANES)))  # few heads: several tasks for each
        gradients = Gradients(
            dQ=np.zeros((parts, B, -(-n // LANES), -(-d // LANES), LANES, LANES), dY.dtype),
            dK=np.empty((B, m, d), dY.dtype),
            dV=np.empty((B, m, dv), dY.dtype),
            dbias=np.zeros((parts, B, 0 if self.bias is None else pairs.bias.shape[-1]), dY.dtype),
        )
        tasks = B * parts if B * n * m * d > ENOUGH else 1
        in_parallel(tasks, backward, known, pairs, self.scale, plain_loops(), gradients)
        dQ, dK, dV, dbias = gradients
        dX = [from_panels(dQ, self.scale, self.Q.shape)]
        dX += [sum_over_heads(G.reshape(*batch, *G.shape[1:]), X.shape) for G, X in ((dK, self.K), (dV, self.V))]
        if self.bias is not None:
            dX.append(unbroadcast(dbias.sum(0)[:, LANES:-LANES].reshape(*batch, max(n + m - 1, 0)), self.bias.shape))
        hides = self.causal or self.mask is not None or self.pattern is not None
        if hides and not all(map(finite, dX)):
            dX = self._without_the_hidden(dY, D)
        if self.sink is not None:
            weight = np.exp(self.sink[..., None] - np.where(self.L == -np.inf, self.L.dtype.type(0), self.L))
            dX.append(unbroadcast(-(weight * D).sum(-1), self.sink.shape))
        return tuple(dX)

    def _without_the_hidden(self, dY: Array, D: Array) -> list[Array]:
        """The gradients again, in NumPy: a NaN in a key or value reaches only who sees it. In the tiles 0 · NaN is NaN."""
        batch, (A, slopes) = self.Q.shape[:-2], self._weights_and_slopes()
        K, V = (for_each_head(X, batch) for X in (self.K, self.V))
        with np.errstate(invalid="ignore"):  # 0 · ∞
            dS = np.where(A == 0, A.dtype.type(0), A * slopes * (unless_hidden(dY @ V.mT, A) - D[..., None]))
        dK, dV = self.scale * times(dS.mT, self.Q), times(A.mT, dY)
        dX = [self.scale * times(dS, K), sum_over_heads(dK, self.K.shape), sum_over_heads(dV, self.V.shape)]
        if self.bias is not None:
            dX.append(unbroadcast(sum_by_offset(dS), self.bias.shape))
        return dX


def _few(q: Array, k: Array, v: Array, pairs: Any, m: int, scale: float, much: bool) -> tuple[Array, Array]:
    """(Y, L) of a few queries, (B, n, …). Parts of the keys are tasks of their own, if there is much to read."""
    parts = max(1, min(m // PART, 16)) if much else 1
    (B, n, _), dv = q.shape, v.shape[-1]
    Y, L = np.empty((parts, B, n, dv), q.dtype), np.empty((parts, B, n), q.dtype)
    in_parallel(B * parts if much else 1, forward_few, q, k, v, pairs, m, scale, Y, L)
    return (Y[0], L[0]) if parts == 1 else merge_parts(Y, L)


def tiled_attention(
    Q: Array,
    K: Array,
    V: Array,
    bias: Array | None,
    sink: Array | None = None,
    *,
    causal: bool,
    mask: Array | None,
    scale: float,
    cap: float | None = None,
    pattern: Any = None,
) -> tuple[Array, TiledAttentionPullback]:
    """`dot_product_attention` and `block_sparse_attention` in the tiers "numba" and "micro"; they have checked the arguments.

    Y = softmax(scale · Q Kᵀ + bias) V

    cost     O(n m (d + dv)) time, half of it if causal and n = m, or O(pattern.pairs (d + dv)); O(n + m) memory
    """
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    if n <= FEW:
        seen = mask if pattern is None else pattern.mask if mask is None else mask & pattern.mask
        pairs = _pairs(Q, K, m, bias, seen, causal, sink, cap)
        Y, L = _few(heads(Q), heads(K), heads(V), pairs, m, scale, K.size > LONG)
        Y, L = Y.reshape(*batch, n, V.shape[-1]), L.reshape(*batch, n)
    else:
        Y, L = np.empty((*batch, n, V.shape[-1]), Q.dtype), np.empty((*batch, n), Q.dtype)
        out = heads(Y), L.reshape(math.prod(batch), n)
        pairs = _forwards(_pairs(Q, K, m, bias, mask, causal, sink, cap), pattern)
        tasks = math.prod(batch) * -(-n // LANES) if math.prod(batch) * n * m * Q.shape[-1] > ENOUGH else 1
        in_parallel(tasks, forward, *(padded(X) for X in (Q, K, V)), pairs, m, scale, plain_loops(), *out)
    pullback = TiledAttentionPullback(Q, K, V, Y, L, scale, causal, mask, bias, pattern, sink, cap)
    if n > FEW and (causal or mask is not None or pattern is not None):
        without_the_hidden(Y, lambda: pullback.A, for_each_head(V, batch))
    return Y, pullback


def attend_to_buffer(
    Q: Array, K: Array, V: Array, m: int, bias: Array | None, mask: Array | None, scale: float,
    sink: Array | None = None, cap: float | None = None,
) -> Array:  # fmt: skip
    """`attend_to_buffer` of attention/dot_product.py, in the tiers "numba" and "micro"."""
    B, n, dv = math.prod(Q.shape[:-2]), Q.shape[-2], V.shape[-1]
    q, k, v = map(heads, (Q, K, V))
    if mask is None and sink is None and cap is None and B * m * dv <= LONG:
        added, rows = np.empty((1, 0), Q.dtype), 0 if bias is None else bias.size // max(m, 1)
        if n == 1 and bias is not None and (rows == 1 or bias.shape[:-1] in (Q.shape[-3:-2], Q.shape[:-2])):
            added = in_base_2(bias.reshape(rows, m))
        if bias is None or added.size:
            return attend_plainly(q, k, v, added, m, float(scale)).reshape(*Q.shape[:-1], dv)
    pairs = _pairs(Q, K, m, bias, mask, True, sink, cap)
    return _few(q, k, v, pairs, m, scale, B * m * dv > LONG)[0].reshape(*Q.shape[:-1], dv)


def retrieve_from_buffer(Q: Array, K: Array, V: Array, m: int, scale: float, steps: int, tolerance: float) -> Array:
    """Y of `hopfield_attention` for the last queries, causally, among the first m rows of longer arrays."""
    Y = np.empty((*Q.shape[:-1], V.shape[-1]), Q.dtype)
    arrays = (as_one_axis(for_reading(X), 0, -2) for X in (Q, K, V))
    tasks = math.prod(Q.shape[:-2]) if K.shape[-1] * m * math.prod(Q.shape[:-2]) > LONG else 1
    in_parallel(tasks, retrieve, *arrays, m, float(Q.dtype.type(scale)), steps, tolerance**2, as_one_axis(Y, 0, -2))
    return Y
