"""What every sweep of a memory is given, how it begins, and what it does at each position (sweep.py).

What positions write and read stands below M's columns, in rows of 64 numbers.
"""

from typing import NamedTuple

from minitransformer.kernels.compiling import inlined, inside
from minitransformer.kernels.micro_kernel import fetch
from minitransformer.kernels.tiles import LANES
from minitransformer.typing import Array

ROWS = 64  # rows of a memory that go through the text together
BLOCK = 32  # positions from one remembered state to the next
ROOM = 11  # rows below M: four for what is written, four for what is read, two for how M fades, and its row of ones
WRITTEN, READ, FADES, ONE = (row * LANES for row in (0, 4, 8, 10))  # the first three as in memory_kernel.py

# ------------------------------------------------------------------------------------------ what a sweep is given


class Reads(NamedTuple):
    """What each position reads: y_t = r_tᵀ M, once t has written.

    R       r, (B, n, rows)
    R_2     r₂ of a second read, (B, n, rows), before t writes: y₂ = −r₂ᵀ M
    beta    β, (B, n); then y₂ is e = x − r₂ᵀ M instead, and β e is written in the place of x
    ones    one more entry of each r, (B, n), for a row of M in which every w is 1
    """

    R: Array
    R_2: Array | None = None
    beta: Array | None = None
    ones: Array | None = None


class Writes(NamedTuple):
    """What each position writes: M becomes M + w_t x_tᵀ.

    W, X        w, (B, n, rows), and x, (B, n, columns)
    share       what x is multiplied by, (B, n)
    W_2, X_2    w₂ and x₂ of a second write, after t has read: M becomes M − w₂ x₂ᵀ. Without X_2, x₂ is y
    ones        one more entry of each w, (B, n), for a row of M in which every r is 1
    """

    W: Array
    X: Array
    share: Array | None = None
    W_2: Array | None = None
    X_2: Array | None = None
    ones: Array | None = None


class Fades(NamedTuple):
    """What M is multiplied by at each position, a_t: by rows, (B, n, rows), or by columns, (B, n, columns or 1)."""

    rows: Array | None = None
    columns: Array | None = None


class Panel(NamedTuple):
    """Where a sweep is, `here` in the code: head h, panel p of 64 columns, rows k0 … k1 − 1 of its memory."""

    h: int
    p: int
    k0: int
    k1: int


class Form(NamedTuple):
    """How M fades and what else is read or written, in the codes of memory_kernel.py; and whether plain loops make the passes."""

    fading: int
    second: int
    loops: bool


class Memory(NamedTuple):
    """M (rows · 64,), the ROOM rows `below` it (ROOM · 64,), and what its rows take where they fade, `beside` it (7, numbers)."""

    M: Array
    below: Array
    beside: Array


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


class Divisor(NamedTuple):
    """What attention divides y by, if there is a D: D_t = ⟨r_t, z_t⟩ + ε, z_t = z + Σ_{s ≤ t} w_s. Nothing fades then.

    D    (B, n), which the sweep fills
    z    (B, rows), before the first position
    eps  ε
    """

    D: Array
    z: Array
    eps: float


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
    divisor: Divisor


class Meeting(NamedTuple):
    """Where the memories of two sweeps of one panel meet: after every 32 positions.

    states    M of the first sweep at these places, (blocks, rows · 64), which fills them
    met       (blocks + 1, columns), to which the second sweep adds Σ over the rows of M ⊙ state; without rows in the first
    """

    states: Array
    met: Array


# ---------------------------------------------------------------------------------------- what a position adds to it


@inlined
def share_at(shares, t):
    """The share of position t; 1 if there are none."""
    share = shares.dtype.type(1)
    if len(shares) > 0:
        share = shares[t]
    return share


@inlined
def will_write(writes, t, c0, write):
    """write = share · x."""
    x, share, width = writes.X[t, c0:], share_at(writes.share, t), min(LANES, writes.X.shape[1] - c0)
    for i in range(width):
        write[i] = share * x[i]


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
def has_found(Y, share, t, c0, found, upon):
    """y = share · what has been found; if `upon`, it is added to what stands in Y."""
    y, width = Y[t, c0:], min(LANES, Y.shape[1] - c0)
    if upon:
        for i in range(width):
            y[i] += share * found[i]
    else:
        for i in range(width):
            y[i] = share * found[i]


@inlined
def fetch_ahead(reads, writes, found, t, here):
    """Let what position t reads and writes come into the cache. There may be no such position."""
    c0 = here.p * LANES
    fetch(reads.R, t, here.k0)
    fetch(writes.W, t, here.k0)
    fetch(writes.X, t, c0)
    fetch(found.Y, t, c0)


# ------------------------------------------------------------------------------------------------------ the beginning


@inside
def begin(S, here, memory):
    """M as it is before the first position: zeros or S. No factor of M waits, and nothing that was written."""
    M, below, c0 = memory.M, memory.below, here.p * LANES
    M[:], below[:] = 0, 0
    below[FADES : FADES + LANES] = 1
    if len(S) > 0:
        memory.beside[:] = 1
        width = min(LANES, S.shape[1] - c0)
        for c in range(here.k1 - here.k0):
            for j in range(width):
                M[c * LANES + j] = S[here.k0 + c, c0 + j]
        if here.k0 == 0 and len(S) > here.k1:
            for j in range(width):
                below[ONE + j] = S[len(S) - 1, c0 + j]
