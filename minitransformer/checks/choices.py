"""Options, words and numbers: whether a value has the type and range of its hint; and dataclasses that check their fields."""

import dataclasses
import functools
import inspect
import re
import reprlib
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.ranges import bare, range_of

LARGEST_SIZE, LARGEST = 2**30, float(np.finfo(np.float32).max)  # allowed where a range names no other


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a hint names. True is not a number here; an int will do for a float."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is typing.Literal:
        return isinstance(value, str)  # `within` looks which one
    if kind is tuple:
        parts = parts[:1] * len(value) if isinstance(value, tuple) and Ellipsis in parts else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if hint is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if hint is float:
        return fits(value, int) or isinstance(value, (float, np.floating))
    return isinstance(value, kind or hint)


def choose(name: str, value: Any, hint: Any) -> None:
    """Raise TypeError unless the value of a field has the type of its hint, and ValueError unless it is one that is allowed."""
    if not fits(value, bare(hint)):
        kind = bare(hint)
        without_modules = re.sub(r"(?<!['\w])(\w+\.)+(?=\w)", "", str(kind))
        wanted = kind.__name__ if isinstance(kind, type) else without_modules
        raise TypeError(f"{name}: {reprlib.repr(value)} should be {wanted}")
    within(name, value, hint)


def within(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError for a word that is not in the hint, or a number outside its range; TypeError for a bool as a number."""
    literals = [part for part in (hint, *typing.get_args(hint)) if typing.get_origin(part) is typing.Literal]
    words = [word for part in literals for word in typing.get_args(part)]
    if words and isinstance(value, str) and value not in words:
        or_number = ", or a number" * fits(1, bare(hint))
        raise ValueError(f"{name}: no {value!r}; there are {', '.join(words)}{or_number}")
    if isinstance(value, tuple):
        for part in value:
            within(name, part, hint)
    if isinstance(value, (bool, np.bool_)) and of_choices(hint) and not fits(value, bare(hint)):
        raise TypeError(f"{name}: {value} should be a number, not a bool")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return
    number: Any = value
    said = range_of(hint)
    most = said.most or (LARGEST_SIZE if isinstance(value, (int, np.integer)) else LARGEST)
    if not said.holds(number) or not abs(number) <= most:
        up_to = said.says if abs(number) <= most else f"a number up to {most if said.most else f'{most:.3g}'}"
        raise ValueError(f"{name}: {reprlib.repr(value)} should be {up_to}")


def of_choices(hint: Any) -> bool:
    """Whether a hint is that of an option: a number or a word."""
    return (
        hint in (int, float) or typing.get_origin(hint) is typing.Literal or any(map(of_choices, typing.get_args(hint)))
    )


Kind = typing.TypeVar("Kind")


@typing.dataclass_transform(frozen_default=True)
def frozen(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass that checks its fields one by one, by type and range, before its own `__post_init__` runs.

    NumPy's numbers and words become Python's, and a list in a field of type Any a tuple, so that a checkpoint can hold them.
    Its `init(rng, dtype)` first checks that rng is a generator and dtype one of the two that the book computes in.
    """
    own = getattr(kind, "__post_init__", None)
    hints = functools.cache(lambda: typing.get_type_hints(kind, include_extras=True))

    def look(self: Any) -> None:
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            value, hint = getattr(self, field.name), hints()[field.name]
            if isinstance(value, np.number | np.str_) or (hint is Any and isinstance(value, list)):
                value = tuple(value) if isinstance(value, list) else value.item()
                object.__setattr__(self, field.name, value)
            choose(field.name, value, hint)
        if own is not None:
            own(self)

    kind.__post_init__ = look  # type: ignore[attr-defined]
    if (init := vars(kind).get("init")) is not None and "rng" in inspect.signature(init).parameters:
        kind.init = _refusing(init)  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)


def _refusing(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def drawn(self: Any, rng: Any, dtype: Any = np.float32) -> Any:
        refuse_init(rng, dtype)
        return init(self, rng, dtype)

    return drawn


def refuse_init(rng: Any, dtype: Any) -> None:
    """Raise TypeError unless an `init` is given a generator, and one of the two dtypes that the book computes in."""
    if not hasattr(rng, "standard_normal"):
        raise TypeError(f"rng: {reprlib.repr(rng)} should be a generator, such as np.random.default_rng(0)")
    refuse_dtype(dtype)


def refuse_dtype(dtype: Any) -> None:
    """Raise TypeError for all but np.float32 and np.float64 (float is the same)."""
    if not isinstance(dtype, type) or dtype not in (np.float32, np.float64, float):
        raise TypeError(f"dtype: {getattr(dtype, '__name__', dtype)} should be np.float32 or np.float64")
