"""Shapes as types: the vocabulary of every signature in the book.

`Float[Array, "*batch n d"]` reads "a float32 or float64 array whose last two axes are n and d".
`@checked` on a public function turns the signature into a test: a wrong shape or dtype is an error
that names the argument, its shape and the shape expected. A check costs about 40 µs, so it is paid
once, at the door: what a checked function calls is not checked again.
"""

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import Bool, Int, jaxtyped

Array = np.ndarray
_accepts_ints = beartype(conf=BeartypeConf(is_pep484_tower=True))  # scale=1 is a fine float

if TYPE_CHECKING:
    from jaxtyping import Float
else:
    from jaxtyping import AbstractDtype

    class Float(AbstractDtype):
        """float32 or float64: the two types that the book computes in."""

        dtypes: ClassVar = ["float32", "float64"]


class _Door(threading.local):
    inside = False


_door = _Door()


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Check the arguments and the result against the signature, unless a checked function is calling."""
    strict = jaxtyped(function, typechecker=_accepts_ints)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _door.inside:
            return function(*args, **kwargs)
        _door.inside = True
        try:
            return strict(*args, **kwargs)
        finally:
            _door.inside = False

    return cast(Function, call)


__all__ = ["Array", "Bool", "Float", "Int", "checked"]
