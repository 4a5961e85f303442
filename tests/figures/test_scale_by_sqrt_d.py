"""What the caption of fig_scale_by_sqrt_d claims."""

import numpy as np
import pytest

from minitransformer.figures import scale_by_sqrt_d
from minitransformer.functional import softmax


@pytest.fixture(scope="module")
def d():
    return scale_by_sqrt_d.data()


def test_the_variance_of_a_score_is_d_times_the_square_of_the_scale(d):
    for variance, expected in zip(d.variance, (d.d, np.ones(len(d.d)), 1 / d.d), strict=True):
        np.testing.assert_allclose(variance, expected, rtol=0.05)


def test_without_a_scale_the_largest_weight_goes_to_one(d):
    assert (np.diff(d.largest[0]) > 0).all()
    assert d.largest[0][0] < 0.3
    assert d.largest[0][-1] > 0.9


def test_divided_by_the_root_it_stays_where_it_is(d):
    assert np.ptp(d.largest[1]) < 0.01
    assert 0.09 < d.largest[1].min() < d.largest[1].max() < 0.12


def test_divided_by_d_the_layer_becomes_an_average(d):
    assert (np.diff(d.largest[2]) < 0).all()
    assert 1 < d.largest[2][-1] * d.keys < 1.15


def test_without_a_scale_the_median_row_lets_no_gradient_through_at_large_d(d):
    assert d.passed[0][-1] < 1e-3 * d.passed[1][-1]
    assert d.passed[0][0] > d.passed[1][0]  # but at small d it lets more through
    assert np.ptp(d.passed[1]) < 0.02


def test_the_jacobian_is_that_of_the_pullback():
    """One row by hand: the norm of ∂A/∂S as the pullback gives it, one unit vector at a time."""
    S = np.random.default_rng(0).standard_normal((1, 7))
    _, pullback = softmax(S)
    columns = [pullback(e[None])[0] for e in np.eye(7)]
    assert scale_by_sqrt_d._of_rows(S)[2] == pytest.approx(np.linalg.norm(columns), rel=1e-12)


def test_it_draws_every_scale(d):
    fig = scale_by_sqrt_d.draw(d)
    assert [len(ax.lines) for ax in fig.axes] == [3, 3]
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in fig.axes)
