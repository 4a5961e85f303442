"""A sweep in which nothing fades, and each position writes once and reads once, by passes over the memory M for four positions:

    for each four positions:
        for each row k of M, in the first-level cache:
            for each t of the four:
                M_k += w_tk x_t                          t writes
                y_t += r_tk M_k                          and reads

Why this is fast. A row of M is read and written once for four positions, and all that a position costs is two multiply-adds for a
vector of M. It needs every x before anything is read: where x depends on what has been found, as in the delta rule, or where M
fades and five operations do for two positions, passes.py has another way.
"""

import numpy as np

from minitransformer.kernels.compiling import any_order, inlined, inside
from minitransformer.kernels.memory_kernel import TOGETHER, positions_in_turn
from minitransformer.kernels.micro_kernel import NARROW, REGISTER
from minitransformer.kernels.sweep_parts import (
    ONE,
    READ,
    WRITTEN,
    fetch_ahead,
    has_found,
    row_of_ones,
    share_at,
    will_write,
)
from minitransformer.kernels.threads import borrowed
from minitransformer.kernels.tiles import LANES, MICRO, share_of


@inside
def by_loops(M, r, w, below, width):
    """M += w xᵀ and y = rᵀ M of one position."""
    x, y = below[WRITTEN : WRITTEN + LANES], below[READ : READ + LANES]
    y[:] = 0
    for k in range(len(M) // LANES):
        m, w_k, r_k = M[k * LANES : (k + 1) * LANES], w[k], r[k]
        for i in range(width):
            m[i] += w_k * x[i]
            y[i] += r_k * m[i]


@any_order
def dot_with_sum(a, b, total):
    """total += b; returns ⟨a, total⟩."""
    s = total.dtype.type(0)
    for k in range(len(total)):
        total[k] += b[k]
        s += a[k] * total[k]
    return s


@inlined
def sweep_in_turn(reads, writes, found, divisor, here, reverse, upon, loops, memory):
    """One panel of one head through the text; the arrays are those of the head, and `memory` is as `begin` leaves it."""
    reads, writes, found, divisor, memory = borrowed((reads, writes, found, divisor, memory))
    M, below, k0, k1, c0 = memory.M, memory.below, here.k0, here.k1, here.p * LANES
    n, columns = len(found.Y), NARROW * REGISTER // below.itemsize
    width = min(LANES, found.Y.shape[1] - c0)
    z, one, tiny = divisor.z.copy(), below.dtype.type(1), np.finfo(below.dtype).tiny ** 0.8
    step, further = 0, -1 if reverse else 1
    while step < n:
        t, together = n - 1 - step if reverse else step, 1
        if not loops and n - step >= TOGETHER:
            together = TOGETHER
        for number in range(together):
            it, x = t + number * further, WRITTEN + number * LANES
            if not loops:
                fetch_ahead(reads, writes, found, it + TOGETHER * further, here)
            will_write(writes, it, c0, below[x : x + LANES])
        if loops:
            by_loops(M, reads.R[t, k0:k1], writes.W[t, k0:k1], below, width)
        elif MICRO:
            for c in range(0, width, columns):
                positions_in_turn((M, below), reads.R, writes.W, (t, further), (k0, k1 - k0, c), together)
        for number in range(together):
            it, x, y = t + number * further, WRITTEN + number * LANES, READ + number * LANES
            if k0 == 0:
                ones = below[ONE : ONE + LANES]
                row_of_ones(reads.ones, writes.ones, it, ones, below[x : x + LANES], below[y : y + LANES])
            share = share_at(found.share, it)
            if len(divisor.D) > 0:
                D = dot_with_sum(reads.R[it], writes.W[it], z) + divisor.eps
                share = share_of(one, D, tiny)
                if here.p == 0:
                    divisor.D[it] = D
            has_found(found.Y, share, it, c0, below[y : y + LANES], k0 > 0 or upon)
        step += together


@inside
def keep(M, here, S):
    """S = M, in this panel and these rows."""
    c0 = here.p * LANES
    for k in range(here.k0, here.k1):
        for i in range(min(LANES, S.shape[1] - c0)):
            S[k, c0 + i] = M[(k - here.k0) * LANES + i]
