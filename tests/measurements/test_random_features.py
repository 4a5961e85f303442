"""Means and variances of random features against draws of them; the series of the kernel of a constant length."""

import math

import numpy as np
import pytest

from minitransformer.attention.linear import (
    gaussian_rows,
    of_same_length,
    orthogonal_rows,
    positive_features,
    trigonometric_features,
)
from minitransformer.measurements.random_features import (
    bound_orthogonal,
    smreg,
    softmax_kernel,
    variance_hyperbolic,
    variance_positive,
    variance_trigonometric,
)

D, DRAWS = 8, 400_000


@pytest.fixture(scope="module")
def pair():
    """x and y of d = 8, of length about 1, neither parallel nor orthogonal."""
    x, y = np.random.default_rng(3).standard_normal((2, D)) / math.sqrt(D)
    return x, y


def single_draws(pair, **options):
    """Estimates of SM from one direction each, DRAWS of them: the products of features of x and of y."""
    W = gaussian_rows(np.random.default_rng(0), (DRAWS, 1, D))
    features = options.pop("features", positive_features)
    fx, fy = (features(np.broadcast_to(v, (DRAWS, 1, D)), W, **options)[0] for v in pair)
    return np.vecdot(fx, fy)[:, 0]


@pytest.mark.parametrize(
    ("options", "variance"),
    [
        ({}, variance_positive),
        ({"both_signs": True}, variance_hyperbolic),
        ({"features": trigonometric_features}, variance_trigonometric),
    ],
    ids=["positive", "hyperbolic", "trigonometric"],
)
def test_the_mean_is_exp_and_the_variance_as_derived(pair, options, variance):
    """Means within three standard errors, variances within 5 %."""
    found = single_draws(pair, **options)
    assert abs(found.mean() - softmax_kernel(*pair)) < 3 * found.std() / math.sqrt(DRAWS)
    assert found.var() == pytest.approx(variance(*pair, 1), rel=0.05)


def test_m_directions_divide_it_by_m(pair):
    for variance in (variance_positive, variance_hyperbolic, variance_trigonometric):
        assert variance(*pair, 7) == pytest.approx(variance(*pair, 1) / 7, rel=1e-12)


def test_where_attention_is_near_zero_and_where_the_two_are_the_same():
    """At y = −x positive features are exact, and trigonometric ones at their worst; at y = x it is the other way round."""
    x = np.ones(D) / 2
    assert variance_positive(x, -x, 1) == 0
    assert variance_trigonometric(x, x, 1) == 0
    assert variance_trigonometric(x, -x, 1) > 100 * softmax_kernel(x, -x) ** 2
    assert variance_positive(x, x, 1) > 100 * softmax_kernel(x, x) ** 2
    W = gaussian_rows(np.random.default_rng(0), (5, D))
    estimates = [
        (features(a[None], W)[0] @ features(b[None], W)[0].T).item()
        for features, a, b in ((positive_features, x, -x), (trigonometric_features, x, x))
    ]
    assert np.allclose(estimates, [softmax_kernel(x, -x), softmax_kernel(x, x)], rtol=1e-12)


@pytest.mark.parametrize("m", [2, 4, 8])
def test_orthogonal_directions_vary_less_and_no_more_than_the_bound(pair, m):
    """With the sign that makes them uniform: no bias, below the variance of independent ones, below the bound."""
    draws = 40_000
    W = orthogonal_rows(np.random.default_rng(1), (draws, m, D))
    fx, fy = (positive_features(np.broadcast_to(v, (draws, 1, D)), W)[0] for v in pair)
    found = np.vecdot(fx, fy)[:, 0]
    assert abs(found.mean() - softmax_kernel(*pair)) < 3.5 * found.std() / math.sqrt(draws)
    off = 3 * math.sqrt(2 / draws) * found.var() * 2  # the tails are heavier than normal ones
    assert found.var() < variance_positive(*pair, m)
    assert found.var() < bound_orthogonal(*pair, m) + off
    assert bound_orthogonal(*pair, m) < variance_positive(*pair, m)


def test_the_bound_by_hand():
    """x of length one in the plane, y = 0, two directions: SM is 1, ‖z‖² too, and m (d + 2) is 8."""
    bound = (math.e - 1) / 2 - 2 / 8 * (1 - math.exp(-0.5)) ** 2
    assert bound_orthogonal(np.array([1.0, 0]), np.zeros(2), 2) == pytest.approx(bound)


def test_one_orthogonal_direction_is_an_independent_one(pair):
    assert bound_orthogonal(*pair, 1) == variance_positive(*pair, 1)


def test_the_series_of_smreg(pair):
    """Against draws of the length √d."""
    W = of_same_length(gaussian_rows(np.random.default_rng(2), (1, DRAWS, D)))
    fx, fy = (positive_features(v[None], W[0])[0] for v in pair)
    found = fx * fy * DRAWS
    assert abs(found.mean() - smreg(*pair)) < 3 * found.std() / math.sqrt(DRAWS)


def test_smreg_is_below_exp_and_near_it_in_many_dimensions():
    """At ‖x + y‖² = 4: 0.66 of exp in 4 dimensions, 0.98 in 256."""
    ratios = []
    for d in (4, 16, 64, 256):
        x = np.zeros(d)
        x[0] = 1
        ratios.append(smreg(x, x) / softmax_kernel(x, x))
    assert np.allclose(ratios, [0.66, 0.84, 0.945, 0.985], atol=0.006)
    assert ratios == sorted(ratios)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 200, 5))
    assert (smreg(x, y) <= softmax_kernel(x, y)).all()


def test_of_directions_of_one_dimension_it_is_a_cosh():
    """d = 1: w is +1 or −1, and SMREG = e^(−(x² + y²)/2) cosh(x + y)."""
    x, y = np.array([[0.3], [1.0]]), np.array([[0.5], [-2.0]])
    want = np.exp(-(x**2 + y**2) / 2) * np.cosh(x + y)
    assert np.allclose(smreg(x, y), want[:, 0], rtol=1e-13)
