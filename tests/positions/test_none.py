"""Without positions: what a causal mask still tells, and what an encoder can't know."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention
from minitransformer.models import BERT, LanguageModel
from minitransformer.positions import NoPositions


def test_nothing_is_added(rng):
    layer, X = NoPositions(4), rng.standard_normal((2, 3, 4))
    Y, pullback = layer(layer.init(rng), X, first=7)
    assert np.array_equal(Y, X)
    assert np.array_equal(pullback(X)[1], X)
    check_pullback(layer, layer.init(rng), X)
    with pytest.raises(TypeError, match="X"):
        layer(layer.init(rng), X[..., :3])


@pytest.mark.parametrize(("depth", "sees_order"), [(1, False), (2, True), (3, True)])
def test_one_causal_block_sees_a_set_and_two_see_an_order(depth, sees_order, rng):
    """The last position attends to all before it: with one block, a permutation of those changes nothing."""
    model = LanguageModel(vocabulary=16, context=8, width=16, depth=depth, heads=2, positions="none")
    params = model.init(rng, np.float64)
    tokens = np.array([1, 2, 3, 4, 5, 6])
    for other in ([5, 4, 3, 2, 1, 6], [2, 1, 3, 4, 5, 6]):
        change = np.abs(model(params, tokens)[0][-1] - model(params, np.array(other))[0][-1]).max()
        assert (change > 1e-6) == sees_order
        assert sees_order or change < 1e-12


def test_a_head_of_equal_scores_counts_its_keys():
    """Zero scores, and a value of 1 at the first token: position i gets 1/(i + 1)."""
    n = 9
    Y, _ = dot_product_attention(np.zeros((n, 2)), np.zeros((n, 2)), np.eye(n)[:, :1], causal=True)
    np.testing.assert_allclose(Y[:, 0], 1 / np.arange(1, n + 1), rtol=1e-12)


def test_an_encoder_without_positions_permutes_with_its_tokens(rng):
    """Permuted tokens give permuted outputs, at any depth; so no question about order can be answered."""
    model = BERT(vocabulary=9, context=8, width=8, depth=3, heads=2, hidden=6, positions="none")
    params = model.init(rng, np.float64)
    tokens, order = rng.integers(9, size=(2, 7)), rng.permutation(7)
    np.testing.assert_allclose(
        model(params, tokens[:, order])[0], model(params, tokens)[0][:, order], rtol=0, atol=1e-12
    )
