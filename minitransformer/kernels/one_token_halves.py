"""Products of a few rows that two threads share: each computes one half of the terms, and the other half too if nobody else
has begun it. The halves are added in the same order, whoever computed them.
"""

import numpy as np

from minitransformer.kernels.compiling import inlined, inside
from minitransformer.kernels.few_rows import add_rows
from minitransformer.kernels.threads import LOOKS, claim, halves, watch
from minitransformer.kernels.tiles import put, rows_of

# Two threads share the flags of `halves`, and room for what each step gives. Beside them goes what each of them knows for itself:
# its number, 0 or 1, which step is next, and where in the room that one begins.
ME, STEP, START = range(3)


@inlined
def one_of_two(flags, room, queue):
    """What a thread needs for its part of the work. Its number is above 1 if it comes too late."""
    return flags, room, np.array([claim(queue), 0, 0])


@inlined
def give(X, shared, queue, out):
    """Fill `out` with X, as thread 0. That is the caller, unless a helper was first; thread 1 leaves after it, see `leave`."""
    if shared[2][ME] == 0:
        put(X, out)
    else:
        watch(queue[2:], LOOKS // 10)


@inlined
def halves_of_next(shared):
    """The halves of the next step that this thread takes."""
    flags, _, own = shared
    own[STEP] += 1
    return halves(flags, own[ME], own[STEP] - 1)


@inside
def room_for(shared, size):
    """Room for what the next step gives, `size` numbers."""
    _, room, own = shared
    own[START] += size
    return rows_of(room, own[START] - size, own[START])


@inlined
def fill_half(X, W, half, Y):
    """Fill Y with one half of the terms of X W."""
    middle = len(W) // 2
    for i in range(len(Y)):
        for c in range(Y.shape[1]):
            Y[i, c] = 0
    add_rows(X, W, half * middle, len(W) if half else middle, Y)


@inside
def sum_of_halves(Y, b):
    """Y₀ + Y₁ + b, of Y (2, rows, columns)."""
    total = np.empty(Y.shape[1:], Y.dtype)
    for i in range(len(total)):
        for c in range(len(b)):
            total[i, c] = (Y[0, i, c] + Y[1, i, c]) + b[c]
    return total


@inside
def product(X, W, b, shared):
    """X W + b."""
    Y = room_for(shared, 2 * len(X) * W.shape[1]).reshape(2, len(X), W.shape[1])
    for half in halves_of_next(shared):
        fill_half(X, W, half, Y[half])
    return sum_of_halves(Y, b)
