"""What a step goes on from, and leaves: a state goes back to the layer and the batch that it comes from, and to no other."""

from typing import Any

import numpy as np

from minitransformer.checks.arguments import Asked
from minitransformer.checks.forms import called
from minitransformer.marks import DecodingState
from minitransformer.pullback import tree_parts


def _owner(arguments: dict[str, Any]) -> tuple[Any, tuple[int, ...] | None]:
    """The layer of a step, and the shape of its batch: tokens are (*batch, n), rows (*batch, n, D), heads (*batch, H, n, d)."""
    given = next((a for name, a in arguments.items() if name != "params" and isinstance(a, np.ndarray)), None)
    if given is None or given.dtype.kind not in "if":
        return arguments["self"], None
    return arguments["self"], given.shape[: -1 if given.dtype.kind == "i" else -2]


def made_by_hand(arguments: dict[str, Any], asked: Asked) -> bool:
    """Whether a state, or a field of it, was made by hand. With the mark of a layer it must be that of this layer and this batch.

    raises   TypeError if it is no state, ValueError if another layer or another batch has left it
    """
    state = arguments.get(str(asked.grows))
    if state is None:
        return False
    if not isinstance(state, tuple):
        raise TypeError(
            f"state: {type(state).__name__} should be a state that a step has returned, or None to begin a text"
        )
    if not isinstance(state, DecodingState) or state.mark is None:
        return True
    (layer, batch), (before, samples) = _owner(arguments), state.mark
    if not _same(before, layer):
        raise ValueError(f"state: comes from another {type(before).__name__}, not from this {type(layer).__name__}")
    if batch is not None and batch != samples:
        raise ValueError(f"state: belongs to a batch {samples}, should be that of {batch}")
    return bool(state.changed)


def unmarked(value: Any) -> Any:
    """The value; a state without its mark, which is that of the outer layer: the layers inside it may go on from it, too."""
    return value.marked(None) if isinstance(value, DecodingState) and value.mark is not None else value


def same_kind(state: Any, model: Any, path: str, many: bool = False) -> None:
    """Raise a TypeError that names the part unless a state has the parts of `model`, one that this layer has left.

    And a ValueError for a number below 0, since all that a state counts is there, for an array of another dtype or shape, and
    where the fields `same` and `as_long` of its class are not. What grows with the text may have any size (`many`).
    """
    kind, given = (tuple if type(part) is DecodingState else type(part) for part in (model, state))
    if given is not kind or getattr(state, "ndim", 0) != getattr(model, "ndim", 0) or _size(state) != _size(model):
        raise TypeError(f"{path}: should be {called(model)}, is {called(state)}")
    if kind is int and state < 0:
        raise ValueError(f"{path}: {state} should be at least 0")
    if kind is np.ndarray and _rows_of(state, many) != _rows_of(model, many):
        raise ValueError(f"{path}: {_rows_of(state)} should be {_rows_of(model, many)}")
    if isinstance(model, (tuple, list)):
        for (name, part), own in zip((tree_parts(model) or {}).items(), state, strict=True):
            many = name in getattr(model, "many", ())
            if many and isinstance(own, tuple) and own:
                part = part[:1] * len(own)
            same_kind(own, part, f"{path}.{name}", many)
            if name in getattr(model, "same", ()) and own != part:
                raise ValueError(f"{path}.{name}: {own} should be {part}")
            if name in getattr(model, "as_long", ()):
                for each in own if type(own) in (tuple, DecodingState) else (own,):
                    if (length := getattr(each, "length", state.length)) != state.length:
                        raise ValueError(
                            f"{path}.{name}: {length} tokens do not belong to {path}.length, {state.length}"
                        )
    if isinstance(state, DecodingState):
        state.must_fit()


def _rows_of(X: np.ndarray, many: bool = False) -> str:
    """Dtype and shape of an array; with `many`, without the number of its rows, or of tokens."""
    shape, whole = [str(size) for size in X.shape], X.dtype.kind in "iu"
    if many:
        shape[-1 if whole or X.ndim < 2 else -2] = "any"
    return f"{'integers' if whole else X.dtype} ({', '.join(shape)})"


def _size(state: Any) -> int:
    return len(state) if isinstance(state, (tuple, list)) else 0


def _same(layer: Any, other: Any) -> bool:
    try:
        return bool(layer is other or layer == other)
    except ValueError:  # a reader's, with an array among its fields: NumPy does not say whether arrays are equal
        return False


def left(result: tuple[Any, Any], arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Y and a state as they leave a step: the state is marked with its layer and its batch, to which alone it may go back.

    raises   TypeError for a state that is another kind of tuple, which has no room for a mark
    """
    Y, state = result
    if type(state) is tuple:
        state = DecodingState(state)
    if isinstance(state, tuple) and not isinstance(state, DecodingState):
        raise TypeError(f"{type(state).__name__}: should be a subclass of minitransformer.marks.DecodingState")
    return Y, state.marked(_owner(arguments)) if isinstance(state, DecodingState) else state
