"""Relative positions: Borealis II (5) to (13) and the sinusoids of a distance it mentions, with their sums visible.

The blog's symbols: Φ_q, Φ_k, Φ_v project the contents (our W_q, W_k, W_v), Ψ_q and Ψ_k the positions (U_q, U_k of TUPE,
W_qr, W_kr of DeBERTa). Π has a row π_i for each position, p_i here; in (13) π_t is the row for the signed offset t. What
it calls ã_ij is the score before softmax, S_ij.
"""

import math

import numpy as np

from minitransformer.attention import aggregate, attend, dot_product_attention
from minitransformer.functional import layer_norm, softmax
from minitransformer.positions import sinusoids
from minitransformer.positions.deberta import DeBERTa, DeBERTaParams
from minitransformer.positions.four_terms import four_terms
from minitransformer.positions.multiplicative import Multiplicative, MultiplicativeParams
from minitransformer.positions.relative_sinusoids import TENER, RelativeSinusoidParams
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars
from minitransformer.positions.tupe import TUPE, TUPEParams

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
    ours, _ = attend(OffsetScalars(heads, longest=n), OffsetScalarParams(table), X @ Phi_q, X @ Phi_k, V)

    np.testing.assert_allclose(ours, Y, rtol=0, atol=1e-12)
    assert table.shape == (heads, 2 * n - 1)


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


def test_borealis_eq_13_deberta():
    """Borealis II (13), "Combining ideas":

        ã_ij = x_i Φ_q Φ_kᵀ x_jᵀ  +  x_i Φ_q Ψ_kᵀ π_{i−j}ᵀ  +  π_{j−i} Ψ_q Φ_kᵀ x_jᵀ
               content-content       content-position          position-content

    One head, so d = D. Softmax needs the scores divided by √(3d), which is not printed (E11). The table holds the
    offsets −k … k − 1; here k = n, so no offset is clipped.
    """
    n, D = 5, 4
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

    Y, pullback = attend(encoding, params, Q, K, V)
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
    n, D = 5, 4
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
