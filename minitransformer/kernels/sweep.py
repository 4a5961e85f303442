"""One memory M through a text, position by position. It fades, is written to, and is read:

    for each head and each panel of 64 columns, in parallel:
        M = 0                                            rows × 64: in the first-level cache from the first position to the last
        for each position t:
            M = a_t ⊙ M + w_t x_tᵀ                       it fades, and t writes
            y_t = r_tᵀ M                                 and reads

With r, w, x, y = q, k, v, y this is S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t. What else stands for r, w, x and y, for
the delta rule and for gradients, is in scan.py.

Why this is fast. To take 64 positions at once, as products of matrices, one needs the weights of all their pairs, and with a
decay for each channel these weights are no product: it takes more multiply-adds than this. Here a panel never leaves the cache,
since a column knows nothing of the others; and in the tier "micro" it is read and written once for four positions (in_turn.py),
or for two where it fades, or they read or write a second time (here, and passes.py). There too, r, w, x and y are fetched some
positions before they are needed: not every processor foresees that the last position comes first.

From a state S_0 on, M begins with that and not with zeros, and is S_n when the last position has written.

Of a taller memory 64 rows go through the whole text, and then the next 64: what is read from them is added up. (Not so when x
depends on what has been read: that needs all rows.) Nothing is divided by a decay, so it may be 0.
"""

import functools

import numpy as np

from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.in_turn import keep, sweep_in_turn
from minitransformer.kernels.memory_kernel import AS_M, BY_COLUMNS, BY_ROWS, READS_2, WRITES_2
from minitransformer.kernels.passes import (
    IN,
    IN_2,
    IN_2B,
    IN_B,
    NOW,
    OUT,
    Pass,
    advance,
    columns_fade_between,
    overlaps,
    reads_the_first,
    rows_fade,
)
from minitransformer.kernels.sweep_parts import (
    BLOCK,
    FADES,
    ROOM,
    ROWS,
    Divisor,
    Fades,
    Form,
    Found,
    Meeting,
    Memory,
    Panel,
    Reads,
    Sweep,
    Writes,
    begin,
    fetch_ahead,
    has_found,
    share_at,
    will_write,
)
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import LANES, dot, plain_loops, tile
from minitransformer.typing import Array

SMALL = 2**21  # numbers of a memory, at all positions; for fewer, no helper is called

# ------------------------------------------------- where M fades, or positions read or write a second time


@inlined
def looks_up(writes, beta, Y_2, t, k0, c0, write, found_2):
    """After a second read, which has found r₂ᵀ M: y₂ −= r₂ᵀ M; or, with β, y₂ = e = x − r₂ᵀ M and write = β e."""
    x, y_2, width = writes.X[t, c0:], Y_2[t, c0:], min(LANES, writes.X.shape[1] - c0)
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


@inlined
def write_and_find(memory, reads, writes, found, form, number, t, own, here, upon):
    """Position t, the first (number 0) or the second (1) of a pass: what it writes, and what it finds. `own` is its ⟨r, w⟩."""
    below, c0, k0 = memory.below, here.p * LANES, here.k0
    width = min(LANES, found.Y.shape[1] - c0)
    into, out = IN + number * LANES, OUT + number * LANES
    write, write_2 = below[into : into + LANES], below[into + 2 * LANES : into + 3 * LANES]
    y, y_2 = below[out : out + LANES], below[out + 2 * LANES : out + 3 * LANES]
    will_write(writes, t, c0, write)
    if form.second == READS_2:
        looks_up(writes, reads.beta, found.Y_2, t, k0, c0, write, y_2)
    for i in range(LANES):
        y[i] += own * write[i]
    if len(found.E) > 0:
        found.dbeta[here.p, t] = dot(found.E[t, c0 : c0 + width], y[:width])
    has_found(found.Y, share_at(found.share, t), t, c0, y, k0 > 0 or upon)
    if form.second == WRITES_2:
        x_2 = writes.X_2[t, c0:]
        for i in range(width):
            write_2[i] = -x_2[i]


@inlined
def sweep_by_twos(reads, writes, fades, found, here, reverse, upon, begun, loops, meeting, memory):
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


@inside
def rows_here(one):
    """How many rows a memory of this sweep has in the cache."""
    return min(rows_together(one), one.reads.R.shape[2])


@inlined
def memory_for(one, two, three):
    """A `Memory` with room for the rows that go through the text together, in any of these sweeps."""
    rows = max(rows_here(one), rows_here(two), rows_here(three))
    wide = (rows + LANES - 1) // LANES
    room = tile(rows + ROOM + (AS_M + 1) * wide, one.found.Y)
    M, below, beside = room[:rows], room[rows : rows + ROOM], room[rows + ROOM :]
    return Memory(M.reshape(-1), below.reshape(-1), beside.reshape(AS_M + 1, wide * LANES))


