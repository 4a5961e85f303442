"""Attention with fewer keys than tokens: Borealis II (14), (15), Aalto (12) and Linformer in the Lecture notes, in loops.

Borealis projects X with Φ_q, Φ_k, Φ_v (our W_q, W_k, W_v), convolves with θ_k, θ_v, and mixes with Ψ_k, Ψ_v (our E, F).
None of its two equations has the 1/√d of its (1); here it stands, as in the papers.
"""

import math

import numpy as np

from minitransformer import check_pullback
from minitransformer.attention.compressed import linformer_attention, memory_compressed_attention
from minitransformer.functional import softmax
from minitransformer.measurements.low_rank import best_of_rank, projected_errors, two_sides

n, D, d, dv = 6, 5, 3, 2


def projected(rng):
    """X Φ_q, X Φ_k, X Φ_v: row i is Σ_c X_ic Φ_ca."""
    X, Phi_q, Phi_k, Phi_v = (rng.standard_normal(shape) for shape in ((n, D), (D, d), (D, d), (D, dv)))

    def times(Phi):
        return [[sum(X[i, c] * Phi[c, a] for c in range(D)) for a in range(Phi.shape[1])] for i in range(n)]

    return times(Phi_q), times(Phi_k), times(Phi_v)


def attend(q, k, v):
    """Softmax of q kᵀ/√d, row by row, and the average of the values, for as many keys as there are."""
    Sa = np.zeros((len(q), len(v[0])))
    for i in range(len(q)):
        score = [sum(q[i][a] * k[j][a] for a in range(len(q[i]))) / math.sqrt(len(q[i])) for j in range(len(k))]
        total = sum(math.exp(s) for s in score)
        for j in range(len(k)):
            for b in range(len(v[j])):
                Sa[i, b] += math.exp(score[j]) / total * v[j][b]
    return Sa


