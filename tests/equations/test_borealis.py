"""The numbered equations of Borealis II, each written out with its sums visible.

The blog's symbols: X has I rows, the tokens (n here); Φ_q, Φ_k, Φ_v are the projections (our W_q, W_k, W_v).
"""

import math

import numpy as np

from minitransformer import random_like
from minitransformer.attention import MultiHeadAttention, dot_product_attention
from minitransformer.functional import softmax


def test_borealis_eq_1_self_attention():
    """Borealis II (1), "Self-attention recap":

        Sa[X] = Softmax[ (X Φ_q)(X Φ_k)ᵀ / √d_q ] X Φ_v

    Softmax works on each row by itself. The equation as loops: projections, scores, weights, averages.
    """
    rng = np.random.default_rng(1)
    n, D, d, dv = 4, 5, 3, 2
    X = rng.standard_normal((n, D))
    Phi_q, Phi_k, Phi_v = rng.standard_normal((D, d)), rng.standard_normal((D, d)), rng.standard_normal((D, dv))

    # X Φ: row i of the queries is Σ_c X_ic Φ_ca, and the same for keys and values
    q = [[sum(X[i, c] * Phi_q[c, a] for c in range(D)) for a in range(d)] for i in range(n)]
    k = [[sum(X[j, c] * Phi_k[c, a] for c in range(D)) for a in range(d)] for j in range(n)]
    v = [[sum(X[j, c] * Phi_v[c, b] for c in range(D)) for b in range(dv)] for j in range(n)]

    Sa = np.zeros((n, dv))
    A = np.zeros((n, n))
    for i in range(n):
        products = [sum(q[i][a] * k[j][a] for a in range(d)) for j in range(n)]
        score = [product / math.sqrt(d) for product in products]
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            A[i, j] = math.exp(score[j]) / total  # the attention matrix, n × n
            for b in range(dv):
                Sa[i, b] += A[i, j] * v[j][b]

    Y, _ = dot_product_attention(X @ Phi_q, X @ Phi_k, X @ Phi_v)

    np.testing.assert_allclose(Y, Sa, rtol=0, atol=1e-13)
    np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=1e-13)


def test_borealis_eq_2_equivariance():
    """Borealis II (2), "Position encodings":

        Sa[P X] = Softmax[ (P X Φ_q)(P X Φ_k)ᵀ / √d_q ] P X Φ_v = P Softmax[ … ] Pᵀ P X Φ_v = P Sa[X]

    for every permutation matrix P. Row i of P X is row order[i] of X.
    """
    rng = np.random.default_rng(2)
    n, D = 5, 6
    X = rng.standard_normal((n, D))
    order = [3, 0, 4, 1, 2]
    P = np.zeros((n, n))
    for i in range(n):
        P[i, order[i]] = 1

    attention = MultiHeadAttention(D, heads=2)
    params = random_like(attention.init(rng, np.float64), rng)
    Sa_X, _ = attention(params, X)
    Sa_PX, _ = attention(params, P @ X)

    np.testing.assert_allclose(Sa_PX, P @ Sa_X, rtol=0, atol=1e-12)
    for i in range(n):  # the same, token by token: everyone keeps the output it had
        np.testing.assert_allclose(Sa_PX[i], Sa_X[order[i]], rtol=0, atol=1e-12)

    # the middle lines of (2): softmax works on each row by itself, so it lets P pass on both sides, and Pᵀ P = 1
    S = rng.standard_normal((n, n))
    np.testing.assert_allclose(softmax(P @ S @ P.T)[0], P @ softmax(S)[0] @ P.T, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(P.T @ P, np.eye(n))

    # and what it does not say: the output does move with its token (equivariant, not invariant)
    assert np.abs(Sa_PX - Sa_X).max() > 0.1
