"""One memory M through a text, position by position. It fades, is written to, and is read:

    for each head and each panel of 64 columns, in parallel:
        M = 0                                            rows × 64: in the first-level cache from the first position to the last
        for each position t:
            M = a_t ⊙ (M + w_{t−1} x_{t−1}ᵀ)             what the position before has written, and all of it fades
            y_t = r_tᵀ M + ⟨r_t, w_t⟩ x_t                what is read, with what is written now already in it

With r, w, x, y = q, k, v, y this is S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t. What else stands for r, w, x and y, for
the delta rule and for gradients, is in scan.py.

Why this is fast. To take 64 positions at once, as products of matrices, one needs the weights of all their pairs, and with a
decay for each channel these weights are no product: it takes more multiply-adds than this. Here a panel never leaves the cache,
since a column knows nothing of the others; and in the tier "micro" it is read and written once for two positions (passes.py).
There too, r, w, x and y are fetched two positions before they are needed: not every processor foresees that the last position
comes first.

From a state S_0 on, M begins with that and not with zeros, and is S_n when the last position has written.

Of a taller memory 64 rows go through the whole text, and then the next 64: what is read from them is added up. (Not so when x
depends on what has been read: that needs all rows.) Nothing is divided by a decay, so it may be 0.
"""

import functools
from typing import NamedTuple

import numpy as np

from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.micro_kernel import AS_M, BY_COLUMNS, BY_ROWS, READS_2, WRITES_2, fetch
from minitransformer.kernels.passes import (
    FADES,
    IN,
    IN_2,
    IN_2B,
    IN_B,
    NOW,
    ONE,
    OUT,
    ROOM,
    Fades,
    Form,
    Memory,
    Panel,
    Pass,
    Reads,
    Writes,
    advance,
    columns_fade_between,
    overlaps,
    reads_the_first,
    rows_fade,
)
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import LANES, dot, plain_loops, tile
from minitransformer.typing import Array

ROWS = 64  # rows of a memory that go through the text together
BLOCK = 32  # positions from one remembered state to the next

# ------------------------------------------------------------------------------------------ what a sweep is given


class Found(NamedTuple):
    """What a sweep fills, Y, Y_2 (B, n, columns) and dbeta; and what it needs for that.

    share       what y is multiplied by, (B, n)
    E, dbeta    e of the delta rule, (B, n, columns). If it is there, dbeta (B, panels, n) becomes ⟨e, y⟩ over the columns of each
                panel, before y is multiplied
    """

    share: Array
    E: Array
    dbeta: Array
    Y_2: Array
    Y: Array


class Sweep(NamedTuple):
    """All that a sweep is given.

    S           M before the first position, (B, rows, columns), which becomes M behind the last. With a row of ones it has one
                row more, which stays as it is. If S has no rows, M begins with zeros, and is forgotten
    reverse     whether the last position comes first
    upon        whether y is added to what stands in Y
    """

    reads: Reads
    writes: Writes
    fades: Fades
    S: Array
    reverse: bool
    upon: bool
    found: Found


class Meeting(NamedTuple):
    """Where the memories of two sweeps of one panel meet: after every 32 positions.

    states    M of the first sweep at these places, (blocks, rows · 64), which fills them
    met       (blocks + 1, columns), to which the second sweep adds Σ over the rows of M ⊙ state; without rows in the first
    """

    states: Array
    met: Array


# ---------------------------------------------------------------------------------------- what a position adds to it


@inlined
def will_write(writes, beta, Y_2, second, t, k0, c0, write, found_2):
    """write = share · x. After a second read, which has found r₂ᵀ M: y₂ −= r₂ᵀ M; or, with β, y₂ = e = x − r₂ᵀ M, write = β e."""
    x, share, width = writes.X[t, c0:], writes.X.dtype.type(1), min(LANES, writes.X.shape[1] - c0)
    if len(writes.share) > 0:
        share = writes.share[t]
    for i in range(width):
        write[i] = share * x[i]
    if second == READS_2:
        y_2 = Y_2[t, c0:]
        if len(beta) > 0:
            b = beta[t]
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
def row_of_ones(read_1, write_1, t, ones, write, found):
    """Write to one more row of M and read it: the one in which all w are 1, or that in which all r are 1."""
    if len(read_1) > 0:
        r = read_1[t]
        for i in range(LANES):
            ones[i] += write[i]
            found[i] += r * ones[i]
    if len(write_1) > 0:
        w = write_1[t]
        for i in range(LANES):
            ones[i] += w * write[i]
            found[i] += ones[i]


