"""What is checked before a public function runs: arrays, parameters, and the gradient that comes back.

A public function (`@checked`, in typing.py) is called from outside, or by another one. Only the outermost call is checked:

    fields       of a dataclass (`@frozen`) have the types and ranges of their hints (ranges.py); checked when it is made
    options      are words and numbers among the arguments; they have the types and ranges of the signature
    arrays       are NumPy's own, in this machine's byte order, also within trees; named tuples have one where their class says so
    parameters   of a layer are a tree of the form that its `init` makes, in one dtype
    heads        of a core are queries, keys, values and streams that fit each other
    indices      (tokens, targets, masks, labels, owners, patterns) are copied, so that nobody changes them between the passes
    states       are of the kind that this layer leaves
    Y            comes back read-only, because its pullback may read it again; so do all parts of a Y that has several
    dY           has the shape of Y, and is cast to its dtype before the pullback gets it; likewise each part

So compiled loops, which check no index, only get arrays that they were made for.
"""

import dataclasses
import functools
import inspect
import math
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minitransformer.marks import DecodingState, Pullback
from minitransformer.pullback import Tree, is_named, tree_items, tree_map, tree_parts
from minitransformer.ranges import bare, range_of

# ----------------------------------------------------------------------------------------------- choices

# Arguments of a core behind Q, K and V that are no streams; all others there are streams
NO_STREAMS = {"streams", "causal", "mask", "rng", "state"}
NO_INDICES = ("self", "model", "params", "state", "states")  # never copied as indices
GROWS = ("state", "states")  # shapes differ for every token: compared with a state that the layer leaves
ROWS_OF_NOTHING = 2**24  # an array without entries may have this many rows at most, since loops go through all of them
LARGEST_SIZE, LARGEST = 2**30, float(np.finfo(np.float32).max)  # allowed where a range names no other


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a hint names. True is not a number here; an int will do for a float."""
    kind, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if kind in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if kind is typing.Literal:
        return isinstance(value, str)  # `within` looks which one
    if kind is tuple:
        parts = parts[:1] * len(value) if isinstance(value, tuple) and Ellipsis in parts else parts
        return isinstance(value, tuple) and len(value) == len(parts) and all(map(fits, value, parts))
    if hint is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if hint is float:
        return fits(value, int) or isinstance(value, (float, np.floating))
    return isinstance(value, kind or hint)


def choose(name: str, value: Any, hint: Any) -> None:
    """Raise TypeError unless the value of a field has the type of its hint, and ValueError unless it is one that is allowed."""
    if not fits(value, bare(hint)):
        kind = bare(hint)
        wanted = (
            kind.__name__ if isinstance(kind, type) else re.sub(r"\b(typing|collections\.abc|numpy)\.", "", str(kind))
        )
        raise TypeError(f"{name}: {reprlib.repr(value)} should be {wanted}")
    within(name, value, hint)


def within(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError for a word that is not in the hint, or a number outside its range; TypeError for a bool as a number."""
    literals = [part for part in (hint, *typing.get_args(hint)) if typing.get_origin(part) is typing.Literal]
    words = [word for part in literals for word in typing.get_args(part)]
    if words and isinstance(value, str) and value not in words:
        or_number = ", or a number" * fits(1, bare(hint))
        raise ValueError(f"{name}: no {value!r}; there are {', '.join(words)}{or_number}")
    if isinstance(value, tuple):
        for part in value:
            within(name, part, hint)
    if isinstance(value, (bool, np.bool_)) and of_choices(hint) and not fits(value, bare(hint)):
        raise TypeError(f"{name}: {value} should be a number, not a bool")
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return
    number: Any = value
    said = range_of(hint)
    most = said.most or (LARGEST_SIZE if isinstance(value, (int, np.integer)) else LARGEST)
    if not said.holds(number) or not abs(number) <= most:
        up_to = said.says if abs(number) <= most else f"a number up to {most if said.most else f'{most:.3g}'}"
        raise ValueError(f"{name}: {reprlib.repr(value)} should be {up_to}")


Kind = typing.TypeVar("Kind")


@typing.dataclass_transform(frozen_default=True)
def frozen(kind: type[Kind]) -> type[Kind]:
    """A frozen dataclass that checks its fields one by one, by type and range, before its own `__post_init__` runs.

    NumPy's numbers and words become Python's, and a list in a field of type Any a tuple, so that a checkpoint can hold them.
    Its `init(rng, dtype)` first checks that rng is a generator and dtype one of the two that the book computes in.
    """
    own = getattr(kind, "__post_init__", None)
    hints = functools.cache(lambda: typing.get_type_hints(kind, include_extras=True))

    def look(self: Any) -> None:
        for field in dataclasses.fields(kind):  # type: ignore[arg-type]
            value, hint = getattr(self, field.name), hints()[field.name]
            if isinstance(value, np.number | np.str_) or (hint is Any and isinstance(value, list)):
                value = tuple(value) if isinstance(value, list) else value.item()
                object.__setattr__(self, field.name, value)
            choose(field.name, value, hint)
        if own is not None:
            own(self)

    kind.__post_init__ = look  # type: ignore[attr-defined]
    if (init := vars(kind).get("init")) is not None and "rng" in inspect.signature(init).parameters:
        kind.init = _refusing(init)  # type: ignore[attr-defined]
    return dataclasses.dataclass(frozen=True)(kind)


