"""Memories, position by position: a matrix that is written to and read, and that may fade. All of these attentions have one:

    the sum rule             S_t = S_{t−1} + k_t v_tᵀ                        kernel attention, where a query has a key beside it
    with gates               S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ              gated linear attention, RetNet, Mamba-2
    the delta rule           S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ
    with gates               the same with Diag(α_t) S_{t−1} for S_{t−1}

    for each head and each panel of 64 columns, in parallel:
        M = 0                                            rows × 64: in the first-level cache from the first position to the last
        for each position t:
            M = a_t ⊙ (M + w_{t−1} x_{t−1}ᵀ)             what the position before has written, and all of it fades
            y_t = r_tᵀ M + ⟨r_t, w_t⟩ x_t                what is read, with what is written now already in it

With r, w, x, y = q, k, v, y this is S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t. The gradients are sweeps too:

    dV    r, w, x = k, q, dy    last position first      M is G = ∂L/∂S_t, read by the keys
    dQ    r, w, x = dy, v, k                             M is Sᵀ, read by dy; its columns are the channels, and fade one by one
    dK    r, w, x = v, dy, q    last position first      M is Gᵀ, read by the values

The delta rule reads before it writes, under the key itself, and its gradients take back what was read:

    E     x_t = β_t e_t,  e_t = v_t − k_tᵀ M             a second read, of what is held before anything is written
    dV    M = a_t ⊙ (M + q dyᵀ − k dvᵀ),  dv_t = β_t y_t      a second write, of what the sweep itself has found
    dQ    with e for v, β k for k, and a second read b_t = S̄_t dv_t
    dK    with e for v, β y for y, and a second write −k dvᵀ; then dk_t = y_t − b_t

Attention divides: with z_t = Σ_{s ≤ t} k_s it is y_t = q_tᵀ S_t / D_t, D_t = q_tᵀ z_t. z is one more column of S, and one more
row in what dQ and dK read: `read_1` and `write_1` are what r and w have in that row, where the other one has 1. Where the
gradient of a share, dy_t / D_t, is read or written, the other side is divided instead, which is in the cache already.

dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i), for the delta rule with + b in the place of − b. Rounding would add up in it
from the end of the text to its beginning; so every 32 positions S and G meet, what the sweep for dQ has left and what that for dK
has: there it is Σ_v S ⊙ G, and what a sum from one meeting to the one before misses is spread over the positions between.

Why this is fast. Products of matrices over 64 positions need the weights of their pairs, and with a decay for each channel they
are no product at all; all in all they take more multiply-adds than this. Here a panel never leaves the cache, since a column
knows nothing of the others. And it is read and written once for two positions, s and t, one after the other:

    M = a_s ⊙ (what was left of M, and what the two before them have written)
    y_s = r_sᵀ M + ⟨r_s, w_s⟩ x_s
    y_t = a_t ⊙ (r_tᵀ M + ⟨r_t, w_s⟩ x_s) + ⟨r_t, w_t⟩ x_t

All of a column fades alike, so a_t can wait, and goes with the next a into one factor of M, and into x_s: five operations for
two positions, where a memory that does not fade needs four. Where the rows fade it goes into r_t, and with the next a into w_s,
w_t and a factor of each row: some products beside M (`rows_fade`), and five operations on it again.

From a state S_0 on, M begins with that and not with zeros, and is S_n when the last position has written; where the last position
comes first, it begins with dS_n and ends as dS_0. Where M is turned, so are they. S and G then also meet at both ends.

Of a taller memory 64 rows go through the whole text, and then the next 64: what they say is added up. (Not so when x is what has
been read: that needs all rows.) No decay is divided by, so any will do, also 0.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import for_reading, inverse
from minitransformer.kernels.compiling import any_order, compiled, inlined
from minitransformer.kernels.micro_kernel import (
    AS_M,
    AS_R,
    AS_R_2,
    AS_W,
    AS_W_2,
    AS_W_2_SECOND,
    AS_W_SECOND,
    BY_COLUMNS,
    BY_ROWS,
    READS_2,
    REGISTER,
    WIDE,
    WRITES_2,
    some_columns,
)
from minitransformer.kernels.pointwise import cut
from minitransformer.kernels.threads import borrowed, claimed, in_parallel, one_by_one
from minitransformer.kernels.tiles import LANES, MICRO, plain_loops, tile
from minitransformer.typing import Array

ROWS = 64  # of a memory, that go through the text together
SMALL = 2**16  # exponentials, for which no helper is called
BLOCK = 32  # positions from one meeting of S and G to the next
ROOM = 11  # rows below the columns of M: x and x₂ of two positions, y and y₂ of two, fades, and what a row of ones has seen
IN, IN_B, IN_2, IN_2B, OUT, OUT_B, OUT_2, OUT_2B, FADES, NOW, ONE = (row * LANES for row in range(ROOM))


@any_order
def dot(a, b):
    """The inner product ⟨a, b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


