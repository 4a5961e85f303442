"""A pass over a memory M: what the positions s and s′ have written enters, M fades, and the next two read, first t, then t′:

    M = a_t ⊙ (what was left of M + what s and s′ have written)
    y_t = r_tᵀ M + ⟨r_t, w_t⟩ x_t
    y_t′ = a_t′ ⊙ (r_t′ᵀ M + ⟨r_t′, w_t⟩ x_t) + ⟨r_t′, w_t′⟩ x_t′          where columns fade; names write t_2, s_2 for t′, s′

In the delta rule what a position writes depends on all of M. So it can't write and read row by row, as in in_turn.py: it reads in
one pass, and what it writes enters in the next.

Why this is fast. M is read and written once for both. All of a column fades alike, so a_t′ can wait, and goes with the next a
into one factor of M, and into x_t: five operations for two positions, where fading at each of them takes six. Where rows
fade, a_t′ goes into r_t′, and with the next a into w_t and a factor of each row of M: some products beside M (`rows_fade`), and
five operations on it again. In plain loops a pass is for one position: t′ is t, and s′ is s.

The functions get the arrays of one head, and which rows of them. What a position writes or reads stands below M's columns.
"""

from typing import NamedTuple

from minitransformer.kernels.compiling import any_order, inlined, inside
from minitransformer.kernels.memory_kernel import (
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
    WRITES_2,
    some_columns,
)
from minitransformer.kernels.micro_kernel import REGISTER, WIDE
from minitransformer.kernels.sweep_parts import FADES, READ, WRITTEN
from minitransformer.kernels.tiles import LANES, MICRO, dot

IN, IN_B, IN_2, IN_2B = (WRITTEN + row * LANES for row in range(4))  # x of two positions, x₂ of two
OUT, OUT_B, OUT_2, OUT_2B = (READ + row * LANES for row in range(4))  # y of two positions, y₂ of two
NOW = FADES + LANES  # beside the factor of M, at FADES, the one of now


class Pass(NamedTuple):
    """The positions of a pass, `at` in the code: what s and s_2 have written enters, and then t and t_2 read.

    M fades by a of u before t reads, and by a of u_2 before t_2 does.
    """

    t: int
    t_2: int
    s: int
    s_2: int
    u: int
    u_2: int


# ------------------------------------------------------------------------------------------------- inner products


@any_order
def faded_dot(a, b, f):
    """⟨a, f ⊙ b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += f[c] * a[c] * b[c]
    return total


@inlined
def overlaps(reads, writes, A, form, at, k0, k1):
    """The inner products of a pass that need no M: (own, own_2, between, between_2).

    own, own_2    ⟨r, w⟩ of t, and of t_2
    between       ⟨r of t_2, w of t⟩; if rows fade, with a of u_2 in it
    between_2     the same with r₂ in the place of r, or w₂ in the place of w; 0 if there is neither
    """
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
    """Fill `beside`: a factor for each row of M, w and w₂ of s and s_2, and r and r₂ of t_2, with the a that belong to them.

    before   u_2 of the pass before, whose a M does not have yet; −1 if it was for one position only
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


@inside
def fade(fades, u, c0, width, f):
    """f = a of position u for the columns from c0 on; one number for all columns, or one for each."""
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
    """a of u goes into the factor of M, at FADES, and into what s and s_2 have written, which M does not have yet."""
    fade(fades, u, c0, width, below[NOW : NOW + LANES])
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
    """a of u goes into what the first of two positions has written, and what the second has read. M gets it in the next pass."""
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


@inside
def advance_by_loops(memory, reads, writes, A, fading, second, at, k0, rows, width):
    """M = a (f ⊙ M + w xᵀ + w₂ x₂ᵀ) and y = rᵀ M, y₂ = r₂ᵀ M in one pass: r of position t, w of s; a of u, if rows fade."""
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
    """One pass over M: what has been written enters, and t and t_2 read; by plain loops or by the micro-kernel."""
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
    """Add to what the second of two positions reads what the first has written, since M does not have it yet."""
    for i in range(LANES):
        below[OUT_B + i] += between * below[IN + i]
    if second == READS_2:
        for i in range(LANES):
            below[OUT_2B + i] += between_2 * below[IN + i]
    elif second == WRITES_2:
        for i in range(LANES):
            below[OUT_B + i] += between_2 * below[IN_2 + i]
