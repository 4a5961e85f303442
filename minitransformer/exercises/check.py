"""What a checker is made of: it is given an answer and returns if it is right, or raises `NotYet` with a hint.

@exercise("2.1")
def a_fourth_token(answer):
    close(answer, [4 / 11, 1 / 11, 2 / 11, 4 / 11], "The fourth token has the score of the first. What does the row sum to?")
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer import exercises
from minitransformer.checker import GradientError, check_pullback

Checker = Callable[[Any], None]
CHECKERS: dict[str, Checker] = {}


class NotYet(Exception):
    """The answer is not right yet; the message is a hint."""


class Untried(Exception):
    """The answer is still the three dots of the page."""


def exercise(number: str) -> Callable[[Checker], Checker]:
    """Register the checker of an exercise, such as "2.5": the fifth of chapter 02."""

    def register(checker: Checker) -> Checker:
        if number in CHECKERS:
            raise ValueError(f"exercise {number} has a checker already: {CHECKERS[number].__qualname__}")
        CHECKERS[number] = checker
        return checker

    return register


def numbers() -> list[str]:
    """All exercises that have a checker, in order."""
    for module in pkgutil.iter_modules(exercises.__path__):
        importlib.import_module(f"{exercises.__name__}.{module.name}")
    return sorted(CHECKERS, key=lambda number: [int(part) for part in number.split(".")])


def hint_for(number: str, answer: Any) -> str | None:
    """What to look at again; None if the answer is right.

    answer   a number, a sequence, an array, a word, or a function, as the exercise says
    raises   ValueError if there is no such exercise, Untried if the answer is None or ..., or a function that returns them;
             and whatever the reader's own function raises
    """
    if number not in CHECKERS and number not in numbers():
        raise ValueError(f"there is no exercise {number!r} with a checker; there are {', '.join(numbers())}")
    try:
        CHECKERS[number](_tried(answer))
    except NotYet as hint:
        return str(hint)
    return None


def check_exercise(number: str, answer: Any) -> None:
    """Print whether the answer to an exercise, such as "2.5", is right, and if not, what to look at again.

    answer   a number, a sequence, an array, a word, or a function, as the exercise says; ... as long as there is none
    raises   ValueError if there is no such exercise, and whatever the reader's own function raises
    """
    try:
        hint = hint_for(number, answer)
    except Untried:
        print(f"Exercise {number} waits for your answer.")
    else:
        print(f"Exercise {number} is right." if hint is None else f"Exercise {number}, not yet: {hint}")


def _tried(answer: Any) -> Any:
    """The answer, if there is one; of a function, one that gets copies of its arrays, and says so if it returns nothing."""
    if answer is None or answer is ...:
        raise Untried
    if type(answer) in (tuple, list):  # and no pullback of the package, which is a tuple that one can call
        return type(answer)(map(_tried, answer))
    if not callable(answer):
        return answer

    @functools.wraps(answer, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        own = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
        return _tried(answer(*own, **kwargs))

    return function


# ---------------------------------------------------------------------------------- what checkers ask


def close(given: Any, wanted: Any, hint: str, tolerance: float = 1e-6) -> None:
    """The numbers of the answer, within a tolerance relative to the largest of them (numbers found by hand: 0.01)."""
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError):
        raise NotYet(f"Numbers are wanted here, and this is {type(given).__name__}.") from None
    right = np.asarray(wanted, float)
    if found.shape != right.shape:
        raise NotYet(f"The shape is {found.shape}, and {right.shape} is wanted. {hint}")
    if not np.allclose(found, right, rtol=0, atol=tolerance * max(np.abs(right).max(initial=0), 1e-300)):
        raise NotYet(hint)


def choice(given: Any, wanted: Any, hint: str) -> None:
    """A word, an integer, or yes and no: the very one."""
    if isinstance(given, str):
        given = given.strip().lower()
    if type(given) is not type(wanted):
        raise NotYet(f"The answer is of another kind ({type(wanted).__name__}). {hint}")
    if given != wanted:
        raise NotYet(hint)


def derivative(function: Callable[..., Any], *args: Any, hint: str, **options: Any) -> None:
    """The function returns (Y, pullback), and the pullback is its derivative: options are those of `check_pullback`."""
    try:
        check_pullback(function, *args, **options)
    except GradientError as error:
        raise NotYet(f"{hint} The checker says: {error}") from None