@any_order
def faded_dot(a, b, f):
    """⟨a, f ⊙ b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += f[c] * a[c] * b[c]
    return total


@compiled
def fade(fades, h, u, c0, width, f):
    """f: how each column fades, or all of them."""
    if fades.shape[2] == 1:
        a = fades[h, u, 0]
        for i in range(width):
            f[i] = a
    else:
        each = fades[h, u, c0:]
        for i in range(width):
            f[i] = each[i]


@inlined
def rows_fade(A, R, R_2, W, W_2, second, h, t_2, s, s_2, u, u_2, before, waits, k0, k1, beside):
    """What a pass takes in the place of M, of w, w₂ of both positions before it, and of r, r₂ of its second position.

    before   what the second position before it has read with, and M has waited for; −1 if there was one position only
    waits    whether the second position of this pass is another one than the first, and reads with a of u₂
    """
    f, m, rows = A[h, u, k0:k1], beside[AS_M], k1 - k0
    if before >= 0:
        a = A[h, before, k0:k1]
        for c in range(rows):
            m[c] = a[c] * f[c]
    else:
        for c in range(rows):
            m[c] = f[c]
    w, w_second = W[h, s, k0:k1], W[h, s_2, k0:k1]
    for c in range(rows):
        beside[AS_W, c] = w[c] * m[c]
        beside[AS_W_SECOND, c] = w_second[c] * f[c]
    if second == WRITES_2:
        w, w_second = W_2[h, s, k0:k1], W_2[h, s_2, k0:k1]
        for c in range(rows):
            beside[AS_W_2, c] = w[c] * m[c]
            beside[AS_W_2_SECOND, c] = w_second[c] * f[c]
    if waits:
        a, r = A[h, u_2, k0:k1], R[h, t_2, k0:k1]
        for c in range(rows):
            beside[AS_R, c] = r[c] * a[c]
        if second == READS_2:
            r = R_2[h, t_2, k0:k1]
            for c in range(rows):
                beside[AS_R_2, c] = r[c] * a[c]


@inlined
def overlaps(R, R_2, W, W_2, A, fading, second, h, t, t_2, u, k0, k1):
    """⟨r, w⟩ of t, of t₂, of r at t₂ and w at t, and the same for R_2, and for W_2. They don't wait for M, nor M for them."""
    own = own_2 = dot(R[h, t, k0:k1], W[h, t, k0:k1])
    between = between_2 = R.dtype.type(0)
    if t_2 != t:
        own_2, r, w = dot(R[h, t_2, k0:k1], W[h, t_2, k0:k1]), R[h, t_2, k0:k1], W[h, t, k0:k1]
        if fading == BY_ROWS:
            a = A[h, u, k0:k1]
            between = faded_dot(r, w, a)
            if second == READS_2:
                between_2 = faded_dot(R_2[h, t_2, k0:k1], w, a)
            elif second == WRITES_2:
                between_2 = faded_dot(r, W_2[h, t, k0:k1], a)
        else:
            between = dot(r, w)
            if second == READS_2:
                between_2 = dot(R_2[h, t_2, k0:k1], w)
            elif second == WRITES_2:
                between_2 = dot(r, W_2[h, t, k0:k1])
    return own, own_2, between, between_2


@inlined
def reads_the_first(second, between, between_2, below):
    """What the first of two has written, the second reads here: M does not have it yet."""
    for i in range(LANES):
        below[OUT_B + i] += between * below[IN + i]
    if second == READS_2:
        for i in range(LANES):
            below[OUT_2B + i] += between_2 * below[IN + i]
    elif second == WRITES_2:
        for i in range(LANES):
            below[OUT_B + i] += between_2 * below[IN_2 + i]


@inlined
def columns_fade(fades, h, u, c0, width, second, below):
    """M fades as u says, for which FADES stands in the pass; and what was written before it, which M does not have yet."""
    fade(fades, h, u, c0, width, below[NOW:ONE])
    for i in range(LANES):
        f = below[NOW + i]
        below[FADES + i] *= f
        below[IN + i] *= f
        below[IN_B + i] *= f
    if second == WRITES_2:
        for i in range(LANES):
            f = below[NOW + i]
            below[IN_2 + i] *= f
            below[IN_2B + i] *= f


@inlined
def columns_fade_between(fades, h, u, c0, width, second, below):
    """What the first of two has written, and the second has read, fades as u says. M waits, with FADES, for the next pass."""
    fade(fades, h, u, c0, width, below[FADES:NOW])
    for i in range(LANES):
        f = below[FADES + i]
        below[IN + i] *= f
        below[OUT_B + i] *= f
    if second == WRITES_2:
        for i in range(LANES):
            below[IN_2 + i] *= below[FADES + i]
    elif second == READS_2:
        for i in range(LANES):
            below[OUT_2B + i] *= below[FADES + i]


