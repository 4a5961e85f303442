"""What chapter 00 says about the step of a difference quotient, and about the step that the checker takes."""

import inspect

import numpy as np
import pytest
from matplotlib.figure import Figure

from minitransformer import check_pullback
from minitransformer.figures import difference_step


@pytest.fixture(scope="module")
def d():
    return difference_step.data()


def slope(d, curve, low, high):
    """Power of h, fitted to the curve between two steps."""
    inside = (d.h > low) & (d.h < high)
    return np.polyfit(np.log(d.h[inside]), np.log(curve[inside]), 1)[0]


def at(d, curve, h):
    return curve[np.argmin(np.abs(np.log(d.h / h)))]


def test_truncation_is_of_second_order_for_the_central_quotient_and_of_first_for_the_one_sided(d):
    assert slope(d, d.central, 3e-4, 1e-1) == pytest.approx(2, abs=0.1)
    assert slope(d, d.one_sided, 3e-6, 1e-2) == pytest.approx(1, abs=0.1)


def test_rounding_grows_as_one_over_h(d):
    assert slope(d, d.central, 1e-12, 1e-6) == pytest.approx(-1, abs=0.15)
    assert slope(d, d.one_sided, 1e-12, 1e-8) == pytest.approx(-1, abs=0.15)


def test_the_best_central_step_is_near_1e_5_and_beats_the_best_one_sided_step_hundredfold(d):
    assert 3e-6 < d.h[d.central.argmin()] < 1e-4
    assert d.central.min() < d.one_sided.min() / 100


def test_the_step_of_the_checker_leaves_room_below_its_tolerance(d):
    options = inspect.signature(check_pullback).parameters
    assert difference_step.CHECKER == options["step"].default
    assert at(d, d.central, options["step"].default) < options["tolerance"].default / 1000


def test_the_function_is_a_network_with_a_right_pullback():
    rng = np.random.default_rng(1)
    W = rng.standard_normal((6, 4))
    assert (
        check_pullback(lambda X: difference_step.rounded(X, W.astype(X.dtype)), rng.standard_normal((2, 3, 6))).error
        < 1e-7
    )
    X = rng.standard_normal((5, 6))
    np.testing.assert_allclose(difference_step.rounded(X, W)[0], X @ W / np.sqrt(1 + (X @ W) ** 2), rtol=1e-13)


def test_in_float32_no_step_reaches_the_tolerance_of_the_checker(d):
    assert d.central_float32.min() > 10 * inspect.signature(check_pullback).parameters["tolerance"].default
    assert at(d, d.central_float32, 1e-6) > 0.1


def test_same_data_twice_and_a_drawing(d):
    for a, b in zip(d, difference_step.data(), strict=True):
        assert np.array_equal(a, b)
    assert isinstance(difference_step.draw(d), Figure)
