"""What a checker is made of: it is given an answer and returns if it is right, or raises `NotYet` with a hint.

@exercise("2.1")
def a_fourth_token(answer):
    close(answer, [4 / 11, 1 / 11, 2 / 11, 4 / 11], "The fourth token has the score of the first. What does the row sum to?")
"""

import dis
import functools
import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from numpy import ndarray as Array

from minitransformer import exercises
from minitransformer.checker import GradientError, check_pullback
from minitransformer.checks import must_be_pair
from minitransformer.machine import peak_memory
from minitransformer.pullback import Pullback, Tree, tree_leaves, tree_map

Checker = Callable[[Any], None]
CHECKERS: dict[str, Checker] = {}
NOTHING_DONE = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}
LIBRARIES = {"minitransformer", "numpy", "numba", "jaxtyping", "beartype", *sys.stdlib_module_names}
ROUNDED = "The value is rounded, to float32 or less, and small differences of it are lost. Where?"
KINDS = {str: "A word in quotes", int: "A whole number", bool: "True or False"}


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


def numbers(chapter: str = "") -> list[str]:
    """The exercises that have a checker, in order: of a chapter, such as "02", or of all."""
    for module in pkgutil.iter_modules(exercises.__path__):
        if module.name.startswith(f"chapter_{chapter}"):
            importlib.import_module(f"{exercises.__name__}.{module.name}")
    found = [number for number in CHECKERS if _chapter(number).startswith(chapter)]
    return sorted(found, key=lambda number: [int(part) for part in number.split(".")])


def _chapter(number: str) -> str:
    """The chapter of an exercise: "02" of "2.5"."""
    return str(number).partition(".")[0].zfill(2)


def _checker(number: str) -> Checker:
    if not isinstance(number, str):
        like = number if isinstance(number, (int, float)) else "2.1"
        raise TypeError(f'number: {number!r} should be text, as "{like}"')
    there = numbers(_chapter(number))
    if number not in there:
        raise ValueError(f"there is no exercise {number!r} with a checker; there are {', '.join(there or numbers())}")
    return CHECKERS[number]


def hint_for(number: str, answer: Any) -> str | None:
    """What to look at again; None if the answer is right.

    answer   a number, a sequence, an array, a word, or a function, as the exercise says
    raises   ValueError if there is no such exercise, Untried if the answer is None or ..., or a function that
             returns ... or has no body yet; and whatever the reader's own function raises
    """
    checker = _checker(number)
    try:
        checker(_tried(answer))
    except NotYet as hint:
        return str(hint)
    except TypeError as error:
        if callable(answer) or "not callable" not in str(error):
            raise
        return f"A function is wanted here: {error}."
    return None


def check_exercise(number: str, answer: Any) -> None:
    """Print whether the answer to an exercise, such as "2.5", is right, and if not, what to look at again.

    answer   a number, a sequence, an array, a word, or a function, as the exercise says; ... as long as there is none
    raises   ValueError if there is no such exercise; what the reader's own function raises is printed, with its lines
    """
    _checker(number)
    try:
        hint = hint_for(number, answer)
    except Untried:
        print(f"Exercise {number} waits for your answer.")
    except Exception as error:
        print(f"Exercise {number}, not yet: {_what_went_wrong(error)}")
    else:
        print(f"Exercise {number} is right." if hint is None else f"Exercise {number}, not yet: {hint}")


def _what_went_wrong(error: Exception) -> str:
    """An error in a sentence, with the reader's own lines below it: those of a checker would hold its answer.

    If there are none, the checker itself met something that it can't read.
    """
    walked = traceback.walk_tb(error.__traceback__)
    own = traceback.StackSummary.extract(frame for frame in walked if _module(frame[0]) not in LIBRARIES)
    kind = type(error).__name__
    said, _, more = str(error).partition("\n")
    if not own and "inhomogeneous shape" in said:
        return "The rows of your answer differ in length, and make no array of numbers."
    if not own:
        return f"That is not of the form that is asked for ({kind}: {said:.200})."
    return f"Your function raised {kind} in line {own[-1].lineno}{said and ': '}{said}\n{''.join(own.format())}{more}".rstrip()