@inlined
def will_write(X, of_x, second, Y_2, beta, h, t, k0, c0, write, found_2):
    """x is what is written; y₂ what a second read has found: −M, or with β e = x − M, and then x becomes β e."""
    x, share, width = X[h, t, c0:], X.dtype.type(1), min(LANES, X.shape[2] - c0)
    if len(of_x) > 0:
        share = of_x[h, t]
    for i in range(width):
        write[i] = share * x[i]
    if second == READS_2:
        y_2 = Y_2[h, t, c0:]
        if len(beta) > 0:
            b = beta[h, t]
            for i in range(width):
                y_2[i] = x[i] - found_2[i]
                write[i] = b * y_2[i]
        elif k0 > 0:  # earlier rows have been through
            for i in range(width):
                y_2[i] -= found_2[i]
        else:
            for i in range(width):
                y_2[i] = -found_2[i]


@inlined
def row_of_ones(read_1, write_1, h, t, ones, write, found):
    """One more row of M, in which r or w is 1."""
    if len(read_1) > 0:
        r = read_1[h, t]
        for i in range(LANES):
            ones[i] += write[i]
            found[i] += r * ones[i]
    if len(write_1) > 0:
        w = write_1[h, t]
        for i in range(LANES):
            ones[i] += w * write[i]
            found[i] += ones[i]


@inlined
def has_found(Y, of_y, h, t, c0, found, upon):
    """y, or more of it, upon what stands there."""
    y, share, width = Y[h, t, c0:], Y.dtype.type(1), min(LANES, Y.shape[2] - c0)
    if len(of_y) > 0:
        share = of_y[h, t]
    if upon:
        for i in range(width):
            y[i] += share * found[i]
    else:
        for i in range(width):
            y[i] = share * found[i]


@compiled
def advance_by_loops(M, R, R_2, W, W_2, A, fading, second, below, h, t, s, u, k0, rows, width):
    """M = f ⊙ M + w xᵀ + w₂ x₂ᵀ, times a, and y = rᵀ M, y₂ = r₂ᵀ M in one pass: r of position t, w of s, a of u."""
    below[OUT:FADES] = 0
    x, x_2, f = below[IN:IN_B], below[IN_2:IN_2B], below[FADES:NOW]
    y, y_2, a = below[OUT:OUT_B], below[OUT_2:OUT_2B], M.dtype.type(1)
    for c in range(rows):
        m, k = M[c * LANES : (c + 1) * LANES], k0 + c
        w, r = W[h, s, k], R[h, t, k]
        if fading == BY_COLUMNS:
            for i in range(width):
                m[i] *= f[i]
        elif fading == BY_ROWS:
            a = A[h, u, k]
        if second == WRITES_2:
            w_2 = W_2[h, s, k]
            for i in range(width):
                m[i] += w_2 * x_2[i]
        for i in range(width):
            m[i] = a * (m[i] + w * x[i])
            y[i] += r * m[i]
        if second == READS_2:
            r_2 = R_2[h, t, k]
            for i in range(width):
                y_2[i] += r_2 * m[i]


@compiled
def begin(S, h, k0, k1, c0, M, below, beside):
    """M as it is before the first position, and a pass that changes nothing: nothing fades, and nothing has been written."""
    M[:], below[:] = 0, 0
    below[FADES:NOW] = 1
    if len(S) > 0:
        beside[:] = 1
        width = min(LANES, S.shape[2] - c0)
        for c in range(k1 - k0):
            M[c * LANES : c * LANES + width] = S[h, k0 + c, c0 : c0 + width]
        if k0 == 0 and S.shape[1] > k1:
            below[ONE : ONE + width] = S[h, S.shape[1] - 1, c0 : c0 + width]


@compiled
def end(M, W, W_2, A, before, below, h, s, s_2, k0, k1, c0, S):
    """M as it is behind the last position: with what still waits, and what the last one or two, s and s₂, have written."""
    width, a = min(LANES, S.shape[2] - c0), M.dtype.type(1)
    x, x_b, x_2, x_2b = below[IN:IN_B], below[IN_B:IN_2], below[IN_2:IN_2B], below[IN_2B:OUT]
    f = below[FADES:NOW]
    for k in range(k0, k1):
        m, z = M[(k - k0) * LANES : (k - k0 + 1) * LANES], S[h, k, c0:]
        if before >= 0:
            a = A[h, before, k]
        w, w_b = a * W[h, s, k], W[h, s_2, k]
        for i in range(width):
            z[i] = a * f[i] * m[i] + w * x[i] + w_b * x_b[i]
        if len(W_2) > 0:
            w, w_b = a * W_2[h, s, k], W_2[h, s_2, k]
            for i in range(width):
                z[i] += w * x_2[i] + w_b * x_2b[i]


@compiled
def leave(M, w, x, state):
    """What M holds when this position has written: state = M + w xᵀ."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(LANES):
            s[i] = m[i] + w[c] * x[i]


@compiled
def meet(M, state, met):
    """met += Σ over the rows of M ⊙ state, for each column."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(len(met)):
            met[i] += m[i] * s[i]


