"""Where Borealis II slips, on the way from absolute to relative positions: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.attention import dot_product_attention
from minitransformer.functional import softmax
from minitransformer.positions import sinusoids
from minitransformer.positions.four_terms import four_terms
from minitransformer.positions.multiplicative import Multiplicative, MultiplicativeParams
from minitransformer.positions.shaw import Shaw, ShawParams


def test_E1_the_scale_goes_missing_on_the_way():
    """Equations (5) and (6) divide by √d_q. From (7) on the division is gone, without a word, and (7) is introduced as
    "the un-normalized and pre-softmax attention matrix" of the same model.

    For the four terms of (8) a common factor does not matter. For softmax it does: at d = 64 the printed scores are
    eight times as large, and the largest weight in a row takes nearly everything.
    """
    rng = np.random.default_rng(1)
    n, D, d = 32, 64, 64
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d)) / math.sqrt(D)
    Phi_v = rng.standard_normal((D, d))
    Z = X + Pi
    sa_5, _ = dot_product_attention(Z @ Phi_q, Z @ Phi_k, Z @ Phi_v)

    a_7, _ = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)  # as printed
    assert np.abs(softmax(a_7)[0] @ Z @ Phi_v - sa_5).max() > 1
    assert softmax(a_7)[0].max(1).mean() > 0.8

    S, _ = four_terms(X, Pi, Phi_q, Phi_k)  # 1/√d, unless another scale is asked for
    np.testing.assert_allclose(softmax(S)[0] @ Z @ Phi_v, sa_5, rtol=0, atol=1e-10)
    assert softmax(S)[0].max(1).mean() < 0.4
    np.testing.assert_allclose(a_7, math.sqrt(d) * S, rtol=0, atol=1e-10)


def test_E2_the_transpose_of_an_index():
    """The last of the four terms in (8) ends in π_{jᵀ}. An index has no transpose: the vector has, π_jᵀ.

    Without it x Φ_q Φ_kᵀ π_j is a product of a 1 × D row with another 1 × D row, which does not exist.
    """
    rng = np.random.default_rng(2)
    n, D, d = 4, 6, 3
    Pi = rng.standard_normal((n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    i, j = 1, 2
    pi_i, pi_j = Pi[i : i + 1], Pi[j : j + 1]  # rows, 1 × D

    with pytest.raises(ValueError):
        pi_i @ Phi_q @ Phi_k.T @ pi_j

    _, pullback = four_terms(np.zeros((n, D)), Pi, Phi_q, Phi_k, scale=1.0)
    assert pullback.pp[i, j] == pytest.approx((pi_i @ Phi_q @ Phi_k.T @ pi_j.T).item(), abs=1e-12)


def test_E3_tokens_are_rows():
    """The text before "Separating position and word embeddings" applies Φ_q and Φ_k to X + Π and takes "dot products
    between every pair of columns in the resulting matrices". Words are the rows of X.

    Columns are features: their dot products make a d × d matrix, the same size for every sentence, and the same numbers if
    the words are shuffled. Rows make the n × n matrix of (7).
    """
    rng = np.random.default_rng(3)
    n, D, d = 5, 6, 3
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    Q, K = (X + Pi) @ Phi_q, (X + Pi) @ Phi_k

    columns = np.array([[Q[:, a] @ K[:, b] for b in range(d)] for a in range(d)])
    rows = np.array([[Q[i] @ K[j] for j in range(n)] for i in range(n)])
    S, _ = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)

    assert columns.shape != S.shape
    np.testing.assert_allclose(S, rows, rtol=0, atol=1e-12)

    order = rng.permutation(n)
    shuffled = Q[order].T @ K[order]
    np.testing.assert_allclose(shuffled, columns, rtol=0, atol=1e-12)  # it can't tell the order of words at all
    assert np.abs(Q[order] @ K[order].T - rows).max() > 0.1


def test_E8_the_offset_has_a_sign():
    """The sentence before (10) says that Shaw et al. "add a term π_|i−j|"; (10) itself, and the sentence after it, have
    π_{i−j}, "for each signed position offset". The equation is right: with π_|i−j| a word can't tell left from right.

    The paper (and Aalto's copy of it) counts j − i instead. That is the same table, read from its other end.
    """
    rng = np.random.default_rng(8)
    n, d = 5, 4
    Q = np.tile(rng.standard_normal(d), (n, 1))  # all words ask the same
    K = np.zeros((n, d))  # and content has no say
    pi = rng.standard_normal((2 * n - 1, d))  # row offset + n − 1

    by_distance = np.array([[Q[i] @ pi[abs(i - j) + n - 1] for j in range(n)] for i in range(n)]) / math.sqrt(d)
    signed = np.array([[Q[i] @ pi[i - j + n - 1] for j in range(n)] for i in range(n)]) / math.sqrt(d)
    np.testing.assert_array_equal(by_distance, by_distance.T)  # the neighbour to the left looks like that to the right
    assert np.abs(signed - signed.T).max() > 0.1

    S, _ = Shaw(d, n - 1, values=False).scores(ShawParams(pi[::-1].copy()), Q, K)  # our rows are j − i
    np.testing.assert_allclose(S, signed, rtol=0, atol=1e-12)
    assert np.abs(S - by_distance).max() > 0.1

    # the wrong end of the table: every word sees its right neighbours where its left ones are
    S, _ = Shaw(d, n - 1, values=False).scores(ShawParams(pi), Q, K)
    np.testing.assert_allclose(S, signed.T, rtol=0, atol=1e-12)


def test_E10_a_scalar_for_each_distance():
    """Equation (12) multiplies by π_|i−j|; the line below it reads "where π_{i−j} is a different scalar for each absolute
    offset |i − j|". The equation is right: n scalars, not the 2n − 1 that π_{i−j} has. Both exist (M1 and M2).
    """
    rng = np.random.default_rng(10)
    n, d = 4, 3
    Q, K = rng.standard_normal((2, n, d))
    pi = rng.standard_normal(2 * n - 1)

    def with_factors(factor):
        return np.array([[Q[i] @ K[j] * factor(i - j) for j in range(n)] for i in range(n)]) / math.sqrt(d)

    absolute = with_factors(lambda offset: pi[abs(offset)])
    signed = with_factors(lambda offset: pi[offset + n - 1])

    M1, _ = Multiplicative(d, n - 1, "M1").scores(MultiplicativeParams(pi[:n].copy()), Q, K)
    np.testing.assert_allclose(M1, absolute, rtol=0, atol=1e-12)
    assert np.abs(M1 - signed).max() > 0.1

    factors = M1 / (Q @ K.T)
    np.testing.assert_allclose(factors, factors.T, rtol=0, atol=1e-12)  # one number for both directions

    M2, _ = Multiplicative(d, n - 1, "M2").scores(MultiplicativeParams(pi[::-1].copy()), Q, K)
    np.testing.assert_allclose(M2, signed, rtol=0, atol=1e-12)
