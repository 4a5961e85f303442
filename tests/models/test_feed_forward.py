"""The position-wise feed-forward network."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_size
from minitransformer.functional import gelu, gelu_tanh, relu
from minitransformer.models import FeedForward, GatedFeedForward

fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 3, 4))
ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient(activation, rng):
    ffn = FeedForward(4, 7, activation)
    check_pullback(ffn, random_like(ffn.init(rng), rng), X)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_two_linear_layers_with_a_nonlinearity_between(activation, rng):
    ffn = FeedForward(4, 7, activation)
    p = random_like(ffn.init(rng, np.float64), rng)
    expected = ACTIVATIONS[activation](X @ p.W_1 + p.b_1)[0] @ p.W_2 + p.b_2
    assert np.allclose(ffn(p, X)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_the_value_alone_is_that_of_a_call(kind, bias, tier, rng):
    """With biases and without; and a class that has a `__call__` of its own is asked itself, not its base."""

    class Twice(kind):
        def __call__(self, params, X):
            Y, pullback = super().__call__(params, X)
            return 2 * Y, pullback

    for ffn in (kind(4, 7, bias=bias), Twice(4, 7, bias=bias)):
        p = random_like(ffn.init(rng, np.float64), rng)
        for rows in (X, X[:1, :1]):
            np.testing.assert_allclose(ffn.value(p, rows), ffn(p, rows)[0], rtol=1e-12)


def test_every_token_by_itself(rng):
    """It mixes no tokens: one row alone gives the same (to rounding, as a product of another shape is taken)."""
    ffn = FeedForward(4, 7)
    p = random_like(ffn.init(rng, np.float64), rng)
    Y, _ = ffn(p, X)
    assert np.allclose(ffn(p, X[1, 2])[0], Y[1, 2], rtol=1e-12)
    assert np.allclose(ffn(p, X[:, [2, 0, 1]])[0], Y[:, [2, 0, 1]], rtol=1e-12)
    assert ffn(p, X[:, :0])[0].shape == (2, 0, 4)


def test_initial_parameters_keep_the_variance_of_a_row(rng):
    """Through W₁, ReLU and W₂: the square mean of a row stays about 1."""
    ffn = FeedForward(300, 600)
    p = ffn.init(np.random.default_rng(1), np.float64)
    assert tree_size(p) == 2 * 300 * 600 + 600 + 300
    assert not p.b_1.any()
    assert not p.b_2.any()
    Y, _ = ffn(p, np.random.default_rng(2).standard_normal((200, 300)))
    assert abs((Y**2).mean() - 1) < 0.05
    assert ffn.init(rng).W_1.dtype == np.float32


def test_bad_input_is_refused(rng):
    ffn = FeedForward(4, 7)
    with pytest.raises(TypeError, match="parameter 'X'"):
        ffn(ffn.init(rng, np.float64), X[..., :3])
