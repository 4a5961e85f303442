"""What the captions of chapter 10 claim."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex

import minitransformer as mt
from minitransformer.figures import (
    feature_error,
    feature_variance,
    kernel_smoother,
    multiplication_order,
    smreg,
    truncated_exp,
)
from minitransformer.live import random_features

pytestmark = pytest.mark.usefixtures("definitions")


# ------------------------------------------------------------------------------------------ fig_kernel_smoother


def test_the_middling_width_is_nearest_to_the_sine():
    found = kernel_smoother.data()
    error = {width: np.abs(curve - found.truth).mean() for width, curve in found.smoothed.items()}
    narrow, middling, wide = kernel_smoother.WIDTHS
    assert error[middling] < 0.6 * min(error[narrow], error[wide])
    at = [np.abs(found.q - k).argmin() for k in found.k]
    assert np.median(np.abs(found.smoothed[narrow][at] - found.v)) < 0.02, "the narrow one goes through the dots"
    assert np.ptp(found.smoothed[wide]) < 0.3 * np.ptp(found.truth), "the wide one is hardly more than their mean"


# -------------------------------------------------------------------------------------- fig_multiplication_order


def test_both_orders_give_one_shape_and_the_costs_are_counted():
    found = multiplication_order.data()
    n, r, dv = found.n, found.r, found.dv
    left, right = found.orders
    assert left.factors == right.factors == ((n, r), (r, n), (n, dv))
    assert (left.between, right.between) == ((n, n), (r, dv))
    assert (sum(left.costs), sum(right.costs)) == (n * n * (r + dv), 2 * n * r * dv)
    ones = [np.ones(shape) for shape in left.factors]
    assert np.array_equal((ones[0] @ ones[1]) @ ones[2], ones[0] @ (ones[1] @ ones[2]))


def test_rectangles_are_in_proportion():
    found = multiplication_order.data()
    for ax, order in zip(multiplication_order.draw(found).axes, found.orders, strict=True):
        sizes = [
            (patch.get_height(), patch.get_width())
            for patch in ax.patches
            if patch.get_fill() and hasattr(patch, "get_xy")
        ]
        assert sizes[:3] == list(order.factors)
        assert order.between in sizes
        assert ax.get_aspect() == 1


# --------------------------------------------------------------------------------------------- fig_truncated_exp


@pytest.fixture(scope="module")
def truncated():
    with mt.backend("numpy"):
        return truncated_exp.data()


def test_the_odd_polynomial_is_negative_somewhere_and_the_even_ones_nowhere(truncated):
    assert {degree: bool(curve.min() > 0) for degree, curve in truncated.polynomials.items()} == {
        1: False,
        2: True,
        4: True,
    }
    for degree, curve in truncated.polynomials.items():
        distance = np.abs(truncated.t)
        bound = distance ** (degree + 1) / math.factorial(degree + 1) * np.exp(distance)
        assert (np.abs(curve - truncated.exp) <= bound * (1 + 1e-9) + 1e-12).all()


def test_even_polynomials_are_large_again_for_negative_scores(truncated):
    left = truncated.t < -4
    assert (truncated.polynomials[2][left] > 100 * truncated.exp[left]).all()


def test_errors_fall_faster_and_faster_and_wide_scores_need_more_degrees(truncated):
    needed = []
    for errors in truncated.errors.values():
        logs = np.log(errors[errors > 0])
        assert (np.diff(logs) < 0).all()
        assert np.diff(logs)[-1] < 1.3 * np.diff(logs)[0], "by a larger factor in the end"
        needed.append(truncated.degrees[(errors < 1e-3).argmax()])
    assert needed == sorted(needed)
    assert (needed[0], needed[-1]) == (4, 20)


# ------------------------------------------------------------------------------------------ fig_feature_variance


@pytest.fixture(scope="module")
def variance():
    return feature_variance.data()


def test_what_is_drawn_is_what_is_derived(variance):
    for name, found in variance.drawn.items():
        np.testing.assert_allclose(found, variance.derived[name][variance.at], rtol=0.08)


def test_trigonometric_features_are_best_at_small_angles_and_worst_at_large_ones(variance):
    trigonometric, positive, hyperbolic = (variance.derived[k] for k in ("trigonometric", "positive", "hyperbolic"))
    assert (np.diff(trigonometric) >= 0).all()
    assert (np.diff(positive) <= 1e-12).all()
    assert (hyperbolic <= positive / np.sqrt(2)).all()
    assert trigonometric[0] == 0
    assert abs(positive[-1]) < 1e-6
    assert trigonometric[90] == pytest.approx(hyperbolic[90], rel=1e-12), "equally good at a right angle"
    assert (trigonometric < hyperbolic)[:90].all()
    assert (trigonometric > hyperbolic)[91:].all()
    assert (trigonometric > positive).argmax() == 105


def test_a_kind_of_features_has_one_look_in_all_figures(variance, error):
    def looks(fig):
        lines = [line for line in fig.axes[0].lines if not line.get_label().startswith("_")]
        return {line.get_label(): (to_hex(line.get_color()), line.get_linestyle()) for line in lines}

    known = looks(feature_error.draw(error))
    for fig in (feature_variance.draw(variance), random_features.still(random_features.data())):
        assert len({*looks(fig).items()} & {*known.items()}) == len(looks(fig).keys() & known.keys()) > 1


# --------------------------------------------------------------------------------------------- fig_feature_error


@pytest.fixture(scope="module")
def error():
    with mt.backend("numpy"):
        return feature_error.data()


def test_of_short_queries_and_keys_four_times_the_directions_halve_the_error(error):
    for kind in feature_error.KINDS:
        assert error.slope(0.3, kind) == pytest.approx(-0.5, abs=0.04), kind


def test_orthogonal_directions_are_nearer_and_hyperbolic_features_nearer_still(error):
    positive, orthogonal, hyperbolic = (
        error.rms(0.3, kind) for kind in ("positive", "positive, orthogonal", "hyperbolic")
    )
    assert np.exp(np.log(orthogonal / positive).mean()) < 0.95
    assert (hyperbolic < orthogonal).all()


def test_of_usual_ones_no_kind_beats_the_average_of_all_values(error):
    for kind in feature_error.KINDS:
        assert (error.rms(1.0, kind) > error.average[1.0]).all(), kind
    trigonometric = error.rms(1.0, "trigonometric")
    assert trigonometric.min() > 4 * error.average[1.0]
    assert trigonometric.max() > 100 * error.average[1.0]
    assert (error.rms(0.3, "hyperbolic")[1:] < error.average[0.3]).all()


# ------------------------------------------------------------------------------------------------------ fig_smreg


def test_smreg_is_below_exp_and_comes_near_it_with_the_dimension():
    found = smreg.data()
    for square, ratio in found.ratios.items():
        assert (ratio < 1).all()
        assert (np.diff(ratio) > 0).all()
        assert ratio[-1] > 0.975, square
    short, middling, long = found.ratios.values()
    assert (short > middling).all()
    assert (middling > long).all()
