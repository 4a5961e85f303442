"""The probes of Wang and Chen. Numbers of scikit-learn 1.9.1 are kept here; the package does not need it."""

import numpy as np
import pytest

from minitransformer.measurements.position_probes import logistic_regression, order_error, position_error
from minitransformer.positions import sinusoids


def seeds(probe, table):
    return [probe(table, np.random.default_rng(seed)) for seed in range(3)]


def test_a_table_that_says_it_outright():
    """One channel that holds the position: no error. The order of a pair is in the sign of a difference."""
    table = np.arange(60.0)[:, None]
    assert seeds(position_error, table) == [0, 0, 0]
    assert max(seeds(order_error, table)) < 0.02


def test_five_rows_are_enough_for_five_folds():
    assert position_error(np.arange(5.0)[:, None], np.random.default_rng(0)) == 0
    assert order_error(np.arange(60.0)[:, None], np.random.default_rng(0), pairs=5) in np.arange(6) / 5
    for probe in (position_error, lambda table, rng: order_error(table, rng, pairs=4)):
        with pytest.raises(ValueError, match="4 are too few for 5 folds"):
            probe(np.arange(4.0)[:, None], np.random.default_rng(0))


def test_a_table_that_says_nothing():
    """Every row the same: the guess is the mean of the other folds, and no pair tells its order."""
    table = np.ones((60, 3))
    assert 14 < np.mean(seeds(position_error, table)) < 17  # the mean distance from the middle is 15
    assert 0.4 < np.mean(seeds(order_error, table)) < 0.6


def test_scikit_learn_says_the_same_of_sinusoids():
    """LinearRegression, LogisticRegression(C=1, tol=1e-8), KFold(5), on the same shuffles and pairs."""
    table = sinusoids(512, 384)
    assert position_error(table, np.random.default_rng(0)) == 0
    errors = [order_error(table, np.random.default_rng(seed)) for seed in (0, 1)]
    assert errors == pytest.approx([0.068359375, 0.0703125], abs=1.5 / 512)  # one pair may lie on the border
    assert seeds(order_error, sinusoids(48, 6)) == pytest.approx([0.01953125, 0.009765625, 0.037109375], abs=1.5 / 512)


def test_scikit_learn_says_the_same_of_random_tables():
    """More channels than rows to fit: least squares takes the shortest w, here and there."""
    table = np.random.default_rng(0).standard_normal((512, 768))
    assert position_error(table, np.random.default_rng(0)) == pytest.approx(178.74609375, abs=0.01)
    table = np.random.default_rng(0).standard_normal((512, 384))
    assert position_error(table, np.random.default_rng(0)) == pytest.approx(507.74609375, abs=0.05)
    assert order_error(table, np.random.default_rng(0)) == pytest.approx(0.39453125, abs=1.5 / 512)


def test_scikit_learn_finds_the_same_logistic_regression():
    """LogisticRegression(C, tol=1e-12).fit(X, y): coef_ and intercept_."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((40, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(40) > 0.3
    for C, coefficients, intercept in (
        (1.0, [0.8548095942, -1.7616282751, 0.9938442866], -0.9210797808),
        (0.1, [0.2911053305, -0.5744020179, 0.3050272799], -0.8978432049),
    ):
        w, c = logistic_regression(X, y, C=C)
        np.testing.assert_allclose(w, coefficients, rtol=0, atol=2e-6)
        assert c == pytest.approx(intercept, abs=2e-6)


def test_the_logistic_regression_is_at_a_minimum():
    """w = C Σ_k s_k σ(−s_k z_k) x_k, and for the constant, which nothing pulls to zero, the same sum is 0."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((30, 4)), rng.random(30) < 0.3
    w, c = logistic_regression(X, y, C=0.7)
    s = np.where(y, 1, -1)
    pull = 0.7 * s / (1 + np.exp(s * (X @ w + c)))
    np.testing.assert_allclose(w, X.T @ pull, rtol=0, atol=1e-5)
    assert abs(pull.sum()) < 1e-5


def test_least_squares_by_its_definition():
    """With fewer channels than rows: the guesses of a regression with a column of ones, fold by fold."""
    rng = np.random.default_rng(2)
    table = rng.standard_normal((23, 4))
    order = np.random.default_rng(3).permutation(23)
    expected = []
    for test in np.split(np.arange(23), [5, 10, 15, 19]):
        train = np.setdiff1d(np.arange(23), test)
        theta, *_ = np.linalg.lstsq(np.c_[table[order[train]], np.ones(len(train))], order[train], rcond=None)
        expected.extend(np.abs(np.round(np.c_[table[order[test]], np.ones(len(test))] @ theta) - order[test]))
    assert position_error(table, np.random.default_rng(3)) == pytest.approx(np.mean(expected), abs=1e-12)


def test_the_constant_does_not_count_in_the_length_of_w():
    """With more channels than rows the shortest w depends on whether the constant b is a part of it. It is not: where
    the table stands, Π or Π + 1, makes no difference."""
    table = np.random.default_rng(4).standard_normal((20, 40))
    for rows in (table, table + 3, table + 50):
        assert position_error(rows, np.random.default_rng(0)) == pytest.approx(6.7)

    order, guesses = np.random.default_rng(0).permutation(20), np.empty(20)
    for test in np.split(np.arange(20), 5):  # with b as one more entry of w
        train = np.setdiff1d(np.arange(20), test)
        theta, *_ = np.linalg.lstsq(np.c_[table[order[train]], np.ones(16)], order[train], rcond=None)
        guesses[test] = np.c_[table[order[test]], np.ones(4)] @ theta
    assert np.abs(np.round(guesses) - order).mean() > 9


def test_float32_is_read():
    table = sinusoids(40, 8)
    for probe in (position_error, order_error):
        exact, single = (probe(t, np.random.default_rng(0)) for t in (table, table.astype(np.float32)))
        assert single == pytest.approx(exact, abs=0.1)


def test_too_few_rows_or_pairs_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="4 are too few for 5 folds"):
        position_error(np.ones((4, 3)), rng)
    with pytest.raises(ValueError, match="3 are too few for 5 folds"):
        order_error(np.ones((9, 3)), rng, pairs=3)
    with pytest.raises(TypeError, match="table"):
        position_error(np.ones(4), rng)