def _module(frame: FrameType) -> str:
    """The library in which a frame of a traceback is, or "__main__" in a notebook."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _tried(answer: Any) -> Any:
    """The answer, if there is one; of a function, one that says so if it returns nothing or changes what it is given.

    It gets copies of its arrays, so that the checker's stay what they are.
    """
    if answer is None or answer is ...:
        raise Untried
    if type(answer) in (tuple, list):  # and no pullback of the package, which is a tuple that one can call
        return type(answer)(map(_tried, answer))
    if isinstance(answer, (np.ndarray, np.generic, complex)) and np.iscomplexobj(answer):
        raise NotYet("Real numbers are wanted here, and these are complex.")
    if not callable(answer):
        return answer

    @functools.wraps(answer, updated=())
    def function(*args: Any, **kwargs: Any) -> Any:
        own = [tree_map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, arg) for arg in args]
        with np.errstate(all="ignore"):
            found = answer(*own, **kwargs)
        if not _same_arrays(args, own):
            raise NotYet(f"{_named(answer)} changed an array that it was given. Change a copy of it: `X = X.copy()`.")
        if found is None and not _without_body(answer):
            raise NotYet(f"{_named(answer)} returned None; is there a `return`?")
        if type(found) in (tuple, list) and any(one is None for one in found) and all(one is not ... for one in found):
            raise NotYet(f"{_named(answer)} returned None as one of {len(found)} things.")
        return _tried(found)

    return function


def _same_arrays(args: Any, own: Any) -> bool:
    """The same numbers stand in the arrays of two lists of arguments, and in those of their tuples and lists."""
    arrays, others = ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, np.ndarray)] for tree in (args, own))
    pairs = zip(arrays, others, strict=False)
    return len(arrays) == len(others) and all(a.tobytes() == b.tobytes() for a, b in pairs)


def _without_body(function: Callable[..., Any]) -> bool:
    """The function is as the page has it: a docstring and three dots, or less."""
    code = getattr(function, "__code__", None)
    return code is not None and {step.opname for step in dis.get_instructions(code)} <= NOTHING_DONE


def _named(function: Callable[..., Any]) -> str:
    """The reader's function in a sentence; `answer` is the name of all of them."""
    name = getattr(function, "__name__", "answer")
    return "Your function" if name in ("answer", "<lambda>") else f"Your function {name}"


# ---------------------------------------------------------------------------------- what checkers ask


def real(given: Any, hint: str = "") -> Array:
    """The numbers of an answer, whatever its shape."""
    try:
        if np.asarray(given).dtype.kind in "US":  # "4" is a word, though NumPy would make a number of it
            raise TypeError
        return np.asarray(given, float)
    except (TypeError, ValueError) as error:
        what = "this is a function" if callable(given) else f"this is {given!r:.60}"
        if "inhomogeneous shape" in str(error):
            what = "the rows of this differ in length"
        raise NotYet(f"Numbers are wanted here, and {what}. {hint}") from None


def without_nan(found: Array) -> Array:
    """The numbers of an answer, for a checker that would draw other conclusions from NaN."""
    if nan := _nan_in(found):
        raise NotYet(f"{nan}0/0 gives that, ∞ − ∞, and the logarithm of a negative number.")
    return found


def _nan_in(found: Array) -> str:
    """A sentence on how much of an answer is NaN, if there is any."""
    count = int(np.isnan(found).sum())
    return (f"There is NaN in {count} of {found.size} places. " if found.ndim else "This is NaN. ") if count else ""


def array_of(given: Any, shape: tuple[int, ...], hint: str = "") -> Array:
    """The numbers of an answer that has this shape; of () it is a single number."""
    found = real(given, hint)
    if found.shape != shape:
        raise NotYet(f"The shape is {found.shape}, and {shape or 'a single number'} is wanted. {hint}")
    return found


def close(given: Any, wanted: Any, hint: str, tolerance: float = 1e-6) -> None:
    """The answer has these numbers, within a tolerance relative to the largest of them (numbers found by hand: 0.01).

    Integers are counts, and there is no tolerance: 3.99 layers are not four.
    """
    right = np.asarray(wanted, float)
    found = array_of(given, right.shape, hint)
    counts = np.asarray(wanted).dtype.kind in "iu"
    allowed = (1e-12 if counts else tolerance) * max(np.abs(right).max(initial=0), 1e-300)
    if not np.allclose(found, right, rtol=1e-12, atol=allowed):  # 0.36 for 4/11 is off by 1 %, and no more
        raise NotYet(_nan_in(found) + hint)


def unless(given: Any, mistake: Any, hint: str, tolerance: float = 1e-6) -> None:
    """Raise the hint if the answer has the numbers of this likely mistake."""
    try:
        close(given, mistake, hint, tolerance)
    except NotYet:
        return
    raise NotYet(hint)


def likely(given: Any, *mistakes: tuple[Any, str], tolerance: float = 1e-6) -> None:
    """`unless` for several mistakes, each with its hint."""
    for mistake, hint in mistakes:
        unless(given, mistake, hint, tolerance)


def expect(given: Any, wanted: Any, hint: str, *mistakes: tuple[Any, str], tolerance: float = 1e-6) -> None:
    """`close`; an answer that has the numbers of a likely mistake gets the hint of that mistake."""
    try:
        close(given, wanted, hint, tolerance)
    except NotYet:
        likely(given, *mistakes, tolerance=tolerance)
        raise


def choice(given: Any, wanted: Any, hint: str) -> None:
    """The answer is this word, or this whole number, or this True or False; only the letters and digits of a word count."""
    if isinstance(given, str) and isinstance(wanted, str):
        given, wanted = (" ".join(re.findall(r"[^\W_]+", word.lower())) for word in (given, wanted))
    if isinstance(given, np.generic):
        given = given.item()
    if type(given) is not type(wanted):
        raise NotYet(f"{KINDS[type(wanted)]} is wanted here, and this is {given!r:.60}. {hint}")
    if given != wanted:
        raise NotYet(hint)