@compiled
def sweep(
    h, p, k0, k1, R, R_2, read_1, W, X, W_2, X_2, write_1, A, fades, of_x, of_y, beta, E, dbeta, M, below, beside, reverse, loops,
    states, met, upon, begun, Y_2, Y,
):  # fmt: skip
    """Rows k0 … k1 − 1 of panel p of head h; the other arguments as in `run`. M, `below` and `beside` are as `begin` leaves
    them, and what is returned is for `end`.
    """
    R, R_2, read_1, W, X, W_2, X_2, write_1 = borrowed((R, R_2, read_1, W, X, W_2, X_2, write_1))
    A, fades, of_x, of_y, beta, E, dbeta = borrowed((A, fades, of_x, of_y, beta, E, dbeta))
    M, below, beside, states, met, Y_2, Y = borrowed((M, below, beside, states, met, Y_2, Y))
    n, rows, c0, one = R.shape[1], k1 - k0, p * LANES, Y.dtype.type(1)
    width, wide = min(LANES, Y.shape[2] - c0), WIDE * REGISTER // Y.itemsize
    fading = BY_ROWS if len(A) > 0 else BY_COLUMNS if len(fades) > 0 else 0
    second = READS_2 if len(R_2) > 0 else WRITES_2 if len(W_2) > 0 else 0
    ones = below[ONE : ONE + LANES]
    step, before, further = 0, -1, -1 if reverse else 1
    s = s_2 = n - 1 if reverse else 0
    while step < n:
        t = n - 1 - step if reverse else step
        # two positions in one pass over M. A meeting is at the first of them
        together = 2 if not loops and 0 < step < n - 1 and t % 2 == 1 else 1
        t_2 = t + further if together == 2 else t
        u = t + 1 if reverse else t  # what lies between two positions fades as the later of them says
        if fading == BY_ROWS and not loops and (step > 0 or begun) and u < n:
            rows_fade(A, R, R_2, W, W_2, second, h, t_2, s, s_2, u, u + further, before, together == 2, k0, k1, beside)
            before = u + further if together == 2 else -1
        of = overlaps(R, R_2, W, W_2, A, fading, second, h, t, t_2, u + further, k0, k1)
        own, own_2, between, between_2 = of
        if step > 0 or begun:  # the pass: what has been written enters, and t and t₂ read
            if fading == BY_COLUMNS and u < n:
                columns_fade(fades, h, u, c0, width, second, below)
            if loops:
                now = fading if u < n else 0
                advance_by_loops(M, R, R_2, W, W_2, A, now, second, below, h, t, s, u, k0, rows, width)
            elif MICRO:
                for c in range(0, width, wide):
                    left = width - c
                    some_columns(M, R, R_2, W, W_2, beside, below, h, t, t_2, s, s_2, k0, rows, c, left, fading, second)
            if fading == BY_COLUMNS:
                below[FADES : FADES + LANES] = one
        s, s_2 = t, t_2
        if together == 1:
            below[IN_B:IN_2] = 0
            below[IN_2B:OUT] = 0
        for number in range(together):  # what each of them writes, and finds
            into, out = IN + number * LANES, OUT + number * LANES
            write, write_2 = below[into : into + LANES], below[into + 2 * LANES : into + 3 * LANES]
            found, found_2 = below[out : out + LANES], below[out + 2 * LANES : out + 3 * LANES]
            if number == 1:
                if fading == BY_COLUMNS:
                    columns_fade_between(fades, h, u + further, c0, width, second, below)
                own = own_2
                reads_the_first(second, between, between_2, below)
            will_write(X, of_x, second, Y_2, beta, h, t, k0, c0, write, found_2)
            for i in range(LANES):
                found[i] += own * write[i]
            if k0 == 0:
                row_of_ones(read_1, write_1, h, t, ones, write, found)
            if len(E) > 0:
                dbeta[p, h, t] = dot(E[h, t, c0 : c0 + width], found[:width])
            has_found(Y, of_y, h, t, c0, found, k0 > 0 or upon)
            if second == WRITES_2:
                x_2 = X_2[h, t, c0:]
                for i in range(width):
                    write_2[i] = -x_2[i]
            if len(states) > 0 and (t + 1) % BLOCK == 0:
                state = states[h, p, t // BLOCK, k0 * LANES : k1 * LANES]
                if len(met) > 0:
                    meet(M, state, met[h, (t + 1) // BLOCK, c0 : c0 + width])
                else:
                    leave(M, W[h, t, k0:k1], write, state)
            t += further
        step += together
    return s, s_2, before


@compiled
def sweeps(reading, writing, fading, scaling, errors, reverse, loops, meeting, upon, S, Y_2, Y, queue):
    """`sweep` for all heads and panels, a task for each."""
    panels, inner = (Y.shape[2] + LANES - 1) // LANES, reading[0].shape[2]
    (R, R_2, read_1), (W, X, W_2, X_2, write_1), (A, fades) = borrowed((reading, writing, fading))
    (of_x, of_y), (beta, E, dbeta), (states, met) = borrowed((scaling, errors, meeting))
    S, Y_2, Y = borrowed((S, Y_2, Y))
    whole = len(beta) > 0 or len(E) > 0  # what is written depends on what all rows have said
    together = max(inner, 1) if whole else ROWS
    rows = min(together, inner)
    wide = (rows + LANES - 1) // LANES
    M, below = tile(rows, Y).reshape(-1), tile(ROOM, Y).reshape(-1)
    beside = tile((AS_M + 1) * wide, Y).reshape(AS_M + 1, wide * LANES)
    for task in claimed(queue, len(Y) * panels):
        for k0 in range(0, max(inner, 1), together):
            h, p, k1 = task // panels, task % panels, min(k0 + together, inner)
            m, under, aside = borrowed((M[: (k1 - k0) * LANES], below, beside))
            begin(S, h, k0, k1, p * LANES, m, under, aside)
            s, s_2, before = sweep(
                h, p, k0, k1, R, R_2, read_1, W, X, W_2, X_2, write_1, A, fades, of_x, of_y, beta, E, dbeta, m, under, aside,
                reverse, loops, states, met, upon, len(S) > 0, Y_2, Y,
            )  # fmt: skip
            if len(S) > 0 and R.shape[1] > 0:
                end(m, W, W_2, A, before, under, h, s, s_2, k0, k1, p * LANES, S)


@compiled
def between_meetings(q, dq, k, dk, looked_up, met, nothing, Y, queue):
    """Y_t = Σ (q_i ⊙ dq_i − k_i ⊙ dk_i) over i from t to the next meeting, and what has met there; a task for each head.

    The first meeting is before the first position, the last behind the last one, where the block may be a short one. What a sum
    then misses at the meeting before, it has lost by rounding, a little at each position. Y is α before. Where that is
    as good as nothing, so is α ⟨S, G⟩: not what rounding leaves of the sum, which may be multiplied by ln α next.
    With one gate for all channels, Y is (B, n, 1), the sum over them. Of the delta rule dk is what its keys have written; less
    what they have looked up it is their gradient, and takes its place, and together they are in Y.
    """
    n, one, sums = Y.shape[1], Y.shape[2] != q.shape[2], np.empty(Y.shape[2], Y.dtype)
    closed = np.empty((BLOCK, Y.shape[2]), np.bool_)
    q, dq, k, dk, met, Y = borrowed((q, dq, k, dk, met, Y))
    for h in claimed(queue, len(Y)):
        for block in range(met.shape[1] - 1):
            start, stop = block * BLOCK, min((block + 1) * BLOCK, n)
            if one:
                sums[0] = met[h, block + 1].sum()
            else:
                sums[:] = met[h, block + 1]
            for t in range(stop - 1, start - 1, -1):
                for c in range(len(sums)):
                    closed[t - start, c] = Y[h, t, c] < nothing
                away = dk[h, t]
                if len(looked_up) > 0:
                    away = looked_up[h, t]
                    for c in range(len(away)):
                        away[c], dk[h, t, c] = dk[h, t, c] - away[c], dk[h, t, c] + away[c]
                if one:
                    sums[0] += dot(q[h, t], dq[h, t]) - dot(k[h, t], away)
                    Y[h, t, 0] = sums[0]
                else:
                    for c in range(len(sums)):
                        sums[c] += q[h, t, c] * dq[h, t, c] - k[h, t, c] * away[c]
                        Y[h, t, c] = sums[c]
            if one:
                sums[0] -= met[h, block].sum()
            else:
                sums -= met[h, block]
            for t in range(start, stop):
                share = Y.dtype.type((stop - t) / (stop - start))
                for c in range(len(sums)):
                    Y[h, t, c] = 0 if closed[t - start, c] else Y[h, t, c] - share * sums[c]


@compiled
def denominators(A, B, eps, z, D, queue):
    """D_t = ⟨a_t, z_t⟩ + ε, z_t = z + Σ_{s ≤ t} b_s, and z becomes the last of these; a task for each head."""
    A, B, z, D = borrowed((A, B, z, D))
    for h in claimed(queue, len(D)):
        total = z[h]
        for t in range(D.shape[1]):
            b = B[h, t]
            for k in range(len(total)):
                total[k] += b[k]
            D[h, t] = dot(A[h, t], total) + eps


@compiled
def less_products(A, B, Y, queue):
    """Y_t = −⟨a_t, b_t⟩; a task for each head."""
    A, B, Y = borrowed((A, B, Y))
    for h in claimed(queue, len(Y)):
        for t in range(Y.shape[1]):
            Y[h, t] = -dot(A[h, t], B[h, t])


# ------------------------------------------------------------------------------------------- in and out


def heads(X: Array) -> Array:
    """All batch axes as one, row by row in memory: (*batch, n, d) to (B, n, d). A copy only if it can't be helped."""
    return for_reading(X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]))


@functools.cache
def nothing(axes: int, dtype: np.dtype) -> Array:
    """What stands for an array that is not there: None would be another type, for which all is compiled again."""
    return np.empty((0,) * axes, dtype)


def run(
    R: Array, W: Array, X: Array, decay: Array | None = None, *, R_2: Array | None = None, W_2: Array | None = None,
    X_2: Array | None = None, beta: Array | None = None, read_1: Array | None = None, write_1: Array | None = None,
    of_x: Array | None = None, of_y: Array | None = None, E: Array | None = None, dbeta: Array | None = None,
    by_columns: bool = False, reverse: bool = False, states: Array | None = None, met: Array | None = None,
    upon: Array | None = None, S: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """y_t = Σ_{s ≤ t} L_ts ⟨r_t, w_s⟩ x_s of every head, (B, n, columns).

    decay             α, (B, n, 1), (B, n, rows) or, by columns, (B, n, columns); None: nothing fades. If `reverse`, s ≥ t
    of_x, of_y        what x and y are multiplied by, (B, n)
    R_2               a second read, −Σ_{s < t}, the second result. With β, (B, n), it is e = x − Σ_{s < t}, and x becomes β e
    W_2, X_2          a second write, at s < t only, which is taken away, not added; x₂ is y itself if it is not given
    E                 e of the delta rule; then dbeta, (panels, B, n), becomes ⟨e, y⟩ of each panel, before y is multiplied
    read_1, write_1   one more row of r, with 1 for w, or of w, with 1 for r, (B, n)
    states            M after every 32 positions, (B, panels, blocks, rows · 64), to be filled; if `reverse`, to be met, in
    met               (B, blocks + 1, columns), of which all but the first, and the last of a short block, are met here
    upon              Y, if it is to be added to what stands there
    S                 M before the first position, (B, rows, columns), which becomes M behind the last. With read_1 or write_1 it
                      has one row more, for the row of ones. None: M begins with zeros
    """
    Y = np.empty(X.shape, X.dtype) if upon is None else upon
    Y_2 = np.empty(X.shape if R_2 is not None else (0, 0, 0), X.dtype)
    by_columns = by_columns or (decay is not None and decay.shape[-1] == 1)
    none_2, none_3, none_4 = (nothing(axes, X.dtype) for axes in (2, 3, 4))

    def some(A: Array | None, none: Array) -> Array:
        return none if A is None else A

    in_parallel(
        len(Y) * -(-Y.shape[-1] // LANES),
        sweeps,
        (R, some(R_2, none_3), some(read_1, none_2)),
        (W, X, some(W_2, none_3), some(X_2, Y), some(write_1, none_2)),
        (none_3, some(decay, none_3)) if by_columns else (some(decay, none_3), none_3),
        (some(of_x, none_2), some(of_y, none_2)),
        (some(beta, none_2), some(E, none_3), some(dbeta, none_3)),
        *(reverse, plain_loops(), (some(states, none_4), some(met, none_3)), upon is not None),
        *(some(S, none_3), Y_2, Y),
    )
    return Y, Y_2


def turned(S: Array) -> Array:
    """Sᵀ of every head, row by row in memory: a copy, in which a sweep leaves what it has at the end."""
    return S.mT.copy()


Sums = tuple[Array, Array]  # S (*batch, r, dv) and z (*batch, r)


class SweptKernelAttentionPullback(NamedTuple):
    """dN = dY / D,  dD_t = −⟨dN_t, y_t⟩; then a sweep for each of dFQ, dFK and dV, and nothing is remembered but the arrays.

    D_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ + ε; it has no entries without normalisation, where dN = dY and dD = 0.
    From a state on, the sweep for dFQ begins with S and z, the other two with dS and dz of the last one.
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    D: Array
    initial: Sums | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, n), made again by the definition, in NumPy."""
        W = np.tril(self.FQ @ self.FK.mT)
        return W * inverse(self.D)[..., None] if self.D.size else W

    def __call__(self, dY: Any) -> tuple[Any, ...]:
        dY, after = dY if self.initial is not None else (dY, None)
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        q, k, v, y, dy = (heads(X) for X in (self.FQ, self.FK, self.V, self.Y, dY.astype(self.Y.dtype, copy=False)))
        dd = share = past = future = dS = dz = None
        if self.D.size:
            share, dd = inverse(self.D.reshape(y.shape[:2])), np.empty(y.shape[:2], y.dtype)
            in_parallel(len(y), less_products, dy, y, dd)
        if self.initial is not None and after is not None:
            (S, z), (G, dz) = ((heads(X), x.reshape(len(q), 1, q.shape[-1])) for X, x in (self.initial, after))
            past, future, dS = turned(S), turned(G), G.copy()
            if dd is not None:
                past, future = np.concatenate([past, z], 1), np.concatenate([future, dz], 1)
        dq, _ = run(dy, v, k, read_1=dd, of_y=share, S=past)
        dk, _ = run(v, dy, q, write_1=dd, of_x=share, reverse=True, S=future)
        dv, _ = run(k, q, dy, of_x=share, reverse=True, S=dS)
        gradients = dq.reshape(self.FQ.shape), dk.reshape(self.FK.shape), dv.reshape(self.V.shape)
        if self.initial is None or dS is None or dz is None:
            return gradients
        if dd is None or share is None:
            dk += dz
        else:
            dz = dz + ((share * dd)[..., None] * q).sum(-2, keepdims=True)
        return *gradients, tuple(d.reshape(X.shape) for d, X in zip((dS, dz), self.initial, strict=True))


def swept_kernel_attention(
    FQ: Array, FK: Array, V: Array, initial: Sums | None = None, *, normalise: bool, eps: float
) -> tuple[Any, SweptKernelAttentionPullback]:
    """`kernel_attention` that is causal, of as many queries as keys: y_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ v_s / D_t.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    q, k, v = heads(FQ), heads(FK), heads(V)
    D = np.empty((*FQ.shape[:-1],) if normalise else (0,), V.dtype)
    S, z = None, np.zeros((len(k), k.shape[-1]), k.dtype)
    if initial is not None:
        S, z = heads(initial[0]).copy(), initial[1].reshape(z.shape).copy()
    if normalise:
        in_parallel(len(q), denominators, q, k, V.dtype.type(eps), z, D.reshape(q.shape[:2]))
    elif initial is not None:
        z += k.sum(-2)
    Y, _ = run(q, k, v, of_y=inverse(D).reshape(q.shape[:2]) if normalise else None, S=S)
    Y = Y.reshape(V.shape)
    pullback = SweptKernelAttentionPullback(FQ, FK, V, Y, D, initial)
    if initial is None or S is None:
        return Y, pullback
    return (Y, (S.reshape(initial[0].shape), z.reshape(initial[1].shape))), pullback


Ends = tuple[Array, Array, Array]  # S before the first position, S behind the last one, and the gradient of that


def of_the_ends(ends: Ends | None) -> tuple[Array | None, ...]:
    """What the sweeps back begin with: dS, which becomes dS_0, S_0ᵀ and dSᵀ."""
    if ends is None:
        return None, None, None
    S_0, _, dS = (heads(X) for X in ends)
    return dS.copy(), turned(S_0), turned(dS)


def with_state(Y: Array, S: Array | None, initial: Array | None) -> Any:
    """Y, or Y and S."""
    return Y if S is None or initial is None else (Y, S.reshape(initial.shape))


class Meetings:
    """Where the sweep for dQ leaves its states, and that for dK meets them."""

    def __init__(self, V: Array, K: Array) -> None:
        B, n, r = K.shape
        blocks = -(-n // BLOCK)
        self.states = np.empty((B, -(-r // LANES), blocks, V.shape[-1] * LANES), K.dtype)
        self.met = np.zeros((B, blocks + 1, r), K.dtype)

    def at_the_ends(self, decay: Array, ends: Ends | None, dS_0: Array | None) -> None:
        """S and G also meet before the first position, where G fades once more and is dS_0, and behind the last one."""
        if ends is None or dS_0 is None:
            return
        S_0, S, dS = (heads(X) for X in ends)
        dS_0 *= decay[:, :1].prod(1)[..., None]
        self.met[:, 0] = np.vecdot(S_0, dS_0)
        if decay.shape[1] % BLOCK:  # or else the sweep has met there
            self.met[:, -1] = np.vecdot(S, dS)

    def gradient(self, decay: Array, q: Array, dq: Array, k: Array, dk: Array, looked_up: Array | None = None) -> Array:
        """dln α, which replaces α."""
        looked_up = nothing(3, q.dtype) if looked_up is None else looked_up
        in_parallel(len(q), between_meetings, q, dq, k, dk, looked_up, self.met, np.finfo(q.dtype).eps, decay)
        return decay


def exponentials(X: Array, Y: Array, queue: Array) -> None:
    """Y = exp X, in parts. Not compiled: NumPy's takes many numbers at once, and leaves the interpreter free too."""
    for part in one_by_one(queue, queue[1]):
        start, stop = cut(len(X), part, queue[1])
        np.exp(X[start:stop], out=Y[start:stop])


def fading(log_decay: Array) -> Array:
    """α = exp(ln α) of every head, (B, n, 1 or r)."""
    X = heads(log_decay)
    decay = np.empty(X.shape, X.dtype)
    in_parallel(X.size // SMALL, exponentials, X.reshape(-1), decay.reshape(-1))
    return decay


def apart(gradients: Any, initial: Array | None, S: Array | None) -> tuple[Array, Ends | None]:
    """dY, and the ends if there are any: then the gradient is (dY, dS)."""
    return (gradients, None) if initial is None or S is None else (gradients[0], (initial, S, gradients[1]))


def gated_linear(Q: Array, K: Array, V: Array, log_decay: Array, initial: Array | None = None) -> Any:
    """Y of `gated_linear_attention`, and S if there is a state to begin with; ln α is (*batch, n, 1 or r)."""
    S = None if initial is None else heads(initial).copy()
    Y, _ = run(heads(Q), heads(K), heads(V), fading(log_decay), S=S)
    return with_state(Y.reshape(V.shape), S, initial)


def gated_linear_back(
    Q: Array, K: Array, V: Array, log_decay: Array, dY: Array, ends: Ends | None = None
) -> tuple[Array, ...]:
    """dQ, dK, dV, dln α, and dS_0 if there is one: a sweep for each of three, and what lies between."""
    q, k, v, dy = (heads(X) for X in (Q, K, V, dY.astype(V.dtype, copy=False)))
    decay = fading(log_decay)
    meetings, (dS_0, past, future) = Meetings(v, k), of_the_ends(ends)
    dq, _ = run(dy, v, k, decay, by_columns=True, states=meetings.states, S=past)
    dk, _ = run(v, dy, q, decay, by_columns=True, reverse=True, states=meetings.states, met=meetings.met, S=future)
    dv, _ = run(k, q, dy, decay, reverse=True, S=dS_0)
    meetings.at_the_ends(decay, ends, dS_0)
    dlog_decay = meetings.gradient(decay, q, dq, k, dk)
    gradients = dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(V.shape), dlog_decay.reshape(log_decay.shape)
    return gradients if ends is None or dS_0 is None else (*gradients, dS_0.reshape(ends[0].shape))


def delta(
    Q: Array, K: Array, V: Array, beta: Array, log_decay: Array | None = None, initial: Array | None = None
) -> tuple[Any, Array]:
    """Y, or Y and S, and E of `delta_rule` or, with ln α, (*batch, n, 1 or r), of `gated_delta_rule`."""
    k, decay = heads(K), None if log_decay is None else fading(log_decay)
    S = None if initial is None else heads(initial).copy()
    Y, E = run(heads(Q), k, heads(V), decay, R_2=k, beta=heads(beta[..., None])[..., 0], S=S)
    return with_state(Y.reshape(V.shape), S, initial), E.reshape(V.shape)


def delta_back(
    Q: Array, K: Array, beta: Array, E: Array, dY: Array, log_decay: Array | None = None, ends: Ends | None = None
) -> tuple[Array, ...]:
    """dQ, dK, dV, dβ, of gates dln α, from a state on dS_0: a sweep that finds g = Gᵀ k, and dv = β g; one for dQ, one for dK."""
    q, k, dy, e = (heads(X) for X in (Q, K, dY.astype(E.dtype, copy=False), E))
    b, decay = heads(beta[..., None])[..., 0], None if log_decay is None else fading(log_decay)
    dbetas = np.empty((-(-e.shape[-1] // LANES), *b.shape), b.dtype)  # what each panel says of it
    dS_0, past, future = of_the_ends(ends)
    dv, _ = run(k, q, dy, decay, reverse=True, W_2=k, of_y=b, E=e, dbeta=dbetas, S=dS_0)
    meetings = None if log_decay is None else Meetings(e, k)
    states, met = (None, None) if meetings is None else (meetings.states, meetings.met)
    dq, looked_up = run(dy, e, k, decay, by_columns=True, R_2=dv, of_x=b, states=states, S=past)
    upon = looked_up if meetings is None else None
    dk, _ = run(
        e, dy, q, decay, by_columns=True, reverse=True, W_2=dv, X_2=k, of_y=b, states=states, met=met, upon=upon,
        S=future,
    )  # fmt: skip
    gates: tuple[Array, ...] = ()
    if meetings and log_decay is not None and decay is not None:
        meetings.at_the_ends(decay, ends, dS_0)
        gates = (meetings.gradient(decay, q, dq, k, dk, looked_up).reshape(log_decay.shape),)
    if ends is not None and dS_0 is not None:
        gates += (dS_0.reshape(ends[0].shape),)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(E.shape), dbetas.sum(0).reshape(beta.shape), *gates


class SweptDeltaRulePullback(NamedTuple):
    """Three sweeps: they stand at the top of this file. E_t = v_t − k_tᵀ S_{t−1}. From a state on, both ends are kept."""

    Q: Array
    K: Array
    beta: Array
    E: Array
    initial: Array | None = None
    S: Array | None = None

    def __call__(self, dY: Any) -> tuple[Array, ...]:
        dY, ends = apart(dY, self.initial, self.S)
        if dY.shape != self.E.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.E.shape}")
        return delta_back(self.Q, self.K, self.beta, self.E, dY, ends=ends)


def swept_delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, initial: Array | None = None
) -> tuple[Any, SweptDeltaRulePullback]:
    """`delta_rule` in the compiled tiers, which has checked the arguments.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    Y, E = delta(Q, K, V, beta, initial=initial)
    return Y, SweptDeltaRulePullback(Q, K, beta, E, initial, None if initial is None else Y[1])
