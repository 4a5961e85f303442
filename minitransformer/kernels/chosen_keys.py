"""Attention where every query has keys of its own, and the search for them: the k largest of a row.

    for each query of each list, in parallel:                  a list: which blocks of keys; some heads share it
        for each head that shares the list:
            s_t = scale ⟨q, k_j(t)⟩                            for the keys j(t) of the chosen blocks that it sees
            p_t = exp(s_t − top);   y = Σ p_t v_j(t) / Σ p_t;   L = top + ln Σ p_t
    backwards, for each head of keys, and parts of its queries, in parallel:
        p_t = exp(s_t − L);   ds_t = scale · p_t (⟨dy, v_j(t)⟩ − D)
        dq += ds_t k_j(t);    dk_j(t) += ds_t q;    dv_j(t) += p_t dy

Why this is fast. A tile of 64 queries would look at every key that any of them has chosen, and queries that choose for
themselves choose most keys between them: that is dense attention. Here nothing is computed that was not chosen. Keys are taken
four at a time, so that q and y are read once for four rows; a row is read where it lies, nothing is copied. A pair takes
some ten times longer than in a tile, so it pays where a query chooses less than a tenth of the keys.

A part of the queries has a dK and a dV of its own. The number of parts does not depend on the threads, nor do the bits.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import for_reading, one_batch
from minitransformer.kernels.attention_backward import FAINT
from minitransformer.kernels.attention_pairs import pairs_of
from minitransformer.kernels.compiling import any_order, compiled, inside
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.norms_and_loss import total
from minitransformer.kernels.threads import ENOUGH, borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import dot
from minitransformer.typing import Array

CHUNK = 64  # queries of a task
LOOK = 32  # scores that are compared at once with the least of the k best so far


# ---------------------------------------------------------------------------------------- rows at their places


@any_order
def dots(x, K, js, t):
    """⟨x, k_j⟩ for the four keys j = js[t], …, js[t + 3]."""
    a, b, c, d = js[t], js[t + 1], js[t + 2], js[t + 3]
    s0 = s1 = s2 = s3 = x.dtype.type(0)
    for i in range(len(x)):
        s0 += x[i] * K[a, i]
        s1 += x[i] * K[b, i]
        s2 += x[i] * K[c, i]
        s3 += x[i] * K[d, i]
    return s0, s1, s2, s3


@inside
def products_with(x, K, js, number, s):
    """s_t = ⟨x, k_j⟩ with j = js[t], for t < number."""
    fours = number // 4 * 4
    for t in range(0, fours, 4):
        s[t], s[t + 1], s[t + 2], s[t + 3] = dots(x, K, js, t)
    for t in range(fours, number):
        s[t] = dot(x, K[js[t]])


@inside
def add_weighted(y, w, V, js, number):
    """y += Σ_t w_t v_j with j = js[t], for t < number: four rows at a time."""
    fours = number // 4 * 4
    for t in range(0, fours, 4):
        a, b, c, d = w[t], w[t + 1], w[t + 2], w[t + 3]
        j0, j1, j2, j3 = js[t], js[t + 1], js[t + 2], js[t + 3]
        for i in range(len(y)):
            y[i] += a * V[j0, i] + b * V[j1, i] + c * V[j2, i] + d * V[j3, i]
    for t in range(fours, number):
        a, j = w[t], js[t]
        for i in range(len(y)):
            y[i] += a * V[j, i]


@inside
def keys_of(blocks, block, end, mask, js, slots):
    """Fill js with the keys before `end` that a query sees in its blocks, slots with their places in the list; return how many.

    blocks   numbers of the chosen blocks; a negative one is no block
    mask     the row of the query: m entries, one for all keys, or none if nothing is hidden
    """
    number, step = 0, 1 if len(mask) > 1 else 0
    for c in range(len(blocks)):
        first = blocks[c] * block
        for j in range(first, min(first + block, end) if first >= 0 else first):
            if len(mask) == 0 or mask[j * step]:
                js[number], slots[number] = j, c * block + j - first
                number += 1
    return number


# -------------------------------------------------------------------------------------------------- forwards


@inside
def read(q, K, V, js, number, p, y):
    """Fill y, and p with the weights, of a query (times scale/ln 2) with the keys js[: number]; return L."""
    top, zero = q.dtype.type(-np.inf), q.dtype.type(0)
    products_with(q, K, js, number, p)
    for t in range(number):
        top = max(top, p[t])
    base = top if top > -np.inf else zero
    for t in range(number):
        p[t] = exp2(p[t] - base)
    for c in range(len(y)):
        y[c] = zero
    weight = total(p[:number])
    if weight == 0:
        return -np.inf
    share = 1 / weight
    for t in range(number):
        p[t] *= share
    add_weighted(y, p, V, js, number)
    return (top + np.log2(weight)) / LOG2E


@compiled
def attend(Q, K, V, pairs, lists, block, scale, Y, L, weights, queue):
    """Fill Y and L; and add the weights of the heads of each list to `weights` (lists, n, slots), if it has rows."""
    Q, K, V, pairs, lists, Y, L, weights = borrowed((Q, K, V, pairs, lists, Y, L, weights))
    n, m = Y.shape[1], K.shape[1]
    chunks, sharing = (n + CHUNK - 1) // CHUNK, len(Y) // len(lists)
    for task in claimed(queue, len(lists) * chunks):
        which, chunk = task // chunks, task % chunks
        room = np.empty((2, lists.shape[2] * block), np.int64)
        js, slots = room[0], room[1]
        q, p = np.empty(Q.shape[2], Q.dtype), np.empty(len(js), Q.dtype)
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, n)):
            for b in range(which * sharing, (which + 1) * sharing):
                y, kv, mask = Y[b, i], pairs.of[b, 0], pairs.mask[pairs.of[b, 2]]
                end = i + m - n + 1 if pairs.causal else m
                number = keys_of(lists[which, i], block, end, mask[i if len(mask) > 1 else 0], js, slots)
                for c in range(len(q)):
                    q[c] = Q[b, i, c] * Q.dtype.type(scale * LOG2E)
                L[b, i] = read(q, K[kv], V[kv], js, number, p, y)
                if weights.size and L[b, i] != -np.inf:
                    for t in range(number):
                        weights[which, i, slots[t]] += p[t]


# ------------------------------------------------------------------------------------------------- backwards


@compiled
def attend_back(Q, K, V, pairs, lists, block, scale, dY, L, D, dQ, dK, dV, queue):
    """Add to dQ, and to dK and dV (parts, heads of keys, m, …), where each part holds the sum over some of the queries."""
    Q, K, V, pairs, lists = borrowed((Q, K, V, pairs, lists))
    dY, L, D, dQ, dK, dV = borrowed((dY, L, D, dQ, dK, dV))
    n, m, parts, zero = dY.shape[1], K.shape[1], len(dK), dY.dtype.type(0)
    chunks, sharing, groups = (n + CHUNK - 1) // CHUNK, len(Q) // len(lists), len(Q) // len(K)
    for task in claimed(queue, len(K) * parts):
        kv, part = task // parts, task % parts
        room = np.empty((2, lists.shape[2] * block), np.int64)
        js, slots = room[0], room[1]
        q, p, ds = np.empty(Q.shape[2], Q.dtype), np.empty(len(js), Q.dtype), np.empty(len(js), Q.dtype)
        for chunk in range(part, chunks, parts):
            for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, n)):
                for b in range(kv * groups, (kv + 1) * groups):
                    if L[b, i] == -np.inf:
                        continue
                    dy, mask = dY[b, i], pairs.mask[pairs.of[b, 2]]
                    end = i + m - n + 1 if pairs.causal else m
                    number = keys_of(lists[b // sharing, i], block, end, mask[i if len(mask) > 1 else 0], js, slots)
                    for c in range(len(q)):
                        q[c] = Q[b, i, c] * Q.dtype.type(scale * LOG2E)
                    products_with(q, K[kv], js, number, p)  # s = ⟨q, k⟩ once more
                    products_with(dy, V[kv], js, number, ds)  # dp, undoes y += p v
                    base, D_i = Q.dtype.type(L[b, i] * LOG2E), D[b, i]
                    for t in range(number):
                        x = p[t] - base
                        x = zero if x > zero else x  # as in the tiles: rounding may say more than 0
                        w = zero if x < FAINT else exp2(x)
                        p[t] = w
                        ds[t] = w * (ds[t] - D_i) * Q.dtype.type(scale)  # undoes p = exp2(s − base) / total
                    add_weighted(dQ[b, i], ds, K[kv], js, number)  # undoes s = ⟨q, k⟩, for q
                    for t in range(number):
                        j, w, slope = js[t], p[t], ds[t]
                        if w != zero:
                            for c in range(len(q)):
                                dK[part, kv, j, c] += slope * Q[b, i, c]  # and for k
                            for c in range(len(dy)):
                                dV[part, kv, j, c] += w * dy[c]  # undoes y += p v, for v


# -------------------------------------------------------------------------------------------------- the search


@inside
def less(value, place, a, b):
    """Whether entry a of the heap comes before entry b: it has the smaller value or, if they are equal, the later place."""
    return value[a] < value[b] or (value[a] == value[b] and place[a] > place[b])


@inside
def sift_down(value, place, at):
    """Move the entry `at` of the heap down until it is less than the two below it."""
    below = 2 * at + 1
    while below < len(value):
        if below + 1 < len(value) and less(value, place, below + 1, below):
            below += 1
        if less(value, place, at, below):
            break
        value[at], value[below] = value[below], value[at]
        place[at], place[below] = place[below], place[at]
        at, below = below, 2 * below + 1


@compiled
def largest_of_rows(among, ends, found, S, queue):
    """found[r], (k,), becomes the places of the k largest of S[r, : ends[r]] that `among` allows, −1 where there are fewer.

    A heap holds the k best so far, with the least of them as its root. Most scores are smaller than that: LOOK of them are
    compared with it at once, and one by one only if any of them is larger. A NaN counts as −∞.
    """
    among, ends, found, S = borrowed((among, ends, found, S))
    k, none = found.shape[1], S.dtype.type(-np.inf)
    for task in claimed(queue, (len(S) + CHUNK - 1) // CHUNK):
        value = np.empty(k, S.dtype)
        for r in range(task * CHUNK, min((task + 1) * CHUNK, len(S))):
            place, s, size, j, end = found[r], S[r], 0, 0, ends[r]
            seen = among[r if len(among) > 1 else 0]
            for t in range(k):
                place[t] = -1
            while j < end and size < k:  # what comes first is taken, whatever it is
                if seen.size == 0 or seen[j]:
                    value[size], place[size] = s[j] if s[j] == s[j] else none, j
                    size += 1
                j += 1
            if size < k:
                continue
            for at in range(k // 2 - 1, -1, -1):
                sift_down(value, place, at)
            while j < end:
                stop, some, least = min(j + LOOK, end), False, value[0]
                for t in range(j, stop):
                    some |= s[t] > least
                if some:
                    for t in range(j, stop):
                        if s[t] > value[0] and (seen.size == 0 or seen[t]):
                            value[0], place[0] = s[t], t
                            sift_down(value, place, 0)
                j = stop


@compiled
def three_views(Q, K, V, K_c, V_c, m, complete, block, chosen, window, scale):
    """Y (3, H, dv) of the last of m positions, with queries Q (H, d): what NSA reads in means, chosen blocks and a window."""
    blocks, sharing, none = (m + block - 1) // block, len(Q) // max(len(K), 1), np.empty((1, 0), np.bool_)
    q, rows = Q * Q.dtype.type(scale * LOG2E), np.arange(complete + window)
    room = np.empty((2, chosen * block), np.int64)
    Y, p = np.empty((3, len(Q), V.shape[2]), Q.dtype), np.empty(complete + window + chosen * block, Q.dtype)
    for g in range(len(K)):
        weight, found = np.zeros((1, blocks), Q.dtype), np.empty((1, chosen), np.int64)
        of_group = range(g * sharing, (g + 1) * sharing)
        for h in of_group:
            read(q[h], K_c[g], V_c[g], rows, complete, p, Y[0, h])
            for c in range(complete):
                weight[0, c] += p[c]
        for always in (0, blocks - 1, max(blocks - 2, 0)):
            weight[0, always] = np.inf
        largest_of_rows(none, np.array([blocks]), found, weight, np.array([0, 1]))
        number = keys_of(found[0], block, m, none[0], room[0], room[1])
        for h in of_group:
            read(q[h], K[g], V[g], room[0], number, p, Y[1, h])
            read(q[h], K[g, m - window :], V[g, m - window :], rows, window, p, Y[2, h])
    return Y


@compiled
def best_blocks(Q, K, V, means, m, block, others, scale):
    """Y (H, dv) for the queries of the last of m positions, Q (H, d), which read their own block and the best others."""
    own, none = (m - 1) // block, np.empty((1, 0), np.bool_)
    found, S, js = np.empty((1, others), np.int64), np.empty((1, own), Q.dtype), np.empty((2, m), np.int64)
    blocks = np.full(others + 1, own)
    Y, p, q = np.empty((len(Q), V.shape[2]), Q.dtype), np.empty(m, Q.dtype), Q * Q.dtype.type(scale * LOG2E)
    for h in range(len(Q)):
        for c in range(own):
            S[0, c] = dot(Q[h], means[h, c])
        if others > 0:
            largest_of_rows(none, np.array([own]), found, S, np.array([0, 1]))
        for c in range(others):
            blocks[c] = found[0, c]
        read(q[h], K[h], V[h], js[0], keys_of(blocks, block, m, none[0], js[0], js[1]), p, Y[h])
    return Y


@compiled
def read_best(Q, K, V, S, k, scale):
    """Y (B, dv) of one query in each head, Q (B, d), which reads those k of its keys whose entries of S (lists, m) are largest.

    A list is for B/lists neighbouring heads, and the keys K (G, room, d) are for B/G of them.
    """
    (lists, m), B = S.shape, len(Q)
    found, js, p = np.empty((lists, k), np.int64), np.empty((lists, k), np.int64), np.empty(k, Q.dtype)
    Y, q = np.empty((B, V.shape[2]), Q.dtype), Q * Q.dtype.type(scale * LOG2E)
    largest_of_rows(np.empty((1, 0), np.bool_), np.full(lists, m), found, S, np.array([0, 1]))
    for i in range(lists):
        chosen, number = np.zeros(m, np.bool_), 0
        for t in range(k):
            chosen[found[i, t]] = True
        for j in range(m):  # in their order
            if chosen[j]:
                js[i, number] = j
                number += 1
    for b in range(B):
        g = b * len(K) // B
        read(q[b], K[g], V[g], js[b * lists // B], k, p, Y[b])
    return Y


# ------------------------------------------------------------------------------------------ called from Python


def forward(Q: Array, K: Array, V: Array, choice: Any, scale: float, Y: Array, L: Array, weights: Array) -> None:
    """Fill Y (*batch, n, dv) and L (*batch, n); add the weights of each list's slots to `weights`, if it has rows."""
    pairs, lists, tasks = _given(Q, K, choice)
    out = one_batch(Y), L.reshape(math.prod(L.shape[:-1]), L.shape[-1]), one_batch(weights)
    in_parallel(tasks * len(lists), attend, *map(one_batch, (Q, K, V)), pairs, lists, choice.block, scale, *out)


