"""Depthwise convolution in its general form: whoever shares a kernel, it is the sum that stands in the docstring."""

import itertools

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention.depthwise import depthwise_convolution

BATCH, N, H, K, D = (2, 3), 4, 2, 3, 2
FULL = (*BATCH, N, H, K, D)
SHAPES = [
    tuple(size if whole or axis == 4 else 1 for axis, (size, whole) in enumerate(zip(FULL, which, strict=True)))[cut:]
    for cut in range(5)
    for which in itertools.product([False, True], repeat=6)
    if all(which[:cut]) and which[4]  # an axis that is left out is there only once in this list
]


def in_loops(X, A, left):
    """One number of one token at a time."""
    A, Y = np.broadcast_to(A, FULL), np.zeros_like(X)
    for *b, i, h, c in np.ndindex(*X.shape):
        for s in range(K):
            if 0 <= i - left + s < N:
                Y[(*b, i, h, c)] += A[(*b, i, h, s, c)] * X[(*b, i - left + s, h, c)]
    return Y


@pytest.mark.parametrize("causal", [False, True])
def test_whoever_shares_a_kernel(causal, tier):
    """A loop that takes the heads of a kernel for those of X would read and write beside them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((*BATCH, N, H, D))
    for shape in SHAPES:
        A = rng.standard_normal(shape)
        Y, pullback = depthwise_convolution(X, A, causal=causal)
        np.testing.assert_allclose(Y, in_loops(X, A, K - 1 if causal else 1), atol=1e-12, err_msg=str(shape))
        dX, dA = pullback(Y)
        assert (dX.shape, dA.shape) == (X.shape, A.shape)
        np.testing.assert_allclose((dX * X).sum(), (Y * Y).sum())  # Y is linear in X, and in A
        np.testing.assert_allclose((dA * A).sum(), (Y * Y).sum())


@pytest.mark.parametrize(("taps", "left"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_which_tap_falls_on_the_token_itself(taps, left, tier):
    """The middle one, and of an even number the one before the middle; the last if it is causal."""
    X = np.arange(1.0, 7).reshape(1, 6, 1, 1)
    for causal, own in ((False, left), (True, taps - 1)):
        A = np.eye(taps)[own].reshape(1, taps, 1)
        np.testing.assert_array_equal(depthwise_convolution(X, A, causal=causal)[0], X)


@pytest.mark.parametrize("shape", [(K, 1), (1, K, 1), (N, 1, K, 1), (3, 1, 1, K, 1), (H, K, D)])
def test_gradient(shape, tier):
    rng = np.random.default_rng(1)
    check_pullback(depthwise_convolution, rng.standard_normal((*BATCH, N, H, D)), rng.standard_normal(shape))
