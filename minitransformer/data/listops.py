"""ListOps in miniature: nested lists of digits, and operators that make one digit of a list (Nangia and Bowman 2018).

    [MAX 4 [MIN 7 2 9 ] 1 ]  →  4           what is inside has to be known before what is outside

The task of the Long Range Arena (Tay et al. 2021a) has four operators, ten levels and up to 2,000 tokens. Here are the first two
operators, as many levels as one likes, and tokens from 0: the digits, one for each operator with its bracket, one for the
closing bracket, and one for the padding in front of an expression that is shorter than the others.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import row_of_integers
from minitransformer.ranges import Fraction, Positive
from minitransformer.typing import Array, checked

DIGITS = 10
OPERATORS: tuple[Callable[[list[int]], int], ...] = (min, max)
END, FILL = DIGITS + len(OPERATORS), DIGITS + len(OPERATORS) + 1
VOCABULARY = FILL + 1


class Expressions(NamedTuple):
    """Tokens (count, n), each expression at the end of its row, and what it comes to (count,)."""

    tokens: Array
    values: Array


@checked
def listops(
    count: int,
    n: Positive,
    rng: np.random.Generator,
    *,
    depth: Positive = 2,
    most: Positive = 3,
    nested: Fraction = 0.8,
    shortest: Positive = 8,
) -> Expressions:
    """`count` random expressions of `shortest` to n tokens; others are drawn again.

    depth    operators inside one another, at most; the outermost is always one
    most     largest number of arguments of an operator; the smallest is 2
    nested   chance that an argument is an expression itself, where one more level is allowed
    raises   ValueError for fewer than two arguments, or if no expression has a length within these bounds
    """
    if most < 2:
        raise ValueError(f"most: {most} should be at least 2, as every operator has two arguments")
    if not any(shortest <= length <= n for length in _lengths(depth, most, nested)):
        raise ValueError(f"shortest: no expression of these choices has {shortest} to {n} tokens")
    tokens, values = np.full((count, n), FILL), np.zeros(count, np.int64)
    for row in range(count):
        drawn: list[int] = []
        while not shortest <= len(drawn) <= n:
            drawn, value = _draw(rng, depth, most, nested)
        tokens[row, n - len(drawn) :], values[row] = drawn, value
    return Expressions(tokens, values)


def _lengths(depth: int, most: int, nested: float) -> set[int]:
    """How many tokens an expression can have."""
    argument = {1}
    if depth > 1 and nested > 0:
        argument |= _lengths(depth - 1, most, nested)
    found, sums = set(), {0}
    for count in range(1, most + 1):
        sums = {a + b for a in sums for b in argument}
        found |= {2 + length for length in sums} if count > 1 else set()
    return found


def _draw(rng: np.random.Generator, depth: int, most: int, nested: float) -> tuple[list[int], int]:
    """An operator with its arguments: tokens, and what they come to."""
    operator, tokens, values = int(rng.integers(len(OPERATORS))), [], []
    for _ in range(rng.integers(2, most + 1)):
        if depth > 1 and rng.random() < nested:
            inner, value = _draw(rng, depth - 1, most, nested)
        else:
            value = int(rng.integers(DIGITS))
            inner = [value]
        tokens += inner
        values.append(value)
    return [DIGITS + operator, *tokens, END], OPERATORS[operator](values)


@checked
def value_of(tokens: Array) -> int:
    """The value of one expression, read from left to right with a stack; the padding in front of it is skipped.

    raises   ValueError for tokens that are no expression
    """
    row_of_integers(tokens, "tokens")
    open_lists: list[tuple[int, list[int]]] = []
    values: list[int] = []
    for token in tokens.tolist():
        if 0 <= token < DIGITS:
            values.append(token)
        elif DIGITS <= token < END:
            open_lists.append((token - DIGITS, values))
            values = []
        elif token == END and open_lists and values:
            operator, outer = open_lists.pop()
            values = [*outer, OPERATORS[operator](values)]
        elif token != FILL or open_lists or values:
            raise ValueError(f"tokens: {token} can't stand where it does")
    if open_lists or len(values) != 1:
        raise ValueError("tokens: they are no expression with one value")
    return values[0]
