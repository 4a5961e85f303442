"""Every option of a kind of attention is looked at: with another value of it, something that one can see is different."""

import inspect
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest

from minitransformer import tree_items
from minitransformer.attention.registry import ATTENTIONS, attention_of
from minitransformer.contract import some
from minitransformer.contract.parts import directions, mixer, rows
from minitransformer.pullback import added_losses, tree_bytes
from minitransformer.ranges import alternatives, bare
from minitransformer.registry import options

pytestmark = pytest.mark.usefixtures("definitions")

N = 100
SIZES = {"width": 12, "heads": 2, "d": 6, "longest": N}
BASES: dict[str, list[dict[str, Any]]] = {  # where the defaults leave an option without effect in so short a text
    "latent": [{"rotary": 4}],
    "pooled": [{"block": 3, "window": 4, "rotary": 4}, {"block": 3, "window": 4, "chosen": 3}],
    "bigbird": [{"block": 7}],
    "synthesizer": [{}, {"kind": "random"}, {"kind": "factorised-random"}],
    "hopfield": [{"steps": 50}],
}


def spelled(name: str, chosen: dict[str, Any]) -> str:
    """NAME:OPTION=VALUE,…"""
    return name + ":" * bool(chosen) + ",".join(f"{option}={value}" for option, value in chosen.items())


def others(parameter: inspect.Parameter, value: Any) -> Iterator[Any]:
    """Other values that the option may have; some of them are refused."""
    for part in alternatives(bare(parameter.annotation)):
        if get_origin(part) is Literal:
            yield from get_args(part)
        if part is bool:
            yield not value
        elif part is int:
            yield from (1, 2, 3, 4, 5, 10, 50)
        elif part is float:
            yield from (0.5, 0.25, 1.5, 3.0)


def seen(name: str) -> dict[str, Any]:
    """All that one can see of it: parameters, Y and its gradient, with and without a draw, what is added, moved and kept."""
    part = attention_of(name, SIZES)
    layer = mixer(part)
    params, X = some(layer), rows(part, 2, N)
    first = layer.init(np.random.default_rng(0), np.float64)
    found: dict[str, Any] = {"first": first, "prefix": layer.prefix, "untrained": len(layer.untrained)}
    for causal in directions(part):
        for seed in (None, 3):
            rng = None if seed is None else np.random.default_rng(seed)
            Y, pullback = layer(params, X, causal=causal, rng=rng)
            found[f"Y, causal {causal}, seed {seed}"] = Y, pullback(np.cos(Y))[1], added_losses(pullback)
        moved = params
        for step in range(3 if layer.moves else 0):
            moved = layer.after_step(moved, layer.observe(pullback), np.random.default_rng(step))
        found[f"moved, causal {causal}"] = moved
    if layer.decodes:
        found["state"] = tree_bytes(layer.step(params, X)[1])
    return {path: np.asarray(array) for path, array in tree_items(found)}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether nothing differs by more than rounding."""
    return one.keys() == other.keys() and all(
        a.shape == other[path].shape and np.allclose(a, other[path], rtol=1e-7, atol=1e-10) for path, a in one.items()
    )


CASES = [(name, option) for name in ATTENTIONS for option in options(ATTENTIONS[name], SIZES)]


@pytest.mark.parametrize(("name", "option"), CASES, ids=lambda part: part)
def test_another_value_makes_a_difference(name, option):
    parameter = inspect.signature(ATTENTIONS[name], eval_str=True).parameters[option]
    tried = []
    for base in BASES.get(name, [{}]):
        value, before = base.get(option, parameter.default), seen(spelled(name, base))
        for other in others(parameter, value):
            try:
                after = seen(spelled(name, base | {option: other}))
            except ValueError:
                continue
            if not same(before, after):
                return
            tried.append(other)
    pytest.fail(f"{option} of {name!r} is {value!r}; with {tried} all is the same")
