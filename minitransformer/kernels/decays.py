"""Decays: α = exp ln α, and the gradient of ln α, which is a running sum over what is read less what is written.

    dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i)        for the delta rule dk_i = y_i − b_i (scan.py), and here it is y_i + b_i

Rounding errors would add up in it from the end of the text to its beginning. So every 32 positions it is made anew: there it is
Σ_v S ⊙ G, of the state S that the sweep for dQ has and the gradient G that the sweep for dK has. "They meet", the code says.

    for each head, in parallel, and each of its blocks of 32 positions:
        total = Σ_v S ⊙ G behind the block
        for its positions t, last first:
            total += q_t ⊙ dq_t − k_t ⊙ dk_t;  dln α_t = total
        total −= Σ_v S ⊙ G before the block                      the rounding error, which is spread over the positions

Why this is fast. To make dln α from S and G alone takes both at every position; here one in 32 is kept, and the arrays that are
there anyway are read once.
"""

import numpy as np

from minitransformer.kernels.compiling import compiled, inlined
from minitransformer.kernels.pointwise import cut
from minitransformer.kernels.sweep import nothing
from minitransformer.kernels.sweep_parts import BLOCK
from minitransformer.kernels.threads import borrowed, claimed, in_parallel, one_by_one
from minitransformer.kernels.tiles import dot
from minitransformer.typing import Array

SMALL = 2**16  # numbers for each thread: for less, no helper is called


@inlined
def add_up(q, dq, k, away, later, total):
    """total = later + q ⊙ dq − k ⊙ away; summed over the channels if one gate serves all of them."""
    if len(total) != len(q):
        total[0] = later[0] + (dot(q, dq) - dot(k, away))
    else:
        for c in range(len(total)):
            total[c] = later[c] + (q[c] * dq[c] - k[c] * away[c])


@inlined
def spread(total, missed, share, nothing, y):
    """y = total − share · missed; but 0 where y, which holds α before, is less than `nothing`."""
    for c in range(len(y)):
        y[c] = 0 if y[c] < nothing else total[c] - share * missed[c]


@inlined
def part_looked_up(written, away):
    """written (y of scan.py) becomes dk = y − b, and away, which holds −b, becomes y + b."""
    for c in range(len(away)):
        both = written[c] + away[c]
        away[c] = written[c] - away[c]
        written[c] = both


@compiled
def between_meetings(q, dq, k, dk, looked_up, met, nothing, sums, Y, queue):
    """Y_t = dln α_t = Σ (q_i ⊙ dq_i − k_i ⊙ dk_i) over i from t to the next meeting, plus what met there; a task for each head.

    met          Σ_v S ⊙ G, (B, blocks + 1, channels): before the first position, and behind each block; the last may be short
    looked_up    −b of the delta rule, (B, n, channels), else (B, 0, 0). Then dk is y of scan.py, and becomes y − b
    nothing      where α is less than this, Y is 0, since α ⟨S, G⟩ nearly is: what rounding leaves may meet a large ln α next
    sums         room for those of a block, (B, BLOCK + 1, channels or 1)
    Y            holds α before. (B, n, channels), or (B, n, 1) for one gate that serves all channels

    By how much the sum misses what met before the block, it has lost by rounding, a little at each position.
    """
    n, gates = Y.shape[1], Y.shape[2]
    missed = np.empty(gates, Y.dtype)
    q, dq, k, dk, looked_up, met, sums, Y = borrowed((q, dq, k, dk, looked_up, met, sums, Y))
    for h in claimed(queue, len(Y)):
        total = sums[h]
        for block in range(met.shape[1] - 1):
            start, stop = block * BLOCK, min((block + 1) * BLOCK, n)
            behind, before, last = met[h, block + 1], met[h, block], stop - start
            if gates == len(behind):
                for c in range(gates):
                    total[last, c] = behind[c]
            else:
                total[last, 0] = behind.sum()
            for t in range(stop - 1, start - 1, -1):
                away = dk[h, t]
                if looked_up.shape[1] > 0:
                    away = looked_up[h, t]
                    part_looked_up(dk[h, t], away)
                add_up(q[h, t], dq[h, t], k[h, t], away, total[t - start + 1], total[t - start])
            if gates == len(before):
                for c in range(gates):
                    missed[c] = total[0, c] - before[c]
            else:
                missed[0] = total[0, 0] - before.sum()
            for t in range(start, stop):
                share = Y.dtype.type((stop - t) / last)
                spread(total[t - start], missed, share, nothing, Y[h, t])


def exponentials(X: Array, Y: Array, queue: Array) -> None:
    """Y = exp X, in parts. Not compiled: NumPy's exp takes many numbers at once, and releases the GIL, too."""
    for part in one_by_one(queue, queue[1]):
        start, stop = cut(len(X), part, queue[1])
        np.exp(X[start:stop], out=Y[start:stop])


def fading(log_decay: Array) -> Array:
    """α = exp(ln α) of every head, (B, n, 1 or r)."""
    decay = np.empty(log_decay.shape, log_decay.dtype)
    in_parallel(log_decay.size // SMALL, exponentials, log_decay.reshape(-1), decay.reshape(-1))
    return decay


def meet_at_the_ends(met: Array, decay: Array, S_0: Array, S: Array, dS_0: Array, dS: Array) -> None:
    """Fill the first and the last row of met; and dS_0, which the sweep left behind the first α, is multiplied by it."""
    dS_0 *= decay[:, :1].prod(1)[..., None]
    met[:, 0] = np.vecdot(S_0, dS_0)
    if decay.shape[1] % BLOCK:  # or else the sweep has met there
        met[:, -1] = np.vecdot(S, dS)


def log_decay_gradient(
    decay: Array, q: Array, dq: Array, k: Array, dk: Array, met: Array, looked_up: Array | None = None
) -> Array:
    """dln α, (B, n, 1 or r), written over `decay`; of the delta rule dk becomes the gradient of its keys."""
    looked_up = nothing(len(q), 3, q.dtype) if looked_up is None else looked_up
    tasks = len(q) if q.size > SMALL else 1
    sums = np.empty((len(q), BLOCK + 1, decay.shape[2]), decay.dtype)
    in_parallel(tasks, between_meetings, q, dq, k, dk, looked_up, met, np.finfo(q.dtype).eps, sums, decay)
    return decay
