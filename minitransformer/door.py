"""What is asked at the door: of arrays, of parameters, and of the gradient that comes back.

A public function (`@checked`, in typing.py) is called from outside, or by another one. Only the outermost call is asked:

    choices      of the types that their dataclass says (`@frozen`)
    arrays       of NumPy's own kind, in this machine's byte order, wherever in the arguments they stand
    parameters   of a layer: a tree of the form that its `init` makes, in one dtype
    Y            comes back read-only, because its pullback may look at it again
    dY           has the shape of Y, and is brought to its dtype, before its pullback sees it

So what is behind the door, compiled loops that look at no index, gets what it was made for.
"""

import dataclasses
import functools
import reprlib
import threading
import types
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer.pullback import Tree, tree_items, tree_map


class Door(threading.local):
    """Whether who calls now was called through the door."""

    inside = False


the_door = Door()


# ----------------------------------------------------------------------------------------------- choices

LARGEST: dict[Any, float] = {
    int: 2**62,
    float: float(np.finfo(np.float32).max),
}  # of an array's sizes, and of a float32


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field says: True is no number, and 2 is a fine 2.0."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is typing.Literal:
        return isinstance(value, str)  # which one, its class says best
    if kind is tuple:
        parts = parts[:1] * len(value) if isinstance(value, tuple) and Ellipsis in parts else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if hint is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if hint is float:
        return fits(value, int) or isinstance(value, (float, np.floating))
    return isinstance(value, kind or hint)


