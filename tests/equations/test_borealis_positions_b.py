"""Borealis II, equations (9) and (11): positions that have scores of their own, and a number for each offset.

The blog's symbols: π_i is row i of the positions (p_i here), Φ_q and Φ_k project the contents (W_q, W_k), Ψ_q and Ψ_k the
positions (U_q, U_k). What it calls ã_ij is the score before softmax, S_ij.
"""

import math

import numpy as np

from minitransformer.functional import layer_norm
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars
from minitransformer.positions.tupe import TUPE, TUPEParams


def test_borealis_eq_9_untied_positions():
    """Borealis II (9), "Untied embeddings":

        ã_ij = x_i Φ_q Φ_kᵀ x_jᵀ  +  π_i Ψ_q Ψ_kᵀ π_jᵀ
               content-content       position-position

    The two terms of (8) in which content and position meet are gone, and positions have matrices of their own. One
    head, of the full width. The system that this is from, TUPE, divides both terms by √(2d) and normalises the rows π.
    """
    rng = np.random.default_rng(9)
    n, D = 4, 6
    X, table = rng.standard_normal((2, n, D))
    Phi_q, Phi_k, Psi_q, Psi_k = rng.standard_normal((4, D, D))

    Pi = np.zeros((n, D))  # row by row: mean 0, variance 1
    for i in range(n):
        mean = sum(table[i]) / D
        variance = sum((table[i, c] - mean) ** 2 for c in range(D)) / D
        for c in range(D):
            Pi[i, c] = (table[i, c] - mean) / math.sqrt(variance + 1e-5)

    a = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            content = position = 0.0
            for e in range(D):  # a channel of the projections
                content += sum(X[i, c] * Phi_q[c, e] for c in range(D)) * sum(X[j, c] * Phi_k[c, e] for c in range(D))
                position += sum(Pi[i, c] * Psi_q[c, e] for c in range(D)) * sum(
                    Pi[j, c] * Psi_k[c, e] for c in range(D)
                )
            a[i, j] = content + position

    tupe = TUPE(D, heads=1, longest=n, cls=False)
    params = TUPEParams(table, np.ones(D), np.zeros(D), Psi_q, Psi_k)
    S, _ = tupe.scores(params, (X @ Phi_q)[None], (X @ Phi_k)[None])  # one head

    np.testing.assert_allclose(S[0], a / math.sqrt(2 * D), rtol=0, atol=1e-12)

    # in matrices, with the two cross terms of (8) for comparison: they are not there
    P, _ = layer_norm(table, np.ones(D), np.zeros(D))
    np.testing.assert_allclose(a, X @ Phi_q @ (X @ Phi_k).T + P @ Psi_q @ (P @ Psi_k).T, rtol=0, atol=1e-11)
    all_four = (X + P) @ Phi_q @ ((X + P) @ Phi_k).T
    cross = X @ Phi_q @ (P @ Phi_k).T + P @ Phi_q @ (X @ Phi_k).T
    tied = X @ Phi_q @ (X @ Phi_k).T + P @ Phi_q @ (P @ Phi_k).T
    np.testing.assert_allclose(all_four - cross, tied, rtol=0, atol=1e-11)  # (9) with Ψ = Φ


def test_borealis_eq_11_a_number_for_each_offset():
    """Borealis II (11), after "Raffel et al. (2019) simplified this further":

        ã_ij = (x_i Φ_q Φ_kᵀ x_jᵀ)  +  π_{i−j}

    "where π_{i−j} is a different scalar for each signed offset": n tokens have 2n − 1 of them. Our table is in the order
    of j − i, from −(n − 1) to n − 1: the blog's from the other end. Each head has its own. Nothing is divided by √d.
    """
    rng = np.random.default_rng(11)
    n, D, d, heads = 5, 6, 3, 2
    X = rng.standard_normal((n, D))
    Phi_q, Phi_k = rng.standard_normal((2, heads, D, d))
    V = rng.standard_normal((heads, n, d))
    pi = [{offset: rng.standard_normal() for offset in range(-(n - 1), n)} for _ in range(heads)]  # pi[h][i - j]

    Y = np.zeros((heads, n, d))
    for h in range(heads):
        for i in range(n):
            a = [0.0] * n
            for j in range(n):
                for e in range(d):
                    q = sum(X[i, c] * Phi_q[h, c, e] for c in range(D))
                    k = sum(X[j, c] * Phi_k[h, c, e] for c in range(D))
                    a[j] += q * k
                a[j] += pi[h][i - j]
            total = sum(math.exp(s) for s in a)
            for j in range(n):
                for e in range(d):
                    Y[h, i, e] += math.exp(a[j]) / total * V[h, j, e]

    table = np.array([[pi[h][-o] for o in range(-(n - 1), n)] for h in range(heads)])  # o = j − i
    ours, _ = OffsetScalars(heads, longest=n)(OffsetScalarParams(table), X @ Phi_q, X @ Phi_k, V)

    np.testing.assert_allclose(ours, Y, rtol=0, atol=1e-12)
    assert table.shape == (heads, 2 * n - 1)
