"""Kernel attention in one sweep over the positions, with a state instead of a matrix.

    S, z = 0, 0                                          all that is remembered: r × dv and r numbers
    for each chunk of 64 positions, heads in parallel:
        P  = tril(A Bᵀ)                                  how the 64 see each other
        N  = A S + P C                                   what they read: the past through S, each other through P
        D  = A z + Σ_j P_ij
        S += Bᵀ C,  z += Σ_j b_j                         and now they are past

With A = φ(Q), B = φ(K) and C = V this is N_i = Σ_j≤i ⟨a_i, b_j⟩ c_j: attention before the division, Y = N / D.

Why this is fast. The plain recurrence reads and writes the whole of S for each position; in chunks of 64 it does so once
for 64 of them, and everything is a product of small matrices, which is what a core does best. It costs
O(64 n (r + dv)) extra work for P, and no memory.

The gradients are sweeps too, because each is a sum of the same form, over the same pairs (i, j):

    dFQ_i = Σ_j≤i (⟨dN_i, v_j⟩ + dD_i) φ(k_j)            A = [dN, dD],  B = [V, 1],    C = φ(K)
    dFK_j = Σ_i≥j (⟨v_j, dN_i⟩ + dD_i) φ(q_i)            A = [V, 1],    B = [dN, dD],  C = φ(Q)    last position first
    dV_j  = Σ_i≥j ⟨φ(k_j), φ(q_i)⟩ dN_i                  A = φ(K),      B = φ(Q),      C = dN      last position first

Nothing is stored on the way but N / D and D, and nothing is undone by subtraction. When attention is not causal, all
of B and C goes into S before the first chunk is read: then the same sweep is "sums first".
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import for_reading, inverse
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.exp2 import exp2
from minitransformer.kernels.pointwise import SMALL
from minitransformer.kernels.threads import claimed, in_parallel
from minitransformer.kernels.tiles import LANES, add_product, fours, plain_loops, product, tile, tiles, transpose_into
from minitransformer.typing import Array

STRIP = 16  # rows of P that are multiplied at once: what is above its diagonal is left out in steps of this
LOG2E = math.log2(math.e)


@compiled
def take(X, x, start, end, reverse, c0, into):
    """Rows start … start + 63 of [X, x], from column c0 on; zeros for rows outside 0 … end − 1 (from the last if reverse)."""
    columns = min(X.shape[1] - c0, into.shape[1])
    for i in range(LANES):
        row = start + i
        if 0 <= row < end:
            row = len(X) - 1 - row if reverse else row
            source = X[row, c0:]
            for c in range(columns):
                into[i, c] = source[c]
            if x.size:
                into[i, columns] = x[row]
        else:
            for c in range(into.shape[1]):
                into[i, c] = 0


@compiled
def sweep(A, a, B, b, C, offset, reverse, eps, loops, Y, D):
    """Y_i = Σ_j (⟨a_i, b_j⟩ + a_i b_j) c_j over j ≤ i + offset, for one head; divided by D_i if there is a D.

    The vectors a and b are a further column of A and B, or have no entry. If `reverse`, positions count from the last.
    """
    n, m, dv = len(A), len(B), C.shape[1]
    inner, one, nothing = fours(A.shape[1] + (a.size > 0)), Y.dtype.type(1), a[:0]
    A_tile, B_tile = np.zeros((LANES, inner), Y.dtype), np.zeros((LANES, inner), Y.dtype)
    AT, PT, C_tile, N = tile(inner, Y), tile(LANES, Y), tile(LANES, Y), tile(LANES, Y)
    S, z, total = tiles((dv + LANES - 1) // LANES, inner, Y), np.zeros(inner, Y.dtype), np.empty(LANES, Y.dtype)
    past = min(offset, m)  # what all of them see
    for j0 in range(0, past, LANES):
        take(B, b, j0, past, reverse, 0, B_tile)
        for p in range(len(S)):
            take(C, nothing, j0, past, reverse, p * LANES, C_tile)
            add_product(B_tile.T, C_tile, S[p], min(LANES, dv - p * LANES), loops)
        add_rows(B_tile, z)
    for i0 in range(0, n, LANES):
        j0 = i0 + offset
        new = j0 < m and j0 + LANES > 0  # whether there are keys at the positions of the chunk
        take(A, a, i0, n, reverse, 0, A_tile)
        transpose_into(AT, A_tile, one)
        if new:
            take(B, b, j0, m, reverse, 0, B_tile)
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
                take(C, nothing, j0, m, reverse, p * LANES, C_tile)
                for i in range(0, LANES, STRIP):
                    seen = i + STRIP
                    add_product(PT[:seen, i:seen].T, C_tile[:seen], N[i:seen], width, loops)
                add_product(B_tile.T, C_tile, S[p], width, loops)
            for i in range(min(LANES, n - i0)):
                row = n - 1 - i0 - i if reverse else i0 + i
                share = one
                if D.size:
                    share = one / total[i] if total[i] != 0 else Y.dtype.type(0)
                target = Y[row, p * LANES :]
                for c in range(width):
                    target[c] = share * N[i, c]
        if new:
            add_rows(B_tile, z)
        if D.size:
            D[i0 : i0 + LANES] = total[: n - i0]


@compiled
def add_rows(X, total):
    """total += Σ_i x_i."""
    for i in range(X.shape[0]):
        for c in range(X.shape[1]):
            total[c] += X[i, c]


@compiled
def sweeps(A, a, B, b, C, offset, reverse, eps, loops, Y, D, queue):
    """`sweep` for all heads, a task for each."""
    for h in claimed(queue, len(A)):
        sweep(A[h], a[h], B[h], b[h], C[h], offset, reverse, eps, loops, Y[h], D[h])


@compiled
def elu_plus_one(X, Y, queue):
    """φ(x) = x + 1 for x > 0, eˣ otherwise, of long rows."""
    one, zero, log2e = X.dtype.type(1), X.dtype.type(0), X.dtype.type(LOG2E)
    for part in claimed(queue, queue[1]):
        for i in range(part * X.shape[0] // queue[1], (part + 1) * X.shape[0] // queue[1]):
            for c in range(X.shape[1]):
                x = X[i, c]
                below = zero if x > zero else x
                Y[i, c] = x + one if x > zero else exp2(below * log2e)


# ------------------------------------------------------------------------------------------- in and out


def heads(X: Array) -> Array:
    """All batch axes as one, row by row in memory: (*batch, n, d) to (B, n, d). A copy only if it can't be helped."""
    return for_reading(X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]))


