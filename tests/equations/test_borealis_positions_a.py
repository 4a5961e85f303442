"""Where a position enters: Borealis II (5) to (8), (10) and (12), each written out with its sums visible.

The blog's symbols: Φ_q, Φ_k, Φ_v are our W_q, W_k, W_v; Π has a row π_i for each position.
"""

import math

import numpy as np

from minitransformer.attention import aggregate, dot_product_attention
from minitransformer.functional import softmax
from minitransformer.positions import sinusoids
from minitransformer.positions.four_terms import four_terms
from minitransformer.positions.multiplicative import Multiplicative, MultiplicativeParams
from minitransformer.positions.shaw import Shaw, ShawParams

n, D, d, dv = 4, 6, 3, 2


def attention_with_positions(X, Pi, Phi_q, Phi_k, values):
    """The loops that (5) and (6) have in common: queries and keys of x_i + π_i, and whatever values."""
    q = [[sum((X[i, c] + Pi[i, c]) * Phi_q[c, a] for c in range(D)) for a in range(d)] for i in range(n)]
    k = [[sum((X[j, c] + Pi[j, c]) * Phi_k[c, a] for c in range(D)) for a in range(d)] for j in range(n)]
    Sa = np.zeros((n, dv))
    for i in range(n):
        score = [sum(q[i][a] * k[j][a] for a in range(d)) / math.sqrt(d) for j in range(n)]
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            for b in range(dv):
                Sa[i, b] += math.exp(score[j]) / total * values[j][b]
    return Sa


def test_borealis_eq_5_positions_in_scores_and_values():
    """Borealis II (5), "Directly modifying the attention matrix":

        Sa[X] = Softmax[ ((X + Π) Φ_q) ((X + Π) Φ_k)ᵀ / √d_q ] (X + Π) Φ_v

    Adding Π to the embeddings changes queries, keys and values.
    """
    rng = np.random.default_rng(5)
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    Phi_v = rng.standard_normal((D, dv))

    v = [[sum((X[j, c] + Pi[j, c]) * Phi_v[c, b] for c in range(D)) for b in range(dv)] for j in range(n)]
    Sa = attention_with_positions(X, Pi, Phi_q, Phi_k, v)

    Z = X + Pi  # this is all that a model does: positions are added once, and attention is as it was
    Y, _ = dot_product_attention(Z @ Phi_q, Z @ Phi_k, Z @ Phi_v)
    np.testing.assert_allclose(Y, Sa, rtol=0, atol=1e-13)

    S, _ = four_terms(X, Pi, Phi_q, Phi_k)  # the same, position and content apart
    Y, _ = aggregate(softmax(S)[0], (X + Pi) @ Phi_v)
    np.testing.assert_allclose(Y, Sa, rtol=0, atol=1e-13)


def test_borealis_eq_6_positions_in_the_scores_only():
    """Borealis II (6):

        Sa[X] = Softmax[ ((X + Π) Φ_q) ((X + Π) Φ_k)ᵀ / √d_q ] X Φ_v

    The values have no position in them any more, and so neither has the output.
    """
    rng = np.random.default_rng(6)
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    Phi_v = rng.standard_normal((D, dv))

    v = [[sum(X[j, c] * Phi_v[c, b] for c in range(D)) for b in range(dv)] for j in range(n)]
    Sa = attention_with_positions(X, Pi, Phi_q, Phi_k, v)

    S, _ = four_terms(X, Pi, Phi_q, Phi_k)
    A, _ = softmax(S)
    Y, _ = aggregate(A, X @ Phi_v)
    np.testing.assert_allclose(Y, Sa, rtol=0, atol=1e-13)

    # what separates it from (5) is A Π Φ_v, the position that each query has looked at on average
    Y_5, _ = aggregate(A, (X + Pi) @ Phi_v)
    np.testing.assert_allclose(Y_5 - Y, A @ Pi @ Phi_v, rtol=0, atol=1e-13)


def test_borealis_eq_7_scores_with_positions():
    """Borealis II (7), the attention matrix before softmax, from here on without 1/√d_q (E1):

    Ã = ((X + Π) Φ_q) ((X + Π) Φ_k)ᵀ
    """
    rng = np.random.default_rng(7)
    X, Pi = rng.standard_normal((2, n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))

    A_tilde = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            for a in range(d):
                q = sum((X[i, c] + Pi[i, c]) * Phi_q[c, a] for c in range(D))
                k = sum((X[j, c] + Pi[j, c]) * Phi_k[c, a] for c in range(D))
                A_tilde[i, j] += q * k

    S, _ = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)
    np.testing.assert_allclose(S, A_tilde, rtol=0, atol=1e-12)


