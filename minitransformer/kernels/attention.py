"""Softmax attention, tile by tile, without ever holding the matrix A.

    for each tile of 64 queries, in parallel:
        top, total, Y = −∞, 0, 0                             one entry, or one row of Y, for each query
        for each tile of 64 keys that some of these queries see:
            S = scale · K Qᵀ                                 one small matrix, a key a row, a query a column
            shrink total and Y by exp(old top − new top)     the largest score so far has changed
            P = exp(S − top);  total += Σ P;  Y += Pᵀ V
        Y = Y / total,  L = top + ln total                   L is all that the way back needs to find P again

Why this is fast. A tile of scores (16 kB) stays in the first-level cache: it is made, exponentiated and used up there,
where the matrix A would go out to memory and come back three times. With the queries side by side, the maximum and the
sum over keys run down columns, so 8 or 16 queries (as many as a vector register holds) are handled by one instruction.
Memory is linear in n, and half of the work falls away when attention is causal, because tiles that nobody sees are
skipped.

The way back makes each tile again from L, P = exp(S − L), now with 64 keys side by side, for each tile of keys:

    for each tile of 64 queries that see them:
        P = exp(S − L);  dS = P ⊙ (dY Vᵀ − D)                D_i = ⟨dy_i, y_i⟩, which is Σ_j P_ij dP_ij
        dV += Pᵀ dY;  dK += scale · dSᵀ Q;  dQ += scale · dS K

No two tasks write to the same place, and sums are always taken in the same order: the same input gives the same bits,
whatever the number of threads. To walk through these loops with a debugger set NUMBA_DISABLE_JIT=1.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import prange

from minitransformer.kernels.compiling import compiled, compiled_parallel
from minitransformer.kernels.exp2 import exp2
from minitransformer.kernels.threads import one_parallel_loop
from minitransformer.typing import Array

LANES = 64  # queries (forwards) or keys (backwards) side by side in a tile
LOG2E = math.log2(math.e)

# ------------------------------------------------------------------------------------- the parts of a tile


@compiled
def add_product(A, B, C):
    """C += A B, four rows of A by four rows of B at a time: 16 multiply-adds for 12 loads and stores of a register.

    B and C are LANES wide; rows and columns of A are multiples of four. B and C are taken as one long row, because the
    compiler then sees how their rows lie to each other, and need not ask each time whether they overlap.
    """
    B, C = B.reshape(-1), C.reshape(-1)
    rows, inner = A.shape
    for r in range(0, rows, 4):
        c = C[r * LANES : (r + 4) * LANES]
        for k in range(0, inner, 4):
            b = B[k * LANES : (k + 4) * LANES]
            a00, a01, a02, a03 = A[r, k], A[r, k + 1], A[r, k + 2], A[r, k + 3]
            a10, a11, a12, a13 = A[r + 1, k], A[r + 1, k + 1], A[r + 1, k + 2], A[r + 1, k + 3]
            a20, a21, a22, a23 = A[r + 2, k], A[r + 2, k + 1], A[r + 2, k + 2], A[r + 2, k + 3]
            a30, a31, a32, a33 = A[r + 3, k], A[r + 3, k + 1], A[r + 3, k + 2], A[r + 3, k + 3]
            for i in range(LANES):
                b0, b1, b2, b3 = b[i], b[i + LANES], b[i + 2 * LANES], b[i + 3 * LANES]
                c[i] = c[i] + a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                c[i + LANES] = c[i + LANES] + a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                c[i + 2 * LANES] = c[i + 2 * LANES] + a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                c[i + 3 * LANES] = c[i + 3 * LANES] + a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3


@compiled
def transpose_into(XT, X, factor):
    """XT = factor · Xᵀ, with zeros where X has fewer than LANES rows."""
    for c in range(XT.shape[0]):
        for r in range(X.shape[0]):
            XT[c, r] = factor * X[r, c]
        for r in range(X.shape[0], LANES):
            XT[c, r] = 0


@compiled
def fours(count):
    """The next multiple of four."""
    return (count + 3) // 4 * 4


@compiled
def hide(S, mask, i0, j0):
    """S[i, j] = −∞ where mask[i0 + i, j0 + j] is False. An axis of length 1 is broadcast: all read its only entry."""
    along_i, along_j = int(mask.shape[0] > 1), int(mask.shape[1] > 1)
    for i in range(S.shape[0]):
        for j in range(S.shape[1]):
            if not mask[(i0 + i) * along_i, (j0 + j) * along_j]:
                S[i, j] = -np.inf


# --------------------------------------------------------------------------------------------- forwards


@compiled
def exponentiate(S, YT, top, total):
    """Online softmax: from scores S (in base 2) to weights exp2(S − top), when top may have grown.

    A query that has seen no key yet has top = −∞; it subtracts 0 instead, so that its weights are 2^−∞ = 0, not NaN.
    """
    keep, base = np.empty_like(top), np.empty_like(top)
    for i in range(LANES):
        keep[i] = top[i]
    for j in range(S.shape[0]):
        for i in range(LANES):
            top[i] = max(top[i], S[j, i])
    for i in range(LANES):
        base[i] = top[i] if top[i] > -np.inf else top.dtype.type(0)
        keep[i] = exp2(keep[i] - base[i])
        total[i] *= keep[i]
    for j in range(S.shape[0]):
        for i in range(LANES):
            p = exp2(S[j, i] - base[i])
            S[j, i] = p
            total[i] += p
    for c in range(YT.shape[0]):
        for i in range(LANES):
            YT[c, i] *= keep[i]


@compiled
def attend(Q, K, V, mask, causal, m, scale, i0, Y, L):
    """One tile of queries of one head: rows i0 … i0 + 63 of Y and L."""
    n, d, dv = len(L), K.shape[1], V.shape[1]
    rows = min(LANES, n - i0)
    QT = np.empty((d, LANES), Q.dtype)
    transpose_into(QT, Q[i0 : i0 + rows], Q.dtype.type(scale * LOG2E))
    tile = np.empty((LANES, LANES), Q.dtype)
    YT = np.zeros((dv, LANES), Q.dtype)
    top = np.full(LANES, -np.inf, Q.dtype)
    total = np.zeros(LANES, Q.dtype)
    end = i0 + rows + m - n if causal else m  # the keys from here on are seen by no query of the tile
    for j0 in range(0, end, LANES):
        S = tile[: min(LANES, fours(end - j0))]
        S[:] = 0
        add_product(K[j0 : j0 + len(S), :d], QT, S)
        for j in range(len(S)):
            first = j0 + j - (m - n) - i0 if causal else 0  # the first query that sees this key
            for i in range(min(first, LANES) if j0 + j < m else LANES):
                S[j, i] = -np.inf
        if mask.size:
            hide(S[: m - j0, : n - i0].T, mask, i0, j0)
        exponentiate(S, YT, top, total)
        add_product(V[j0 : j0 + len(S), :dv].T, S, YT)
    for i in range(rows):
        L[i0 + i] = (top[i] + np.log2(total[i])) / LOG2E if total[i] != 0 else -np.inf
        share = Y.dtype.type(1 / total[i] if total[i] != 0 else 0)
        for c in range(Y.shape[1]):
            Y[i0 + i, c] = YT[c, i] * share


@compiled_parallel
def forward(Q, K, V, mask, mask_of, causal, m, scale, Y, L):
    """Y and L. One task for each tile of queries of each head; mask[mask_of[b]] is the mask of head b."""
    tiles = (Y.shape[1] + LANES - 1) // LANES
    for task in prange(len(Y) * tiles):
        b, t = task // tiles, task % tiles
        t = t // 2 if t % 2 == 0 else tiles - 1 - t // 2  # first, last, second, …: late tiles cost more when causal
        attend(Q[b], K[b], V[b], mask[mask_of[b]], causal, m, scale, t * LANES, Y[b], L[b])


# -------------------------------------------------------------------------------------------- backwards


@compiled
def attend_back(Q, K, V, dY, L, D, mask, causal, scale, j0, dQT, dK, dV):
    """One tile of keys of one head: rows j0 … j0 + 63 of dK and dV, and what they add to dQ (in transposed tiles)."""
    n, m, d, dv = len(L), len(dK), K.shape[1], V.shape[1]
    keys = min(LANES, m - j0)
    one, zero = Q.dtype.type(1), Q.dtype.type(0)
    KT, VT = np.empty((d, LANES), Q.dtype), np.empty((dv, LANES), Q.dtype)
    transpose_into(KT, K[j0 : j0 + keys], Q.dtype.type(scale * LOG2E))
    transpose_into(VT, V[j0 : j0 + keys], one)
    dKT, dVT = np.zeros((d, LANES), Q.dtype), np.zeros((dv, LANES), Q.dtype)
    square = (LANES, LANES)
    tile_P, tile_dS, dST = np.empty(square, Q.dtype), np.empty(square, Q.dtype), np.empty(square, Q.dtype)
    start = max(0, j0 - (m - n)) // LANES * LANES if causal else 0  # no query before this tile sees any of the keys
    for i0 in range(start, n, LANES):
        rows = min(LANES, n - i0)
        P, dS = tile_P[: fours(rows)], tile_dS[: fours(rows)]
        P[:], dS[:] = 0, 0
        Q_tile, dY_tile = Q[i0 : i0 + len(P), :d], dY[i0 : i0 + len(P), :dv]
        add_product(Q_tile, KT, P)  # scores, in base 2
        add_product(dY_tile, VT, dS)  # dP
        for i in range(rows):
            seen = min(m, i0 + i + m - n + 1) if causal else m
            for j in range(max(0, seen - j0), LANES):
                P[i, j] = -np.inf
        if mask.size:
            hide(P[:rows, : m - j0], mask, i0, j0)
        for i in range(rows):
            base = Q.dtype.type(L[i0 + i] * LOG2E) if L[i0 + i] > -np.inf else zero
            D_i = D[i0 + i]
            for j in range(LANES):
                p = exp2(min(P[i, j] - base, zero))  # when scores are huge, rounding may say more than 1
                P[i, j] = p
                dS[i, j] = p * (dS[i, j] - D_i)
        add_product(dY_tile.T, P, dVT)
        add_product(Q_tile.T, dS, dKT)
        transpose_into(dST, dS, one)
        add_product(K[j0 : j0 + fours(keys), :d].T, dST, dQT[i0 // LANES])
    for j in range(keys):
        for c in range(dK.shape[1]):
            dK[j0 + j, c] = scale * dKT[c, j]
        for c in range(dV.shape[1]):
            dV[j0 + j, c] = dVT[c, j]


@compiled_parallel
def backward(Q, K, V, dY, L, D, mask, mask_of, causal, scale, dQT, dK, dV):
    """dQT, dK and dV. One task for each part of the keys of each head, with a dQT of its own."""
    parts = len(dQT)
    for task in prange(len(dK) * parts):
        b, part = task // parts, task % parts
        for j0 in range(part * LANES, dK.shape[1], parts * LANES):
            attend_back(
                Q[b], K[b], V[b], dY[b], L[b], D[b], mask[mask_of[b]], causal, scale, j0, dQT[part, b], dK[b], dV[b]
            )


# ------------------------------------------------------------------------------------------- in and out


def _padded(X: Array) -> Array:
    """X (B, rows, columns) in the form that the loops take: contiguous, with zeros up to multiples of four."""
    B, rows, columns = X.shape
    if rows % 4 == 0 and columns % 4 == 0:
        return np.require(X, requirements=["C", "A", "W"])
    padded = np.zeros((B, rows + -rows % 4, columns + -columns % 4), X.dtype)
    padded[:, :rows, :columns] = X
    return padded


def _small_mask(mask: Array | None, batch: tuple[int, ...], n: int, m: int) -> tuple[Array, Array]:
    """The different masks, (number, 1 or n, 1 or m), and which of them each of the heads has: nothing is broadcast."""
    B = math.prod(batch)
    if mask is None:
        return np.empty((1, 0, 0), bool), np.zeros(B, np.int64)
    try:
        fits = np.broadcast_shapes(mask.shape, (*batch, n, m)) == (*batch, n, m)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"mask: shape {mask.shape} does not broadcast to the shape of the scores, {(*batch, n, m)}")
    mask = mask.reshape((1,) * (len(batch) + 2 - mask.ndim) + mask.shape)
    mask = mask[tuple(slice(0, 1) if step == 0 else slice(None) for step in mask.strides)]  # undo np.broadcast_to
    *own, rows, columns = mask.shape
    which = np.arange(math.prod(own)).reshape(own)
    small = np.require(mask.reshape(which.size, rows, columns), requirements=["C", "A", "W"])
    return small, np.require(np.broadcast_to(which, batch).reshape(B), requirements=["W"])


class TiledAttentionPullback(NamedTuple):
    """dV = Aᵀ dY,  dA = dY Vᵀ,  dS = A ⊙ (dA − D),  dQ = scale · dS K,  dK = scale · dSᵀ Q.

    A_ij = exp(S_ij − L_i) is found again from L_i = ln Σ_j exp S_ij, which is −∞ if query i sees no key.
    D_i = Σ_j A_ij dA_ij = ⟨dy_i, Σ_j A_ij v_j⟩ = ⟨dy_i, y_i⟩ needs no row of A.
    """

    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    scale: float
    causal: bool
    mask: Array | None

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrix, (*batch, n, m), made again by the definition, in NumPy."""
        n, m = self.Q.shape[-2], self.K.shape[-2]
        sees = np.ones((n, m), bool) if self.mask is None else self.mask
        if self.causal:
            sees = sees & (np.arange(m) <= np.arange(n)[:, None] + (m - n))
        S = np.where(sees, (self.scale * self.Q) @ self.K.mT, self.Q.dtype.type(-np.inf))
        top = S.max(-1, keepdims=True, initial=-np.inf)
        A = np.exp(S - np.where(top == -np.inf, 0, top))
        return A / np.maximum(A.sum(-1, keepdims=True), 1)  # at least exp(0), except in a row that sees nothing

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        Q, K, V, Y, dY = (_heads(X) for X in (self.Q, self.K, self.V, self.Y, dY.astype(self.Y.dtype, copy=False)))
        (B, n, d), m = Q.shape, K.shape[1]
        mask, mask_of = _small_mask(self.mask, self.Q.shape[:-2], n, m)
        D = np.vecdot(dY, Y)
        dK, dV = np.empty(K.shape, K.dtype), np.empty(V.shape, V.dtype)
        parts = max(1, min(16 // max(B, 1), -(-m // LANES)))  # few heads: several tasks for each
        tiles, d_padded = -(-n // LANES), d + -d % 4
        dQT = np.zeros((parts, B, tiles, d_padded, LANES), Q.dtype)
        with one_parallel_loop:
            backward(
                *(_padded(X) for X in (Q, K, V, dY)),
                *(self.L.reshape(B, n), D, mask, mask_of, self.causal, self.scale, dQT, dK, dV),
            )
        dQ = np.multiply(self.scale, dQT.sum(0).mT.reshape(B, tiles * LANES, d_padded)[:, :n, :d], order="C")
        return dQ.reshape(self.Q.shape), dK.reshape(self.K.shape), dV.reshape(self.V.shape)


def _heads(X: Array) -> Array:
    """All batch axes as one: (*batch, n, d) to (B, n, d)."""
    return X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:])


def tiled_attention(
    Q: Array, K: Array, V: Array, *, causal: bool, mask: Array | None, scale: float | None
) -> tuple[Array, TiledAttentionPullback]:
    """`dot_product_attention` in the tier "numba", which has checked the arguments.

    Y = softmax(scale · Q Kᵀ) V

    cost     O(n m (d + dv)) time, half of it if causal; O(n + m) memory
    raises   ValueError for a mask that does not fit
    """
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    scale = Q.dtype.type(1 / math.sqrt(max(Q.shape[-1], 1)) if scale is None else scale)
    small_mask, mask_of = _small_mask(mask, batch, n, m)
    Y = np.empty((*batch, n, V.shape[-1]), Q.dtype)
    L = np.empty((*batch, n), Q.dtype)
    with one_parallel_loop:
        forward(
            *(_padded(_heads(X)) for X in (Q, K, V)),
            *(small_mask, mask_of, bool(causal), m, scale, _heads(Y), L.reshape(len(mask_of), n)),
        )
    return Y, TiledAttentionPullback(Q, K, V, Y, L, scale, bool(causal), mask)
