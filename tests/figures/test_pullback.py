"""What chapter 00 says about the picture of an opened pullback."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minitransformer import backend, check_pullback, tree_bytes
from minitransformer.backend import available
from minitransformer.figures import pullback
from minitransformer.models import FeedForward


@pytest.fixture(scope="module")
def d():
    return pullback.data()


def test_every_gradient_has_the_shape_of_its_value(d):
    for name, value in d.forward.items():
        assert d.backward[name].shape == value.shape


def test_the_fields_are_the_values_that_went_forward(d):
    assert np.array_equal(d.pullback.linear_1.X, d.forward["X"])
    assert np.array_equal(d.pullback.linear_2.X, d.forward["F"])
    assert np.array_equal(np.maximum(d.forward["U"], 0), d.forward["F"])
    assert np.allclose(d.forward["F"] @ d.pullback.linear_2.W + d.pullback.linear_2.b, d.forward["Y"])


def test_the_white_cells_of_slope_F_and_dU_are_the_same(d):
    dark = d.pullback.activation.slope == 0
    assert 0.25 < dark.mean() < 0.75
    assert np.array_equal(dark, d.forward["F"] == 0)
    assert np.array_equal(dark, d.backward["U"] == 0)
    assert not (d.backward["F"] == 0).any()


def test_the_steps_back_are_those_on_the_arrows(d):
    one, activation, two = d.pullback
    dX, dU, dF, dY = (d.backward[name] for name in "XUFY")
    assert np.allclose(dF, dY @ two.W.T)
    assert np.allclose(dU, activation.slope * dF)
    assert np.allclose(dX, dU @ one.W.T)
    assert np.allclose(d.dparams.W_1, one.X.T @ dU)
    assert np.allclose(d.dparams.W_2, two.X.T @ dY)


def test_every_number_of_the_drawing_is_whole_and_small(d):
    for array in (*d.forward.values(), *d.backward.values()):
        assert np.array_equal(array, np.round(array))
        assert np.abs(array).max() < 10


def test_the_pullback_drawn_is_a_right_one():
    rng = np.random.default_rng(0)
    params = pullback.PARAMS._replace(b_1=rng.standard_normal(4), b_2=rng.standard_normal(2))  # no U near the corner
    assert check_pullback(FeedForward(2, 4), params, pullback.X).error < 1e-6


def test_it_is_that_of_every_tier(d):
    for tier in available():
        with backend(tier):
            Y, other = FeedForward(2, 4)(pullback.PARAMS, pullback.X)
            assert np.array_equal(Y, d.forward["Y"])
            assert np.array_equal(other.activation.slope, d.pullback.activation.slope)
            assert np.array_equal(other(d.backward["Y"])[1], d.backward["X"])


def test_bytes_for_each_token():
    """X, slope and F in the definition; the compiled ReLU keeps no slope, it points to F."""
    network = FeedForward(width=64, hidden=256)
    params = network.init(np.random.default_rng(0))

    def remembered(n):
        return tree_bytes(network(params, np.ones((n, 64), np.float32))[1])

    for tier in available():
        with backend(tier):
            assert (remembered(200) - remembered(100)) / 100 == (2304 if tier == "numpy" else 1280)


def test_a_drawing(d):
    assert isinstance(pullback.draw(d), Figure)
