"""Attention as a kernel: Borealis II (16) to (21), Aalto (10), (11) and (13) to (15), Performer in the Lecture notes, in loops.

Borealis projects with Φ_q, Φ_k, Φ_v (our W_q, W_k, W_v), and its features are z (our φ). Its A_i and b_i are our S and z.
"""

import math
from functools import partial

import numpy as np

from minitransformer import check_pullback
from minitransformer.attention import (
    KernelAttention,
    dot_product_attention,
    elu_features,
    kernel_attention,
    kernel_attention_step,
    kernel_state,
)
from minitransformer.attention.linear import (
    exponential,
    kernel_smoother,
    of_same_length,
    performer_attention,
    positive_features,
    taylor_features,
)
from minitransformer.measurements.random_features import smreg
from minitransformer.pullback import NoParams

n, D, d, dv = 6, 5, 3, 2


def projected(rng):
    """X Φ_q, X Φ_k and X Φ_v, n rows each."""
    X = rng.standard_normal((n, D))
    return [X @ rng.standard_normal((D, width)) / math.sqrt(D) for width in (d, d, dv)]


def times(a, b):
    """⟨a, b⟩, summed up one by one."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def elu_plus_one(x):
    return [a + 1 if a > 0 else math.exp(a) for a in x]


def test_borealis_eq_16_kernel_smoother():
    """Borealis II (16), "Kernelizing attention computation":

        x′_i = Σ_j sim[x_i Φ_q, x_j Φ_k] x_j Φ_v / Σ_j sim[x_i Φ_q, x_j Φ_k]

    with sim[q, k] = exp[q kᵀ]; without the root of the width, as it is printed.
    """
    q, k, v = projected(np.random.default_rng(16))
    out = np.zeros((n, dv))
    for i in range(n):
        sim = [math.exp(times(q[i], k[j])) for j in range(n)]
        for j in range(n):
            for c in range(dv):
                out[i, c] += sim[j] * v[j, c] / sum(sim)

    similarity = partial(exponential, scale=1.0)
    np.testing.assert_allclose(kernel_smoother(q, k, v, similarity)[0], out, rtol=1e-12)
    check_pullback(lambda q, k, v: kernel_smoother(q, k, v, similarity), q, k, v)


def test_borealis_eq_17_a_product_of_features():
    """Borealis II (17):

        sim[x_i Φ_q, x_j Φ_k] = z[x_i Φ_q] z[x_j Φ_k]ᵀ

    For sim = 1 + t + t²/2, t = q kᵀ: z holds 1, the entries, and all products of two of them over √2.
    """
    q, k, _ = projected(np.random.default_rng(17))

    def z(x):
        return [1, *x, *(x[a] * x[b] / math.sqrt(2) for a in range(d) for b in range(d))]

    for i, j in np.ndindex(n, n):
        t = times(q[i], k[j])
        assert math.isclose(times(z(q[i]), z(k[j])), 1 + t + t**2 / 2, rel_tol=1e-12)
    np.testing.assert_allclose(taylor_features(q, degree=2)[0], [z(row) for row in q], rtol=1e-13)


def sums(FK, V, last):
    """Σ_j z_jᵀ v_j and Σ_j z_jᵀ over j = 0 … last."""
    r = len(FK[0])
    A = [[sum(FK[j][a] * V[j][c] for j in range(last + 1)) for c in range(dv)] for a in range(r)]
    return A, [sum(FK[j][a] for j in range(last + 1)) for a in range(r)]


def read(z, A, b):
    """z A / z b."""
    return [sum(z[a] * A[a][c] for a in range(len(b))) / times(z, b) for c in range(dv)]


def test_borealis_eq_18_sums_first():
    """Borealis II (18), with the index i that its second denominator lacks (E16):

    x′_i = Σ_j z[x_i Φ_q] z[x_j Φ_k]ᵀ x_j Φ_v / Σ_j z[x_i Φ_q] z[x_j Φ_k]ᵀ
         = z[x_i Φ_q] Σ_j z[x_j Φ_k]ᵀ x_j Φ_v / z[x_i Φ_q] Σ_j z[x_j Φ_k]ᵀ
    """
    q, k, v = projected(np.random.default_rng(18))
    zq, zk = [elu_plus_one(x) for x in q], [elu_plus_one(x) for x in k]
    first, second = np.zeros((n, dv)), np.zeros((n, dv))
    A, b = sums(zk, v, n - 1)
    for i in range(n):
        weights = [times(zq[i], zk[j]) for j in range(n)]
        first[i] = [sum(weights[j] * v[j, c] for j in range(n)) / sum(weights) for c in range(dv)]
        second[i] = read(zq[i], A, b)
    np.testing.assert_allclose(first, second, rtol=1e-13)
    np.testing.assert_allclose(kernel_attention(elu_features(q)[0], elu_features(k)[0], v)[0], second, rtol=1e-12)


def test_borealis_eq_19_partial_sums():
    """Borealis II (19), the decoder: sums up to i only,

    x′_i = z[x_i Φ_q] A_i / z[x_i Φ_q] b_i,   A_i = Σ_{j ≤ i} z[x_j Φ_k]ᵀ x_j Φ_v,   b_i = Σ_{j ≤ i} z[x_j Φ_k]ᵀ
    """
    q, k, v = projected(np.random.default_rng(19))
    zk = [elu_plus_one(x) for x in k]
    out = [read(elu_plus_one(q[i]), *sums(zk, v, i)) for i in range(n)]

    FQ, FK = elu_features(q)[0], elu_features(k)[0]
    np.testing.assert_allclose(kernel_attention(FQ, FK, v, causal=True)[0], out, rtol=1e-12)
    state = kernel_state(FK[:4], v[:4])
    A, b = sums(zk, v, 3)
    np.testing.assert_allclose(state.S, A, rtol=1e-12)
    np.testing.assert_allclose(state.z, b, rtol=1e-12)


def test_borealis_eq_20_the_update():
    """Borealis II (20), with the key of token i where x_j is printed, twice (E17):

    A_i ← A_{i−1} + z[x_i Φ_k]ᵀ x_i Φ_v
    b_i ← b_{i−1} + z[x_i Φ_k]ᵀ
    x′_i ← z[x_i Φ_q] A_i / z[x_i Φ_q] b_i
    """
    q, k, v = projected(np.random.default_rng(20))
    A, b = [[0.0] * dv for _ in range(d)], [0.0] * d
    FQ, FK = elu_features(q)[0], elu_features(k)[0]
    state = kernel_state(FK[:0], v[:0])
    for i in range(n):
        z = elu_plus_one(k[i])
        A = [[A[a][c] + z[a] * v[i, c] for c in range(dv)] for a in range(d)]
        b = [b[a] + z[a] for a in range(d)]
        Y, state = kernel_attention_step(FQ[i : i + 1], FK[i : i + 1], v[i : i + 1], state)
        np.testing.assert_allclose(Y[0], read(elu_plus_one(q[i]), A, b), rtol=1e-12)
        np.testing.assert_allclose(state.S, A, rtol=1e-12)


def test_borealis_eq_21_a_decoder_with_a_kernel():
    """Borealis II (21), with the row on the left where Φ_q x_i is printed (E18):

    x′_i = Σ_{j ≤ i} k[x_i Φ_q, x_j Φ_k] x_j Φ_v / Σ_{j ≤ i} k[x_i Φ_q, x_j Φ_k],   k[q, k] = z[q] z[k]ᵀ
    """
    q, k, v = projected(np.random.default_rng(21))
    out = np.zeros((n, dv))
    for i in range(n):
        kernel = [times(elu_plus_one(q[i]), elu_plus_one(k[j])) for j in range(i + 1)]
        out[i] = [sum(kernel[j] * v[j, c] for j in range(i + 1)) / sum(kernel) for c in range(dv)]
    one_head = [X[None] for X in (q, k, v)]
    Y, _ = KernelAttention()(NoParams(), *one_head, causal=True)
    np.testing.assert_allclose(Y[0], out, rtol=1e-12)
    state = None
    for i in range(n):  # the same from its state
        y, state = KernelAttention().step(NoParams(), *(X[:, i : i + 1] for X in one_head), state=state)
        np.testing.assert_allclose(y[0, 0], out[i], rtol=1e-12)


# -------------------------------------------------------------------------------------------------- Aalto


def phi_plus(x, W):
    """e^(⟨w, x⟩ − ‖x‖²/2)/√m for each row w of W."""
    return [math.exp(times(w, x) - times(x, x) / 2) / math.sqrt(len(W)) for w in W]


def test_aalto_eq_10_performer():
    """Aalto (10): Âtt(Q, K, V) = D̂⁻¹ (Q′ ((K′)ᵀ V))"""
    rng = np.random.default_rng(10)
    Q, K, V = projected(rng)
    W = rng.standard_normal((7, d))
    Q1, K1 = ([phi_plus(x / d**0.25, W) for x in X] for X in (Q, K))
    A, b = sums(K1, V, n - 1)
    out = [read(Q1[i], A, b) for i in range(n)]
    np.testing.assert_allclose(performer_attention(Q, K, V, W=W)[0], out, rtol=1e-12)


def test_aalto_eq_11_its_factors():
    """Aalto (11): D̂ = diag(Q′((K′)ᵀ 1_N)), Q′ = φ(Qᵀ)ᵀ, K′ = φ(Kᵀ)ᵀ. φ is "out of the scope" there; here it is positive."""
    rng = np.random.default_rng(11)
    Q, K, V = projected(rng)
    W = rng.standard_normal((7, d))
    Q1, K1 = (positive_features(X / d**0.25, W)[0] for X in (Q, K))
    np.testing.assert_allclose(Q1, [phi_plus(x / d**0.25, W) for x in Q], rtol=1e-13)
    D_hat = np.diag(Q1 @ (K1.T @ np.ones(n)))
    out = np.linalg.inv(D_hat) @ (Q1 @ (K1.T @ V))
    np.testing.assert_allclose(performer_attention(Q, K, V, W=W)[0], out, rtol=1e-12)


def test_aalto_eq_13_any_similarity():
    """Aalto (13): V′_i = Σ_j sim(Q_i, K_j) V_j / Σ_j sim(Q_i, K_j)"""
    Q, K, V = projected(np.random.default_rng(13))
    out = np.zeros((n, dv))
    for i in range(n):
        sim = [math.exp(times(Q[i], K[j]) / math.sqrt(d)) for j in range(n)]
        out[i] = [sum(sim[j] * V[j, c] for j in range(n)) / sum(sim) for c in range(dv)]
    np.testing.assert_allclose(kernel_smoother(Q, K, V, exponential)[0], out, rtol=1e-12)
    np.testing.assert_allclose(dot_product_attention(Q, K, V)[0], out, rtol=1e-12)


def test_aalto_eq_14_similarity_as_a_product():
    """Aalto (14): sim(q, k) = φ(q)ᵀ φ(k), with φ = elu + 1 in the linear transformer."""
    Q, K, _ = projected(np.random.default_rng(14))
    FQ, FK = elu_features(Q)[0], elu_features(K)[0]
    for i, j in np.ndindex(n, n):
        assert math.isclose(FQ[i] @ FK[j], times(elu_plus_one(Q[i]), elu_plus_one(K[j])), rel_tol=1e-13)


def test_aalto_eq_15_linear_transformer():
    """Aalto (15), a row where V′_i is a column (E55):

    V′_i = φ(Q_i)ᵀ Σ_j φ(K_j) V_jᵀ / φ(Q_i)ᵀ Σ_j φ(K_j)
    """
    Q, K, V = projected(np.random.default_rng(15))
    A, b = sums([elu_plus_one(k) for k in K], V, n - 1)
    out = [read(elu_plus_one(Q[i]), A, b) for i in range(n)]
    Y, _ = KernelAttention()(NoParams(), Q[None], K[None], V[None])
    np.testing.assert_allclose(Y[0], out, rtol=1e-12)


# ------------------------------------------------------------------------------------------- Lecture notes


def test_lecture_performer_attention():
    """Lecture notes, Performer (2): Att↔(Q, K, V) = D⁻¹ A V with A = exp(Q Kᵀ/√d) and D = diag(A 1_L)"""
    Q, K, V = projected(np.random.default_rng(1))
    A = [[math.exp(times(Q[i], K[j]) / math.sqrt(d)) for j in range(n)] for i in range(n)]
    D_inverse = np.diag([1 / sum(row) for row in A])
    np.testing.assert_allclose(dot_product_attention(Q, K, V)[0], D_inverse @ A @ V, rtol=1e-12)


def test_lecture_performer_decoder():
    """Lecture notes, Performer (2): Att→(Q, K, V) = D̃⁻¹ Ã V with Ã = tril(A) and D̃ = diag(Ã 1_L)"""
    Q, K, V = projected(np.random.default_rng(2))
    A = [[math.exp(times(Q[i], K[j]) / math.sqrt(d)) if j <= i else 0 for j in range(n)] for i in range(n)]
    D_inverse = np.diag([1 / sum(row) for row in A])
    want = D_inverse @ A @ V
    np.testing.assert_allclose(dot_product_attention(Q, K, V, causal=True)[0], want, rtol=1e-12)
    np.testing.assert_allclose(kernel_smoother(Q, K, V, exponential, causal=True)[0], want, rtol=1e-12)


def test_lecture_kernel():
    """Lecture notes, Performer (3): K(x, y) = E[φ(x)ᵀ φ(y)]

    The mean of many draws of one direction, and what it should be for positive features, exp(xᵀ y).
    """
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, d)) / 2
    W = rng.standard_normal((20_000, d))
    draws = [phi_plus(x, w[None])[0] * phi_plus(y, w[None])[0] for w in W]
    error = np.std(draws) / math.sqrt(20_000)
    assert abs(np.mean(draws) - math.exp(times(x, y))) < 3 * error
    Fx, Fy = (positive_features(z[None], W)[0] for z in (x, y))
    np.testing.assert_allclose((Fx @ Fy.T).item(), np.mean(draws), rtol=1e-10)


def test_lecture_approximate_attention():
    """Lecture notes, Performer (3): Âtt↔(Q, K, V) = D̂⁻¹ (Q′ ((K′)ᵀ V)) with D̂ = diag(Q′ ((K′)ᵀ 1_L))

    The same as Aalto (10); here of two samples with two heads, whose directions are their own.
    """
    rng = np.random.default_rng(4)
    heads = [[projected(rng) for _ in range(2)] for _ in range(2)]
    Q, K, V = (np.array([[head[part] for head in sample] for sample in heads]) for part in range(3))
    W = rng.standard_normal((2, 7, d))
    Y, _ = performer_attention(Q, K, V, W=W)
    for sample, h in np.ndindex(2, 2):
        Q1, K1 = ([phi_plus(x / d**0.25, W[h]) for x in X[sample, h]] for X in (Q, K))
        A, b = sums(K1, V[sample, h], n - 1)
        np.testing.assert_allclose(Y[sample, h], [read(z, A, b) for z in Q1], rtol=1e-12)


def test_lecture_softmax_kernel():
    """Lecture notes, Performer (5): SM(x, y) = exp(xᵀ y), which positive features come near to with many directions."""
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((2, 1, d)) / 2
    W = rng.standard_normal((100_000, d))
    found = np.vecdot(positive_features(x, W)[0], positive_features(y, W)[0])[0]
    assert math.isclose(found, math.exp(times(x[0], y[0])), rel_tol=0.03)


def test_lecture_smreg():
    """Lecture notes, Performer (5), without the hat (E39):

    SMREG(x, y) = E_{ω ∼ Unif(√d S^{d−1})} [ exp(√d ωᵀ/‖ω‖ x − ‖x‖²/2) exp(√d ωᵀ/‖ω‖ y − ‖y‖²/2) ]
    """
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((2, d)) / 2
    omegas = rng.standard_normal((20_000, d))
    draws = []
    for omega in omegas:
        u = [math.sqrt(d) * w / math.sqrt(times(omega, omega)) for w in omega]
        draws.append(math.exp(times(u, x) - times(x, x) / 2) * math.exp(times(u, y) - times(y, y) / 2))
    assert abs(np.mean(draws) - smreg(x, y)) < 3 * np.std(draws) / math.sqrt(20_000)

    W = of_same_length(omegas)
    ours = [positive_features(v[None], W)[0][0] for v in (x, y)]
    np.testing.assert_allclose(20_000 * ours[0] * ours[1], draws, rtol=1e-11)
