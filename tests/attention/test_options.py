"""Every option of a kind of attention is looked at: with another value of it, something that one can see is different."""

from typing import Any

import numpy as np
import pytest

from minitransformer import tree_items
from minitransformer.attention.registry import ATTENTIONS, attention_of
from minitransformer.contract import some
from minitransformer.contract.parts import directions, mixer, rows
from minitransformer.pullback import added_losses, tree_bytes
from minitransformer.registry import options
from tests.another_value import must_matter

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


CASES = [(name, option) for name in ATTENTIONS for option in options(ATTENTIONS[name], SIZES)]


@pytest.mark.parametrize(("name", "option"), CASES, ids=lambda part: part)
def test_another_value_makes_a_difference(name, option):
    must_matter(name, option, ATTENTIONS[name], BASES.get(name, [{}]), seen)
