"""Trees that have the form of another one: parameters that of what `init` makes, gradients that of the parameters."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from minitransformer.checks.arrays import plain
from minitransformer.pullback import Tree, is_named, tree_items, tree_map, tree_parts


class _Same(np.ndarray):
    """An array that takes the memory of one number, whatever its shape; so does what `init` makes of it by casting or scaling."""

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return np.broadcast_to(np.zeros((), dtype), self.shape).view(_Same)

    def __mul__(self, other: Any) -> Any:
        return self if np.ndim(other) == 0 else np.asarray(self) * other

    __rmul__ = __truediv__ = __mul__


class _Zeros(np.random.Generator):
    """A generator that draws nothing: it gives zeros of any shape."""

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return np.broadcast_to(0.0, size or ()).view(_Same)

    def standard_normal(self, size: Any = None, *args: Any, **kwargs: Any) -> Any:
        return self.uniform(size=size)


def form_of(layer: Any) -> Tree:
    """The parameters of a layer with zeros in the place of their numbers: their shapes and dtypes."""
    try:
        hash(layer)
    except TypeError:  # a reader's own layer, with an array among its fields
        return _form.__wrapped__(layer)
    return _form(layer)


@functools.lru_cache(maxsize=128)
def _form(layer: Any) -> Tree:
    params = layer.init(_Zeros(np.random.PCG64(0)))
    return tree_map(lambda leaf: np.broadcast_to(leaf.dtype.type(0), leaf.shape), params)


def fit(params: Tree, form: Tree, path: str = "params") -> None:
    """Raise a TypeError that names the part if a tree has other parts or shapes than its form, or several dtypes."""
    dtypes = {}
    for where, leaf, model in _pairs(params, form, path):
        if leaf.shape != model.shape:
            raise TypeError(f"{where}: shape {leaf.shape} should be {model.shape}")
        if leaf.dtype.kind != model.dtype.kind:
            wanted = "float32 or float64" if model.dtype.kind == "f" else model.dtype
            raise TypeError(f"{where}: {leaf.dtype} should be {wanted}")
        if leaf.dtype.kind == "f":
            dtypes.setdefault(leaf.dtype, where)
    if len(dtypes) > 1 or any(dtype.itemsize not in (4, 8) for dtype in dtypes):
        got = ", ".join(f"{where} is {dtype}" for dtype, where in dtypes.items())
        raise TypeError(f"{path}: should all be float32, or all float64, but {got}")


def _pairs(tree: Tree, form: Tree, path: str, gaps: bool = False) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The leaves of a tree beside those of its form, each with its path; with gaps, None may stand for any part of the tree."""
    if gaps and tree is None:
        return
    children, wanted = tree_parts(tree) or {}, tree_parts(form) or {}
    if isinstance(tree, dict) and isinstance(form, dict):
        for name in sorted(children.keys() ^ wanted.keys(), key=str):
            raise TypeError(f"{path}.{name}: {'is missing' if name in wanted else 'is no part of it'}")
    elif isinstance(tree, dict) or list(children) != list(wanted) or (not wanted and not isinstance(tree, type(form))):
        raise TypeError(f"{path}: should be {called(form)}, is {called(tree)}")
    if isinstance(form, np.ndarray):
        yield path, tree, form
    optional = getattr(form, "optional", ())  # parts that may be there or not; their layer says what they look like
    for name, child in children.items():
        if name not in optional or (child is not None and wanted[name] is not None):
            yield from _pairs(child, wanted[name], f"{path}.{name}", gaps)


def beside(tree: Tree, form: Tree, path: str) -> list[Any]:
    """The leaves of a tree that belongs to another, as gradients do to parameters: in the order of the other's leaves, each with
    its shape and brought to its dtype. None for a leaf that is not there.

    raises   TypeError or ValueError that names the part
    """
    leaves = {where: leaf for where, leaf, _ in _pairs(tree, form, path, gaps=True)}
    return [_brought(leaves.get(where), model, where) for where, model in tree_items(form, path)]


def _brought(leaf: Any, model: np.ndarray, where: str) -> np.ndarray | None:
    if leaf is None or alike(leaf, model):
        return leaf
    return brought(leaf, model, where, f"{model.shape}", f"{model.dtype}, as what it belongs to")


def alike(given: Any, of: Any) -> bool:
    """Whether both are arrays, or forms of arrays, of one dtype and shape."""
    return type(given) is np.ndarray and hasattr(of, "dtype") and given.dtype == of.dtype and given.shape == of.shape


def brought(given: Any, of: Any, name: str, shape: str, dtype: str) -> np.ndarray:
    """`given` in the dtype of `of`; `shape` and `dtype` are the words of the messages.

    raises   ValueError for another shape, TypeError for what is not real numbers
    """
    if isinstance(given, np.ma.MaskedArray):
        plain(name, given)
    array = np.asarray(given)
    if array.shape != of.shape:
        raise ValueError(f"{name}: shape {array.shape} should be {shape}")
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name}: {array.dtype} should be {dtype}")
    return array.astype(of.dtype)


def refuse_other_numbers(tree: Tree, path: str) -> None:
    """Raise a TypeError that names the part unless all leaves of a tree are arrays of float32 or float64."""
    for where, leaf in tree_items(tree, path):
        if not isinstance(leaf, np.ndarray) or leaf.dtype not in (np.float32, np.float64):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(f"{where}: {kind} should be an array of float32 or float64")


def called(tree: Tree) -> str:
    """What a tree is, in a few words: "an array (3, 4)", "tuple of 2", or the name of its class."""
    if isinstance(tree, np.ndarray):
        return f"an array {tree.shape}"
    if isinstance(tree, (tuple, list, dict)) and not is_named(tree):
        return f"{type(tree).__name__} of {len(tree)}"
    return "None" if tree is None else type(tree).__name__
