"""Every option of a stack, of positions, of a norm and of an embedding is looked at: another value makes a difference."""

from typing import Any

import numpy as np
import pytest

from minitransformer import tree_items
from minitransformer.contract import some
from minitransformer.models import LanguageModel
from minitransformer.models.embed import EMBEDDINGS
from minitransformer.models.norms import NORMS
from minitransformer.models.registry import STACKS
from minitransformer.positions.registry import AT_EMBEDDING, IN_ATTENTION
from minitransformer.pullback import added_losses
from minitransformer.registry import options
from tests.another_value import must_matter

pytestmark = pytest.mark.usefixtures("definitions")

N = 40
REGISTRIES = {"stack": STACKS, "positions": {**AT_EMBEDDING, **IN_ATTENTION}, "norm": NORMS, "embedding": EMBEDDINGS}
FILLED_IN = {  # by a model
    **dict.fromkeys(("blocks", "segment", "places", "width", "heads", "d", "longest", "context", "kind"), None),
}
BASES: dict[str, list[dict[str, Any]]] = {
    "tupe": [{}, {"buckets": 8}],
    "rope": [{"part": 4}],
}  # for the others to matter
CASES = [
    (what, name, option)
    for what, registry in REGISTRIES.items()
    for name in registry
    for option in options(registry[name], FILLED_IN)
]


@pytest.mark.parametrize(("what", "name", "option"), CASES, ids=lambda part: part)
def test_another_value_makes_a_difference(what, name, option):
    tokens = np.random.default_rng(0).integers(0, 30, (2, N))

    def seen(text: str) -> dict[str, Any]:
        """Parameters, logits and their gradient, what is added, and what is said in segments while it writes."""
        chosen = {"positions": "none"} | {what: text}
        model = LanguageModel(30, N // 4 if what == "stack" else N, 16, 2, 2, 10, **chosen)
        params = some(model)
        first = model.init(np.random.default_rng(0), np.float64)
        logits, pullback = model(params, tokens[:, : N // 4] if what == "stack" else tokens)
        found = {
            "first": first,
            "logits": logits,
            "gradient": pullback(np.cos(logits)),
            "added": added_losses(pullback),
        }
        found["written"] = model.step(params, tokens)[0]
        return {path: np.asarray(array) for path, array in tree_items(found)}

    must_matter(name, option, REGISTRIES[what][name], BASES.get(name, [{}]), seen)
