"""Whether an option is looked at: other values that it may have, and whether what they make is the same."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import numpy as np

from minitransformer.ranges import alternatives, bare


def spelled(name: str, chosen: dict[str, Any]) -> str:
    """NAME:OPTION=VALUE,…"""
    return name + ":" * bool(chosen) + ",".join(f"{option}={value}" for option, value in chosen.items())


def others(parameter: inspect.Parameter, value: Any) -> Iterator[Any]:
    """Other values that the option may have; some of them are refused."""
    untold = parameter.annotation is parameter.empty
    for part in (type(value),) if untold else alternatives(bare(parameter.annotation)):
        if get_origin(part) is Literal:
            yield from get_args(part)
        if part is bool:
            yield not value
        elif part is int:
            yield from (1, 2, 3, 4, 5, 10, 50)
        elif part is float:
            yield from (0.5, 0.25, 1.5, 3.0)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether nothing differs by more than rounding."""
    return one.keys() == other.keys() and all(
        a.shape == other[path].shape and np.allclose(a, other[path], rtol=1e-7, atol=1e-10) for path, a in one.items()
    )


def must_matter(
    name: str, option: str, maker: Any, bases: list[dict[str, Any]], seen: Callable[[str], dict[str, Any]]
) -> None:
    """Raise AssertionError unless, on one of the bases, some other value of the option changes what is seen."""
    parameter = inspect.signature(maker, eval_str=True).parameters[option]
    tried = []
    for base in bases:
        value, before = base.get(option, parameter.default), seen(spelled(name, base))
        for other in others(parameter, value):
            try:
                after = seen(spelled(name, base | {option: other}))
            except ValueError:
                continue
            if not same(before, after):
                return
            tried.append(other)
    raise AssertionError(
        f"{option} of {name!r} is {value!r}; with {tried} all is the same. Where it matters beside another option only, name "
        "that in BASES"
    )