@inlined
def has_found(Y, of_y, t, c0, found, upon):
    """y = share · what has been found; if `upon`, it is added to what stands in Y."""
    y, share, width = Y[t, c0:], Y.dtype.type(1), min(LANES, Y.shape[1] - c0)
    if len(of_y) > 0:
        share = of_y[t]
    if upon:
        for i in range(width):
            y[i] += share * found[i]
    else:
        for i in range(width):
            y[i] = share * found[i]


# ------------------------------------------------------------------------------------------------ both ends, meetings


@inside
def begin(S, here, memory):
    """M as it is before the first position: zeros or S; no factor of M waits, and nothing written is to enter."""
    M, below, c0 = memory.M, memory.below, here.p * LANES
    M[:], below[:] = 0, 0
    below[FADES:NOW] = 1
    if len(S) > 0:
        memory.beside[:] = 1
        width = min(LANES, S.shape[1] - c0)
        for c in range(here.k1 - here.k0):
            for j in range(width):
                M[c * LANES + j] = S[here.k0 + c, c0 + j]
        if here.k0 == 0 and len(S) > here.k1:
            for j in range(width):
                below[ONE + j] = S[len(S) - 1, c0 + j]


@inside
def end(memory, writes, A, s, s_2, before, here, S):
    """S = M behind the last position, with the factors that still wait and what the last one or two, s and s_2, have written."""
    M, below, W_2, c0 = memory.M, memory.below, writes.W_2, here.p * LANES
    width, a = min(LANES, S.shape[1] - c0), M.dtype.type(1)
    x, x_b, x_2, x_2b = below[IN:IN_B], below[IN_B:IN_2], below[IN_2:IN_2B], below[IN_2B:OUT]
    f = below[FADES:NOW]
    for k in range(here.k0, here.k1):
        m, z = M[(k - here.k0) * LANES : (k - here.k0 + 1) * LANES], S[k, c0:]
        if before >= 0:
            a = A[before, k]
        w, w_b = a * writes.W[s, k], writes.W[s_2, k]
        for i in range(width):
            z[i] = a * f[i] * m[i] + w * x[i] + w_b * x_b[i]
        if len(W_2) > 0:
            w, w_b = a * W_2[s, k], W_2[s_2, k]
            for i in range(width):
                z[i] += w * x_2[i] + w_b * x_2b[i]


@inside
def leave(M, w, x, state):
    """state = M + w xᵀ: what M holds when this position has written."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(LANES):
            s[i] = m[i] + w[c] * x[i]


@inside
def meet(M, state, met):
    """met += Σ over the rows of M ⊙ state, for each column."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(len(met)):
            met[i] += m[i] * s[i]


# ------------------------------------------------------------------------------------------------- the whole of a text


@inlined
def write_and_find(memory, reads, writes, found, form, number, t, own, here, upon):
    """Position t, the first (number 0) or the second (1) of a pass: what it writes, and what it finds. `own` is its ⟨r, w⟩."""
    below, c0, k0 = memory.below, here.p * LANES, here.k0
    width = min(LANES, found.Y.shape[1] - c0)
    into, out = IN + number * LANES, OUT + number * LANES
    write, write_2 = below[into : into + LANES], below[into + 2 * LANES : into + 3 * LANES]
    y, y_2 = below[out : out + LANES], below[out + 2 * LANES : out + 3 * LANES]
    will_write(writes, reads.beta, found.Y_2, form.second, t, k0, c0, write, y_2)
    for i in range(LANES):
        y[i] += own * write[i]
    if k0 == 0:
        row_of_ones(reads.ones, writes.ones, t, below[ONE : ONE + LANES], write, y)
    if len(found.E) > 0:
        found.dbeta[here.p, t] = dot(found.E[t, c0 : c0 + width], y[:width])
    has_found(found.Y, found.share, t, c0, y, k0 > 0 or upon)
    if form.second == WRITES_2:
        x_2 = writes.X_2[t, c0:]
        for i in range(width):
            write_2[i] = -x_2[i]


@inlined
def fetch_ahead(reads, writes, found, t, here):
    """Let what position t reads and writes come into the cache. There may be no such position."""
    c0 = here.p * LANES
    fetch(reads.R, t, here.k0)
    fetch(writes.W, t, here.k0)
    fetch(writes.X, t, c0)
    fetch(found.Y, t, c0)


