"""FNet: the transform as sums of cosines and sines, what twice of it is, padding, its gradient."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention.compressed import FNet, fourier_mix
from minitransformer.models import LanguageModel
from minitransformer.pullback import NoParams, tree_size

B, N, D = 2, 5, 6


def tokens(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal((*shape, D))


def loops(X):
    """Re Σ_b Σ_c x_bc exp(−2πi (ab/n + ec/D)) = Σ_b Σ_c x_bc cos(2π (ab/n + ec/D))"""
    n, width = X.shape
    Y = np.zeros_like(X)
    for a, e in np.ndindex(n, width):
        for b, c in np.ndindex(n, width):
            Y[a, e] += X[b, c] * math.cos(2 * math.pi * (a * b / n + e * c / width))
    return Y


def test_against_loops():
    X = tokens(B, N)
    Y, _ = fourier_mix(X)
    for b in range(B):
        np.testing.assert_allclose(Y[b], loops(X[b]), rtol=0, atol=1e-12)


def test_cosines_minus_sines():
    """C_n X C_D − S_n X S_D: the real part is taken once, at the end; taken twice it would lack the sines."""
    X = tokens(N)
    C_n, S_n, C_D, S_D = (
        part(2 * np.pi * np.outer(np.arange(k), np.arange(k)) / k) for k in (N, D) for part in (np.cos, np.sin)
    )
    np.testing.assert_allclose(fourier_mix(X)[0], C_n @ X @ C_D - S_n @ X @ S_D, rtol=0, atol=1e-12)
    assert np.abs(fourier_mix(X)[0] - C_n @ X @ C_D).max() > 1


def test_twice_is_the_sum_with_the_reverse():
    """(n D/2) (X + X reversed in both axes), where 0 stays and k goes to −k."""
    X = tokens(B, N)
    reversed_ = np.roll(X[:, ::-1, ::-1], (1, 1), (1, 2))
    twice, _ = fourier_mix(fourier_mix(X)[0])
    np.testing.assert_allclose(twice, N * D / 2 * (X + reversed_), rtol=0, atol=1e-11)


def test_it_is_symmetric():
    """⟨dY, F X⟩ = ⟨F dY, X⟩: the pullback is the transform itself."""
    X, dY = tokens(B, N), tokens(B, N, seed=1)
    Y, pullback = fourier_mix(X)
    assert np.vdot(dY, Y) == pytest.approx(np.vdot(fourier_mix(dY)[0], X), rel=1e-12)
    assert np.array_equal(pullback(dY), fourier_mix(dY)[0])


MASK = np.array([[True] * N, [True, False, True, True, False]])


def test_a_sample_is_as_long_as_it_has_tokens():
    X = tokens(B, N)
    X[~MASK] = np.nan
    Y, pullback = fourier_mix(X, mask=MASK)
    assert np.array_equal(Y[0], fourier_mix(X[0])[0])
    np.testing.assert_allclose(Y[1, MASK[1]], loops(X[1, MASK[1]]), rtol=0, atol=1e-12)
    assert not Y[~MASK].any()
    assert not pullback(np.ones_like(X))[~MASK].any()


def test_no_token():
    Y, pullback = fourier_mix(tokens(B, N), mask=np.zeros((B, N), bool))
    assert not Y.any()
    assert not pullback(np.ones((B, N, D))).any()


@pytest.mark.parametrize("mask", [None, MASK])
def test_gradient(mask):
    check_pullback(partial(fourier_mix, mask=mask), tokens(B, N))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype(dtype):
    assert fourier_mix(tokens(N).astype(dtype))[0].dtype == dtype


def test_the_mixer():
    layer, X = FNet(D), tokens(B, N)
    assert tree_size(layer.init(np.random.default_rng(0))) == 0
    for mask in (MASK[:, None, None], MASK[1], MASK[1:, None, None]):
        Y, _ = layer(NoParams(), X, mask=mask)
        assert np.array_equal(Y[1], fourier_mix(X, mask=np.broadcast_to(mask.reshape(-1, N), (B, N)))[0][1])
    for pairs in (np.ones((N, N), bool), np.ones((B, 2, 1, N), bool)):
        with pytest.raises(ValueError, match=r"mask: shape .* the tokens, which are all that it can hide"):
            layer(NoParams(), X, mask=pairs)
    with pytest.raises(ValueError, match="FNet can't be causal"):
        LanguageModel(attention="fnet")
