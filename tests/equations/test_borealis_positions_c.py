"""Combinations: Borealis II (13), and the sinusoids of a distance that the text before it mentions, with their sums visible.

The blog's symbols: Φ_q, Φ_k are our W_q, W_k; Ψ_q, Ψ_k do the same for positions (our W_qr, W_kr); π_t is the row of
the table for the signed offset t.
"""

import math

import numpy as np

from minitransformer.functional import softmax
from minitransformer.positions.deberta import DeBERTa, DeBERTaParams
from minitransformer.positions.relative_sinusoids import TENER, RelativeSinusoidParams

n, D = 5, 4


def test_borealis_eq_13_deberta():
    """Borealis II (13), "Combining ideas":

        ã_ij = x_i Φ_q Φ_kᵀ x_jᵀ  +  x_i Φ_q Ψ_kᵀ π_{i−j}ᵀ  +  π_{j−i} Ψ_q Φ_kᵀ x_jᵀ
               content-content       content-position          position-content

    One head, so d = D. Softmax needs the scores divided by √(3d), which is not printed (E11). The table holds the
    offsets −k … k − 1; here k = n, so no offset is clipped.
    """
    rng = np.random.default_rng(13)
    X, P = rng.standard_normal((n, D)), rng.standard_normal((2 * n, D))
    Phi_q, Phi_k, Psi_q, Psi_k, Phi_v = rng.standard_normal((5, D, D))

    def pi(offset):
        return P[offset + n]

    def project(x, W):  # x W: entry a is Σ_c x_c W_ca
        return [sum(x[c] * W[c, a] for c in range(D)) for a in range(D)]

    def dot(x, y):
        return sum(x[a] * y[a] for a in range(D))

    a = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            content_content = dot(project(X[i], Phi_q), project(X[j], Phi_k))
            content_position = dot(project(X[i], Phi_q), project(pi(i - j), Psi_k))
            position_content = dot(project(pi(j - i), Psi_q), project(X[j], Phi_k))
            a[i, j] = content_content + content_position + position_content  # no position-position

    encoding = DeBERTa(D, heads=1, span=n)
    params = DeBERTaParams(P, W_kr=Psi_k, W_qr=Psi_q)
    Q, K, V = ((X @ W)[None] for W in (Phi_q, Phi_k, Phi_v))  # one head
    S, _ = encoding.scores(params, Q, K)
    np.testing.assert_allclose(S[0], a / math.sqrt(3 * D), rtol=0, atol=1e-12)

    Y, pullback = encoding(params, Q, K, V)
    A, _ = softmax(a / math.sqrt(3 * D))
    np.testing.assert_allclose(pullback.A[0], A, rtol=0, atol=1e-12)
    np.testing.assert_allclose(Y[0], A @ X @ Phi_v, rtol=0, atol=1e-12)  # values are content only


def test_borealis_relative_sinusoids():
    """Borealis II, before "Combining ideas": sinusoids "have also been used in a system based on equation 10 (where π_ij
    now contains sinusoidal terms in relative position i − j) and also in more complex ways".

        ã_ij = x_i Φ_q Φ_kᵀ x_jᵀ  +  x_i Φ_q r_{i−j}ᵀ              the system based on (10)
             + u Φ_kᵀ x_jᵀ        +  v r_{i−j}ᵀ                    and what TENER and Transformer-XL add

    r_t = [sin ω_0 t, sin ω_1 t, cos ω_0 t, cos ω_1 t]. A sine is odd, a cosine even: r_t and r_{−t} differ.
    """
    rng = np.random.default_rng(14)
    X, Phi_q, Phi_k = rng.standard_normal((n, D)), *rng.standard_normal((2, D, D))
    u, v = rng.standard_normal((2, D))
    omega = [1, 1 / 10000]  # 10000^(−f/(d/2 − 1))

    system_10, complex_ways = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            q = [sum(X[i, c] * Phi_q[c, a] for c in range(D)) for a in range(D)]
            k = [sum(X[j, c] * Phi_k[c, a] for c in range(D)) for a in range(D)]
            r = [math.sin(w * (i - j)) for w in omega] + [math.cos(w * (i - j)) for w in omega]
            system_10[i, j] = sum(q[a] * k[a] + q[a] * r[a] for a in range(D))
            complex_ways[i, j] = system_10[i, j] + sum(u[a] * k[a] + v[a] * r[a] for a in range(D))

    encoding = TENER(heads=1, d=D)
    Q, K = (X @ Phi_q)[None], (X @ Phi_k)[None]
    S, _ = encoding.scores(RelativeSinusoidParams(np.zeros((1, D)), np.zeros((1, D))), Q, K)
    np.testing.assert_allclose(S[0], system_10, rtol=0, atol=1e-12)
    S, _ = encoding.scores(RelativeSinusoidParams(u[None], v[None]), Q, K)
    np.testing.assert_allclose(S[0], complex_ways, rtol=0, atol=1e-12)
