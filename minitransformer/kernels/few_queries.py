"""Softmax attention of a few queries, as in generation: one new token against all that came before.

    for each query of each head, heads in parallel:
        s_j = scale ⟨q, k_j⟩ + bias                      for the keys it sees; c tanh(s_j/c) where there is a cap c
        p_j = exp(s_j − top)
        y = Σ_j p_j v_j / Σ_j p_j,   L = top + ln Σ_j p_j      Σ_j p_j + exp(b − top) in both, where there is a sink b

Why this is fast. There is nothing to reuse: each key and each value is read once, for a few operations on each number,
so the time is that of reading them from memory. A tile of 64 queries, one of them real, would do 64 times the arithmetic.
The backward pass is that of the tiles (attention_backward.py).
"""

import numpy as np

from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E, exp2, tanh
from minitransformer.kernels.norms_and_loss import total
from minitransformer.kernels.threads import claimed
from minitransformer.kernels.tiles import LANES, dot, put, rows_of
from minitransformer.typing import Array


@inlined
def add_four(p, V, j, y):
    """y += Σ_t p_t v_t for t = j … j + 3."""
    a, b, c, d = p[j], p[j + 1], p[j + 2], p[j + 3]
    for i in range(len(y)):
        y[i] += a * V[j, i] + b * V[j + 1, i] + c * V[j + 2, i] + d * V[j + 3, i]


@inlined
def attend_few(Q, K, V, bias, mask, causal, before, m, behind, scale, sink, cap, Y, L):
    """Fill Y and L of one head: all its queries, the first m rows of K and V. Of a key that the mask hides, they are not read.

    before, behind   keys that stand before and behind these m, and are for others
    """
    n, d, dv = len(Y), Q.shape[1], Y.shape[1]
    room, factor = np.empty(m, Q.dtype), Q.dtype.type(scale * LOG2E)
    for i in range(n):
        p, q, y = room[: min(m, max(0, m + behind - n + i + 1)) if causal else m], Q[i], Y[i]
        row = mask[i if len(mask) > 1 else 0]
        step = 1 if len(row) > 1 else 0
        top = sink
        for j in range(len(p)):
            if row.size and not row[(before + j) * step]:
                p[j] = -np.inf
                continue
            p[j] = factor * dot(q, K[j, :d])
            if bias.size:
                p[j] += bias[n - 1 - i + LANES + before + j]
            if cap > 0:
                p[j] = cap * tanh(p[j] / cap)
            top = max(top, p[j])
        base = top if top > -np.inf else Q.dtype.type(0)
        for j in range(len(p)):
            p[j] = exp2(p[j] - base)
        for c in range(dv):
            y[c] = 0
        fours = 0 if row.size else len(p) // 4 * 4  # y is read and written once for four values
        for j in range(0, fours, 4):
            add_four(p, V, j, y)
        for j in range(fours, len(p)):
            if row.size and not row[(before + j) * step]:
                continue
            v, share = V[j], p[j]
            for c in range(dv):
                y[c] += share * v[c]
        weight = total(p) + exp2(sink - base)
        L[i] = (top + np.log2(weight)) / LOG2E if weight != 0 else -np.inf
        if weight != 0:
            for c in range(dv):
                y[c] /= weight


