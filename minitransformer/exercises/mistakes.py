"""What some chapters' checkers ask beside `check`: is this a mistake that one expects, and is a function what is wanted."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.exercises.check import NotYet, close, derivative


def likely(given: Any, *mistakes: tuple[Any, str], tolerance: float = 1e-6) -> None:
    """The hint that belongs to a mistake, if the answer is this one: pairs of what the mistake gives, and the hint."""
    for wrong, hint in mistakes:
        try:
            close(given, wrong, hint, tolerance)
        except NotYet:
            continue
        raise NotYet(hint)


def expect(given: Any, right: Any, hint: str, *mistakes: tuple[Any, str], tolerance: float = 1e-6) -> None:
    """`close`, with a hint of its own for each likely mistake."""
    try:
        close(given, right, hint, tolerance)
    except NotYet:
        likely(given, *mistakes, tolerance=tolerance)
        raise


def wanted(answer: Any) -> Callable[..., Any]:
    """The answer, if it is a function."""
    if not callable(answer):
        raise NotYet(f"A function is wanted here, and this is {type(answer).__name__}.")
    return answer


def pair(found: Any) -> tuple[Any, Callable[..., Any]]:
    """What a function with a gradient returns."""
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[1])):
        raise NotYet("The function should return two things: Y, and a function that takes dY and gives the gradients.")
    return found


def several(found: Any, *names: str) -> tuple[Any, ...]:
    """As many things as there are names, in their order."""
    if not isinstance(found, (tuple, list)) or len(found) != len(names):
        raise NotYet(f"{len(names)} things are wanted here, in this order: {', '.join(names)}.")
    return tuple(found)


def its_derivative(answer: Callable[..., Any], *args: Any, hint: str, **options: Any) -> None:
    """`derivative`, for a reader whose constants may be of another precision than the arguments."""

    @functools.wraps(answer)
    def function(*args: Any) -> Any:
        precision = next(arg.dtype for arg in args if isinstance(arg, np.ndarray))
        Y, back = pair(answer(*args))

        def pullback(dY: Any) -> Any:
            found = back(dY)
            several = isinstance(found, (tuple, list))
            return tuple(np.asarray(dx, precision) for dx in found) if several else np.asarray(found, precision)

        return np.asarray(Y, precision), pullback

    derivative(function, *args, hint=hint, **options)