def choose(name: str, value: Any, hint: Any) -> None:
    """Refuse what can't be chosen for a field: TypeError for another type, ValueError for NaN and what no array can hold."""
    if not fits(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise TypeError(f"{name}: {reprlib.repr(value)} should be {wanted}")
    if not isinstance(value, (int, float, np.number)) or name == "seed":
        return
    number: Any = abs(value)
    largest = LARGEST[float if isinstance(value, (float, np.floating)) else int]
    if not (number <= largest or number == np.inf):
        raise ValueError(f"{name}: {reprlib.repr(value)} should be a number up to {largest:.3g}")


Kind = typing.TypeVar("Kind")


@typing.dataclass_transform(frozen_default=True)
def frozen(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass that looks at the types of its fields before its own `__post_init__` looks at their values."""
    own = getattr(kind, "__post_init__", None)
    hints = functools.cache(lambda: typing.get_type_hints(kind))

    def look(self: Any) -> None:
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            choose(field.name, getattr(self, field.name), hints()[field.name])
        if own is not None:
            own(self)

    kind.__post_init__ = look  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)


# ------------------------------------------------------------------------------------------- on the way in


def plain(name: str, array: np.ndarray) -> None:
    """Refuse an array whose numbers are not simply there."""
    if isinstance(array, (np.ma.MaskedArray, np.matrix)):
        raise TypeError(f"{name}: a {type(array).__name__} computes in its own way; np.asarray makes an array of it")
    if not array.dtype.isnative:
        raise TypeError(f"{name}: its bytes are in another machine's order; .astype({array.dtype.name!r}) turns them")


def examine(arguments: dict[str, Any]) -> None:
    """Refuse arrays, and parameters of a layer (`self`), that are not what they should be."""
    for name, value in arguments.items():
        for path, leaf in tree_items(value, name):
            if isinstance(leaf, np.ndarray):
                plain(path, leaf)
    layer = arguments.get("self")
    if "params" in arguments and hasattr(layer, "init"):
        fit(arguments["params"], form_of(layer))


class _Zeros(np.random.Generator):
    """Draws nothing: zeros of any shape, which take no memory until something is done with them."""

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.broadcast_to(0.0, size or ())

    def standard_normal(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return np.broadcast_to(0.0, size or ())


@functools.lru_cache(maxsize=128)
def form_of(layer: Any) -> Tree:
    """The parameters of a layer, without their numbers."""
    params = layer.init(_Zeros(np.random.PCG64(0)))
    return tree_map(lambda leaf: np.broadcast_to(leaf.dtype.type(0), leaf.shape), params)


def fit(params: Tree, form: Tree, path: str = "params") -> None:
    """Refuse a tree of another form: TypeError that names the part."""
    dtypes = {}
    for where, leaf, model in _pairs(params, form, path):
        if leaf.shape != model.shape:
            raise TypeError(f"{where}: shape {leaf.shape} should be {model.shape}")
        if leaf.dtype.kind == "f" == model.dtype.kind:
            dtypes.setdefault(leaf.dtype, where)
        elif leaf.dtype.kind != model.dtype.kind:
            raise TypeError(f"{where}: {leaf.dtype} should be a kind of {model.dtype}")
    if len(dtypes) > 1 or any(dtype.itemsize not in (4, 8) for dtype in dtypes):
        got = ", ".join(f"{where} is {dtype}" for dtype, where in dtypes.items())
        raise TypeError(f"{path}: should all be float32, or all float64, but {got}")


def _pairs(tree: Tree, form: Tree, path: str) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The leaves of a tree beside those of its form."""
    children, wanted = _children(tree), _children(form)
    if list(children) != list(wanted) or (not wanted and not isinstance(tree, type(form))):
        raise TypeError(f"{path}: should be {_called(form)}, is {_called(tree)}")
    if isinstance(form, np.ndarray):
        yield path, tree, form
    optional = getattr(form, "optional", ())  # parts that may be there or not; their layer says what they look like
    for name, child in children.items():
        if name not in optional or (child is not None and wanted[name] is not None):
            yield from _pairs(child, wanted[name], f"{path}.{name}")


def _children(tree: Tree) -> dict[Any, Tree]:
    """The parts of a tree by name; a leaf has none."""
    if hasattr(tree, "_fields"):
        return tree._asdict()
    return dict(enumerate(tree)) if isinstance(tree, (tuple, list)) else tree if isinstance(tree, dict) else {}


def _called(tree: Tree) -> str:
    if isinstance(tree, np.ndarray):
        return f"an array {tree.shape}"
    if tree is None or hasattr(tree, "_fields"):
        return "None" if tree is None else type(tree).__name__
    return f"{type(tree).__name__} of {len(tree)}" if isinstance(tree, (tuple, list, dict)) else type(tree).__name__


# ------------------------------------------------------------------------------------------ on the way out


def gradient(dY: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """dY for the pullback of a Y of this shape and dtype."""
    if type(dY) is np.ndarray and dY.dtype == dtype and dY.shape == shape:
        return dY
    if isinstance(dY, np.ma.MaskedArray):
        plain("dY", dY)
    given = np.asarray(dY)
    if given.shape != shape:
        raise ValueError(f"dY: shape {given.shape} should be that of Y, {shape}")
    if given.dtype.kind not in "fiu":
        raise TypeError(f"dY: {given.dtype} should be {dtype}, as Y is")
    return given.astype(dtype)


@functools.cache
def _guarded(kind: type) -> type:
    """The kind of pullback that looks at dY before the other kind of the same name does."""

    class Guarded(kind):
        of: tuple[tuple[int, ...], np.dtype] | None = None

        @functools.wraps(kind.__call__)  # what a reader sees, who asks for its source
        def __call__(self, dY: Any) -> Any:
            dY = dY if self.of is None else gradient(dY, *self.of)
            before, the_door.inside = the_door.inside, True
            try:
                return super().__call__(dY)
            finally:
                the_door.inside = before

        def __reduce__(self) -> Any:
            return (kind, tuple(self)) if hasattr(kind, "_fields") else (kind, (tuple(self),))

    Guarded.__name__, Guarded.__qualname__, Guarded.__doc__ = kind.__name__, kind.__qualname__, kind.__doc__
    Guarded.__module__ = kind.__module__
    return Guarded


def pair(Y: Any, pullback: Any) -> tuple[Any, Any]:
    """A value and its pullback as they leave: the value can't be changed under the pullback, which takes no other gradient."""
    kind: Any = type(pullback)
    guarded = tuple.__new__(_guarded(kind), pullback)
    guarded.of = np.shape(Y), Y.dtype
    if isinstance(Y, np.ndarray):
        Y = Y.view()
        Y.flags.writeable = False
    return Y, guarded


def out(result: Any) -> Any:
    """What a function returns, as it leaves: a value with its pullback, or something else."""
    if type(result) is tuple and len(result) == 2 and isinstance(result[1], tuple) and callable(result[1]):
        return pair(*result) if isinstance(result[0], (np.ndarray, np.floating)) else result
    return result