def run(A: Array, a: Array, B: Array, b: Array, C: Array, offset: int, reverse: bool, eps: float, Y: Array, D: Array):
    """Fill Y and D: one sweep of every head."""
    in_parallel(len(A), sweeps, A, a, B, b, C, offset, reverse, Y.dtype.type(eps), plain_loops(), Y, D)


class TiledKernelAttentionPullback(NamedTuple):
    """dN = dY / D,  dD_i = −⟨dN_i, y_i⟩; then dFQ, dFK and dV are three sweeps (see the top of this file).

    D_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε; it has no entries without normalisation, where dN = dY and dD = 0.
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    D: Array
    causal: bool

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, m), made again by the definition, in NumPy."""
        n, m = self.FQ.shape[-2], self.FK.shape[-2]
        sees = np.arange(m) <= np.arange(n)[:, None] + (m - n if self.causal else m)
        W = np.where(sees, self.FQ @ self.FK.mT, 0)
        return W * inverse(self.D)[..., None] if self.D.size else W

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        FQ, FK, V, Y, dN = (heads(X) for X in (self.FQ, self.FK, self.V, self.Y, dY.astype(self.Y.dtype, copy=False)))
        n, m = FQ.shape[1], FK.shape[1]
        none = dD = ones = np.empty((len(FQ), 0), Y.dtype)
        if self.D.size:
            dN = dN * inverse(self.D).reshape(Y.shape[:2])[..., None]
            dD, ones = -np.vecdot(dN, Y), np.ones(V.shape[:2], Y.dtype)
        dFQ, dFK, dV = (np.empty(X.shape, X.dtype) for X in (self.FQ, self.FK, self.V))
        for A, a, B, b, C, offset, reverse, gradient in (
            (dN, dD, V, ones, FK, m - n if self.causal else m, False, dFQ),
            (V, ones, dN, dD, FQ, 0 if self.causal else n, True, dFK),
            (FK, none, FQ, none, dN, 0 if self.causal else n, True, dV),
        ):
            run(A, a, B, b, C, offset, reverse, 0, heads(gradient), none)
        return dFQ, dFK, dV


def tiled_kernel_attention(
    FQ: Array, FK: Array, V: Array, *, causal: bool, normalise: bool, eps: float
) -> tuple[Array, TiledKernelAttentionPullback]:
    """`kernel_attention` in the compiled tiers, which has checked the arguments.

    y_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / (Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε)

    cost     O((n + m) r dv) time, O(n + m) memory
    """
    *batch, n, m = *FQ.shape[:-1], FK.shape[-2]
    Y = np.empty((*batch, n, V.shape[-1]), FQ.dtype)
    D = np.empty((*batch, n if normalise else 0), FQ.dtype)
    none = np.empty((math.prod(batch), 0), FQ.dtype)
    offset = m - n if causal else m
    run(heads(FQ), none, heads(FK), none, heads(V), offset, False, eps, heads(Y), D.reshape(len(none), D.shape[-1]))
    return Y, TiledKernelAttentionPullback(FQ, FK, V, Y, D, bool(causal))


def compiled_elu_features(X: Array) -> Array:
    """`elu_features` in the compiled tiers, in one pass."""
    rows = heads(X).reshape(math.prod(X.shape[:-1]), X.shape[-1])
    Y = np.empty(rows.shape, X.dtype)
    in_parallel(1 if X.size < SMALL else len(rows), elu_plus_one, rows, Y)
    return Y.reshape(X.shape)
