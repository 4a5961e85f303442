"""Shapes as types: the vocabulary of every signature in the book.

`Float[Array, "*batch n d"]` reads "a float32 or float64 array whose last two axes are n and d".
`@checked` on a public function turns the signature into a test: a wrong shape or dtype is an error
that names the argument, its shape and the shape expected. A check takes longer than many a function,
so only the outermost call pays, not what it calls, and only the first of its kind: a call with the
dtypes, shapes and options of one that has passed, in the same tier, goes through, and its result too.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Int, jaxtyped

from minitransformer import door
from minitransformer.backend import current
from minitransformer.door import the_door

Array = np.ndarray

if TYPE_CHECKING:
    from jaxtyping import Float
else:
    from jaxtyping import AbstractDtype

    class Float(AbstractDtype):
        """float32 or float64: the two types that the book computes in."""

        dtypes: ClassVar = ["float32", "float64"]


Function = TypeVar("Function", bound=Callable[..., Any])
MANY = 4096  # calls that a function remembers


def _seen(value: Any) -> Any:
    """All that a check looks at: dtype and shape of an array, a plain value. Of anything else we can't say: TypeError."""
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype, value.shape
    if kind is float:
        return kind
    if value is None or kind in (bool, int, str):
        return kind, value
    raise TypeError


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What a call looks like to a check (each tier has a result of its own), or None if that can't be said."""
    try:
        return (current(), *map(_seen, args), *kwargs, *map(_seen, kwargs.values()))
    except TypeError:
        return None


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its check. Made for the first call that needs it: Beartype takes as long to import as NumPy."""
    from beartype import BeartypeConf, beartype

    accepts_ints = beartype(conf=BeartypeConf(is_pep484_tower=True))  # scale=1 is a fine float
    return jaxtyped(function, typechecker=accepts_ints)


def checked(function: Function) -> Function:
    """Check arguments and result against the signature, unless a checked function is calling or the like has passed."""
    strict = functools.cache(lambda: _strict(function))
    names = tuple(inspect.signature(function).parameters)
    passed: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if the_door.inside:
            return function(*args, **kwargs)
        looks = _call(args, kwargs)
        the_door.inside = True
        try:
            if looks in passed:
                return door.out(function(*args, **kwargs))
            door.examine(dict(zip(names, args, strict=False)) | kwargs)
            result = strict()(*args, **kwargs)
        finally:
            the_door.inside = False
        if looks is not None and len(passed) < MANY:
            passed.add(looks)
        return door.out(result)

    return cast(Function, call)


class Checked:
    """A base class: the public methods of its subclasses that return a value and a pullback are checked without being marked."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            pair = str(getattr(method, "__annotations__", {}).get("return")).endswith(
                ("Pullback]", "Pullback'>]", "Any]")
            )
            public = name == "__call__" or (not name.startswith("_") and name != "step")  # which returns a state
            if pair and public and not hasattr(method, "__wrapped__"):
                setattr(cls, name, checked(method))


__all__ = ["Array", "Bool", "Checked", "Float", "Int", "checked"]