def backward(
    Q: Array, K: Array, V: Array, choice: Any, scale: float, Y: Array, L: Array, dY: Array
) -> tuple[Array, Array, Array]:
    """dQ, dK and dV, with the shapes of Q, K and V."""
    pairs, lists, tasks = _given(Q, K, choice)
    q, k, v, dy = map(one_batch, (Q, K, V, dY))
    parts = max(1, min(-(-8 // max(len(k), 1)), -(-Q.shape[-2] // CHUNK)))  # few heads: several tasks for each
    dQ, dK, dV = np.zeros(Q.shape, Q.dtype), *(np.zeros((parts, *X.shape), X.dtype) for X in (k, v))
    known = dy, L.reshape(q.shape[:2]), np.vecdot(dy, one_batch(Y))
    in_parallel(
        tasks * len(k) * parts, attend_back, q, k, v, pairs, lists, choice.block, scale, *known, one_batch(dQ), dK, dV
    )
    return dQ, dK.sum(0).reshape(K.shape), dV.sum(0).reshape(V.shape)


def _given(Q: Array, K: Array, choice: Any) -> tuple[Any, Array, int]:
    """The pairs and the lists as the loops take them, and the number of tasks of each list, 0 if there is little to do."""
    work = math.prod(Q.shape) * choice.slots
    return (
        pairs_of(Q, K, K.shape[-2], None, choice.mask, choice.causal),
        one_batch(choice.lists),
        -(-Q.shape[-2] // CHUNK) if work > ENOUGH else 0,
    )


def largest(S: Array, k: int, among: Array | None, ends: Array) -> Array:
    """The places of the k largest of each row of S (rows, m), in any order: (rows, k), −1 where there are fewer.

    ends     (rows,): only the first ends[r] of row r may be chosen
    among    (rows or 1, m), which of those may be chosen; None: all
    """
    found = np.full((len(S), k), -1)
    if k and S.size:
        among = np.empty((1, 0), bool) if among is None else for_reading(among)
        tasks = -(-len(S) // CHUNK) if S.size > ENOUGH // 16 else 1
        in_parallel(tasks, largest_of_rows, among, for_reading(ends), found, for_reading(S))
    return found


def views_of_last(
    Q: Array, K: Array, V: Array, K_c: Array, V_c: Array, m: int, complete: int, block: int, chosen: int, window: int
) -> tuple[Array, ...]:
    """Y of each of the three views of NSA, (*batch, H, 1, dv), for one query: the last of the first m rows of longer arrays."""
    *batch, _, d = Q.shape
    q, *arrays = (for_reading(one_batch(X)) for X in (Q, K, V, K_c, V_c))
    Y = three_views(q[:, 0], *arrays, m, complete, block, chosen, window, d**-0.5)
    return tuple(Y.reshape(3, *batch, 1, V.shape[-1]))


def best_keys_of_last(Q: Array, K: Array, V: Array, S: Array, k: int) -> Array | None:
    """Y (*batch, H, 1, dv) of one query, the last of m positions, which reads the k ≤ m keys with the largest scores.

    S    (*batch, 1, m), the same for all heads. None if the arrays don't fit
    """
    q, keys, values, rows = (for_reading(one_batch(X)) for X in (Q, K, V, S))
    m = S.shape[-1]
    fits = len({X.dtype for X in (Q, K, V, S)}) == 1 and S.shape[:-2] == Q.shape[:-3] and 0 < k <= m
    if not fits or min(keys.shape[1], values.shape[1]) < m or q.shape[2] != keys.shape[2] or len(keys) != len(values):
        return None
    Y = read_best(q[:, 0], keys, values, rows[:, 0], k, max(q.shape[2], 1) ** -0.5)
    return Y.reshape(*Q.shape[:-1], V.shape[-1])


def best_of_last(Q: Array, K: Array, V: Array, means: Array, m: int, block: int, chosen: int) -> Array | None:
    """Y of MoBA, (*batch, H, 1, dv), for one query: the last of the first m rows of longer arrays. None if they don't fit."""
    own, (q, k, v, mu) = (m - 1) // block, (for_reading(one_batch(X)) for X in (Q, K, V, means))
    same = {(len(X), X.dtype) for X in (q, k, v, mu)}
    same_width = q.shape[2] == k.shape[2] == mu.shape[2]
    if len(same) > 1 or not same_width or min(k.shape[1], v.shape[1]) < m or mu.shape[1] < own or chosen < 1:
        return None
    Y = best_blocks(q[:, 0], k, v, mu, m, block, min(chosen - 1, own), q.shape[-1] ** -0.5)
    return Y.reshape(*Q.shape[:-1], V.shape[-1])
