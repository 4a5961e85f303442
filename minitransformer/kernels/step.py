"""Memories from a state on, position by position: a prompt, or one new token.

    S̄ = Diag(α_t) S                what is held fades
    e = v_t − k_tᵀ S̄               or v_t itself, where nothing is corrected
    S = S̄ + β_t k_t eᵀ
    y_t = q_tᵀ S

Why this is fast. In generation a memory is so small that NumPy spends its time on starting a dozen operations: here they are
one. A row of S fades, is looked up, is written to and read while it is in the nearest cache. (From an empty memory the `sweeps`
take many positions four times as fast.)
"""

import math

import numpy as np

from minitransformer.arrays import for_reading, inverse
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.scan import denominators, heads
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.typing import Array

SMALL = 2**18  # multiply-adds; what has fewer is done before a second thread is awake


@compiled
def recur(Q, K, V, beta, decay, S, Y, queue):
    """Y, which begins with zeros, and S after all positions; β (B, n) or (B, 0), α (B, n, 0), (B, n, 1) or (B, n, r)."""
    Q, K, V, beta, decay, S, Y = borrowed((Q, K, V, beta, decay, S, Y))
    corrects, gates = beta.shape[1] > 0, decay.shape[2]
    for h in claimed(queue, len(Y)):
        e = np.empty(V.shape[2], V.dtype)
        for t in range(V.shape[1]):
            q, k, y = Q[h, t], K[h, t], Y[h, t]
            e[:] = V[h, t]
            for c in range(len(k)):
                row = S[h, c]
                if gates > 0:
                    a = decay[h, t, min(c, gates - 1)]
                    for j in range(len(row)):
                        row[j] *= a
                if corrects:
                    for j in range(len(row)):
                        e[j] -= k[c] * row[j]
            if corrects:
                for j in range(len(e)):
                    e[j] *= beta[h, t]
            for c in range(len(k)):
                row = S[h, c]
                for j in range(len(row)):
                    row[j] += k[c] * e[j]
                    y[j] += q[c] * row[j]


def recurrence(
    Q: Array, K: Array, V: Array, S: Array, *, beta: Array | None = None, decay: Array | None = None
) -> tuple[Array, Array]:
    """Y and the state after these positions, of a memory that was S.

    decay    α, (*batch, n, 1 or r); None: nothing fades
    beta     β, (*batch, n); None: nothing is corrected
    raises   ValueError for a state of another shape
    """
    if S.shape != (wanted := (*V.shape[:-2], K.shape[-1], V.shape[-1])):
        raise ValueError(f"state: S {S.shape} should be {wanted}")
    q, k, v = heads(Q), heads(K), heads(V)
    B, n, r = k.shape
    corrected = np.empty((B, 0), v.dtype) if beta is None else for_reading(beta.reshape(B, n))
    alpha = np.empty((B, n, 0), v.dtype) if decay is None else heads(decay)
    Y, after = np.zeros(v.shape, v.dtype), S.reshape(B, r, v.shape[-1]).copy()
    in_parallel(B if S.size * n > SMALL else 1, recur, q, k, v, corrected, alpha, after, Y)
    return Y.reshape(V.shape), after.reshape(S.shape)


def kernel_recurrence(
    FQ: Array, FK: Array, V: Array, S: Array, z: Array, *, normalise: bool, eps: float
) -> tuple[Array, Array, Array]:
    """`recurrence` of sums, y_t = φ(q_t)ᵀ S_t / (φ(q_t)ᵀ z_t + ε): Y, and S and z after these positions."""
    Y, S = recurrence(FQ, FK, V, S)
    if not normalise:
        return Y, S, z + FK.sum(-2)
    q, k, after = heads(FQ), heads(FK), z.reshape(math.prod(z.shape[:-1]), z.shape[-1]).copy()
    D = np.empty(q.shape[:2], q.dtype)
    in_parallel(len(D) if FK.size > SMALL else 1, denominators, q, k, q.dtype.type(eps), after, D)
    Y *= inverse(D).reshape(*FQ.shape[:-1], 1)
    return Y, S, after.reshape(z.shape)
