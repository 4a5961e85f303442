"""The arguments of a public function: what its signature says of them, looked up once, and whether those of a call are right."""

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minitransformer.checks.arrays import (
    arrays_where_said,
    integers,
    leaves_room_for_indices,
    of_arrays,
    of_integers,
    own_indices,
    plain,
)
from minitransformer.checks.choices import of_choices, within
from minitransformer.checks.forms import fit, form_of
from minitransformer.pullback import is_named, tree_items

# Arguments of a core behind Q, K and V that are no streams; all others there are streams
NO_STREAMS = {"streams", "causal", "mask", "rng", "state"}
NO_INDICES = ("self", "model", "params", "state", "states")  # never copied as indices
GROWS = ("state", "states")  # shapes differ for every token: compared with a state that the layer leaves


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

    def with_state(
        self, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the same call with this in place of its state, if it has one."""
        if self.grows in kwargs:
            return args, {**kwargs, self.grows: state}
        if self.place < len(args):
            return (*args[: self.place], state, *args[self.place + 1 :]), kwargs
        return args, kwargs


def asked_of(function: Callable[..., Any]) -> Asked:
    """Read off the signature of a function what it requires of its arguments."""
    parameters = inspect.signature(function).parameters
    names = tuple(parameters)
    stars = [k for k, p in enumerate(parameters.values()) if p.kind is p.VAR_POSITIONAL]
    star = stars[0] if stars else len(names)
    grows = next((name for name in GROWS if name in parameters and "self" in parameters), None)
    back = any(word in str(function.__annotations__.get("return", "Pullback")) for word in ("Pullback", "Any"))
    copied = [
        name
        for name, p in parameters.items()
        if back and grows is None  # without a pullback nobody looks at them again
        and name not in NO_INDICES and leaves_room_for_indices(p.annotation)
    ]  # fmt: skip
    # an argument behind a star comes by its name
    places = {name: k if k < star else sys.maxsize for k, name in enumerate(names)}
    return Asked(
        function.__name__,
        names,
        star,
        choices={name: p.annotation for name, p in parameters.items() if of_choices(p.annotation)},
        arrays={name for name, p in parameters.items() if p.kind is not p.VAR_POSITIONAL and of_arrays(p.annotation)},
        integers={name for name, p in parameters.items() if "params" in names and of_integers(p.annotation)},
        indices={name: places[name] for name in copied},
        grows=grows,
        place=sys.maxsize if grows is None else places[grows],
        heads=names[2:5] == ("Q", "K", "V") and function.__name__ in ("__call__", "step"),
    )


def _made_of(value: Any) -> str:
    """What to do about a list or a tuple that was given in the place of an array."""
    if len(value) == 2 and callable(value[1]):
        return "; it is a value with its pullback, Y, pullback = f(...)"
    arrays = any(isinstance(item, np.ndarray) for item in value)
    return "" if arrays or is_named(value) else "; np.array makes one of it"


def examine(arguments: dict[str, Any], asked: Asked) -> None:
    """Raise TypeError or ValueError for arrays, options, heads or parameters that are not what the function wants."""
    for name, value in arguments.items():
        for path, leaf in tree_items(value, name):
            if isinstance(leaf, np.ndarray):
                plain(path, leaf)
        if name != "params":  # they are checked below
            arrays_where_said(value, name)
        if name in asked.arrays and isinstance(value, (list, tuple)):
            raise TypeError(f"{name}: a {type(value).__name__} should be an array{_made_of(value)}")
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
    for path, leaf in tree_items(params, first[1]):
        if leaf.dtype.kind == "f" and leaf.dtype != heads[0].dtype:
            raise TypeError(f"{path}: {leaf.dtype} should be {heads[0].dtype}, as Q is")
