"""The page that stands for all: the same parameters give the numbers of `LanguageModel`, forwards and backwards."""

from pathlib import Path

import numpy as np
import pytest

from minitransformer import plain
from minitransformer.functional import cross_entropy
from minitransformer.models import LanguageModel, generate
from minitransformer.pullback import tree_items, tree_map

MODEL = LanguageModel(vocabulary=11, context=40, width=12, depth=3, heads=3, hidden=20)
TOKENS = np.random.default_rng(1).integers(0, 11, 24)


def some(dtype):
    """Parameters of which none is zero or one."""
    rng = np.random.default_rng(0)
    return tree_map(lambda W: W + dtype(0.1) * rng.standard_normal(W.shape).astype(dtype), MODEL.init(rng, dtype))


@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-11), (np.float32, 2e-4)])
def test_logits_and_gradient(dtype, bound, tier):
    params = some(dtype)
    logits, pullback = MODEL(params, TOKENS[:-1])
    loss, entropy = cross_entropy(logits, TOKENS[1:])
    want = dict(tree_items(pullback(entropy(dtype(1)))))
    ours, _ = plain.language_model(params, TOKENS[:-1], MODEL.heads)
    np.testing.assert_allclose(ours, logits, atol=bound)
    found, gradient = plain.loss(params, TOKENS, MODEL.heads)
    assert found == pytest.approx(float(loss), abs=bound)
    found = dict(tree_items(gradient))
    assert found.keys() == want.keys()
    for path, leaf in found.items():
        assert leaf.dtype == dtype, path
        np.testing.assert_allclose(leaf, want[path], atol=bound * max(1, np.abs(want[path]).max()), err_msg=path)


def test_it_writes_the_same():
    params = some(np.float64)
    rng = np.random.default_rng(0)
    want = generate(MODEL, params, TOKENS[:4], 9, rng=rng, temperature=0.0)
    assert plain.generate(params, TOKENS[:4], 9, MODEL.heads).tolist()[-9:] == np.asarray(want).tolist()[-9:]


def test_it_is_a_page_that_needs_numpy_alone():
    text = Path(plain.__file__).read_text(encoding="utf-8")
    assert [line for line in text.split("\n") if line.startswith(("import", "from"))] == [
        "import math",
        "import numpy as np",
    ]
    assert len(text.split("\n")) < 180
