"""The answers that chapters give to their exercises by hand: the package says the same."""

import numpy as np
import pytest

from minitransformer.attention import (
    delta_rule_step,
    dot_product_attention,
    kernel_attention,
)
from minitransformer.functional import softmax


def test_06_a_geometric_series():
    m, n = 0.3, 400
    A, _ = softmax(-m * np.arange(n))
    np.testing.assert_allclose(A[:5], (1 - np.exp(-m)) * np.exp(-m * np.arange(5)))


def test_07_one_merged_key_for_one_query():
    x = np.log(5 / 2)
    assert 2 * np.exp(x) == pytest.approx(1 + 4)
    assert 2 * np.exp(2 * x) == pytest.approx(12.5) != 1 + 16


def test_08_a_window_of_four_words():
    near = np.abs(np.arange(4)[:, None] - np.arange(4)) <= 1
    zero, V, dY = np.zeros((4, 2)), np.array([[6.0], [12], [18], [24]]), np.array([[1.0], [0], [0], [0]])
    everywhere = near.copy()
    everywhere[3], everywhere[:, 3] = True, True
    for mask, wanted in ((near, [1 / 2, 1 / 2, 0, 0]), (everywhere, [1 / 3, 1 / 3, 0, 1 / 3])):
        _, pullback = dot_product_attention(zero, zero, V, mask=mask)
        np.testing.assert_allclose(pullback(dY)[2][:, 0], wanted)


def test_09_rounds():
    assert (5 / 9) ** 8 < 0.01 < (5 / 9) ** 7
    assert 1 - (8 / 9) ** 8 == pytest.approx(0.61, abs=0.005)


def test_10_six_numbers():
    def features(x):
        return np.array([[1, x, x**2 / np.sqrt(2)]])

    K, V = np.vstack([features(1.0), features(-1.0)]), np.array([[2.0], [4]])
    np.testing.assert_allclose((K.T @ V)[:, 0], [6, -2, 3 * np.sqrt(2)])
    np.testing.assert_allclose(K.sum(0), [2, 0, np.sqrt(2)], atol=1e-12)
    assert kernel_attention(features(1.0), K, V)[0][0, 0] == pytest.approx(7 / 3)
    Y, _ = dot_product_attention(np.ones((1, 1)), np.array([[1.0], [-1]]), V, scale=1.0)
    assert Y[0, 0] == pytest.approx(2.24, abs=0.005)


def test_11_one_pass_and_many():
    K, V = np.array([[1.0, 0], [0.5, np.sqrt(0.75)]]), np.array([[1.0], [0]])
    np.testing.assert_allclose(K @ (K.T @ V), [[1], [0.5]])
    S, errors = np.zeros((2, 1)), []
    for _ in range(30):
        _, S = delta_rule_step(K, K, V, np.ones(2), S)
        errors.append(np.abs(K @ S - V).max())
        if len(errors) == 1:
            np.testing.assert_allclose(K @ S, [[0.75], [0]], atol=1e-12)
    assert errors[-1] < 1e-12
    assert errors[1] / errors[0] == pytest.approx(1 / 4)