@inside
def attend_to_seen(Q, K, V, mask, bias, sink, cap, first, end, scale, start, stop, Y):
    """Fill Y of the heads start … stop − 1, for the keys first … end − 1, causally. One call for all.

    mask    (1, 0), or for one query which of these keys it sees, (rows, end − first)
    bias    (1, 0), or for one query what is added to its scores, (rows, LANES + end − first), `in_base_2`
    sink    (rows,), in base 2 as well, −∞ for none; and so is the cap, 0 for none
    A row of these is for all heads, or for one of each sample, or for one of one sample.
    """
    L, sharing, m = np.empty(Q.shape[1], Q.dtype), len(Q) // len(K), end - first
    for b in range(start, stop):
        k, v, row = K[b // sharing, first:], V[b // sharing, first:], b % len(mask)
        added, own_sink = bias[b % len(bias)], sink[b % len(sink)]
        attend_few(Q[b], k, v, added, mask[row : row + 1], True, 0, m, 0, scale, own_sink, cap, Y[b], L)


def in_base_2(bias: Array) -> Array:
    """What is added to scores, (rows, keys), as the loops for one query take it: in the units of powers of two, from LANES on."""
    added = np.empty((len(bias), LANES + bias.shape[1]), bias.dtype)
    np.multiply(bias, bias.dtype.type(LOG2E), out=added[:, LANES:])
    return added


@compiled
def attend_plainly(Q, K, V, bias, m, scale):
    """`attend_to_seen` for all heads and all of the first m keys, with a bias, or (1, 0)."""
    Y, no_sink = np.empty((len(Q), Q.shape[1], V.shape[2]), Q.dtype), np.empty(1, Q.dtype)
    no_sink[0] = -np.inf
    mask, no_cap = np.empty((1, 0), np.bool_), Q.dtype.type(0)
    attend_to_seen(Q, K, V, mask, bias, no_sink, no_cap, 0, m, scale, 0, len(Q), Y)
    return Y


@compiled
def forward_few(Q, K, V, pairs, m, scale, Y, L, queue):
    """Fill Y and L, (parts, B, n, …), with a task for each part of the keys of each head. A sink is in the first part."""
    parts = len(Y)
    for task in claimed(queue, parts * Y.shape[1]):
        b, part = task // parts, task % parts
        kv, its_bias, its_mask, _ = pairs.of[b]
        bias, mask, cap = pairs.bias[its_bias], pairs.mask[its_mask], Q.dtype.type(pairs.cap)
        sink = pairs.sink[b] if part == 0 else Q.dtype.type(-np.inf)
        first, end = part * m // parts, (part + 1) * m // parts
        k, v, y, log_sum = rows_of(K[kv], first, end), rows_of(V[kv], first, end), Y[part, b], L[part, b]
        attend_few(Q[b], k, v, bias, mask, pairs.causal, first, end - first, m - end, scale, sink, cap, y, log_sum)


@compiled
def merge_parts(Y, L):
    """(Y, L) of all keys, from those of the parts, (parts, B, n, …): L = ln Σ_r exp L_r and Y = Σ_r exp(L_r − L) Y_r."""
    parts, B, n, dv = Y.shape
    whole, log_sum = np.zeros((B, n, dv), Y.dtype), np.empty((B, n), L.dtype)
    for b in range(B):
        for i in range(n):
            top, weight = L[:, b, i].max(), L.dtype.type(0)
            for r in range(parts if top != -np.inf else 0):
                share = np.exp(L[r, b, i] - top)
                weight += share
                for c in range(dv):
                    whole[b, i, c] += share * Y[r, b, i, c]
            log_sum[b, i] = top + np.log(weight)
            for c in range(dv if weight != 0 else 0):
                whole[b, i, c] /= weight
    return whole, log_sum


@compiled
def retrieve(Q, K, V, m, scale, steps, tolerance, Y, queue):
    """Fill Y: a query moves among the keys until it stands still, or has been compared with them `steps` times; it reads then.

    Q (B, n, d) are the last n of m positions; it is `hopfield_attention` without a pullback, with the square of its `tolerance`.
    A task for each head.
    """
    n, sharing, no_bias = Q.shape[1], len(Q) // len(K), np.empty((1, 0), Q.dtype)
    for b in claimed(queue, len(Y)):
        k, v = K[b // sharing : b // sharing + 1], V[b // sharing : b // sharing + 1]
        for i in range(n):
            xi, seen = Q[b : b + 1, i : i + 1].copy(), m - n + i + 1
            before = np.full_like(xi, np.nan)
            for _ in range(1, steps):
                now = attend_plainly(xi, k, k, no_bias, seen, scale)
                change = now - xi
                stands = scale * dot(before.reshape(-1), change.reshape(-1)) <= tolerance
                xi, before = now, change
                if stands:
                    break
            put(attend_plainly(xi, k, v, no_bias, seen, scale)[0], Y[b, i : i + 1])
