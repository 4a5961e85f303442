"""A pass over a memory M: what has been written enters, M fades, and two positions read, s and t, one after the other:

    M = a_s ⊙ (what was left of M, and what the two before them have written)
    y_s = r_sᵀ M + ⟨r_s, w_s⟩ x_s
    y_t = a_t ⊙ (r_tᵀ M + ⟨r_t, w_s⟩ x_s) + ⟨r_t, w_t⟩ x_t

Why this is fast. M is read and written once for both. All of a column fades alike, so a_t can wait, and goes with the next a into
one factor of M, and into x_s: five operations for two positions, where a memory that does not fade needs four. Where the rows
fade it goes into r_t, and with the next a into w_s, w_t and a factor of each row: some products beside M (`rows_fade`), and five
operations on it again.

What is given are the arrays of one head, and which rows of them. What a position writes or has read stands below M's columns.
"""

from typing import NamedTuple

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
from minitransformer.kernels.tiles import LANES, MICRO
from minitransformer.typing import Array

ROOM = 11  # rows below the columns of M: x and x₂ of two positions, y and y₂ of two, fades, and what a row of ones has seen
IN, IN_B, IN_2, IN_2B, OUT, OUT_B, OUT_2, OUT_2B, FADES, NOW, ONE = (row * LANES for row in range(ROOM))

# ------------------------------------------------------------------------------------------- what a pass is given


class Reads(NamedTuple):
    """y_t = r_tᵀ M.

    R       r of every position, (B, n, rows)
    R_2     a second read, (B, n, rows), before t writes: y₂ = −r₂ᵀ M; or with β, (B, n), it is e = x − r₂ᵀ M, and x becomes β e
    ones    one more row of r, where w has 1, (B, n)
    """

    R: Array
    R_2: Array | None = None
    beta: Array | None = None
    ones: Array | None = None


class Writes(NamedTuple):
    """M becomes M + w_t x_tᵀ.

    W, X        w, (B, n, rows), and x, (B, n, columns)
    share       what x is multiplied by, (B, n)
    W_2, X_2    a second write, after t has read, that is taken away: M − w₂ x₂ᵀ; x₂ is y itself if it is not given
    ones        one more row of w, where r has 1, (B, n)
    """

    W: Array
    X: Array
    share: Array | None = None
    W_2: Array | None = None
    X_2: Array | None = None
    ones: Array | None = None


class Fades(NamedTuple):
    """a_t by rows, (B, n, rows), or by columns, (B, n, columns or 1)."""

    rows: Array | None = None
    columns: Array | None = None


class Panel(NamedTuple):
    """Head h, panel p, and rows k0 … k1 − 1 of its memory."""

    h: int
    p: int
    k0: int
    k1: int


class Form(NamedTuple):
    """How it fades, and what else is read or written: the codes of micro_kernel.py. Whether plain loops make the passes."""

    fading: int
    second: int
    loops: bool


class Pass(NamedTuple):
    """t and t₂ read in one pass over M; what s and s₂ have written enters first. M fades by a of u before t, of u₂ before t₂."""

    t: int
    t_2: int
    s: int
    s_2: int
    u: int
    u_2: int


class Memory(NamedTuple):
    """M, rows × 64 in a row; what stands `below` its columns, ROOM × 64; and what stands `beside` its rows where they fade."""

    M: Array
    below: Array
    beside: Array


# ------------------------------------------------------------------------------------------------- inner products


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


@inlined
def overlaps(reads, writes, A, form, at, k0, k1):
    """⟨r, w⟩ of t, of t₂, of r at t₂ and w at t, and the same for R_2, and for W_2. They don't wait for M, nor M for them."""
    t, t_2 = at.t, at.t_2
    own = own_2 = dot(reads.R[t, k0:k1], writes.W[t, k0:k1])
    between = between_2 = reads.R.dtype.type(0)
    if t_2 != t:
        own_2, r, w = dot(reads.R[t_2, k0:k1], writes.W[t_2, k0:k1]), reads.R[t_2, k0:k1], writes.W[t, k0:k1]
        if form.fading == BY_ROWS:
            a = A[at.u_2, k0:k1]
            between = faded_dot(r, w, a)
            if form.second == READS_2:
                between_2 = faded_dot(reads.R_2[t_2, k0:k1], w, a)
            elif form.second == WRITES_2:
                between_2 = faded_dot(r, writes.W_2[t, k0:k1], a)
        else:
            between = dot(r, w)
            if form.second == READS_2:
                between_2 = dot(reads.R_2[t_2, k0:k1], w)
            elif form.second == WRITES_2:
                between_2 = dot(r, writes.W_2[t, k0:k1])
    return own, own_2, between, between_2


