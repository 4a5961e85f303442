"""Arrays: which hints ask for one, and which values will do."""

import math
import reprlib
import types
import typing
from typing import Any

import numpy as np

from minitransformer.checks.choices import fits
from minitransformer.pullback import Tree, is_named, tree_map, tree_parts
from minitransformer.ranges import alternatives, bare

ROWS_OF_NOTHING = 2**24  # an array without entries may have this many rows at most, since loops go through all of them


def plain(name: str, array: np.ndarray) -> None:
    """Raise TypeError for a masked array or matrix, or another byte order; ValueError for too many rows without entries."""
    if isinstance(array, (np.ma.MaskedArray, np.matrix)):
        raise TypeError(
            f"{name}: a {type(array).__name__} computes in its own way; np.asarray makes a plain array of it"
        )
    if not array.dtype.isnative:
        raise TypeError(f"{name}: its byte order is not this machine's; .astype({array.dtype.name!r}) converts it")
    if not array.size and math.prod(filter(None, array.shape)) > ROWS_OF_NOTHING:
        raise ValueError(f"{name}: shape {array.shape} is empty, and should have {ROWS_OF_NOTHING} rows at most")


def arrays_where_said(tree: Tree, path: str) -> None:
    """Raise TypeError for a named tuple, alone or in a tree, with something else where its class says there is an array."""
    said = type(tree).__annotations__ if is_named(tree) else {}
    for name, part in (tree_parts(tree) or {}).items():
        if of_arrays(said.get(name, Any)) and not fits(part, said[name]):
            raise TypeError(f"{path}.{name}: should be an array, is {type(part).__name__}")
        arrays_where_said(part, f"{path}.{name}")


def of_arrays(hint: Any) -> bool:
    """Whether a hint is that of an array, or of an array or None."""
    return all(part in (np.ndarray, types.NoneType) or hasattr(part, "array_type") for part in alternatives(hint))


def of_integers(hint: Any) -> bool:
    """Whether a hint is that of an array of integers, or of one or None."""
    kinds = [getattr(part, "dtypes", ()) for part in alternatives(hint) if part is not types.NoneType]
    return bool(kinds) and all("int64" in kind and "float32" not in kind for kind in kinds)


def integers(name: str, value: Any) -> None:
    """Raise a TypeError that says what would be right unless a value is an array of signed integers, as NumPy's own are."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: {reprlib.repr(value)} should be an array of integers")
    if value.dtype.kind not in "ibuf":  # words, say, of which a cast makes no numbers
        raise TypeError(f"{name}: an array of {value.dtype} should be an array of integers")
    if value.dtype.kind != "i":
        raise TypeError(f"{name}: {value.dtype} should be int64; {name}.astype(int) makes it so")


def leaves_room_for_indices(hint: Any) -> bool:
    """Whether a hint allows arrays of integers or booleans, alone or in a container."""
    others = (types.NoneType, bool, int, float, str, np.random.Generator, Any)
    return any(
        part not in others
        and "float32" not in getattr(part, "dtypes", ())
        and typing.get_origin(part) is not typing.Literal
        for part in alternatives(bare(hint))
    )


def own_indices(value: Any) -> Any:
    """A copy of an array of integers or booleans, unless it is read-only and owns its memory; in a tuple or list, of each."""
    if isinstance(value, (tuple, list)):
        return tree_map(own_indices, value)
    if type(value) is not np.ndarray or value.dtype.kind not in "biu":
        return value
    if not value.flags.writeable and value.base is None:
        return value
    if 0 not in value.strides:
        return value.copy()
    # an axis along which the array was broadcast is copied once, and broadcast again
    few = value[(*(slice(0, 1) if step == 0 else slice(None) for step in value.strides), ...)].copy()
    return few if few.shape == value.shape else np.broadcast_to(few, value.shape)
