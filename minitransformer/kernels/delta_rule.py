"""The delta rule in chunks of 64 positions: a triangular system instead of 64 steps that wait for each other.

    for each chunk of 64, with S as it was before the chunk, heads in parallel:
        L = strict lower part of K Kᵀ                    how far each key has been written to by the ones before it
        solve  E = V − K S − L (β ⊙ E)                   what is new about each value, row by row downwards
        U = β ⊙ E                                        what is written
        Y = Q S + tril(Q Kᵀ) U
        S += Kᵀ U

Why this is fast. Step by step, S (16 kB) is read twice and written once for each position. Here only the rows of E wait for
each other, 16 at a time; all else is products of small matrices. (The inverse of I + L diag(β) is the product of the 64
steps, I − β k kᵀ: its "WY form".)

The way back starts from the last chunk, with G = dS after it, and goes through the same lines upwards:

        W = tril(Q Kᵀ)ᵀ dY + K G                         dU, as far as it comes from Y and S
        solve  W = … + Lᵀ H,  H = −β ⊙ W                 and from the rows of E below; H = −dV
        dV = −H,  dβ_t = ⟨w_t, e_t⟩
        dP = tril(dY Uᵀ),  dL = strict lower part of H Uᵀ
        dQ = dY Sᵀ + dP K
        dK = U Gᵀ + H Sᵀ + dPᵀ Q + (dL + dLᵀ) K
        G += Qᵀ dY + Kᵀ H

It needs E, which is remembered, and S before each chunk: n/64 matrices of r × dv, so memory is linear in n.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.kernel_attention import STRIP, heads, take
from minitransformer.kernels.threads import claimed, in_parallel
from minitransformer.kernels.tiles import LANES, add_product, fours, plain_loops, product, tile, tiles, transpose_into
from minitransformer.typing import Array


@compiled
def triangles(Q, K, KT, sign, L, P, loops):
    """L = sign · strict lower part of K Kᵀ, P = tril(Q Kᵀ). KT becomes Kᵀ."""
    transpose_into(KT, K, K.dtype.type(1))
    product(K, KT, L, LANES, loops)
    product(Q, KT, P, LANES, loops)
    for t in range(LANES):
        for s in range(LANES):
            L[t, s] = sign * L[t, s] if s < t else L.dtype.type(0)
            P[t, s] = P[t, s] if s <= t else P.dtype.type(0)


@compiled
def write(K, Q, V, beta, loops, S_before, E, Y):
    """One head: E and Y, and in S_before (chunks, panels, r, LANES) the state before each chunk."""
    n, dv, like = len(K), V.shape[1], V
    inner, one = S_before.shape[2], V.dtype.type(1)
    Q_tile, K_tile = np.zeros((LANES, inner), V.dtype), np.zeros((LANES, inner), V.dtype)
    KT, L, P, e = tile(inner, like), tile(LANES, like), tile(LANES, like), tile(LANES, like)
    U, y, S = tile(LANES, like), tile(LANES, like), tiles(S_before.shape[1], inner, like)
    for t0 in range(0, n, LANES):
        take(Q, t0, n, 0, Q_tile)
        take(K, t0, n, 0, K_tile)
        triangles(Q_tile, K_tile, KT, -one, L, P, loops)
        rows = min(LANES, n - t0)
        for p in range(len(S)):
            c0 = p * LANES
            width = min(LANES, dv - c0)
            S_before[t0 // LANES, p] = S[p]
            e[:] = 0
            take(V, t0, n, c0, e)
            product(K_tile, S[p], U, width, loops)
            for t in range(LANES):
                for c in range(width):
                    e[t, c] -= U[t, c]
            for a in range(0, LANES, STRIP):
                add_product(L[a : a + STRIP, :a], U[:a], e[a : a + STRIP], width, loops)
                for t in range(a, a + STRIP):
                    for s in range(a, t):
                        overlap = L[t, s]
                        for c in range(LANES):
                            e[t, c] += overlap * U[s, c]
                    gate = beta[t0 + t] if t < rows else V.dtype.type(0)
                    for c in range(LANES):
                        U[t, c] = gate * e[t, c]
            product(Q_tile, S[p], y, width, loops)
            for a in range(0, LANES, STRIP):
                seen = a + STRIP
                add_product(P[a:seen, :seen], U[:seen], y[a:seen], width, loops)
            add_product(K_tile.T, U, S[p], width, loops)
            for t in range(rows):
                row_E, row_Y = E[t0 + t, c0:], Y[t0 + t, c0:]
                for c in range(width):
                    row_E[c], row_Y[c] = e[t, c], y[t, c]


@compiled
def write_back(Q, K, beta, E, S_before, dY, loops, dQ, dK, dV, dbeta):
    """One head: the four gradients, last chunk first."""
    n, dv, like = len(K), E.shape[1], E
    panels, inner = S_before.shape[1:3]
    one, zero = E.dtype.type(1), E.dtype.type(0)
    Q_tile, K_tile = np.zeros((LANES, inner), E.dtype), np.zeros((LANES, inner), E.dtype)
    KT, dQT, dKT, G = tile(inner, like), tile(inner, like), tile(inner, like), tiles(panels, inner, like)
    L, P, dL, dP, dPT = tile(LANES, like), tile(LANES, like), tile(LANES, like), tile(LANES, like), tile(LANES, like)
    e, U, W, H, dy = tile(LANES, like), tile(LANES, like), tile(LANES, like), tile(LANES, like), tile(LANES, like)
    UT, HT, dyT = tile(LANES, like), tile(LANES, like), tile(LANES, like)
    for chunk in range(len(S_before) - 1, -1, -1):
        t0 = chunk * LANES
        rows = min(LANES, n - t0)
        take(Q, t0, n, 0, Q_tile)
        take(K, t0, n, 0, K_tile)
        triangles(Q_tile, K_tile, KT, one, L, P, loops)
        dL[:], dP[:], dQT[:], dKT[:] = 0, 0, 0, 0
        dbeta[t0 : t0 + rows] = 0
        for p in range(panels):
            c0, S = p * LANES, S_before[chunk, p]
            width = min(LANES, dv - c0)
            e[:], dy[:] = 0, 0
            take(E, t0, n, c0, e)
            take(dY, t0, n, c0, dy)
            product(K_tile, G[p], W, LANES, loops)
            add_product(P.T, dy, W, width, loops)
            for a in range(LANES - STRIP, -1, -STRIP):
                after = a + STRIP
                add_product(L[after:, a:after].T, H[after:], W[a:after], width, loops)
                for s in range(after - 1, a - 1, -1):
                    for t in range(s + 1, after):
                        overlap = L[t, s]
                        for c in range(LANES):
                            W[s, c] += overlap * H[t, c]
                    gate = beta[t0 + s] if s < rows else zero
                    for c in range(LANES):
                        H[s, c] = -gate * W[s, c]
                        U[s, c] = gate * e[s, c]
            for t in range(rows):
                row_dV, total = dV[t0 + t, c0:], zero
                for c in range(width):
                    row_dV[c] = -H[t, c]
                for c in range(width):
                    total += W[t, c] * e[t, c]
                dbeta[t0 + t] += total
            transpose_into(UT, U, one)
            transpose_into(HT, H, one)
            transpose_into(dyT, dy, one)
            add_product(dy, UT, dP, LANES, loops)
            add_product(H, UT, dL, LANES, loops)
            add_product(S, dyT, dQT, LANES, loops)
            add_product(S, HT, dKT, LANES, loops)
            add_product(G[p], UT, dKT, LANES, loops)
            add_product(Q_tile.T, dy, G[p], width, loops)
            add_product(K_tile.T, H, G[p], width, loops)
        for t in range(LANES):
            for s in range(t + 1, LANES):
                dP[t, s] = 0
            for s in range(t):
                dL[s, t] = dL[t, s]  # dL + dLᵀ, with nothing on the diagonal
            dL[t, t] = 0
        transpose_into(dPT, dP, one)
        add_product(K_tile.T, dPT, dQT, LANES, loops)
        add_product(Q_tile.T, dP, dKT, LANES, loops)
        add_product(K_tile.T, dL, dKT, LANES, loops)
        for t in range(rows):
            for c in range(K.shape[1]):
                dQ[t0 + t, c] = dQT[c, t]
                dK[t0 + t, c] = dKT[c, t]


@compiled
def forward(Q, K, V, beta, loops, S_before, E, Y, queue):
    """`write` for all heads, a task for each."""
    for h in claimed(queue, len(K)):
        write(K[h], Q[h], V[h], beta[h], loops, S_before[h], E[h], Y[h])


@compiled
def backward(Q, K, beta, E, S_before, dY, loops, dQ, dK, dV, dbeta, queue):
    """`write_back` for all heads, a task for each."""
    for h in claimed(queue, len(K)):
        write_back(Q[h], K[h], beta[h], E[h], S_before[h], dY[h], loops, dQ[h], dK[h], dV[h], dbeta[h])


# ------------------------------------------------------------------------------------------- in and out


class ChunkedDeltaRulePullback(NamedTuple):
    """Chunk by chunk, the last one first: the lines stand at the top of this file.

    E_t = v_t − k_tᵀ S_{t−1}; S_before is the state before each chunk, in panels of 64 columns, for all heads in a row.
    """

    Q: Array
    K: Array
    beta: Array
    E: Array
    S_before: Array

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        if dY.shape != self.E.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.E.shape}")
        Q, K, E, dY = (heads(X) for X in (self.Q, self.K, self.E, dY.astype(self.E.dtype, copy=False)))
        beta = heads(self.beta[..., None])[..., 0]
        dQ, dK, dV, dbeta = (np.empty(X.shape, X.dtype) for X in (self.Q, self.K, self.E, self.beta))
        in_parallel(
            len(K),
            backward,
            *(Q, K, beta, E, self.S_before, dY, plain_loops()),
            *(heads(dQ), heads(dK), heads(dV), dbeta.reshape(beta.shape)),
        )
        return dQ, dK, dV, dbeta


def chunked_delta_rule(Q: Array, K: Array, V: Array, beta: Array) -> tuple[Array, ChunkedDeltaRulePullback]:
    """`delta_rule` in the compiled tiers, which has checked the arguments.

    S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ,   y_t = q_tᵀ S_t

    cost     O(n r dv) time, O(n (r + dv) + n r dv / 64) memory
    """
    *batch, n, dv = V.shape
    Y, E = np.empty(V.shape, V.dtype), np.empty(V.shape, V.dtype)
    chunks, panels, inner = -(-n // LANES), -(-dv // LANES), fours(Q.shape[-1])
    S_before = np.empty((math.prod(batch), chunks, panels, inner, LANES), V.dtype)
    in_parallel(
        len(S_before),
        forward,
        *(heads(Q), heads(K), heads(V), heads(beta[..., None])[..., 0], plain_loops()),
        *(S_before, heads(E), heads(Y)),
    )
    return Y, ChunkedDeltaRulePullback(Q, K, beta, E, S_before)