# --------------------------------------------------------------------------------------- M = a ⊙ (M + w xᵀ), y = rᵀ M


@inlined
def rows_fade(reads, writes, A, second, at, before, k0, k1, beside):
    """What a pass takes in the place of M, of w, w₂ of both positions before it, and of r, r₂ of its second position.

    before   what the second position before it has read with, and M has waited for; −1 if there was one position only
    """
    f, m, rows = A[at.u, k0:k1], beside[AS_M], k1 - k0
    if before >= 0:
        a = A[before, k0:k1]
        for c in range(rows):
            m[c] = a[c] * f[c]
    else:
        for c in range(rows):
            m[c] = f[c]
    w, w_second = writes.W[at.s, k0:k1], writes.W[at.s_2, k0:k1]
    for c in range(rows):
        beside[AS_W, c] = w[c] * m[c]
        beside[AS_W_SECOND, c] = w_second[c] * f[c]
    if second == WRITES_2:
        w, w_second = writes.W_2[at.s, k0:k1], writes.W_2[at.s_2, k0:k1]
        for c in range(rows):
            beside[AS_W_2, c] = w[c] * m[c]
            beside[AS_W_2_SECOND, c] = w_second[c] * f[c]
    if at.t_2 != at.t:
        a, r = A[at.u_2, k0:k1], reads.R[at.t_2, k0:k1]
        for c in range(rows):
            beside[AS_R, c] = r[c] * a[c]
        if second == READS_2:
            r = reads.R_2[at.t_2, k0:k1]
            for c in range(rows):
                beside[AS_R_2, c] = r[c] * a[c]


@compiled
def fade(fades, u, c0, width, f):
    """f: how each column fades, or all of them."""
    if fades.shape[1] == 1:
        a = fades[u, 0]
        for i in range(width):
            f[i] = a
    else:
        each = fades[u, c0:]
        for i in range(width):
            f[i] = each[i]


@inlined
def columns_fade(fades, u, c0, width, second, below):
    """M fades as u says, for which FADES stands in the pass; and what was written before it, which M does not have yet."""
    fade(fades, u, c0, width, below[NOW:ONE])
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
def columns_fade_between(fades, u, c0, width, second, below):
    """What the first of two has written, and the second has read, fades as u says. M waits, with FADES, for the next pass."""
    fade(fades, u, c0, width, below[FADES:NOW])
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


@compiled
def advance_by_loops(memory, reads, writes, A, fading, second, at, k0, rows, width):
    """M = f ⊙ M + w xᵀ + w₂ x₂ᵀ, times a, and y = rᵀ M, y₂ = r₂ᵀ M in one pass: r of position t, w of s, a of u."""
    M, below = memory.M, memory.below
    below[OUT:FADES] = 0
    x, x_2, f = below[IN:IN_B], below[IN_2:IN_2B], below[FADES:NOW]
    y, y_2, a = below[OUT:OUT_B], below[OUT_2:OUT_2B], M.dtype.type(1)
    for c in range(rows):
        m, k = M[c * LANES : (c + 1) * LANES], k0 + c
        w, r = writes.W[at.s, k], reads.R[at.t, k]
        if fading == BY_COLUMNS:
            for i in range(width):
                m[i] *= f[i]
        elif fading == BY_ROWS:
            a = A[at.u, k]
        if second == WRITES_2:
            w_2 = writes.W_2[at.s, k]
            for i in range(width):
                m[i] += w_2 * x_2[i]
        for i in range(width):
            m[i] = a * (m[i] + w * x[i])
            y[i] += r * m[i]
        if second == READS_2:
            r_2 = reads.R_2[at.t, k]
            for i in range(width):
                y_2[i] += r_2 * m[i]


@inlined
def advance(memory, reads, writes, fades, form, at, here, width):
    """The pass: what has been written enters, and t and t₂ read."""
    below, c0, rows = memory.below, here.p * LANES, here.k1 - here.k0
    fading_now = form.fading if at.u < len(writes.W) else 0
    if fading_now == BY_COLUMNS:
        columns_fade(fades.columns, at.u, c0, width, form.second, below)
    if form.loops:
        advance_by_loops(memory, reads, writes, fades.rows, fading_now, form.second, at, here.k0, rows, width)
    elif MICRO:
        wide = WIDE * REGISTER // below.itemsize
        r, w, positions = (reads.R, reads.R_2), (writes.W, writes.W_2), (at.t, at.t_2, at.s, at.s_2)
        for c in range(0, width, wide):
            some_columns(memory, r, w, positions, (here.k0, rows, c, width - c), form.fading, form.second)
    if form.fading == BY_COLUMNS:
        below[FADES:NOW] = below.dtype.type(1)


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
