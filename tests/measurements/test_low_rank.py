"""The measurements of chapter 07 on matrices of which the answer is known."""

import math

import numpy as np
import pytest

from minitransformer.functional import softmax
from minitransformer.measurements import low_rank


def test_held():
    """A diagonal matrix has its entries as singular values."""
    np.testing.assert_allclose(low_rank.held(np.diag([1.0, 4, 3]))[:3], [4 / 8, 7 / 8, 1])
    np.testing.assert_allclose(low_rank.held(np.ones((2, 5, 7)))[:, 0], 1)
    assert low_rank.held(np.eye(6)[None])[0, 2] == pytest.approx(0.5)


def test_random_attention():
    S, A = low_rank.random_attention(50, 4, np.random.default_rng(0), sharpness=2)
    assert np.linalg.matrix_rank(S) == 4
    np.testing.assert_allclose(A, softmax(S)[0])
    assert 1.5 < S.std() < 2.5


def test_a_projection_is_the_identity_on_average():
    rng = np.random.default_rng(1)
    mean = np.mean([R.T @ R for R in (low_rank.random_projection(8, 5, rng) for _ in range(4000))], 0)
    np.testing.assert_allclose(mean, np.eye(5), rtol=0, atol=0.05)


def test_rows_needed():
    """More than there are at n = 512 and ε = 0.3, nearly; 880 at 65,536."""
    found = [round(low_rank.rows_needed(n, eps)) for n in (512, 4096, 65536) for eps in (0.3, 0.5)]
    assert found == [495, 250, 660, 333, 880, 444]


@pytest.mark.parametrize("zero_mean", [True, False])
def test_the_error_is_what_is_predicted(zero_mean):
    rng = np.random.default_rng(2)
    _, P = low_rank.random_attention(256, 16, rng)
    w = rng.standard_normal(256)
    w = w - w.mean() if zero_mean else w + 2
    for k in (16, 256):
        errors = low_rank.projected_errors(P, w, k, rng)
        assert len(errors) == 20
        assert np.mean(errors) == pytest.approx(low_rank.predicted_error(P, w, k), rel=0.3)
    assert low_rank.predicted_error(P, w, 64) == pytest.approx(low_rank.predicted_error(P, w, 16) / 2)
    assert low_rank.predicted_error(np.array([[3.0, 4]]), np.array([1.0, 0]), 4) == pytest.approx(5 * 1 / 2 / 3)


def test_two_sides():
    """With all rows and no randomness there would be no error; nothing has that of the wanted itself."""
    rng = np.random.default_rng(3)
    S, A = low_rank.random_attention(64, 8, rng)
    V = rng.standard_normal((64, 8))
    found = low_rank.two_sides(S, V, 16, 1e-3, rng)
    nothing = np.linalg.norm(A @ V, axis=1) / (np.linalg.norm(A, axis=1) * np.linalg.norm(V))
    assert found.of_nothing == pytest.approx(nothing.mean())
    assert 0 < found.error < found.relative


def test_two_sides_of_a_delta_that_is_not_small():
    """Row by row: softmax(δ w Rᵀ) e^(−δ) R V beside softmax(w) V."""
    S, A = low_rank.random_attention(6, 3, np.random.default_rng(4))
    V, R = np.random.default_rng(5).standard_normal((6, 2)), low_rank.random_projection(4, 6, np.random.default_rng(6))
    wanted = []
    for w, a in zip(S, A, strict=True):
        few = np.exp(0.5 * R @ w)
        wanted.append(np.linalg.norm(few / few.sum() @ R @ V / math.sqrt(math.e) - a @ V) / np.linalg.norm(a @ V))
    assert low_rank.two_sides(S, V, 4, 0.5, np.random.default_rng(6)).relative == pytest.approx(np.mean(wanted))


def test_products():
    assert low_rank.products(100, 8, heads=2) == 2 * 2 * 100 * 100 * 8
    assert low_rank.products(100, 8, k=25) == 100 * 25 * 8 * 4  # E K, F V, scores, average
    assert low_rank.products(100, 8, k=50) == low_rank.products(100, 8)
    assert low_rank.block_products(100, 8) == 12 * 100 * 64 + 2 * 100 * 100 * 8
    assert math.isclose(low_rank.block_products(10**6, 8, 4) / 10**6, 12 * 64 + 4 * 4 * 8)
