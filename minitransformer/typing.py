"""Shapes as types: the vocabulary of every signature in the book.

`Float[Array, "*batch n d"]` reads "a float32 or float64 array whose last two axes are n and d".
`@checked` on a public function turns the signature into a test: a wrong shape or dtype is an error
that names the argument, its shape and the shape expected. A check can take longer than the function,
so only the outermost call is checked, not what it calls, and only the first of its kind: a call with
the dtypes, shapes and options of one that has passed, in the same tier, is not checked again.
What a reader's own layer or pullback calls is checked, wherever it stands.
"""

import functools
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from jaxtyping import Bool, Int, TypeCheckError, jaxtyped

from minitransformer import checks
from minitransformer.backend import current
from minitransformer.marks import the_call

Array = np.ndarray

if TYPE_CHECKING:
    from jaxtyping import Float
else:
    from jaxtyping import AbstractDtype

    class Float(AbstractDtype):
        """float32 or float64: the two types that the book computes in."""

        dtypes: ClassVar = ["float32", "float64"]


Function = TypeVar("Function", bound=Callable[..., Any])
MANY = 4096  # kinds of calls that a function remembers to have passed
TOLD = re.compile(  # by jaxtyping, of a wrong type
    r"whilst checking the (?:parameters|return value) of (\S+)\.\n"
    r"(?:The problem arose whilst typechecking (parameter '\w+')\.\n)?Actual value: (.*?)\nExpected type: (.*?)\.\n-----",
    re.S,
)
LONGEST = 100  # letters of a wrong value that its error shows
PLAIN = {bool, int, float, str, type}  # types of options, which a check looks at by value