@inlined
def sweep(reads, writes, fades, found, here, reverse, upon, begun, loops, meeting, memory):
    """One panel of one head through the text; the arrays are those of the head, and `memory` is as `begin` leaves it.

    returns  s, s_2 and before, for `end`
    """
    reads, writes, fades, found, meeting, memory = borrowed((reads, writes, fades, found, meeting, memory))
    k0, k1, below, A = here.k0, here.k1, memory.below, fades.rows
    n, c0 = len(found.Y), here.p * LANES
    width = min(LANES, found.Y.shape[1] - c0)
    fading = BY_ROWS if len(A) > 0 else BY_COLUMNS if len(fades.columns) > 0 else 0
    form = Form(fading, READS_2 if len(reads.R_2) > 0 else WRITES_2 if len(writes.W_2) > 0 else 0, loops)
    step, before, further = 0, -1, -1 if reverse else 1
    s = s_2 = n - 1 if reverse else 0
    while step < n:
        t = n - 1 - step if reverse else step
        # two positions in one pass over M, of which the first has an odd number, as each meeting has
        together = 2 if not loops and 0 < step < n - 1 and t % 2 == 1 else 1
        u = t + 1 if reverse else t  # what lies between two positions fades as the later of them says
        at = Pass(t, t + further if together == 2 else t, s, s_2, u, u + further)
        if form.fading == BY_ROWS and not loops and (step > 0 or begun) and u < n:
            rows_fade(reads, writes, A, form.second, at, before, k0, k1, memory.beside)
            before = at.u_2 if together == 2 else -1
        own, own_2, between, between_2 = overlaps(reads, writes, A, form, at, k0, k1)
        if step > 0 or begun:
            advance(memory, reads, writes, fades, form, at, here, width)
        if together == 1:
            below[IN_B:IN_2] = 0
            below[IN_2B:OUT] = 0
        for number in range(together):
            if not loops:
                fetch_ahead(reads, writes, found, t + 2 * further, here)
            if number == 1:
                if form.fading == BY_COLUMNS:
                    columns_fade_between(fades.columns, at.u_2, c0, width, form.second, below)
                reads_the_first(form.second, between, between_2, below)
                own = own_2
            write_and_find(memory, reads, writes, found, form, number, t, own, here, upon)
            if len(meeting.states) > 0 and (t + 1) % BLOCK == 0:
                state = meeting.states[t // BLOCK, k0 * LANES : k1 * LANES]
                if len(meeting.met) > 0:
                    meet(memory.M, state, meeting.met[(t + 1) // BLOCK, c0 : c0 + width])
                else:
                    leave(memory.M, writes.W[t, k0:k1], below[IN + number * LANES : IN_B + number * LANES], state)
            t += further
        s, s_2 = at.t, at.t_2
        step += together
    return s, s_2, before


@inlined
def rows_together(one):
    """How many rows of a memory go through the text together: all of them, if what is written depends on what is read."""
    return max(one.reads.R.shape[2], 1) if one.reads.beta.shape[1] > 0 or one.found.E.shape[1] > 0 else ROWS


@inlined
def memory_for(one):
    """A `Memory` with room for the rows that go through the text together."""
    rows, Y = min(rows_together(one), one.reads.R.shape[2]), one.found.Y
    wide = (rows + LANES - 1) // LANES
    room = tile(rows + ROOM + (AS_M + 1) * wide, Y)
    M, below, beside = room[:rows], room[rows : rows + ROOM], room[rows + ROOM :]
    return Memory(M.reshape(-1), below.reshape(-1), beside.reshape(AS_M + 1, wide * LANES))


@inlined
def through_the_text(one, h, p, loops, meeting, memory):
    """`sweep` for panel p of head h: for 64 rows of it, and then for the next 64."""
    r, w, a, S, _, _, y = borrowed(one)
    inner, together, S_h = r.R.shape[2], rows_together(one), S[h]
    reads, fades = Reads(r.R[h], r.R_2[h], r.beta[h], r.ones[h]), Fades(a.rows[h], a.columns[h])
    writes = Writes(w.W[h], w.X[h], w.share[h], w.W_2[h], w.X_2[h], w.ones[h])
    found = Found(y.share[h], y.E[h], y.dbeta[h], y.Y_2[h], y.Y[h])
    for k0 in range(0, max(inner, 1), together):
        here = Panel(h, p, k0, min(k0 + together, inner))
        some = Memory(memory.M[: (here.k1 - k0) * LANES], memory.below, memory.beside)
        begin(S_h, here, some)
        s, s_2, before = sweep(
            reads, writes, fades, found, here, one.reverse, one.upon, len(S_h) > 0, loops, meeting, some
        )
        if len(S_h) > 0 and len(found.Y) > 0:
            end(some, writes, fades.rows, s, s_2, before, here, S_h)


@compiled
def sweeps(loops, one, other, met, queue):
    """All panels of all heads, a task for each. If `met` has rows, a task makes two sweeps, `one` and then `other`.

    met    (B, blocks + 1, columns), see `Meeting`. Not filled here: the first row, and the last if its block is a short one
    """
    one, other, met = borrowed((one, other, met))
    Y, memory, blocks = one.found.Y, memory_for(one), met.shape[1] - 1
    panels = (Y.shape[2] + LANES - 1) // LANES
    states = np.empty((max(blocks, 0), one.reads.R.shape[2] * LANES), Y.dtype)
    for task in claimed(queue, len(Y) * panels):
        h, p = task // panels, task % panels
        for second in range(2 if blocks >= 0 else 1):
            meeting = Meeting(states, met[h] if second else met[h, :0])
            through_the_text(other if second else one, h, p, loops, meeting, memory)


# ------------------------------------------------------------------------------------------------ called from Python


@functools.cache
def nothing(heads: int, axes: int, dtype: np.dtype) -> Array:
    """What stands for an array that is not there: (heads, 0, …). (For None, of another type, all would be compiled again.)"""
    return np.empty((heads, *[0] * (axes - 1)), dtype)


def a_sweep(
    reads: Reads, writes: Writes, decay: Array | None = None, *, by_columns: bool = False, reverse: bool = False,
    S: Array | None = None, upon: Array | None = None, share: Array | None = None, E: Array | None = None,
    dbeta: Array | None = None,
) -> Sweep:  # fmt: skip
    """The sweep y_t = r_tᵀ M_t, M_t = α_t ⊙ M_{t−1} + w_t x_tᵀ of every head, for `run`.

    decay     α, (B, n, 1), (B, n, rows) or, if `by_columns`, (B, n, columns); None: nothing fades
    reverse   the last position comes first: M_t = α_{t+1} ⊙ M_{t+1} + w_t x_tᵀ
    S         M before the first position, (B, rows, columns), see `Sweep`
    upon      an array to which y is added; None: y is written to a new one
    others    see `Found`
    """
    (R, R_2, beta, r_1), (W, X, of_x, W_2, X_2, w_1) = reads, writes
    numbers, no = nothing(len(X), 2, X.dtype), nothing(len(X), 3, X.dtype)
    Y = np.empty(X.shape, X.dtype) if upon is None else upon
    columns = decay if by_columns or (decay is not None and decay.shape[-1] == 1) else None
    rows = decay if columns is None else None

    def there(A: Array | None, nothing: Array) -> Array:
        return nothing if A is None else A

    return Sweep(
        Reads(R, there(R_2, no), there(beta, numbers), there(r_1, numbers)),
        Writes(W, X, there(of_x, numbers), there(W_2, no), there(X_2, Y), there(w_1, numbers)),
        Fades(there(rows, no), there(columns, no)),
        there(S, no),
        reverse,
        upon is not None,
        Found(there(share, numbers), there(E, no), there(dbeta, no), no if R_2 is None else np.empty_like(X), Y),
    )


def tasks_of(one: Sweep) -> int:
    """The number of panels of all heads."""
    Y = one.found.Y
    return len(Y) * -(-Y.shape[-1] // LANES)


def run(one: Sweep) -> Array:
    """Make this sweep and return its Y, (B, n, columns)."""
    Y = one.found.Y
    in_parallel(tasks_of(one), sweeps, plain_loops(), one, one, nothing(len(Y), 3, Y.dtype))
    return Y


def run_to_meet(past: Sweep, future: Sweep) -> Array:
    """Make two sweeps, the second with the last position first; where their memories meet, multiply them and sum over the rows.

    returns  met (B, blocks + 1, columns): zeros before the first position, then the sums after every 32. Both Y are filled
    """
    B, n, columns = past.found.Y.shape
    met = np.zeros((B, -(-n // BLOCK) + 1, columns), past.found.Y.dtype)
    in_parallel(tasks_of(past), sweeps, plain_loops(), past, future, met)
    return met