def test_borealis_eq_14_memory_compressed_attention():
    """Borealis II (14), "Reducing size of attention matrix":

        Sa[X] = Softmax[ X Φ_q (θ_k ⊛ X Φ_k)ᵀ ] (θ_v ⊛ X Φ_v)

    The stride is the length of the kernel, s: entry b of the convolution is Σ_t θ_t x_{bs+t}, a "weighted average of nearby"
    keys, with one weight for each channel.
    """
    rng = np.random.default_rng(14)
    s = 2
    q, k, v = projected(rng)
    theta_k, theta_v = rng.standard_normal((s, d)), rng.standard_normal((s, dv))

    blocks = range(n // s)
    k_bar = [[sum(theta_k[t, a] * k[b * s + t][a] for t in range(s)) for a in range(d)] for b in blocks]
    v_bar = [[sum(theta_v[t, a] * v[b * s + t][a] for t in range(s)) for a in range(dv)] for b in blocks]
    Sa = attend(q, k_bar, v_bar)  # of I × I/s weights

    one_head = [np.array(X)[None] for X in (q, k, v)]
    Y, pullback = memory_compressed_attention(*one_head, theta_k[None], theta_v[None])
    np.testing.assert_allclose(Y[0], Sa, rtol=0, atol=1e-13)
    assert pullback.A.shape == (1, n, n // s)
    check_pullback(memory_compressed_attention, *one_head, theta_k[None], theta_v[None])


def test_borealis_eq_15_linformer():
    """Borealis II (15), "Reducing size of attention matrix":

        Sa[X] = Softmax[ X Φ_q (Ψ_k X Φ_k)ᵀ ] (Ψ_v X Φ_v)

    Ψ_k and Ψ_v are I/s × I: each row of Ψ_k X Φ_k is a sum over all tokens.
    """
    rng = np.random.default_rng(15)
    rows = 3
    q, k, v = projected(rng)
    Psi_k, Psi_v = rng.standard_normal((2, rows, n))

    k_bar = [[sum(Psi_k[r, j] * k[j][a] for j in range(n)) for a in range(d)] for r in range(rows)]
    v_bar = [[sum(Psi_v[r, j] * v[j][b] for j in range(n)) for b in range(dv)] for r in range(rows)]
    Sa = attend(q, k_bar, v_bar)

    arrays = [np.array(X) for X in (q, k, v)]
    Y, pullback = linformer_attention(*arrays, Psi_k, Psi_v)
    np.testing.assert_allclose(Y, Sa, rtol=0, atol=1e-13)
    assert pullback.A.shape == (n, rows)


def test_aalto_eq_12_linformer_head():
    """Aalto (12), with the transpose that it lacks (E54):

    Softmax( 1/√d_k · X W_iQ (E_i X W_iK)ᵀ ) F_i X W_iV
    """
    rng = np.random.default_rng(12)
    H, k_rows = 2, 3
    heads = [projected(rng) for _ in range(H)]
    E, F = rng.standard_normal((2, H, k_rows, n))

    Y, _ = linformer_attention(*(np.array([head[part] for head in heads]) for part in range(3)), E, F)
    for i, (q, k, v) in enumerate(heads):
        EXW = [[sum(E[i, r, j] * k[j][a] for j in range(n)) for a in range(d)] for r in range(k_rows)]
        FXW = [[sum(F[i, r, j] * v[j][b] for j in range(n)) for b in range(dv)] for r in range(k_rows)]
        np.testing.assert_allclose(Y[i], attend(q, EXW, FXW), rtol=0, atol=1e-13)


def test_lecture_linformer_head():
    """Lecture notes, C 1), Linformer:

        head_i = Attention(Q W_iQ, E_i K W_iK, F_i V W_iV) = softmax[ Q W_iQ (E_i K W_iK)ᵀ / √d_k ] F_i V W_iV

    P̄, the first factor, is n × k. With E_i k × n, not n × k as printed (E34).
    """
    rng = np.random.default_rng(1)
    k_rows = 4
    q, k, v = projected(rng)
    E, F = rng.standard_normal((2, k_rows, n))

    Y, pullback = linformer_attention(*(np.array(X) for X in (q, k, v)), E, F)
    EK = np.einsum("rj,ja->ra", E, np.array(k))
    FV = np.einsum("rj,jb->rb", F, np.array(v))
    np.testing.assert_allclose(Y, attend(q, EK.tolist(), FV.tolist()), rtol=0, atol=1e-13)
    assert pullback.A.shape == (n, k_rows)


def test_lecture_low_rank():
    """Lecture notes, below Theorem 1: P ≈ P_low = Σ_{r ≤ k} σ_r u_r v_rᵀ, with the k largest singular values.

    What is left out has the size √(Σ_{r > k} σ_r²), and no matrix of rank k that we draw is nearer.
    """
    rng = np.random.default_rng(4)
    n, k = 6, 2
    P, _ = softmax(rng.standard_normal((n, n)))
    u, sigma, v = np.linalg.svd(P)

    low = np.zeros((n, n))
    for r in range(k):
        for i in range(n):
            for j in range(n):
                low[i, j] += sigma[r] * u[i, r] * v[r, j]

    np.testing.assert_allclose(best_of_rank(P, k), low, rtol=0, atol=1e-14)
    assert np.linalg.matrix_rank(low) == k
    left_out = math.sqrt(sum(sigma[r] ** 2 for r in range(k, n)))
    np.testing.assert_allclose(np.linalg.norm(P - low), left_out)
    for _ in range(100):
        columns = rng.standard_normal((n, k))  # and the best that they can make of P
        other = columns @ np.linalg.lstsq(columns, P, rcond=None)[0]
        assert np.linalg.norm(P - other) > left_out
    np.testing.assert_allclose(best_of_rank(P[:, :4], 4), P[:, :4])


def test_lecture_theorem_1():
    """Lecture notes, Theorem 1: P̃ = P Rᵀ R, with R (k, n) of entries N(0, 1/k), has rank k, and P̃ w is about P w.

    How far about: entry i is off by Σ_j p_ij ((Rᵀ R w)_j − w_j), whose mean is 0 and whose variance is
    (‖p_i‖² ‖w‖² + ⟨p_i, w⟩²)/k. Summed over the rows, the mean of the squared error is (‖P‖² ‖w‖² + ‖P w‖²)/k.
    """
    rng = np.random.default_rng(5)
    tokens, k, draws = 12, 4, 4000
    P = np.array([[math.exp(rng.standard_normal()) for _ in range(tokens)] for _ in range(tokens)])
    P /= P.sum(1, keepdims=True)
    w = rng.standard_normal(tokens)

    squares = 0.0
    for _ in range(draws):
        R = rng.standard_normal((k, tokens)) / math.sqrt(k)
        few = [sum(R[a, j] * w[j] for j in range(tokens)) for a in range(k)]  # R w, k numbers
        back = [sum(R[a, j] * few[a] for a in range(k)) for j in range(tokens)]  # Rᵀ R w, n again
        off = [sum(P[i, j] * (back[j] - w[j]) for j in range(tokens)) for i in range(tokens)]
        squares += sum(x * x for x in off) / draws
    assert np.linalg.matrix_rank(P @ R.T @ R) == k

    mean_square = ((P**2).sum() * (w**2).sum() + ((P @ w) ** 2).sum()) / k
    np.testing.assert_allclose(squares, mean_square, rtol=0.05)
    errors = projected_errors(P, w, k, rng, draws=draws) * np.linalg.norm(P @ w)
    np.testing.assert_allclose((errors**2).mean(), mean_square, rtol=0.05)


def test_lecture_theorem_2():
    """Lecture notes, Theorem 2: ‖softmax(w Eᵀ) F V − softmax(w) V‖ ≤ ε ‖softmax(w)‖ ‖V‖, for w a row of the scores.

    Both sides for every row, with E = c R and F = e^(−c) R; and for 0 in place of the first product, to compare with.
    """
    rng = np.random.default_rng(6)
    tokens, k, c = 16, 8, 0.01
    S, V = rng.standard_normal((tokens, tokens)), rng.standard_normal((tokens, dv))
    R = np.random.default_rng(7).standard_normal((k, tokens)) / math.sqrt(k)
    E, F = c * R, math.exp(-c) * R

    left, nothing, relative = [], [], []
    FV = [[sum(F[a, j] * V[j, b] for j in range(tokens)) for b in range(dv)] for a in range(k)]
    for w in S:
        full = [math.exp(x) / sum(math.exp(y) for y in w) for x in w]
        wE = [sum(w[j] * E[a, j] for j in range(tokens)) for a in range(k)]
        few = [math.exp(x) / sum(math.exp(y) for y in wE) for x in wE]
        wanted = [sum(full[j] * V[j, b] for j in range(tokens)) for b in range(dv)]
        off = math.hypot(*(sum(few[a] * FV[a][b] for a in range(k)) - wanted[b] for b in range(dv)))
        right = math.hypot(*full) * math.hypot(*V.ravel())
        left.append(off / right)
        nothing.append(math.hypot(*wanted) / right)
        relative.append(off / math.hypot(*wanted))

    found = two_sides(S, V, k, c, np.random.default_rng(7))
    np.testing.assert_allclose(found, [np.mean(left), np.mean(nothing), np.mean(relative)], rtol=1e-12)
    assert np.mean(nothing) < 1  # and so 0 is within the bound for every ε above that
