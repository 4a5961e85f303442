"""Relative position representations: Aalto (16) and (17), written out with their sums visible."""

import math

import numpy as np

from minitransformer.attention import attend
from minitransformer.positions.shaw import Shaw, ShawParams

n, D, d, k = 5, 6, 3, 2


def clip(x, k):
    return max(-k, min(k, x))


def setting(seed):
    """Words, projections, and the vectors w_{−k} … w_k of keys and values; row x + k of an array holds w_x."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, D))
    W_Q, W_K, W_V = rng.standard_normal((3, D, d))
    w_K, w_V = rng.standard_normal((2, 2 * k + 1, d))
    return x, W_Q, W_K, W_V, w_K, w_V


def project(x, W):
    return [[sum(x[i, c] * W[c, a] for c in range(D)) for a in range(d)] for i in range(n)]


def scores_as_printed(x, W_Q, W_K, w_K):
    q, key = project(x, W_Q), project(x, W_K)
    e = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a_K = w_K[clip(j - i, k) + k]
            e[i, j] = sum(q[i][a] * (key[j][a] + a_K[a]) for a in range(d)) / math.sqrt(d)
    return e


def test_aalto_eq_16_relative_keys():
    """Aalto (16), "Self-Attention with Relative Position Representations":

    e_ij = x_i W^Q (x_j W^K + a^K_ij)ᵀ / √d_z,    a^K_ij = w^K_{clip(j−i, k)},    clip(x, k) = max(−k, min(k, x))
    """
    x, W_Q, W_K, _, w_K, w_V = setting(16)
    e = scores_as_printed(x, W_Q, W_K, w_K)

    S, _ = Shaw(d, k).scores(ShawParams(w_K, w_V), x @ W_Q, x @ W_K)
    np.testing.assert_allclose(S, e, rtol=0, atol=1e-12)


def test_aalto_eq_17_relative_values():
    """Aalto (17):

    z_i = Σ_j α_ij (x_j W^V + a^V_ij),    a^V_ij = w^V_{clip(j−i, k)},    α = softmax(e) with e of (16)
    """
    x, W_Q, W_K, W_V, w_K, w_V = setting(17)
    e = scores_as_printed(x, W_Q, W_K, w_K)
    v = project(x, W_V)

    z = np.zeros((n, d))
    for i in range(n):
        total = sum(math.exp(e[i, j]) for j in range(n))
        for j in range(n):
            alpha = math.exp(e[i, j]) / total
            a_V = w_V[clip(j - i, k) + k]
            for b in range(d):
                z[i, b] += alpha * (v[j][b] + a_V[b])

    Y, _ = attend(Shaw(d, k), ShawParams(w_K, w_V), x @ W_Q, x @ W_K, x @ W_V)
    np.testing.assert_allclose(Y, z, rtol=0, atol=1e-12)
