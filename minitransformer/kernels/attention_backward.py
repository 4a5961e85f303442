"""Softmax attention backwards, tile by tile: each tile of weights is made again from L, with a query on each row and 64 keys
side by side.

    for each tile of 64 keys, in parallel; for each tile of 64 queries that see some of them:
        P = exp(S − L);  dS = P ⊙ (dY Vᵀ − D)                D_i = ⟨dy_i, y_i⟩, which is Σ_j P_ij dP_ij; times 1 − (S/c)²
        dV += Pᵀ dY;  dK += scale · dSᵀ Q;  dQ += scale · dS K

Why this is fast. As forwards (attention_forward.py), a tile stays in the first-level cache. One of its five products is
made again, S = Q Kᵀ, and so no P is ever read from memory.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.kernels.attention_pairs import ABOVE_RIGHT, ALL_QUARTERS
from minitransformer.kernels.attention_scores import add_bias, cap_scores, columns_of, hide, quarters_of, strips_of
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.threads import borrowed, claimed
from minitransformer.kernels.tiles import (
    LANES,
    add_product,
    fours,
    product_from,
    rows_of,
    tile,
    transpose_into,
    turn,
)
from minitransformer.typing import Array

FAINT = -64  # a weight below 2⁻⁶⁴ counts as zero in the backward pass, see `weights_and_slopes`


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


@inside
def clear(X):
    """X = 0."""
    for r in range(len(X)):
        for c in range(X.shape[1]):
            X[r, c] = 0


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
