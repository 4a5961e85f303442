"""The loops of one_token.py for blocks with softmax attention, and for what stands around any other core."""

import numpy as np
from numba import carray

from minitransformer.kernels.compiling import compiled, inside
from minitransformer.kernels.few_queries import attend_to_seen
from minitransformer.kernels.few_rows import norm_rows
from minitransformer.kernels.one_token_addresses import (
    B_1,
    B_2,
    B_3,
    B_O,
    BETA,
    BETA_2,
    EACH,
    FIRST,
    GAMMA,
    GAMMA_2,
    W_1,
    W_2,
    W_3,
    W_O,
    at,
    matrix,
    vector,
)
from minitransformer.kernels.one_token_halves import (
    ME,
    fill_half,
    give,
    halves_of_next,
    one_of_two,
    product,
    room_for,
    sum_of_halves,
)
from minitransformer.kernels.one_token_text import DRAWN, row_of_next, steps_of
from minitransformer.kernels.pointwise import activate_some, open_gate
from minitransformer.kernels.tiles import put, rows_of

EPS = 1e-6  # of `rms_norm`, which makes queries and keys of length √d


@inside
def turn_rows(X, d, cos, sin, interleaved):
    """Turn each head of each row, d numbers, in place: pair f by the angle with cos[f] and sin[f]."""
    pairs = len(cos)
    for i in range(len(X)):
        for h in range(0, X.shape[1], d):
            x = X[i, h : h + d]
            for f in range(pairs):
                a, b = (2 * f, 2 * f + 1) if interleaved else (f, pairs + f)
                first, second = x[a], x[b]
                x[a] = first * cos[f] - second * sin[f]
                x[b] = first * sin[f] + second * cos[f]


@inside
def put_row(X, rows, m):
    """Write rows (B, G·d) to row m of X (B, G, room, d)."""
    d = X.shape[3]
    for b in range(X.shape[0]):
        for g in range(X.shape[1]):
            for c in range(d):
                X[b, g, m, c] = rows[b, g * d + c]


@inside
def projections(X, row, cos, sin, position, interleaved, eps, centre, shared):
    """LN(X) W + b of all projections, normed and turned as `row` says: (B, columns) each, one behind the other in one array."""
    B, D = X.shape
    Z = norm_rows(X, vector(row[GAMMA], D, X), vector(row[BETA], D, X), eps, centre)
    of_all = np.empty(B * row[FIRST + 3 :: EACH].sum(), X.dtype)
    room, start = room_for(shared, 2 * len(of_all)), 0
    for half in halves_of_next(shared):
        start = 0
        for p in range(FIRST, len(row), EACH):
            W, columns = row[p], row[p + 3]
            Y = rows_of(room, 2 * start, 2 * (start + B * columns)).reshape(2, B, columns)
            fill_half(Z, matrix(W, D, columns, X), half, Y[half])
            start += B * columns
    start = 0
    for p in range(FIRST, len(row), EACH):
        b, gain, columns, d, turned = row[p + 1], row[p + 2], row[p + 3], row[p + 4], row[p + 5]
        halves_of_it = rows_of(room, 2 * start, 2 * (start + B * columns)).reshape(2, B, columns)
        Y = rows_of(of_all, start, start + B * columns).reshape(B, columns)
        put(sum_of_halves(halves_of_it, vector(b, columns, X)), Y)
        if gain != 0:
            heads = Y.reshape(-1, d)
            put(norm_rows(heads, vector(gain, d, X), np.zeros(d, X.dtype), EPS, False), heads)
        if turned:
            turn_rows(Y, d, cos[position], sin[position], interleaved)
        start += B * columns
    return of_all


@inside
def feed_forward(X, row, hidden, kind, gate, shared):
    """f(X W₁ + b₁) W₂ + b₂, or (f(X W₁ + b₁) ⊙ (X W₃ + b₃)) W₂ + b₂; no gate is −1."""
    D = X.shape[1]
    F = product(X, matrix(row[W_1], D, hidden, X), vector(row[B_1], hidden, X), shared)
    f = F.reshape(-1)
    if gate < 0:
        activate_some(kind, f, f)
    else:
        G = product(X, matrix(row[W_3], D, hidden, X), vector(row[B_3], hidden, X), shared)
        open_gate(gate, f, G.reshape(-1), f)
    return product(F, matrix(row[W_2], hidden, D, X), vector(row[B_2], D, X), shared)


