"""Softmax attention of a few queries, as in generation: one new token against all that came before.

    for each query of each head, heads in parallel:
        s_j = scale ⟨q, k_j⟩ + bias                      for the keys it sees
        p_j = exp(s_j − top)
        y = Σ_j p_j v_j / Σ_j p_j,   L = top + ln Σ_j p_j

Why this is fast. There is nothing to reuse: each key and each value is read once, for a few operations on each number,
so the time is that of reading them from memory. A tile of 64 queries, one of them real, would do 64 times the arithmetic;
NumPy would read the keys with one core. The way back is that of the tiles (minitransformer/kernels/attention.py).
"""

import numpy as np

from minitransformer.kernels.compiling import any_order, compiled
from minitransformer.kernels.exp2 import exp2
from minitransformer.kernels.tiles import LANES

LOG2E = np.log2(np.e)


@any_order
def dot(x, y):
    """⟨x, y⟩."""
    s = x.dtype.type(0)
    for c in range(len(x)):
        s += x[c] * y[c]
    return s


@any_order
def total(x):
    """Σ x_j."""
    s = x.dtype.type(0)
    for j in range(len(x)):
        s += x[j]
    return s


@compiled
def attend_few(Q, K, V, bias, mask, causal, scale, Y, L):
    """All queries of one head. The bias is in base 2, with room of LANES at both ends."""
    n, m, d, dv = len(Y), len(K), Q.shape[1], Y.shape[1]
    room, factor = np.empty(m, Q.dtype), Q.dtype.type(scale * LOG2E)
    for i in range(n):
        p, q, y = room[: max(0, m - n + i + 1) if causal else m], Q[i], Y[i]
        for j in range(len(p)):
            p[j] = factor * dot(q, K[j, :d])
        if bias.size:
            b = bias[n - 1 - i + LANES :]
            for j in range(len(p)):
                p[j] += b[j]
        if mask.size:
            row = mask[i if len(mask) > 1 else 0]
            for j in range(len(p)):
                p[j] = p[j] if row[j if len(row) > 1 else 0] else -np.inf
        top = Q.dtype.type(-np.inf)
        for j in range(len(p)):
            top = max(top, p[j])
        base = top if top > -np.inf else Q.dtype.type(0)
        for j in range(len(p)):
            p[j] = exp2(p[j] - base)
        y[:] = 0
        for j in range(len(p)):
            v, share = V[j], p[j]
            for c in range(dv):
                y[c] += share * v[c]
        weight = total(p)
        L[i] = (top + np.log2(weight)) / LOG2E if weight != 0 else -np.inf
        if weight != 0:
            y /= weight


@compiled
def forward_few(Q, K, V, bias, mask, of, causal, scale, Y, L, first, threads):
    """Y and L; head b has the keys, the bias and the mask with the numbers of[b]."""
    for b in range(first, len(Y), threads):
        kv, its_bias, its_mask = of[b]
        attend_few(Q[b], K[kv], V[kv], bias[its_bias], mask[its_mask], causal, scale, Y[b], L[b])