def _refusing(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def drawn(self: Any, rng: Any, dtype: Any = np.float32) -> Any:
        refuse_init(rng, dtype)
        return init(self, rng, dtype)

    return drawn


# ------------------------------------------------------------------------------------------- on the way in


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


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The hints of which one or another holds: X and None of X | None, and a hint itself where there is no choice."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


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
    if value.dtype.kind != "i":
        raise TypeError(f"{name}: {value.dtype} should be int64; {name}.astype(int) makes it so")


def refuse_init(rng: Any, dtype: Any) -> None:
    """Raise TypeError unless an `init` is given a generator, and one of the two dtypes that the book computes in."""
    if not hasattr(rng, "standard_normal"):
        raise TypeError(f"rng: {reprlib.repr(rng)} should be a generator, such as np.random.default_rng(0)")
    refuse_dtype(dtype)


def refuse_dtype(dtype: Any) -> None:
    """Raise TypeError for all but np.float32 and np.float64 (float is the same)."""
    if not isinstance(dtype, type) or dtype not in (np.float32, np.float64, float):
        raise TypeError(f"dtype: {getattr(dtype, '__name__', dtype)} should be np.float32 or np.float64")


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
    few = value[(*(slice(0, 1) if step == 0 else slice(None) for step in value.strides), ...)].copy()
    return few if few.shape == value.shape else np.broadcast_to(few, value.shape)


def of_choices(hint: Any) -> bool:
    """Whether a hint is that of an option: a number or a word."""
    return (
        hint in (int, float) or typing.get_origin(hint) is typing.Literal or any(map(of_choices, typing.get_args(hint)))
    )


class Asked(NamedTuple):
    """What a function requires of its arguments, by name: all that its signature says, looked up once.

    names           of all arguments; the one at `star` takes any number of them
    choices         the hints of the options, words and numbers
    arrays          arguments that must be arrays, not lists
    integers        those of a model that must hold integers: tokens, lengths, types
    indices         places of tokens, masks, …, of which a copy goes in, because the pullback may look at them again
    grows, place    of a function that goes on from a state and returns the next one: the state's name, and its place
    heads           whether it is given queries, keys and values: the `__call__` or `step` of a core
    """

    function: str
    names: tuple[str, ...]
    star: int
    choices: dict[str, Any]
    arrays: set[str]
    integers: set[str]
    indices: dict[str, int]
    grows: str | None
    place: int
    heads: bool

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call in a dict."""
        arguments = {**dict(zip(self.names[: self.star], args, strict=False)), **kwargs}
        if len(args) > self.star < len(self.names):
            arguments[self.names[self.star]] = args[self.star :]
        return arguments

    def with_own_indices(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with copies of the indices, which its pullback may look at again."""
        for name, k in self.indices.items():
            if k < len(args) and args[k] is not None:
                args = (*args[:k], own_indices(args[k]), *args[k + 1 :])
            elif kwargs.get(name) is not None:
                kwargs = {**kwargs, name: own_indices(kwargs[name])}
        return args, kwargs

    def at_the_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the same call with None in place of the state: the step that begins a text."""
        if self.grows in kwargs:
            return args, {**kwargs, self.grows: None}
        return (*args[: self.place], None, *args[self.place + 1 :]), kwargs


def asked_of(function: Callable[..., Any]) -> Asked:
    """Read off the signature of a function what it requires of its arguments."""
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    stars = [k for k, p in enumerate(parameters.values()) if p.kind is p.VAR_POSITIONAL]
    star = stars[0] if stars else len(names)
    grows = next((name for name in GROWS if name in parameters and "self" in parameters), None)
    back = any(word in str(function.__annotations__.get("return", "Pullback")) for word in ("Pullback", "Any"))
    of_indices = {
        name for name, p in parameters.items() if name not in NO_INDICES and leaves_room_for_indices(p.annotation)
    }
    return Asked(
        function.__name__,
        names,
        star,
        choices={name: p.annotation for name, p in parameters.items() if of_choices(p.annotation)},
        arrays={name for name, p in parameters.items() if names.index(name) != star and of_arrays(p.annotation)},
        integers={name for name, p in parameters.items() if "params" in names and of_integers(p.annotation)},
        # without a pullback nobody looks at them again; an argument behind a star comes by its name
        indices={name: names.index(name) if names.index(name) < star else sys.maxsize for name in of_indices}
        if back and grows is None
        else {},
        grows=grows,
        place=-1 if grows is None or names.index(grows) > star else names.index(grows),
        heads=names[2:5] == ("Q", "K", "V") and function.__name__ in ("__call__", "step"),
    )


def examine(arguments: dict[str, Any], asked: Asked) -> None:
    """Raise TypeError or ValueError for arrays, options, heads or parameters that are not what the function wants."""
    for name, value in arguments.items():
        for path, leaf in tree_items(value, name):
            if isinstance(leaf, np.ndarray):
                plain(path, leaf)
        if name != "params":  # they are checked below
            arrays_where_said(value, name)
        if name in asked.arrays and isinstance(value, (list, tuple)):
            raise TypeError(f"{name}: a {type(value).__name__} should be an array; np.array makes one of it")
        if name in asked.integers and value is not None:
            integers(name, value)
        if name in asked.choices:
            within(name, value, asked.choices[name])
    layer = next((arguments[name] for name in ("self", "model", "encoding") if name in arguments), None)
    if "params" in arguments and hasattr(layer, "init"):
        fit(arguments["params"], form_of(layer))
    if asked.heads:
        examine_heads(arguments, asked)


def examine_heads(arguments: dict[str, Any], asked: Asked) -> None:
    """Check the arguments self, params, Q, K, V, … of a core's method: its parameters, and heads that fit each other."""
    first = asked.names[:5]
    if not set(first) <= set(arguments) or not hasattr(arguments["self"], "fit_heads"):
        return  # an argument is missing, and Python will say so; or this is an encoding of positions
    core, params, *heads = (arguments[name] for name in first)
    if first[1] != "params":
        fit(params, form_of(core), first[1])
    one_by_one = (arguments[name] for name in asked.names[5:] if name in arguments and name not in NO_STREAMS)
    streams = *arguments.get("streams", ()), *one_by_one
    core.fit_heads(*heads, streams, arguments.get("mask"), new=asked.function == "step")


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
        if leaf.dtype.kind == "f" == model.dtype.kind:
            dtypes.setdefault(leaf.dtype, where)
        elif leaf.dtype.kind != model.dtype.kind:
            raise TypeError(
                f"{where}: {leaf.dtype} should be {'float32 or float64' if model.dtype.kind == 'f' else model.dtype}"
            )
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
        raise TypeError(f"{path}: should be {_called(form)}, is {_called(tree)}")
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
    if leaf is None or _alike(leaf, model):
        return leaf
    return brought(leaf, model, where, f"{model.shape}", f"{model.dtype}, as what it belongs to")


def refuse_other_numbers(tree: Tree, path: str) -> None:
    """Raise a TypeError that names the part unless all leaves of a tree are arrays of float32 or float64."""
    for where, leaf in tree_items(tree, path):
        if not isinstance(leaf, np.ndarray) or leaf.dtype not in (np.float32, np.float64):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise TypeError(f"{where}: {kind} should be an array of float32 or float64")


def _called(tree: Tree) -> str:
    if isinstance(tree, np.ndarray):
        return f"an array {tree.shape}"
    if tree is None or is_named(tree):
        return "None" if tree is None else type(tree).__name__
    return f"{type(tree).__name__} of {len(tree)}" if isinstance(tree, (tuple, list, dict)) else type(tree).__name__


# ------------------------------------------------------------------------------------------ on the way out


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
    if _alike(dY, of) or of is None:
        return None if of is None else dY
    if not isinstance(of, Form):
        if not isinstance(dY, (tuple, list)) or len(dY) != len(of):
            raise ValueError(f"dY{part}: {_called(dY)} should be a tuple of {len(of)}, as Y{part} is")
        return tuple(gradient(d, f, f"{part}[{k}]") for k, (d, f) in enumerate(zip(dY, of, strict=True)))
    return brought(dY, of, f"dY{part}", f"that of Y{part}, {of.shape}", f"{of.dtype}, as Y{part} is")


def _alike(given: Any, of: Any) -> bool:
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


def must_be_pair(returned: Any, who: str, error: type[Exception] = ValueError, more: str = "") -> tuple[Any, Any]:
    """A value and its pullback, if that is what a reader's function has returned; `who` and `more` stand around the message."""
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[1]):
        return returned
    kinds = ", ".join(type(part).__name__ for part in returned) if isinstance(returned, tuple) else None
    found = type(returned).__name__ if kinds is None else f"({kinds})"
    raise error(f"{who} should return its value and a pullback, which can be called; it returned {found}{more}")


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
        raise TypeError(f"{path}: should be {_called(model)}, is {_called(state)}")
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


def out(result: Any) -> Any:
    """The result as it leaves a function: a value with its pullback by way of `pair`, anything else as it is.

    raises   TypeError for a pullback that is another kind of tuple, which could not check its dY
    """
    if type(result) is not tuple or len(result) != 2 or not isinstance(result[1], tuple) or not callable(result[1]):
        return result
    if not isinstance(result[1], Pullback):
        raise TypeError(f"{type(result[1]).__name__}: should be a subclass of minitransformer.pullback.Pullback")
    return pair(*result)
