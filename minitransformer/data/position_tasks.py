"""Small tasks that can't be solved without knowing where things are. Each sample is drawn anew from a generator.

    copy          a b c d ; a b c d            the second half is predictable: look back by one more than its length
    induction     … f k … f → k                 what followed the last time? a segment comes a second time, somewhere later
    order         … A … B …                    which of the two comes first? one answer for the whole sequence
    span          … ⟨3⟩ x y z …               where does the span begin (after its mark), and where does it end?

Tokens from 0 up are the letters; the last few of a vocabulary are marks.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.ranges import NonNegative
from minitransformer.typing import Array, checked

LETTERS = 16
SEPARATOR = LETTERS  # of copy; its vocabulary is LETTERS + 1
FIRST, SECOND = LETTERS, LETTERS + 1  # the marks of order
LENGTHS = (2, 3, 4, 5)  # of spans; mark LETTERS + k announces a span of LENGTHS[k] letters
VOCABULARY = LETTERS + len(LENGTHS) + 1
START = VOCABULARY - 1  # the first token of order and span; that of order is where the answer is given
SEGMENT = 8  # letters that induction repeats


class Samples(NamedTuple):
    """Tokens (batch, n), the right answers, and which of them count: both (batch, n), or (batch, 2) for spans."""

    tokens: Array
    targets: Array
    counts: Array


@checked
def copy(size: int, n: NonNegative, rng: np.random.Generator) -> Samples:
    """n letters, a separator, the letters again. Every letter of the second half is to be predicted."""
    letters = rng.integers(LETTERS, size=(size, n))
    whole = np.concatenate([letters, np.full((size, 1), SEPARATOR), letters], axis=1)
    counts = np.zeros((size, 2 * n), bool)
    counts[:, n:] = True
    return Samples(whole[:, :-1], whole[:, 1:], counts)


@checked
def induction(size: int, n: NonNegative, rng: np.random.Generator) -> Samples:
    """n letters in which one segment stands twice; to be predicted is its second copy, from the third letter on.

    raises   ValueError if two segments don't fit
    """
    if n < 2 * SEGMENT + 1:
        raise ValueError(f"n: two segments of {SEGMENT} letters do not fit into {n}")
    whole = rng.integers(LETTERS, size=(size, n + 1))
    first = rng.integers(0, n + 2 - 2 * SEGMENT, size=size)
    second = rng.integers(first + SEGMENT, n + 2 - SEGMENT)
    rows, along = np.arange(size)[:, None], np.arange(SEGMENT)
    whole[rows, second[:, None] + along] = whole[rows, first[:, None] + along]
    counts = np.zeros((size, n), bool)
    counts[rows, second[:, None] + along[2:] - 1] = True  # the position before a letter predicts it
    return Samples(whole[:, :-1], whole[:, 1:], counts)


@checked
def order(size: int, n: NonNegative, rng: np.random.Generator) -> Samples:
    """Letters with two marks at random places; class 0 if the FIRST stands before the SECOND, else 1. Answered at START.

    raises   ValueError if there is no room for START and two marks
    """
    if n < 3:
        raise ValueError(f"n: {n} should be at least 3, for the start and two marks")
    tokens = rng.integers(LETTERS, size=(size, n))
    tokens[:, 0] = START
    places = 1 + np.argsort(rng.random((size, n - 1)), axis=1)[:, :2]
    np.put_along_axis(tokens, places, np.broadcast_to([FIRST, SECOND], (size, 2)), 1)
    targets, counts = np.zeros((size, n), np.int64), np.zeros((size, n), bool)
    targets[:, 0] = places[:, 0] > places[:, 1]
    counts[:, 0] = True
    return Samples(tokens, targets, counts)


@checked
def span(size: int, n: NonNegative, rng: np.random.Generator) -> Samples:
    """Letters and one mark; the span begins after the mark, and the mark says how long it is. Targets: first and last place.

    raises   ValueError if the longest span does not fit
    """
    if n < max(LENGTHS) + 2:
        raise ValueError(f"n: {n} should be at least {max(LENGTHS) + 2}, for the start, a mark and the longest span")
    tokens = rng.integers(LETTERS, size=(size, n))
    tokens[:, 0] = START
    kind = rng.integers(len(LENGTHS), size=size)
    mark = rng.integers(1, n - max(LENGTHS), size=size)
    tokens[np.arange(size), mark] = LETTERS + kind
    targets = np.stack([mark + 1, mark + np.array(LENGTHS)[kind]], axis=1)
    return Samples(tokens, targets, np.ones((size, 2), bool))