def _looks(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """All that a check depends on: the tier, since results are checked too, and dtypes and shapes, forms of trees, options.

    None if an argument is of a kind that is not known here: such a call is checked every time.
    """
    seen: list[Any] = [current(), len(args), *kwargs]
    values = [*args, *kwargs.values()]
    for value in values:  # to which the parts of each tree are added, and so looked at in their turn
        kind = type(value)
        if kind is np.ndarray:
            seen += value.dtype, value.shape
        elif value is None:
            seen.append(None)
        elif kind in PLAIN:
            seen += kind, value
        elif isinstance(value, (tuple, list)):
            seen += kind, len(value)
            values += value
        elif kind is dict:
            seen += kind, tuple(value)
            values += value.values()
        elif hasattr(kind, "__dataclass_fields__") or isinstance(value, np.number):
            seen += kind, value
        elif isinstance(value, np.random.Generator):
            seen.append(kind)
        else:
            return None
    return tuple(seen)


def _among(passed: set[Any], looks: Any) -> bool:
    """Whether a call of this kind has passed; False if an argument is not hashable, so that the call is checked every time."""
    try:
        return looks is not None and looks in passed
    except TypeError:
        return False


def _strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its check, made for the first call that needs it: Beartype takes as long to import as NumPy."""
    from beartype import BeartypeConf, beartype

    accepts_ints = beartype(conf=BeartypeConf(is_pep484_tower=True))  # scale=1 is a fine float
    made: dict[Any, Callable[..., Any]] = {}

    def once(asked: Callable[..., Any]) -> Callable[..., Any]:
        """For every error, jaxtyping asks for a check of each argument alone, and to make one takes a millisecond."""
        looks = (asked.__name__, *((name, id(hint)) for name, hint in asked.__annotations__.items()))
        return made[looks] if looks in made else made.setdefault(looks, accepts_ints(asked))

    check, signature = jaxtyped(function, typechecker=once), inspect.signature(function)

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:  # which does not say of what
            raise TypeError(f"{_short(function.__qualname__)}: {error}") from None
        try:
            return check(*args, **kwargs)
        except TypeCheckError as error:
            raise TypeError(_in_a_sentence(str(error), args[:1])) from None

    return call


def _in_a_sentence(told: str, layer: tuple[Any, ...]) -> str:
    """What the check has told in two dozen lines: the argument, what it is, what it should be, and how long its axes have to be.

        linear: parameter 'W': f64[3,4] should be Float[Array, 'D E'], where D=2

    layer   the first argument, for axes such as {self.width}
    """
    if not (found := TOLD.search(told)):
        return told
    place, which, given, wanted = found.groups()
    wanted = wanted.removeprefix("<class '").removesuffix("'>")
    wanted = re.sub(r"\b(jaxtyping|typing|numpy)\.", "", wanted).replace("ndarray", "Array")
    wanted = re.sub(r"Annotated\[(.+?), (.+?)\]", r"\1, \2", wanted)
    axes = dict(re.findall(r"^(\w+)=(.+)$", told.partition("each jaxtyping axis")[2], re.M))
    for own in re.findall(r"\{self\.([\w.]+)\}", wanted):
        axes[f"self.{own}"] = str(functools.reduce(getattr, own.split("."), *layer))
    sizes = ", ".join(f"{axis}={axes[axis]}" for axis in dict.fromkeys(re.findall(r"[\w.]+", wanted)) if axis in axes)
    name = _short(place)
    given = " ".join(given.replace("(numpy)", "").split())
    given = given if len(given) <= LONGEST else given[:LONGEST] + "…"
    return f"{name}: {which or 'the return value'}: {given} should be {wanted}" + (f", where {sizes}" if sizes else "")


def _short(place: str) -> str:
    """The name of a function without its module; of a method with its class."""
    path = place.split(".")
    return ".".join(path[-2:] if path[-2:-1] and path[-2][:1].isupper() else path[-1:])


def checked(function: Function) -> Function:
    """Check arguments and result against the signature, unless a checked function is running or such a call has passed."""
    return _checked(function, trusted=True)


def _checked(function: Function, trusted: bool) -> Function:
    """`checked`, and whether the function is trusted, so that what it calls is not checked."""
    strict = functools.cache(lambda: _strict(function))
    asked = checks.asked_of(function)
    grows = asked.grows
    passed: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if the_call.inside and trusted:
            return function(*args, **kwargs)
        if the_call.inside:  # a reader's own, called by the book: what it calls is checked
            args, kwargs = tuple(map(checks.unmarked, args)), {name: checks.unmarked(a) for name, a in kwargs.items()}
            the_call.inside = False
            try:
                result = function(*args, **kwargs)
            finally:
                the_call.inside = True
            if function.__name__ == "__call__" and hasattr(args[0], "init"):
                checks.must_be_pair(result, f"{type(args[0]).__name__}:", more="; mt.check_attention says more")
            return result
        arguments = asked.by_name(args, kwargs) if grows else {}
        # of a state only the type is looked at: its arrays are longer after every step
        looks = _looks(*asked.with_state(type(arguments.get(grows)), args, kwargs)) if grows else _looks(args, kwargs)
        known = _among(passed, looks)
        the_call.inside = trusted
        try:
            if not known:
                arguments = asked.by_name(args, kwargs)
                checks.examine(arguments, asked)
            if asked.indices:
                args, kwargs = asked.with_own_indices(args, kwargs)
            if grows and checks.made_by_hand(arguments, asked):
                first, others = asked.with_state(None, args, kwargs)  # the step that begins a text
                checks.same_kind(arguments[grows], strict()(*first, **others)[1], grows)
            result = function(*args, **kwargs) if known else strict()(*args, **kwargs)
            if not known and looks is not None and len(passed) < MANY:
                with suppress(TypeError):  # a reader's own layer may hold what has no hash
                    passed.add(looks)
        finally:
            the_call.inside = False
        return checks.left(result, arguments) if grows else checks.out(result)

    return cast(Function, call)


class Checked:
    """A base class that applies `checked` to methods of its subclasses: `__call__`, `step`, and all public ones that return a
    value with its pullback or take a state. Those of a reader's own class are not `trusted`."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in list(vars(cls).items()):
            hints = getattr(method, "__annotations__", {})
            pair = str(hints.get("return")).endswith(("Pullback]", "Pullback'>]", "Any]"))
            stands_out = name in ("__call__", "step") or (not name.startswith("_") and (pair or "state" in hints))
            if stands_out and inspect.isfunction(method) and not hasattr(method, "__wrapped__"):
                setattr(cls, name, _checked(method, cls.__module__.startswith("minitransformer.")))


__all__ = ["Array", "Bool", "Checked", "Float", "Int", "checked"]
