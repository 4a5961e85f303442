"""Sums of rows: the same as E X in every tier, with one E for all heads and with one for each."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention.compressed.products import mix

B, H, K, M, D = 2, 3, 70, 130, 6  # more than a tile, and no multiple of one


def arrays(heads, dtype=np.float64):
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(shape).astype(dtype)
        for shape in ((H, K, M) if heads else (K, M), (B, H, M, D), (B, H, K, D))
    ]


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_and_their_gradients(tier, heads, dtype):
    E, X, dY = arrays(heads, dtype)
    Y, pullback = mix(E, X)
    dE, dX = pullback(dY)
    near = {"rtol": 0, "atol": 1e-3 if dtype == np.float32 else 1e-11}
    np.testing.assert_allclose(Y, E @ X, **near)
    np.testing.assert_allclose(dX, E.mT @ dY, **near)
    np.testing.assert_allclose(dE, (dY @ X.mT).sum(0 if heads else (0, 1)), **near)
    assert {a.dtype for a in (Y, dE, dX)} == {np.dtype(dtype)}


@pytest.mark.parametrize("heads", [True, False])
def test_gradient(heads):
    E, X, _ = arrays(heads)
    check_pullback(mix, E[..., :4, :7], X[..., :7, :], entries=10)


def test_columns_of_a_wider_matrix():
    E, X, _ = arrays(heads=False)
    np.testing.assert_allclose(mix(E[:, :100], X[..., :100, :])[0], E[:, :100] @ X[..., :100, :], rtol=0, atol=1e-12)
