"""What chapter 00 says about the picture of an opened pullback."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from minitransformer import check_pullback
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


def test_the_pullback_drawn_is_a_right_one(d):
    params = d.dparams._replace(
        W_1=d.pullback.linear_1.W, b_1=d.pullback.linear_1.b, W_2=d.pullback.linear_2.W, b_2=d.pullback.linear_2.b
    )
    assert check_pullback(FeedForward(3, 5), params, d.forward["X"]).error < 1e-6


def test_a_drawing(d):
    assert isinstance(pullback.draw(d), Figure)
