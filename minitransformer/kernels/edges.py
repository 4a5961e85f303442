"""Attention along the edges of a graph, and sums over neighbours: memory and time are those of the edges, not of all pairs.

    for each row i, in parallel:                             edges are sorted by i, those of a row side by side
        for its edges e = (i, j):      s_e = score(q_i, k_j);        then a = softmax of these few numbers
        for its edges:                 y_i += a_e v_j
    backwards once more by row:        ds_e = a_e (dy_i·v_j − Σ a (dy_i·v)),  dq_i += ∂s_e/∂q_i ds_e
    and once by column j:              dv_j += a_e dy_i,             dk_j += ∂s_e/∂k_j ds_e

Why this is fast. All heads of a row lie in one piece, so an edge fetches one piece of memory and uses all of it; what a framework
writes out for each edge (two gathered rows, their sum, a weighted row) never leaves the first-level cache. Nothing is added where
another task adds: a row belongs to one task, and in the backward pass the same edges are taken in the order of their columns.
So no sum waits for another core, and none depends on how many there are.

An edge may lead to any row, and no processor guesses which: the rows that an edge needs are asked for while the four before it
are summed. And heads have few channels: a loop of eight steps is too short for a compiler to make vectors of it. So the number of
a head is first written to all its channels, and one loop goes through the channels of all heads; what is summed within a head
is summed in vectors of eight, where its channels are a multiple of that.

There are H heads, with queries and keys of r channels and values of d. An edge that `seen` hides has weight 0, and its value
is not read.
"""

import numba
import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.compiling import compiled, inside
from minitransformer.kernels.eights import dot_eight, set_eight
from minitransformer.kernels.exp2 import LOG2E, exp2
from minitransformer.kernels.micro_kernel import fetch_line
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import larger
from minitransformer.typing import Array

ADDITIVE, PRODUCT = 0, 1  # s = a·LeakyReLU(q + k), or s = q·k, with the scale in q
AHEAD = 4  # edges whose rows are on their way to the cache
SMALL = 2**14  # numbers fetched; what has fewer is done before a second thread is awake
PARTS = 256  # of the rows, for a sum over all of them


if numba.config.DISABLE_JIT:

    def fetch_line(X, i, c):
        """Does nothing: plain Python can't ask for what it needs later."""


@inside
def product(x, y, r, s):
    """s_h = x_h·y_h for each head, which has r channels."""
    if r == 1:
        for h in range(len(s)):
            s[h] = x[h] * y[h]
        return
    for h in range(len(s)):
        total = s.dtype.type(0)
        if r % 8 == 0:
            for c in range(h * r, (h + 1) * r, 8):
                total += dot_eight(x, y, c)
        else:
            for c in range(h * r, (h + 1) * r):
                total += x[c] * y[c]
        s[h] = total


@inside
def bent(q, k, slope, p):
    """p_c = LeakyReLU(q_c + k_c)."""
    for c in range(len(p)):
        x = q[c] + k[c]
        p[c] = x if x > 0 else slope * x


@inside
def unbent(q, k, slope, x):
    """x_c *= LeakyReLU′(q_c + k_c)."""
    for c in range(len(x)):
        x[c] = x[c] if q[c] + k[c] > 0 else slope * x[c]


@inside
def spread(numbers, r, channels):
    """Copy the number of each head to each of its r channels."""
    for h in range(len(numbers)):
        if r % 8 == 0:
            for c in range(h * r, (h + 1) * r, 8):
                set_eight(channels, c, numbers[h])
        else:
            for c in range(h * r, (h + 1) * r):
                channels[c] = numbers[h]