@inlined
def through_the_text(one, h, p, loops, meeting, memory):
    """A sweep of panel p of head h: 64 rows of it, and then the next 64."""
    r, w, a, S, _, _, y, divisor = borrowed(one)
    inner, together, S_h = r.R.shape[2], rows_together(one), S[h]
    reads, fades = Reads(r.R[h], r.R_2[h], r.beta[h], r.ones[h]), Fades(a.rows[h], a.columns[h])
    writes = Writes(w.W[h], w.X[h], w.share[h], w.W_2[h], w.X_2[h], w.ones[h])
    found = Found(y.share[h], y.E[h], y.dbeta[h], y.Y_2[h], y.Y[h])
    for k0 in range(0, max(inner, 1), together):
        here = Panel(h, p, k0, min(k0 + together, inner))
        some = Memory(memory.M[: (here.k1 - k0) * LANES], memory.below, memory.beside)
        begin(S_h, here, some)
        reverse, upon, kept = one.reverse, one.upon, len(S_h) > 0
        if len(r.R_2[h]) + len(w.W_2[h]) + len(a.rows[h]) + len(a.columns[h]) > 0:
            s, s_2, before = sweep_by_twos(reads, writes, fades, found, here, reverse, upon, kept, loops, meeting, some)
            if kept and len(found.Y) > 0:
                end(some, writes, fades.rows, s, s_2, before, here, S_h)
        else:
            of_head = Divisor(divisor.D[h], divisor.z[h], divisor.eps)
            sweep_in_turn(reads, writes, found, of_head, here, reverse, upon, loops, some)
            if kept:
                keep(some.M, here, S_h)


@compiled
def sweeps(loops, one, two, three, tasks, met, queue):
    """All panels of all heads of up to three sweeps, a task for each: so many `tasks` for the first, the second, and the third.

    met    (B, blocks + 1, columns), see `Meeting`. If it has rows, a task of the first goes on with the second, and they meet.
           Not filled here: the first row, and the last if its block is a short one
    """
    one, two, three, met = borrowed((one, two, three, met))
    memory, blocks = memory_for(one, two, three), met.shape[1] - 1
    states = np.empty((max(blocks, 0), one.reads.R.shape[2] * LANES), one.found.Y.dtype)
    for task in claimed(queue, tasks[0] + tasks[1] + tasks[2]):
        own = task if task < tasks[0] else task - tasks[0] if task < tasks[0] + tasks[1] else task - tasks[0] - tasks[1]
        meets = blocks >= 0 and task < tasks[0]
        for second in range(2 if meets else 1):
            this = three
            if task < tasks[0] and second == 0:
                this = one
            elif task < tasks[0] + tasks[1] or second == 1:
                this = two
            panels = max((this.found.Y.shape[2] + LANES - 1) // LANES, 1)
            h, p = own // panels, own % panels
            meeting = Meeting(states if meets else states[:0], met[h] if second else met[h, :0])
            through_the_text(this, h, p, loops, meeting, memory)


# ------------------------------------------------------------------------------------------------ called from Python


@functools.cache
def nothing(heads: int, axes: int, dtype: np.dtype) -> Array:
    """What stands for an array that is not there: (heads, 0, …). (For None, of another type, all would be compiled again.)"""
    return np.empty((heads, *[0] * (axes - 1)), dtype)


def a_sweep(
    reads: Reads, writes: Writes, decay: Array | None = None, *, by_columns: bool = False, reverse: bool = False,
    S: Array | None = None, upon: Array | None = None, share: Array | None = None, E: Array | None = None,
    dbeta: Array | None = None, divisor: Divisor | None = None,
) -> Sweep:  # fmt: skip
    """The sweep y_t = r_tᵀ M_t, M_t = α_t ⊙ M_{t−1} + w_t x_tᵀ of every head, for `run`.

    decay     α, (B, n, 1), (B, n, rows) or, if `by_columns`, (B, n, columns); None: nothing fades
    reverse   the last position comes first: M_t = α_{t+1} ⊙ M_{t+1} + w_t x_tᵀ
    S         M before the first position, (B, rows, columns), see `Sweep`
    upon      an array to which y is added; None: y is written to a new one
    others    see `Found` and `Divisor`
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
        Divisor(numbers, numbers, X.dtype.type(0)) if divisor is None else divisor,
    )


def tasks_of(one: Sweep) -> int:
    """The number of panels of all heads. Where there are no columns, D is still to be filled: then a head is one task."""
    Y = one.found.Y
    return len(Y) * (-(-Y.shape[-1] // LANES) or int(one.divisor.D.size > 0))


def run(*some: Sweep) -> tuple[Array, ...]:
    """Make these sweeps, three at most, and return their Y, (B, n, columns) each."""
    Y = some[0].found.Y
    _run(some, [tasks_of(one) for one in some], nothing(len(Y), 3, Y.dtype))
    return tuple([one.found.Y for one in some])


def run_to_meet(past: Sweep, future: Sweep, *beside: Sweep) -> Array:
    """Make two sweeps, the second with the last position first; where their memories meet, multiply them and sum over the rows.

    beside   one more sweep, of its own
    returns  met (B, blocks + 1, columns): zeros before the first position, then the sums after every 32. Each Y is filled
    """
    B, n, columns = past.found.Y.shape
    met = np.zeros((B, -(-n // BLOCK) + 1, columns), past.found.Y.dtype)
    _run((past, future, *beside), [tasks_of(past), 0, *map(tasks_of, beside)], met)
    return met


def _run(some: tuple[Sweep, ...], tasks: list[int], met: Array) -> None:
    one, two, three = (*some, *some[:1] * (3 - len(some)))
    each = (*tasks, *[0] * (3 - len(tasks)))
    much = sum(one.found.Y.size * one.reads.R.shape[-1] for one in some) > SMALL
    in_parallel(sum(each) if much else 1, sweeps, plain_loops(), one, two, three, each, met)