def test_borealis_eq_8_four_terms():
    """Borealis II (8), the elements of (7), whose last factor is π_jᵀ (E2):

    ã_ij = ((x_i + π_i) Φ_q) ((x_j + π_j) Φ_k)ᵀ
         = x_i Φ_q Φ_kᵀ x_jᵀ + x_i Φ_q Φ_kᵀ π_jᵀ + π_i Φ_q Φ_kᵀ x_jᵀ + π_i Φ_q Φ_kᵀ π_jᵀ
           content–content     content–position    position–content    position–position
    """
    rng = np.random.default_rng(8)
    X, Pi = rng.standard_normal((2, n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    M = [[sum(Phi_q[b, a] * Phi_k[c, a] for a in range(d)) for c in range(D)] for b in range(D)]  # Φ_q Φ_kᵀ

    def form(left, right):
        return sum(left[b] * M[b][c] * right[c] for b in range(D) for c in range(D))

    cc, cp, pc, pp = np.zeros((4, n, n))
    for i in range(n):
        for j in range(n):
            cc[i, j] = form(X[i], X[j])
            cp[i, j] = form(X[i], Pi[j])
            pc[i, j] = form(Pi[i], X[j])
            pp[i, j] = form(Pi[i], Pi[j])

    S, pullback = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)
    for ours, loops in ((pullback.cc, cc), (pullback.cp, cp), (pullback.pc, pc), (pullback.pp, pp)):
        np.testing.assert_allclose(ours, loops, rtol=0, atol=1e-12)

    Z = X + Pi
    np.testing.assert_allclose(cc + cp + pc + pp, (Z @ Phi_q) @ (Z @ Phi_k).T, rtol=0, atol=1e-12)
    np.testing.assert_allclose(S, cc + cp + pc + pp, rtol=0, atol=1e-12)


def test_borealis_eq_10_relative_positions_in_the_keys():
    """Borealis II (10), "Relative embeddings", with clipped offsets as the text below it says:

        ã_ij = x_i Φ_q Φ_kᵀ x_jᵀ + x_i Φ_q π_{i−j}ᵀ

    π stands in the space of the keys: it has d numbers, and is not projected. Our tables, like those of the paper, are
    by j − i: the row of π_{i−j} is counted from the other end (E8).
    """
    rng = np.random.default_rng(10)
    clip = 2
    X = rng.standard_normal((n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    pi = {offset: rng.standard_normal(d) for offset in range(-clip, clip + 1)}

    a_tilde = np.zeros((n, n))
    for i in range(n):
        q = [sum(X[i, c] * Phi_q[c, a] for c in range(D)) for a in range(d)]
        for j in range(n):
            k = [sum(X[j, c] * Phi_k[c, a] for c in range(D)) for a in range(d)]
            offset = max(-clip, min(clip, i - j))
            a_tilde[i, j] = sum(q[a] * k[a] for a in range(d)) + sum(q[a] * pi[offset][a] for a in range(d))

    a_k = np.array([pi[-offset] for offset in range(-clip, clip + 1)])  # rows j − i = −2 … 2
    S, _ = Shaw(d, clip, values=False).scores(ShawParams(a_k), X @ Phi_q, X @ Phi_k)
    np.testing.assert_allclose(math.sqrt(d) * S, a_tilde, rtol=0, atol=1e-12)

    # and as two of the four terms of (8), with one row for every offset, and the identity for the missing projection
    every = np.array([pi[max(-clip, min(clip, -offset))] for offset in range(1 - n, n)])
    I = np.eye(d)  # noqa: E741
    S, _ = four_terms(X, every, Phi_q, Phi_k, I, I, terms=("cc", "cp"), relative=True, scale=1.0)
    np.testing.assert_allclose(S, a_tilde, rtol=0, atol=1e-12)


def test_borealis_eq_12_a_factor_for_each_distance():
    """Borealis II (12), with π_|i−j|, a different scalar for each absolute offset (E10):

    ã_ij = (x_i Φ_q Φ_kᵀ x_jᵀ) · π_|i−j|
    """
    rng = np.random.default_rng(12)
    X = rng.standard_normal((n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    pi = rng.standard_normal(n)  # distances 0 … n − 1

    a_tilde = np.zeros((n, n))
    for i in range(n):
        q = [sum(X[i, c] * Phi_q[c, a] for c in range(D)) for a in range(d)]
        for j in range(n):
            k = [sum(X[j, c] * Phi_k[c, a] for c in range(D)) for a in range(d)]
            a_tilde[i, j] = sum(q[a] * k[a] for a in range(d)) * pi[abs(i - j)]

    S, _ = Multiplicative(d, n - 1, "M1").scores(MultiplicativeParams(pi), X @ Phi_q, X @ Phi_k)
    np.testing.assert_allclose(math.sqrt(d) * S, a_tilde, rtol=0, atol=1e-12)