@inside
def after_mixing(X, Y, row, hidden, eps, centre, kind, gate, shared):
    """Z = X + Y W_o + b_o, Y (B, H·dv), and then Z + the feed-forward network of LN(Z). W_o may be missing."""
    D, b_o = X.shape[1], vector(row[B_O], X.shape[1], X)
    Z = X + (Y + b_o if row[W_O] == 0 else product(Y, matrix(row[W_O], Y.shape[1], D, X), b_o, shared))
    F = norm_rows(Z, vector(row[GAMMA_2], D, X), vector(row[BETA_2], D, X), eps, centre)
    return Z + feed_forward(F, row, hidden, kind, gate, shared)


@compiled
def around(
    X, Y, rows, b, cos, sin, position, interleaved, hidden, eps, centre, kind, gate, flags, room, out, queue
):  # fmt: skip
    """Fill `out` with the rows that block b gets, (B, D), and then with its `projections`.

    Block 0 gets X. Another one gets what X becomes in the block before it, `after_mixing`, with Y from the core there. Where b is
    the number of blocks, there are no projections any more.
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    if b > 0:
        X = after_mixing(X, Y, rows[b - 1], hidden, eps, centre, kind, gate, shared)
    if b < len(rows):
        of_all = projections(X, rows[b], cos, sin, position, interleaved, eps, centre, shared)
        if shared[2][ME] == 0:
            put(of_all.reshape(1, -1), out[X.size :].reshape(1, -1))
    give(X, shared, queue, out[: X.size].reshape(X.shape))


@compiled
def through_blocks(
    X, rows, rooms, masks, biases, sinks, cap, firsts, end, G, d, cos, sin, position, interleaved, hidden, eps, centre, scale,
    kind, gate, text, chances, flags, room, out, queue,
):  # fmt: skip
    """Fill `out` with X (B, D) after all blocks; `rooms` has for each the addresses of K and V, and how many rows fit there.

    Row end − 1 of K and V is filled; the keys first … end − 1 are those that mask, bias and sink of `attend_to_seen` are for.
    Of bias and sinks there is one for each block, or one for all. With a `text` this goes on, each time with the next token.
    There is a first key for each of them, and a mask and a bias for each, or one for all.
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    B, columns = len(X), len(X) * G * d
    for t in range(steps_of(text)):
        mask, bias = masks[t % len(masks)], biases[t % len(biases)]
        for b in range(len(rows)):
            keys, values, fit = rooms[b]
            of_all = projections(X, rows[b], cos, sin, position + t, interleaved, eps, centre, shared)
            K, V = carray(at(keys, X), (B, G, fit, d)), carray(at(values, X), (B, G, fit, d))
            put_row(V, of_all[:columns].reshape(B, G * d), end + t - 1)
            put_row(K, of_all[len(of_all) - columns :].reshape(B, G * d), end + t - 1)
            Q = of_all[columns : len(of_all) - columns].reshape(-1, 1, d)
            k, v, Y = K.reshape(B * G, fit, d), V.reshape(B * G, fit, d), room_for(shared, Q.size)
            for half in halves_of_next(shared):
                start, stop = half * len(Q) // 2, (half + 1) * len(Q) // 2
                beside = bias[b % len(bias)], sinks[b % len(sinks)], cap
                attend_to_seen(Q, k, v, mask, *beside, firsts[t], end + t, scale, start, stop, Y.reshape(Q.shape))
            Y = Y.copy().reshape(B, Q.size // B)
            X = after_mixing(X, Y, rows[b], hidden, eps, centre, kind, gate, shared)
        if len(text) > 0:
            X = row_of_next(X, text, chances, t, eps, centre, shared)
            if text[DRAWN + t] < 0:
                break
    give(X, shared, queue, out)
