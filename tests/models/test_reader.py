"""A BERT with a layer on top."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.models import BERT, Reader


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_gradient(rng):
    model = Reader(7, 3, longest=6, width=4, depth=1, heads=2, hidden=5)
    params = mt.random_like(model.init(rng, np.float64), rng)
    tokens = rng.integers(7, size=(2, 5))
    mt.check_pullback(lambda params: model(params, tokens), params, zero=["params.bert.stack.blocks.0.attention.b_k"])


def test_it_is_a_bert_and_a_linear_layer(rng):
    model = Reader(7, 3, longest=6, width=4, depth=1, heads=2, hidden=5, positions="alibi")
    params = mt.random_like(model.init(rng), rng)
    tokens = rng.integers(7, size=(2, 5))
    hidden = BERT(7, 6, 4, 1, 2, 5, types=1, positions="alibi")(params.bert, tokens)[0]
    np.testing.assert_allclose(model(params, tokens)[0], hidden @ params.W + params.b, rtol=1e-5, atol=1e-5)


def test_no_outputs():
    with pytest.raises(ValueError, match="outputs: 0 is not at least 1"):
        Reader(7, 0)
