"""DPFP: the definition in loops, how many features are zero, where all are, with kernel attention and the delta rule."""

from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import delta_rule, kernel_attention
from minitransformer.attention.linear import DPFP, dpfp_features, sum_normalised
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, M, D, DV = 2, 3, 4, 6, 4, 5


@pytest.mark.parametrize("nu", [1, 2, 3])
def test_against_loops(nu, rng):
    """φ_s,i = x_i x_{i−s}, the indices around the circle of 2 d."""
    K = rng.standard_normal((B, N, D))
    F, _ = dpfp_features(K, nu=nu)
    for b, n in np.ndindex(B, N):
        x = [max(k, 0) for k in K[b, n]] + [max(-k, 0) for k in K[b, n]]
        want = [x[i] * x[(i - s) % (2 * D)] for s in range(1, nu + 1) for i in range(2 * D)]
        assert np.array_equal(F[b, n], want)
    assert F.shape[-1] == 2 * D * nu
    assert (F >= 0).all()


def test_two_by_hand():
    """k = (2, 3): x = (2, 3, 0, 0), rolled by one (0, 2, 3, 0); k = (2, −3): x = (2, 0, 0, 3), around the circle 3 · 2."""
    F, _ = dpfp_features(np.array([[2.0, 3.0], [2.0, -3.0]]))
    assert F.tolist() == [[0, 6, 0, 0], [6, 0, 0, 0]]


def test_most_are_zero(rng):
    """Of two neighbours on the circle both are above zero one time in four; each corner of the plane has its own feature."""
    F, _ = dpfp_features(rng.standard_normal((1, 4000, 16)))
    assert abs((F > 0).mean() - 1 / 4) < 0.01
    corners = np.array([[1.0, 1], [-1, 1], [-1, -1], [1, -1]])
    assert sorted(dpfp_features(corners)[0].argmax(-1)) == [0, 1, 2, 3]
    G = dpfp_features(corners)[0]
    assert np.array_equal(G @ G.T, np.eye(4))


def test_of_an_odd_number_with_signs_that_alternate_nothing_is_left():
    for d in (1, 3, 5):
        k = (-1.0) ** np.arange(d)[None]
        assert not dpfp_features(k)[0].any()
        assert d == 1 or dpfp_features(k, nu=2)[0].any()
    for d in (2, 4, 6):
        assert dpfp_features((-1.0) ** np.arange(d)[None])[0].any()


def test_the_core_is_kernel_attention_of_its_features(rng):
    Q, K, V = (rng.standard_normal(shape) for shape in ((B, H, N, D), (B, H, M, D), (B, H, M, DV)))
    Y, _ = DPFP(nu=2)(NoParams(), Q, K, V, causal=True)
    FQ, FK = (dpfp_features(X, nu=2)[0] for X in (Q, K))
    assert np.array_equal(Y, kernel_attention(FQ, FK, V, causal=True)[0])


def test_more_values_fit_into_a_memory_with_more_features(rng):
    """The delta rule with sum-normalised features: four keys in four corners of the plane are four orthogonal keys.

    As rows of the plane they are two pairs of opposite ones, and a value overwrites that of the opposite key with its negative.
    """
    corners = np.array([[1.0, 1], [-1, 1], [-1, -1], [1, -1]])
    V, beta = rng.standard_normal((4, DV)), np.ones(4)
    F, _ = sum_normalised(dpfp_features(corners)[0])
    later = np.concatenate([F, F]), np.concatenate([F, F]), np.concatenate([V, 0 * V]), np.concatenate([beta, 0 * beta])
    assert np.allclose(delta_rule(*later)[0][4:], V, atol=1e-14)
    K = corners / np.sqrt(2)
    plain = delta_rule(np.concatenate([K, K]), np.concatenate([K, K]), later[2], later[3])[0][4:]
    assert np.allclose(plain[0], -V[2])


def test_sum_normalised(rng):
    F = rng.random((B, N, 6))
    F[0, 1] = 0
    Y, pullback = sum_normalised(F)
    assert np.allclose(Y.sum(-1), (F.sum(-1) > 0).astype(float))
    assert not pullback(np.ones_like(Y))[0, 1].any()
    check_pullback(sum_normalised, rng.random((B, N, 6)) + 0.1)


@pytest.mark.parametrize("nu", [1, 3])
def test_gradient(nu, rng):
    check_pullback(partial(dpfp_features, nu=nu), rng.standard_normal((B, N, D)))
