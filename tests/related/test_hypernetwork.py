"""The matrices of figure 11: which way the rows are written one after another, and what the factors are."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention
from minitransformer.backend import backend
from minitransformer.related import attention_weights

rng = np.random.default_rng(0)
A, W, X = rng.random((3, 4)), rng.standard_normal((5, 2)), rng.standard_normal((4, 5))


def test_gradient():
    check_pullback(attention_weights, rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 5, 2)))


def test_it_is_the_kronecker_product():
    M, _ = attention_weights(A, W)
    assert np.array_equal(M, np.kron(A, W.T))
    for i, j in np.ndindex(3, 4):
        assert np.array_equal(M[2 * i : 2 * i + 2, 5 * j : 5 * j + 5], A[i, j] * W.T)
    with pytest.raises(TypeError, match="A, W: should have one dtype"):
        attention_weights(A, W.astype(np.float32))


def test_rows_one_after_another():
    """With columns one after another the factors change places, and our M is wrong."""
    M, _ = attention_weights(A, W)
    Y = A @ X @ W
    np.testing.assert_allclose(M @ X.ravel(), Y.ravel(), atol=1e-13)
    np.testing.assert_allclose(np.kron(W.T, A) @ X.ravel(order="F"), Y.ravel(order="F"), atol=1e-13)
    assert np.abs(M @ X.ravel(order="F") - Y.ravel(order="F")).max() > 0.1


def test_its_product_with_the_text_is_attention():
    d = 5
    W_q, W_k = rng.standard_normal((2, 5, d))
    with backend("numpy"):
        Y, pullback = dot_product_attention(X @ W_q, X @ W_k, X @ W)
    M, _ = attention_weights(pullback.A, W)
    np.testing.assert_allclose((M @ X.ravel()).reshape(Y.shape), Y, atol=1e-13)


def test_rank_is_a_product():
    a, w = np.linalg.matrix_rank(A), np.linalg.matrix_rank(W)
    assert np.linalg.matrix_rank(attention_weights(A, W)[0]) == a * w == 6
