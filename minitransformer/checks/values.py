"""What a function returns, Y and its pullback, and the dY that comes back: it has the form of Y."""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.checks.forms import alike, brought, called
from minitransformer.marks import Pullback
from minitransformer.pullback import Tree, tree_map


class Form(NamedTuple):
    """The shape and dtype that the gradient of an array must have."""

    shape: tuple[int, ...]
    dtype: np.dtype


class ValueForm(NamedTuple):
    """The mark of a pullback: the form of its value, or of each part of it."""

    of: Any

    def gradient(self, dY: Any) -> Any:
        """dY as the pullback takes it, see `gradient`."""
        return gradient(dY, self.of)


def _forms(Y: Tree) -> Any:
    """The form of a value, or a tuple of those of its parts; None for a part that has no gradient."""
    if isinstance(Y, (np.ndarray, np.floating)):
        return tuple.__new__(Form, (Y.shape, Y.dtype)) if Y.dtype.kind == "f" else None
    return tuple(map(_forms, Y)) if isinstance(Y, (tuple, list)) else None


def gradient(dY: Any, of: Any, part: str = "") -> Any:
    """dY as the pullback takes it: an array with the shape and dtype of Y, or a tuple of them if Y has several parts.

    raises   ValueError for another shape or number of parts, TypeError for what is not real numbers
    """
    if of is None:
        return None
    if alike(dY, of):
        return dY
    if not isinstance(of, Form):
        if not isinstance(dY, (tuple, list)) or len(dY) != len(of):
            raise ValueError(f"dY{part}: {called(dY)} should be a tuple of {len(of)}, as Y{part} is")
        return tuple(gradient(d, f, f"{part}[{k}]") for k, (d, f) in enumerate(zip(dY, of, strict=True)))
    return brought(dY, of, f"dY{part}", f"that of Y{part}, {of.shape}", f"{of.dtype}, as Y{part} is")


def pair(Y: Any, pullback: Pullback) -> tuple[Any, Pullback]:
    """A value and its pullback as they leave a function: the value read-only, the pullback marked with the form of the value."""
    return _still(Y), pullback.marked(ValueForm(_forms(Y)))


def _still(Y: Tree) -> Tree:
    """A read-only view of an array, or of each array of a tree."""
    if isinstance(Y, np.ndarray):
        Y = Y.view()
        Y.setflags(write=False)
        return Y
    return tree_map(_still, Y) if isinstance(Y, (tuple, list, dict)) else Y


def must_be_pair(returned: Any, who: str, error: type[Exception] = ValueError, more: str = "") -> tuple[Any, Any]:
    """A value and its pullback, if that is what a reader's function has returned; `who` and `more` stand around the message."""
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1]):
        return returned
    found = type(returned).__name__
    if isinstance(returned, tuple):
        found = f"({', '.join(type(part).__name__ for part in returned)})"
    raise error(f"{who} should return its value and a pullback, which can be called; it returned {found}{more}")


def out(result: Any) -> Any:
    """The result as it leaves a function: a value with its pullback by way of `pair`, anything else as it is.

    raises   TypeError for a pullback that is another kind of tuple, which could not check its dY
    """
    if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], tuple) or not callable(result[1]):
        return result
    if not isinstance(result[1], Pullback):
        raise TypeError(f"{type(result[1]).__name__}: should be a subclass of minitransformer.pullback.Pullback")
    return pair(*result)
