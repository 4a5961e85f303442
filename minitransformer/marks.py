"""Named tuples that can be marked: a pullback with the form of its value, a state with its layer and batch.

A class of them is written as one of `typing.NamedTuple` is, fields first, and used in the same way:

    class AffinePullback(Pullback):
        X: Array
        W: Array

        def __call__(self, dY): ...

What a `typing.NamedTuple` has no room for is `mark`, an attribute of the instance that is no field.
"""

import functools
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform


class Call(threading.local):
    """Whether a checked function is running, so that what it calls is not checked again."""

    inside = False


the_call = Call()


@dataclass_transform(frozen_default=True)
class Marked(tuple[Any, ...]):
    """A named tuple with a mark, which is None at first. A class with `named=False` is a tuple of any length with a mark."""

    mark: Any = None

    def __init_subclass__(cls, named: bool = True) -> None:
        if named:
            fields = cls.__annotations__
            defaults = [vars(cls)[name] for name in fields if name in vars(cls)]
            like = namedtuple(cls.__name__, fields, defaults=defaults)  # type: ignore[misc]
            for name in {"__new__", "__repr__", "__getnewargs__", "__match_args__", "_asdict", "_fields", *fields}:
                setattr(cls, name, vars(like)[name])

    def marked(self, mark: Any) -> Any:
        """A copy with this mark, which replaces any other."""
        new = tuple.__new__(type(self), self)
        new.mark = mark
        return new

    def _replace(self, **changes: Any) -> Any:
        return type(self)(**{**self._asdict(), **changes}).marked(self.mark)

    if TYPE_CHECKING:
        _fields: tuple[str, ...]

        def _asdict(self) -> dict[str, Any]: ...
        def __getattr__(self, name: str) -> Any: ...


class Pullback(Marked, named=False):
    """What the backward pass remembers; called with dY, it returns the gradients of the inputs.

    One that has left a checked function is marked with the form of Y, and checks dY before its own `__call__` runs.
    """

    def __init_subclass__(cls, named: bool = True) -> None:
        super().__init_subclass__(named)
        if "__call__" in vars(cls):
            cls.__call__ = _first_checked(cls.__call__)  # type: ignore[method-assign]

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def _first_checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """The `__call__` of a pullback, which first checks dY if there is a mark; what a reader's own pullback calls is checked."""
    of_the_book = method.__module__.startswith("minitransformer.")

    @functools.wraps(method)
    def call(self: Pullback, dY: Any) -> Any:
        if self.mark is None and of_the_book:
            return method(self, dY)
        if self.mark is not None:
            dY = self.mark.gradient(dY)
        before, the_call.inside = the_call.inside, of_the_book
        try:
            return method(self, dY)
        finally:
            the_call.inside = before

    return call


class DecodingState(Marked, named=False):
    """What a step leaves for the next one, marked with the layer and the batch to which alone it may go back.

    changed   whether `_replace` has changed a field since a layer marked it: then the next step checks all fields
    many      fields that grow with the text: arrays of rows or tokens, or tuples
    same      fields that depend on the layer, not on the text
    as_long   fields that hold states after as many tokens as its own `length`
    """

    changed = False
    many: ClassVar[tuple[str, ...]] = ()
    same: ClassVar[tuple[str, ...]] = ()
    as_long: ClassVar[tuple[str, ...]] = ()

    def _replace(self, **changes: Any) -> Any:
        new = super()._replace(**changes)
        new.changed = True
        return new

    def must_fit(self) -> None:
        """Raise ValueError unless the fields fit each other; asked of a state that was made by hand, before anything reads it."""
