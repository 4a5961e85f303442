"""Ranges of numbers as type hints: `radius: NonNegative = 32`. They are checked when a function is called or a layer made.

A plain `int` counts something, so it must be at least 1; a plain `float` may be any number.
"""

import functools
import math
import operator
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple


def so_many(n: int, what: str) -> str:
    """A number with its noun, for messages and tables: 1 token, 2 tokens."""
    return f"{n} {what}{'s' * (n != 1)}"


class Range(NamedTuple):
    """Which numbers are allowed: in words for messages, as a function, and up to which size."""

    says: str
    holds: Callable[[float], bool]
    most: float | None = None  # of |x|; None: 2³⁰ for an int, the largest float32 for a float

    def __repr__(self) -> str:  # what `help` shows
        return self.says if self.most is None else f"{self.says}, up to {self.most}"


Integer = Annotated[int, Range("a number", lambda x: True)]
Positive = Annotated[int, Range("at least 1", lambda x: x >= 1)]
NonNegative = Annotated[int, Range("at least 0", lambda x: x >= 0)]
Seed = Annotated[int, Range("at least 0", lambda x: x >= 0, math.inf)]

# How often something is repeated. It takes time however small the arrays are, so there is a largest number.
Degree = Annotated[int, Range("at least 1", lambda x: x >= 1, 2**6)]
Depth = Annotated[int, Range("at least 1", lambda x: x >= 1, 2**12)]  # of a stack, whose blocks are made one by one
Iterations = Annotated[int, Range("at least 1", lambda x: x >= 1, 2**10)]
Repeats = Annotated[int, Range("at least 0", lambda x: x >= 0, 2**20)]
Rounds = Annotated[int, Range("at least 1", lambda x: x >= 1, 2**20)]

Number = Annotated[float, Range("a number", lambda x: True)]
PositiveNumber = Annotated[float, Range("above 0", lambda x: x > 0)]
NonNegativeNumber = Annotated[float, Range("at least 0", lambda x: x >= 0)]
Largest = Annotated[float, Range("above 0", lambda x: x > 0, math.inf)]  # ∞: nothing is cut off
Fraction = Annotated[float, Range("in [0, 1)", lambda x: 0 <= x < 1)]
Part = Annotated[float, Range("in [0, 1]", lambda x: 0 <= x <= 1)]
PositivePart = Annotated[float, Range("in (0, 1]", lambda x: 0 < x <= 1)]


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The hints of which one or another holds: X and None of X | None, and a hint itself where there is no choice."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def bare(hint: Any) -> Any:
    """The hint without ranges: int | None of NonNegative | None."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if kind is Annotated:
        return parts[0]
    if kind in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(bare, parts))
    return tuple[tuple(map(bare, parts))] if kind is tuple else hint  # type: ignore[misc]


def range_of(hint: Any) -> Range:
    """The range of the numbers of a hint: the one it names, else that of a plain float, or of a plain int."""
    found = _said(hint) or _said(Number if float in _types(hint) else Positive)
    return typing.cast(Range, found)


def _said(hint: Any) -> Range | None:
    if typing.get_origin(hint) is Annotated:
        return next((said for said in typing.get_args(hint)[1:] if isinstance(said, Range)), None)
    return next(filter(None, map(_said, typing.get_args(hint))), None)


def _types(hint: Any) -> set[Any]:
    return {hint}.union(*map(_types, typing.get_args(hint)))