@inside
def add(y, w, v, wide):
    """y_h += w_h v_h for each head. Weights are spread over the channels first: one loop is faster than one for each head."""
    spread(w, len(y) // len(w), wide)
    for c in range(len(y)):
        y[c] += wide[c] * v[c]


@inside
def fetch_row(X, i):
    """Let row i of X come into the cache while other work goes on."""
    numbers = 16 if X.itemsize == 4 else 8  # in a line of the cache
    for c in range(0, X.shape[1], numbers):
        fetch_line(X, i, c)


@inside
def is_seen(seen, b, e, h):
    """Whether head h of sample b sees edge e; if `seen` has no rows, all do."""
    if len(seen) == 0:
        return True
    return seen[b if len(seen) > 1 else 0, e, h if seen.shape[2] > 1 else 0]


@compiled
def attend(kind, Q, K, V, a, slope, starts, sources, seen, parts, A, Y, queue):
    """Fill the weights A (B, E, H) and Y (B, n, H d). Scores are in base 2: the caller multiplies a, or Q, by log₂ e."""
    Q, K, V, a, starts, sources, seen, A, Y = borrowed((Q, K, V, a, starts, sources, seen, A, Y))
    n, H = Y.shape[1], A.shape[2]
    r, d, zero, all_seen = Q.shape[2] // H, Y.shape[2] // H, Y.dtype.type(0), len(seen) == 0
    for task in claimed(queue, len(Y) * parts):
        b, part = task // parts, task % parts
        top, total = np.empty(H, Y.dtype), np.empty(H, Y.dtype)
        p, wide = np.empty(H * r, Y.dtype), np.empty(H * d, Y.dtype)
        for i in range(part * n // parts, (part + 1) * n // parts):
            q, y, first, last = Q[b, i], Y[b, i], starts[i], starts[i + 1]
            for c in range(len(y)):
                y[c] = zero
            for h in range(H):
                top[h], total[h] = -np.inf, zero
            for e in range(first, last):
                fetch_row(K[b], sources[min(e + AHEAD, len(sources) - 1)])
                fetch_row(V[b], sources[e])
                k, s = K[b, sources[e]], A[b, e]
                if kind == ADDITIVE:
                    bent(q, k, slope, p)
                    product(p, a, r, s)
                else:
                    product(q, k, r, s)
                if not all_seen:
                    for h in range(H):
                        if not is_seen(seen, b, e, h):
                            s[h] = -np.inf
                for h in range(H):
                    top[h] = larger(top[h], s[h])
            for h in range(H):
                top[h] = top[h] if top[h] > -np.inf else zero
            for e in range(first, last):
                s = A[b, e]
                for h in range(H):
                    s[h] -= top[h]
            weights = A[b, first:last].reshape((last - first) * H)
            for x in range(len(weights)):
                weights[x] = exp2(weights[x])
            for e in range(first, last):
                s = A[b, e]
                for h in range(H):
                    total[h] += s[h]
            for h in range(H):
                total[h] = 1 / total[h] if total[h] != 0 else zero
            for e in range(first, last):
                w, v = A[b, e], V[b, sources[e]]
                for h in range(H):
                    w[h] *= total[h]
                if all_seen:
                    add(y, w, v, wide)
                else:
                    for h in range(H):
                        if is_seen(seen, b, e, h):
                            at = slice(h * d, (h + 1) * d)
                            add(y[at], w[h : h + 1], v[at], wide[at])


@compiled
def back_by_row(kind, Q, K, V, a, slope, starts, sources, seen, parts, A, dY, dQ, da, dS, queue):
    """Fill dS (B, E, H) and the parts of da (tasks, H r), each the sum over some rows, and add to dQ. Comments quote `attend`."""
    Q, K, V, a, starts, sources, seen = borrowed((Q, K, V, a, starts, sources, seen))
    A, dY, dQ, da, dS = borrowed((A, dY, dQ, da, dS))
    n, H = dY.shape[1], A.shape[2]
    r, d, zero, one, all_seen = Q.shape[2] // H, dY.shape[2] // H, dY.dtype.type(0), dY.dtype.type(1), len(seen) == 0
    for task in claimed(queue, len(dY) * parts):
        b, part = task // parts, task % parts
        along, each, total = np.empty(H, dY.dtype), np.empty(H * r, dY.dtype), np.zeros(H * r, dY.dtype)
        for i in range(part * n // parts, (part + 1) * n // parts):
            q, dy, dq, first, last = Q[b, i], dY[b, i], dQ[b, i], starts[i], starts[i + 1]
            for h in range(H):
                along[h] = zero
            for e in range(first, last):
                fetch_row(V[b], sources[min(e + AHEAD, len(sources) - 1)])
                fetch_row(K[b], sources[e])
                v, w, ds = V[b, sources[e]], A[b, e], dS[b, e]
                product(dy, v, d, ds)  # undoes y_h += w_h v_h, for w
                if not all_seen:
                    for h in range(H):
                        if not is_seen(seen, b, e, h):
                            ds[h] = zero
                for h in range(H):
                    along[h] += w[h] * ds[h]  # undoes w_h *= 1 / total_h, for total
            for e in range(first, last):
                k, w, ds = K[b, sources[e]], A[b, e], dS[b, e]
                for h in range(H):
                    ds[h] = w[h] * (ds[h] - along[h])  # undoes w = exp(s − top) / total, for s
                if kind == ADDITIVE and all_seen:
                    spread(ds, r, each)
                    unbent(q, k, slope, each)
                    for c in range(H * r):
                        dq[c] += each[c]  # undoes s_h = Σ a_c LeakyReLU(q_c + k_c), for q
                    for c in range(H * r):
                        total[c] += each[c] * (q[c] + k[c])  # and for a
                    continue
                for h in range(H):
                    if not (all_seen or is_seen(seen, b, e, h)):
                        continue
                    if kind == ADDITIVE:
                        for c in range(h * r, (h + 1) * r):
                            p = q[c] + k[c]
                            x = ds[h] * (one if p > 0 else slope)
                            dq[c] += x  # undoes s_h = Σ a_c LeakyReLU(q_c + k_c), for q
                            total[c] += x * p  # and for a
                    else:
                        for c in range(h * r, (h + 1) * r):
                            dq[c] += ds[h] * k[c]  # undoes s_h = Σ q_c k_c, for q
            if kind == ADDITIVE:
                for c in range(H * r):
                    dq[c] *= a[c]  # which stood before each LeakyReLU
        for c in range(H * r):
            da[task, c] = total[c]  # at last: in da neighbours share lines of the cache


@compiled
def back_by_column(kind, Q, K, a, slope, starts, order, destinations, seen, parts, A, dS, dY, dK, dV, queue):
    """Add to dK and dV, column by column; the edges of column j are order[starts[j] : starts[j + 1]]. Comments quote `attend`."""
    Q, K, a, starts, order, destinations, seen = borrowed((Q, K, a, starts, order, destinations, seen))
    A, dS, dY, dK, dV = borrowed((A, dS, dY, dK, dV))
    m, H = dV.shape[1], A.shape[2]
    r, d, one, all_seen = Q.shape[2] // H, dY.shape[2] // H, dY.dtype.type(1), len(seen) == 0
    for task in claimed(queue, len(dV) * parts):
        b, part = task // parts, task % parts
        each, wide = np.empty(H * r, dY.dtype), np.empty(H * d, dY.dtype)
        for j in range(part * m // parts, (part + 1) * m // parts):
            k, dk, dv = K[b, j], dK[b, j], dV[b, j]
            for place in range(starts[j], starts[j + 1]):
                e, later = order[place], order[min(place + AHEAD, len(order) - 1)]
                fetch_row(Q[b], destinations[later])
                fetch_row(dY[b], destinations[later])
                fetch_row(A[b], later)
                fetch_row(dS[b], later)
                q, dy, w, ds = Q[b, destinations[e]], dY[b, destinations[e]], A[b, e], dS[b, e]
                # undoes y_h += w_h v_h, for v: what is not seen has weight 0, and no row of dY is hidden
                add(dv, w, dy, wide)
                if kind == ADDITIVE and all_seen:
                    spread(ds, r, each)
                    unbent(q, k, slope, each)
                    for c in range(H * r):
                        dk[c] += each[c]  # undoes s_h = Σ a_c LeakyReLU(q_c + k_c), for k
                    continue
                for h in range(H):
                    if not (all_seen or is_seen(seen, b, e, h)):
                        continue
                    if kind == ADDITIVE:
                        for c in range(h * r, (h + 1) * r):  # undoes s_h = Σ a_c LeakyReLU(q_c + k_c), for k
                            dk[c] += ds[h] * (one if q[c] + k[c] > 0 else slope)
                    else:
                        for c in range(h * r, (h + 1) * r):
                            dk[c] += ds[h] * q[c]  # undoes s_h = Σ q_c k_c, for k
            if kind == ADDITIVE:
                for c in range(H * r):
                    dk[c] *= a[c]  # which stood before each LeakyReLU


@compiled
def neighbour_sums(X, weights, starts, order, ends, parts, Y, queue):
    """y_i += Σ_e w_e x_ends[e] over the edges e of row i, order[starts[i] : starts[i + 1]]."""
    X, weights, starts, order, ends, Y = borrowed((X, weights, starts, order, ends, Y))
    n, d = Y.shape[1], Y.shape[2]
    for task in claimed(queue, len(Y) * parts):
        b, part = task // parts, task % parts
        for i in range(part * n // parts, (part + 1) * n // parts):
            y = Y[b, i]
            for place in range(starts[i], starts[i + 1]):
                e = order[place]
                fetch_row(X[b], ends[order[min(place + AHEAD, len(order) - 1)]])
                w, x = weights[e], X[b, ends[e]]
                for c in range(d):
                    y[c] += w * x[c]


# ------------------------------------------------------------------------------------------ called from Python


def _parts(size: int, rows: int) -> int:
    """Into how many parts the rows are cut, so that no thread has much more to do than another; one, where there is little."""
    return 1 if size < SMALL else max(1, min(PARTS, rows))


def forward(
    kind: int, Q: Array, K: Array, V: Array, a: Array, slope: float, lists: tuple[Array, ...], seen: Array, heads: int
) -> tuple[Array, Array]:
    """Weights (B, E, H) and Y (B, n, H d) from Q, K (B, n, H r), V (B, n, H d), a (H r,) and seen (0, 1 or B; E; 1 or H).

    lists   row_starts, sources, destinations, column_starts and by_source, as in related/graph.py
    """
    row_starts, sources = map(for_reading, lists[:2])
    (B, n, width), E = V.shape, len(sources)
    A, Y = np.empty((B, E, heads), V.dtype), np.empty(V.shape, V.dtype)
    parts = _parts(B * E * width, n)
    Q, K, V, a, seen = map(for_reading, (Q, K, V, a, seen))
    if kind == ADDITIVE:
        a = a * V.dtype.type(LOG2E)
    else:
        Q = Q * V.dtype.type(LOG2E)
    in_parallel(B * parts, attend, kind, Q, K, V, a, V.dtype.type(slope), row_starts, sources, seen, parts, A, Y)
    return A, Y


def backward(
    kind: int, Q: Array, K: Array, V: Array, a: Array, slope: float, lists: tuple[Array, ...], seen: Array, A: Array,
    dY: Array,
) -> tuple[Array, Array, Array, Array]:  # fmt: skip
    """dQ, dK, dV and da, with the shapes of Q, K, V and a, from the weights A and dY."""
    row_starts, sources, destinations, column_starts, by_source = map(for_reading, lists)
    (B, n, width), E, slope = V.shape, len(sources), V.dtype.type(slope)
    parts = _parts(B * E * width, n)
    Q, K, V, a, seen, A, dY = map(for_reading, (Q, K, V, a, seen, A, dY))
    dQ, dK, dV, dS = (
        np.zeros(Q.shape, Q.dtype),
        np.zeros(K.shape, K.dtype),
        np.zeros(V.shape, V.dtype),
        np.empty_like(A),
    )
    da = np.empty((B * parts, len(a)), V.dtype)
    rows = row_starts, sources, seen, parts, A, dY, dQ, da, dS
    in_parallel(B * parts, back_by_row, kind, Q, K, V, a, slope, *rows)
    columns = column_starts, by_source, destinations, seen, parts, A, dS, dY, dK, dV
    in_parallel(B * parts, back_by_column, kind, Q, K, a, slope, *columns)
    return dQ, dK, dV, da.sum(0)


def sums(X: Array, weights: Array, starts: Array, order: Array, ends: Array) -> Array:
    """y_i = Σ_e w_e x_ends[e] over the edges e of row i, order[starts[i] : starts[i + 1]]; X and Y (B, n, d), weights (E,)."""
    Y = np.zeros(X.shape, X.dtype)
    parts = _parts(X.shape[0] * X.shape[2] * len(ends), X.shape[1])
    arrays = map(for_reading, (X, weights, starts, order, ends))
    in_parallel(len(X) * parts, neighbour_sums, *arrays, parts, Y)
    return Y
