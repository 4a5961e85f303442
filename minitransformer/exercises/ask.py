"""What checkers ask of a reader's function, and how they tell a likely mistake from another."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.exercises.check import NotYet, close


def result(function: Any, *args: Any) -> Any:
    """What the reader's function returns."""
    if not callable(function):
        raise NotYet(f"A function is wanted here, and this is {type(function).__name__}.")
    with np.errstate(all="ignore"):
        return function(*args)


def value(function: Callable[..., Any], *args: Any) -> Any:
    """Y of a reader's function that returns (Y, pullback)."""
    found = result(function, *args)
    if not isinstance(found, tuple) or len(found) != 2 or not callable(found[1]):
        raise NotYet("The function returns two things: the value, and a pullback that can be called.")
    return found[0]


def unless(given: Any, mistake: Any, hint: str, tolerance: float = 1e-6) -> None:
    """Raise the hint if the answer is this mistake."""
    try:
        close(given, mistake, "", tolerance)
    except NotYet:
        return
    raise NotYet(hint)


def shaped(given: Any, shape: tuple[int, ...], hint: str) -> np.ndarray:
    """The answer as an array of numbers, if it is one of this shape."""
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError):
        raise NotYet(f"Numbers are wanted here, and this is {type(given).__name__}. {hint}") from None
    if found.shape != shape:
        raise NotYet(f"The shape is {found.shape}, and {shape} is wanted. {hint}")
    return found
