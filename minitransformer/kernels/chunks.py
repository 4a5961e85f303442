"""Kernel attention in one sweep over the positions, with a state instead of a matrix.

    S, z = 0, 0                                          all that is remembered: r × dv and r numbers
    for each chunk of 64 positions, heads in parallel:
        P  = tril(A Bᵀ)                                  how the 64 see each other
        N  = A S + P C                                   what they read: the past through S, each other through P
        D  = A z + Σ_j P_ij + ε
        S += Bᵀ C,  z += Σ_j b_j                         and now they are past

With A = φ(Q), B = φ(K) and C = V this is N_i = Σ_j≤i ⟨a_i, b_j⟩ c_j: attention before the division, Y = N / D.

Why this is fast. The plain recurrence reads and writes the whole of S for each position; in chunks of 64 it does so once
for 64 of them, and everything is a product of small matrices, which is what a core does best. P costs O(64 n (r + dv))
extra work, and no memory. While S is small enough to stay in the first-level cache, the recurrence needs none of this: scan.py
has it, for r and dv of at most 64 where each query has a key beside it, and for whatever goes on from a state.

S before each chunk is remembered: n/64 matrices of r × dv, r/64 times as many numbers as V has. The backward pass starts from
the last chunk, with G = Σ_i a_i dn_i⁺ᵀ over the queries after the chunk. It takes D along as one more column of N: dN⁺ is
[dN, dD], C⁺ is [C, 1] and S⁺ is [S, z].

        P = tril(A Bᵀ),  E = tril(dN⁺ C⁺ᵀ)               E is the gradient of P
        dC = Pᵀ dN + B G                                 of G all columns but the last
        dB = Eᵀ A + C⁺ Gᵀ
        dA = E B + dN⁺ S⁺ᵀ
        G += Aᵀ dN⁺

S is never found again by subtraction. When attention is not causal, all of B and C goes into S before the first chunk is read;
in the backward pass dB and dC are made from G after the last chunk.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.arrays import inverse, one_batch
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.pointwise import SMALL
from minitransformer.kernels.scan import Sums, SweptKernelAttentionPullback, swept_kernel_attention
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import (
    LANES,
    add_product,
    fours,
    plain_loops,
    product,
    put,
    share_of,
    tile,
    tiles,
    transpose_into,
)
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

STRIP = 16  # rows of P that are multiplied at once: of the zeros beyond its diagonal whole strips are left out


@inside
def take(X, start, end, c0, into):
    """Copy rows start … start + 63 of X, from column c0 on, into a tile; zeros for rows outside 0 … end − 1."""
    columns = min(X.shape[1] - c0, into.shape[1])
    for i in range(LANES):
        row = start + i
        if 0 <= row < end:
            source = X[row, c0:]
            for c in range(columns):
                into[i, c] = source[c]
        else:
            for c in range(into.shape[1]):
                into[i, c] = 0


@inlined
def sweep(A, B, C, offset, eps, loops, S_before, z_before, Y, D):
    """Y_i = Σ_j ⟨a_i, b_j⟩ c_j over j ≤ i + offset, for one head; divided by D_i if there is a D.

    S_before (chunks, panels, r, LANES) and z_before (chunks, r), with r filled up to a multiple of four, become the sums before
    each chunk; if they have room for one only, those before the first, which are all sums if attention is not causal.
    """
    n, m, dv = len(A), len(B), C.shape[1]
    inner, one, tiny = S_before.shape[2], Y.dtype.type(1), np.finfo(Y.dtype).tiny ** 0.8
    A_tile, B_tile = np.zeros((LANES, inner), Y.dtype), np.zeros((LANES, inner), Y.dtype)
    AT, PT, C_tile, N = tile(inner, Y), tile(LANES, Y), tile(LANES, Y), tile(LANES, Y)
    S, z, total = tiles(S_before.shape[1], inner, Y), np.zeros(inner, Y.dtype), np.empty(LANES, Y.dtype)
    past = min(offset, m)  # what all of them see
    for j0 in range(0, past, LANES):
        take(B, j0, past, 0, B_tile)
        for p in range(len(S)):
            take(C, j0, past, p * LANES, C_tile)
            add_product(B_tile.T, C_tile, S[p], min(LANES, dv - p * LANES), loops)
        add_rows(B_tile, z)
    for i0 in range(0, n, LANES):
        j0 = i0 + offset
        new = j0 < m and j0 + LANES > 0  # whether there are keys at the positions of the chunk
        if i0 == 0 or len(S_before) > 1:
            for p in range(len(S)):
                put(S[p], S_before[i0 // LANES, p])
            for k in range(len(z)):
                z_before[i0 // LANES, k] = z[k]
        take(A, i0, n, 0, A_tile)
        transpose_into(AT, A_tile, one)
        if new:
            take(B, j0, m, 0, B_tile)
            product(B_tile, AT, PT, LANES, loops)
            for j in range(LANES):
                for i in range(j):
                    PT[j, i] = 0
        if D.size:
            total[:] = eps
            for k in range(inner):
                for i in range(LANES):
                    total[i] += z[k] * AT[k, i]
            if new:
                add_rows(PT, total)
        for p in range(len(S)):
            width = min(LANES, dv - p * LANES)
            product(A_tile, S[p], N, width, loops)
            if new:
                take(C, j0, m, p * LANES, C_tile)
                for i in range(0, LANES, STRIP):
                    seen = i + STRIP
                    add_product(PT[:seen, i:seen].T, C_tile[:seen], N[i:seen], width, loops)
                add_product(B_tile.T, C_tile, S[p], width, loops)
            for i in range(min(LANES, n - i0)):
                share = one
                if D.size:
                    share = share_of(one, total[i], tiny)
                target = Y[i0 + i, p * LANES :]
                for c in range(width):
                    target[c] = share * N[i, c]
        if new:
            add_rows(B_tile, z)
        if D.size:
            for i in range(min(LANES, n - i0)):
                D[i0 + i] = total[i]


@inside
def add_rows(X, total):
    """total += Σ_i x_i."""
    for i in range(X.shape[0]):
        for c in range(X.shape[1]):
            total[c] += X[i, c]


@inlined
def sweep_back(A, B, C, dY, Y, D, S_before, z_before, offset, loops, dA, dB, dC):
    """Fill dA, dB and dC of one head, last chunk first; dN⁺ and C⁺ have their last column only if there is a D."""
    n, m, r, dv = len(A), len(B), A.shape[1], C.shape[1]
    inner, outer, one = fours(r), fours(dv + (D.size > 0)), Y.dtype.type(1)
    A_tile, B_tile = np.zeros((LANES, inner), Y.dtype), np.zeros((LANES, inner), Y.dtype)
    C_tile, N = np.zeros((LANES, outer), Y.dtype), np.zeros((LANES, outer), Y.dtype)
    BT, CT, P, E = tile(inner, Y), tile(outer, Y), tile(LANES, Y), tile(LANES, Y)
    some, d, across, down = tile(LANES, Y), tile(LANES, Y), (r + LANES - 1) // LANES, (dv + LANES - 1) // LANES
    G, GT, ST = tiles(down, inner, Y), tiles(across, outer, Y), tiles(across, outer, Y)
    chunks = (n + LANES - 1) // LANES
    for chunk in range(chunks - 1, -1, -1):
        i0, j0 = chunk * LANES, chunk * LANES + offset
        new = j0 < m and j0 + LANES > 0
        take(A, i0, n, 0, A_tile)
        take_gradient(dY, Y, D, i0, N)  # undoes Y = N / D
        if new:
            take(B, j0, m, 0, B_tile)
            take_with_ones(C, j0, m, D.size > 0, C_tile)
            transpose_into(BT, B_tile, one)
            transpose_into(CT, C_tile, one)
            product(A_tile, BT, P, LANES, loops)  # P = A Bᵀ once more
            product(N, CT, E, LANES, loops)  # E = dP, undoes N += P C
            for i in range(LANES):
                for j in range(i + 1, LANES):
                    P[i, j] = E[i, j] = 0
            for p in range(down):
                columns_of(N, p, some)
                product(B_tile, G[p], d, LANES, loops)  # undoes S += Bᵀ C, for C
                for a in range(0, LANES, STRIP):  # undoes N += P C, for C
                    add_product(P[a:, a : a + STRIP].T, some[a:], d[a : a + STRIP], LANES, loops)
                give(d, j0, m, p, dC)
        if chunk == chunks - 1 or len(S_before) > 1:
            turn(S_before[chunk if len(S_before) > 1 else 0], dv, ST)
            for k in range(r if D.size else 0):
                ST[k // LANES, dv, k % LANES] = z_before[chunk if len(S_before) > 1 else 0, k]
        for q in range(across):
            product(N, ST[q], d, LANES, loops)  # undoes N = A S, for A
            if new:
                columns_of(B_tile, q, some)
                for a in range(0, LANES, STRIP):
                    seen = a + STRIP
                    add_product(E[a:seen, :seen], some[:seen], d[a:seen], LANES, loops)  # undoes P = A Bᵀ, for A
            give(d, i0, n, q, dA)
            columns_of(A_tile, q, some)
            if new:
                product(C_tile, GT[q], d, LANES, loops)  # undoes S += Bᵀ C, for B
                for a in range(0, LANES, STRIP):  # undoes P = A Bᵀ, for B
                    add_product(E[a:, a : a + STRIP].T, some[a:], d[a : a + STRIP], LANES, loops)
                give(d, j0, m, q, dB)
            add_product(N.T, some, GT[q], LANES, loops)  # undoes N = A S, for S
        if chunk == 0 or len(S_before) > 1:
            turn(GT, r, G)
    past = min(offset, m)
    for j0 in range(0, past, LANES):
        take(B, j0, past, 0, B_tile)
        take_with_ones(C, j0, past, D.size > 0, C_tile)
        for p in range(down):
            product(B_tile, G[p], d, LANES, loops)  # undoes S += Bᵀ C, for C
            give(d, j0, past, p, dC)
        for q in range(across):
            product(C_tile, GT[q], d, LANES, loops)  # and for B
            give(d, j0, past, q, dB)


@inside
def take_gradient(dY, Y, D, start, into):
    """Rows start … start + 63 of [dN, dD]:  dN_i = dY_i / D_i,  dD_i = −⟨dN_i, y_i⟩. Without D they are those of dY."""
    n, dv = dY.shape
    zero, one, tiny = Y.dtype.type(0), Y.dtype.type(1), np.finfo(Y.dtype).tiny ** 0.8
    sums = np.zeros(16, Y.dtype)  # sixteen at a time: a vector
    for i in range(LANES):
        row = start + i
        if row >= n:
            into[i] = 0
        elif D.size == 0:
            for c in range(dv):
                into[i, c] = dY[row, c]
        else:
            share = share_of(one, D[row], tiny)
            sums[:] = 0
            for c in range(0, dv - 15, 16):
                for k in range(16):
                    into[i, c + k] = share * dY[row, c + k]
                    sums[k] += into[i, c + k] * Y[row, c + k]
            total = zero
            for k in range(16):
                total += sums[k]
            for c in range(dv // 16 * 16, dv):
                into[i, c] = share * dY[row, c]
                total += into[i, c] * Y[row, c]
            into[i, dv] = -total


@inside
def take_with_ones(X, start, end, ones, into):
    """As `take`; if `ones`, with one more column: 1 in the rows that are there."""
    take(X, start, end, 0, into)
    if ones:
        for i in range(LANES):
            into[i, X.shape[1]] = 0 <= start + i < end


@inside
def columns_of(X, p, into):
    """Copy the columns 64 p … 64 p + 63 of X, as far as there are any; the others of `into` stay as they are."""
    width = min(LANES, X.shape[1] - p * LANES)
    for i in range(LANES):
        source = X[i, p * LANES :]
        for c in range(width):
            into[i, c] = source[c]


@inside
def give(d, start, end, p, X):
    """Copy d to rows start … start + 63 and columns 64 p … 64 p + 63 of X, as far as there are any; rows end before `end`."""
    width = min(LANES, X.shape[1] - p * LANES)
    for i in range(max(-start, 0), min(LANES, end - start)):
        target = X[start + i, p * LANES :]
        for c in range(width):
            target[c] = d[i, c]


@inside
def turn(X, width, XT):
    """XT = Xᵀ, both in panels of 64 columns; X has `width` columns in all."""
    for p in range(len(X)):
        for q in range(len(XT)):
            for c in range(min(LANES, width - p * LANES)):
                for k in range(min(LANES, X.shape[1] - q * LANES)):
                    XT[q, p * LANES + c, k] = X[p, q * LANES + k, c]


@compiled
def sweeps(A, B, C, offset, eps, loops, S_before, z_before, Y, D, queue):
    """`sweep` for all heads, a task for each."""
    A, B, C, S_before, z_before, Y, D = borrowed((A, B, C, S_before, z_before, Y, D))
    for h in claimed(queue, len(A)):
        sweep(A[h], B[h], C[h], offset, eps, loops, S_before[h], z_before[h], Y[h], D[h])


@compiled
def sweeps_back(A, B, C, dY, Y, D, S_before, z_before, offset, loops, dA, dB, dC, queue):
    """`sweep_back` for all heads, a task for each."""
    A, B, C, dY, Y, D, S_before, z_before = borrowed((A, B, C, dY, Y, D, S_before, z_before))
    dA, dB, dC = borrowed((dA, dB, dC))
    for h in claimed(queue, len(A)):
        sweep_back(A[h], B[h], C[h], dY[h], Y[h], D[h], S_before[h], z_before[h], offset, loops, dA[h], dB[h], dC[h])


@compiled
def elu_plus_one(X, Y, queue):
    """Y = φ(X), φ(x) = x + 1 for x > 0, eˣ otherwise: some rows at a time."""
    one, zero, log2e = X.dtype.type(1), X.dtype.type(0), X.dtype.type(LOG2E)
    for part in claimed(queue, queue[1]):
        for i in range(part * X.shape[0] // queue[1], (part + 1) * X.shape[0] // queue[1]):
            for c in range(X.shape[1]):
                x = X[i, c]
                below = zero if x > zero else x
                Y[i, c] = x + one if x > zero else exp2(below * log2e)


@compiled
def elu_plus_one_back(Y, dY, dX, queue):
    """dX = φ'(X) ⊙ dY, where φ' is the smaller of Y = φ(X) and 1."""
    one = Y.dtype.type(1)
    for part in claimed(queue, queue[1]):
        for i in range(part * Y.shape[0] // queue[1], (part + 1) * Y.shape[0] // queue[1]):
            for c in range(Y.shape[1]):
                slope = one if Y[i, c] > one else Y[i, c]
                dX[i, c] = slope * dY[i, c]


# ------------------------------------------------------------------------------------------- in and out


class TiledKernelAttentionPullback(Pullback):
    """dN = dY / D,  dD_i = −⟨dN_i, y_i⟩; then dFQ, dFK and dV in one sweep from the last chunk on (see the top of this file).

    D_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε; it has no entries without normalisation, where dN = dY and dD = 0. S_before
    (B, chunks, panels, r, 64) and z_before (B, chunks, r), with r filled up to a multiple of four, are as `sweep` leaves them.
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    D: Array
    S_before: Array
    z_before: Array
    causal: bool

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, m), made again by the definition, in NumPy."""
        n, m = self.FQ.shape[-2], self.FK.shape[-2]
        sees = np.arange(m) <= np.arange(n)[:, None] + (m - n if self.causal else m)
        # BLAS sums in another order where columns stand together
        FQ, FK = map(np.ascontiguousarray, (self.FQ, self.FK))
        W = np.where(sees, FQ @ FK.mT, 0)
        return W * inverse(self.D)[..., None] if self.D.size else W

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        FQ, FK, V, Y, dY = (
            one_batch(X) for X in (self.FQ, self.FK, self.V, self.Y, dY.astype(self.Y.dtype, copy=False))
        )
        n, m = FQ.shape[1], FK.shape[1]
        D = self.D.reshape(len(FQ), self.D.shape[-1])
        dFQ, dFK, dV = (np.empty(X.shape, X.dtype) for X in (self.FQ, self.FK, self.V))
        in_parallel(
            len(FQ),
            sweeps_back,
            *(FQ, FK, V, dY, Y, D, self.S_before, self.z_before, m - n if self.causal else m, plain_loops()),
            *(one_batch(dFQ), one_batch(dFK), one_batch(dV)),
        )
        return dFQ, dFK, dV


def tiled_kernel_attention(
    FQ: Array, FK: Array, V: Array, initial: Sums | None = None, *, causal: bool, normalise: bool, eps: float
) -> tuple[Any, TiledKernelAttentionPullback | SweptKernelAttentionPullback]:
    """`kernel_attention` in the compiled tiers, which has checked the arguments.

    y_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / (Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε)

    cost     O((n + m) r dv) time, O(n (r + dv) + n r dv / 64) memory; if causal O(64 n (r + dv)) time more
    """
    (*batch, n, r), m, dv = FQ.shape, FK.shape[-2], V.shape[-1]
    if initial is not None or (causal and n == m and max(r, dv) <= LANES):
        return swept_kernel_attention(FQ, FK, V, initial, normalise=normalise, eps=eps)
    Y = np.empty((*batch, n, dv), FQ.dtype)
    D = np.empty((*batch, n if normalise else 0), FQ.dtype)
    B, chunks = math.prod(batch), max(-(-n // LANES), 1) if causal else 1
    S_before = np.empty((B, chunks, -(-dv // LANES), fours(r), LANES), FQ.dtype)
    z_before = np.empty((B, chunks, fours(r)), FQ.dtype)
    in_parallel(
        B,
        sweeps,
        *(one_batch(FQ), one_batch(FK), one_batch(V), m - n if causal else m, Y.dtype.type(eps), plain_loops()),
        *(S_before, z_before, one_batch(Y), D.reshape(B, D.shape[-1])),
    )
    return Y, TiledKernelAttentionPullback(FQ, FK, V, Y, D, S_before, z_before, bool(causal))


class CompiledEluFeaturesPullback(Pullback):
    """φ' is 1 for x > 0, where φ = x + 1 > 1, and eˣ = φ ≤ 1 otherwise: the smaller of φ and 1."""

    Y: Array

    def __call__(self, dY: Array) -> Array:
        return _over_rows(elu_plus_one_back, self.Y, dY.astype(self.Y.dtype, copy=False))


def compiled_elu_features(X: Array) -> tuple[Array, CompiledEluFeaturesPullback]:
    """`elu_features` in the compiled tiers: φ(x) = x + 1 for x > 0, eˣ otherwise, in one pass over X."""
    Y = _over_rows(elu_plus_one, X)
    return Y, CompiledEluFeaturesPullback(Y)


def _over_rows(loop: Callable, *arrays: Array) -> Array:
    X = arrays[0]
    rows = [one_batch(A).reshape(math.prod(X.shape[:-1]), X.shape[-1]) for A in arrays]
    Y = np.empty(rows[0].shape, X.dtype)
    in_parallel(1 if X.size < SMALL else len(Y), loop, *rows, Y)
    return Y.reshape(X.shape)
