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
from contextlib import suppress
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
PLAIN = (bool, int, float, str, type)
NO_INDICES = ("self", "model", "params", "state", "states")
GROWS = ("state", "states")  # another shape with every token; what it is for says the layer


def _look(value: Any, seen: list[Any]) -> None:
    """Note all that a check looks at: dtypes and shapes, the form of a tree, choices. TypeError for anything else."""
    kind = type(value)
    if kind is np.ndarray:
        seen += value.dtype, value.shape
    elif value is None or kind in PLAIN:
        seen += kind, value
    elif isinstance(value, (tuple, list)):
        seen += kind, len(value)
        for part in value:
            if type(part) is np.ndarray:  # most parts of most trees, and a call costs more than a look
                seen += part.dtype, part.shape
            else:
                _look(part, seen)
    elif kind is dict:
        seen += kind, tuple(value)
        for part in value.values():
            _look(part, seen)
    elif isinstance(value, np.random.Generator):
        seen.append(kind)
    elif hasattr(kind, "__dataclass_fields__"):
        seen.append(value)
    else:
        raise TypeError


def _call(args: tuple[Any, ...], kwargs: dict[str, Any], grows: str | None, place: int) -> tuple[Any, ...] | None:
    """What a call looks like to a check (each tier has a result of its own), or None if that can't be said.

    grows, place    name and place of an argument of which only the type is noted
    """
    if grows is not None:
        args = tuple(type(value) if k == place else value for k, value in enumerate(args))
        kwargs = {name: type(value) if name == grows else value for name, value in kwargs.items()}
    seen: list[Any] = [current(), len(args)]
    try:
        for value in args:
            if type(value) is np.ndarray:
                seen += value.dtype, value.shape
            else:
                _look(value, seen)
        for name, value in kwargs.items():
            seen.append(name)
            _look(value, seen)
    except TypeError:
        return None
    return tuple(seen)


def _among(passed: set[Any], looks: Any) -> bool:
    """Whether a call that looks like this has passed; never if one of its arguments can't be compared."""
    try:
        return looks is not None and looks in passed
    except TypeError:
        return False


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its check. Made for the first call that needs it: Beartype takes as long to import as NumPy."""
    from beartype import BeartypeConf, beartype

    accepts_ints = beartype(conf=BeartypeConf(is_pep484_tower=True))  # scale=1 is a fine float
    return jaxtyped(function, typechecker=accepts_ints)


def checked(function: Function) -> Function:
    """Check arguments and result against the signature, unless a checked function is calling or the like has passed."""
    strict = functools.cache(lambda: _strict(function))
    parameters = inspect.signature(function).parameters
    choices = {name: p.annotation for name, p in parameters.items() if door.of_choices(p.annotation)}
    arrays = {name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL and door.of_arrays(p.annotation)}
    names = tuple(parameters)
    star = next((k for k, p in enumerate(parameters.values()) if p.kind is p.VAR_POSITIONAL), len(names))
    of_core = names[2:5] == ("Q", "K", "V") and function.__name__ in ("__call__", "step")
    grows = next((name for name in GROWS if name in parameters), None)
    place = names.index(grows) if grows is not None else -1
    state = grows if "self" in parameters else None
    back = any(word in str(function.__annotations__.get("return", "Pullback")) for word in ("Pullback", "Any"))
    indices = {name for name, p in parameters.items() if name not in NO_INDICES and door.of_indices(p.annotation)}
    indices = indices if back and state is None else set()  # who does not go back does not look at them again
    places = [k for k, name in enumerate(names[:star]) if name in indices]
    passed: set[tuple[Any, ...]] = set()

    def by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        arguments = dict(zip(names[:star], args, strict=False)) | kwargs
        if len(args) > star < len(names):
            arguments[names[star]] = args[star:]
        return arguments

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if the_door.inside:
            return function(*args, **kwargs)
        looks = _call(args, kwargs, grows, place)
        known = _among(passed, looks)
        arguments = {} if known and state is None else by_name(args, kwargs)
        the_door.inside = True
        try:
            if state is not None:
                door.own(arguments.get(state), arguments)
            if not known:
                door.examine(arguments, choices, arrays)
                if of_core:
                    door.examine_heads(function.__name__, names, arguments)
            if places:
                args = tuple(door.own_indices(a) if k in places else a for k, a in enumerate(args))
            if kwargs and indices:
                kwargs = {name: door.own_indices(a) if name in indices else a for name, a in kwargs.items()}
            try:
                result = function(*args, **kwargs) if known else strict()(*args, **kwargs)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                if state is not None and door.another_kind(given := arguments.get(state), error):
                    layer = type(arguments["self"]).__name__
                    raise TypeError(
                        f"{state}: {type(given).__name__} is not what a {layer} leaves ({error})"
                    ) from error
                raise
            if not known and looks is not None and len(passed) < MANY:
                with suppress(TypeError):  # a layer of a reader's may hold what has no hash
                    passed.add(looks)
        finally:
            the_door.inside = False
        return door.out(result) if state is None else door.left(result, arguments)

    return cast(Function, call)


class Checked:
    """A base class: its subclasses are checked when they are called, and so are `step` and their public methods that return a
    value with its pullback, or take a state."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            hints = getattr(method, "__annotations__", {})
            pair = str(hints.get("return")).endswith(("Pullback]", "Pullback'>]", "Any]"))
            stands_out = name in ("__call__", "step") or (not name.startswith("_") and (pair or "state" in hints))
            if stands_out and inspect.isfunction(method) and not hasattr(method, "__wrapped__"):
                setattr(cls, name, checked(method))


__all__ = ["Array", "Bool", "Checked", "Float", "Int", "checked"]