def yes_or_no(given: Any, count: int) -> list[bool]:
    """As many answers of True or False as there are questions."""
    if not isinstance(given, (list, tuple, Array)) or len(given) != count:
        raise NotYet(f"{count} answers are wanted, each True or False.")
    if not all(isinstance(one, (bool, np.bool_)) for one in given):
        raise NotYet("Each answer is True or False.")
    return [bool(one) for one in given]


def several(found: Any, *names: str) -> tuple[Any, ...]:
    """As many things as there are names, in their order."""
    if not isinstance(found, (tuple, list)) or len(found) != len(names):
        raise NotYet(f"{len(names)} things are wanted here, in this order: {', '.join(names)}.")
    return tuple(found)


def with_pullback(function: Callable[..., Any], *args: Any) -> tuple[Any, Pullback]:
    """What the function returns, if that is (Y, pullback)."""
    found = function(*args)
    return must_be_pair(tuple(found) if isinstance(found, list) else found, "The function", NotYet, ".")


def value(function: Callable[..., Any], *args: Any) -> Any:
    """Y, of a function that returns (Y, pullback)."""
    return with_pullback(function, *args)[0]


def alone(function: Callable[..., Any], wanted: Any, *args: Any, pullback: bool = True) -> None:
    """What is right for samples and heads is right for one of them alone, without axes in front; so is its derivative."""
    hint = "It is right with axes in front, but not without. There may be any number of them, or none."
    try:
        close(value(function, *args) if pullback else function(*args), wanted, hint)
        if pullback:
            check_pullback(_in_float64(function), *args)
    except (NotYet, Untried):
        raise
    except GradientError as error:
        raise NotYet(f"{hint} The checker says: {error}") from None
    except Exception as error:  # axes that are not there
        raise NotYet(f"{hint} Without them it raises {type(error).__name__}: {error}.") from None


def without_a_matrix(n: int, function: Callable[..., Any], *args: Any, of: str = "(n, n)") -> None:
    """For n tokens a function takes less memory than a matrix (n, n) would, even of booleans."""
    with peak_memory() as peak:
        function(*args)
        if peak() > n * n:
            raise NotYet(f"It is right, but a matrix {of} is made on the way.")


def derivative(function: Callable[..., Any], *args: Any, hint: str, **options: Any) -> None:
    """The function returns (Y, pullback), and the pullback is its derivative: options are those of `check_pullback`.

    The hint is for numbers that are wrong. Gradients that are missing or of another shape, and arrays that two calls share,
    need none.
    """
    try:
        check_pullback(_in_float64(function), *args, **options)
    except GradientError as error:
        of_numbers = any(part in str(error) for part in ("the pullback says", "is not linear", "derivative is zero"))
        if of_numbers and _rounds(function, *_cast(args, np.float64)):
            raise NotYet(ROUNDED) from None
        raise NotYet(f"{hint if of_numbers else ''} The checker says: {error}".lstrip()) from None


def _rounds(function: Callable[..., Any], *args: Any) -> bool:
    """The value stays the same, to the last bit, when all arguments change by about 1e-13 of themselves."""
    rng = np.random.default_rng(0)

    def nudged(leaf: Any) -> Any:
        return leaf * (1 + 1e-13 * rng.standard_normal(leaf.shape)) if _is_float(leaf) else leaf

    before, after = (tree_leaves(_gathered(value(function, *given))) for given in (args, tree_map(nudged, args)))
    return all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def _in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which is given float64 and whose results are cast back, and arrays where they are lists of rows.

    To keep float32 is no part of an exercise.
    """

    @functools.wraps(function, updated=())
    def wide(*args: Any) -> tuple[Any, Callable[[Tree], Tree]]:
        kind, *others = (a.dtype for a in tree_leaves(args) if _is_float(a))
        Y, back = with_pullback(function, *_cast(args, np.float64))
        Y = _gathered(Y, type(Y) is tuple)
        if any(_is_float(y) and y.dtype.itemsize < 8 for y in tree_leaves(Y)):
            raise NotYet(ROUNDED)

        def pullback(dY: Tree) -> Tree:
            found = back(_cast(dY, np.float64))
            return _cast(_gathered(found, bool(others)), kind)

        return _cast(Y, kind), pullback

    return wide


def _gathered(found: Any, several: bool = False) -> Any:
    """The array of the rows that a loop has collected in a list, or of several such lists the arrays."""
    if several and type(found) in (tuple, list):
        return tuple(map(_gathered, found))
    try:
        return np.asarray(found, float) if type(found) is list else found
    except (TypeError, ValueError):  # a list of a matrix and a vector, say
        return [*map(_gathered, found)]


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind == "f"


def _cast(tree: Tree, dtype: Any) -> Tree:
    return tree_map(lambda leaf: leaf.astype(dtype) if _is_float(leaf) else leaf, tree)
