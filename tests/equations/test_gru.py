"""The equations of "From GRU to attention", each written out with its sums visible.

The source has column vectors, W x_t; for a token as a row the same is x_t Wᵀ, and our W is its Wᵀ. It prints no
numbers, so the tests are named after the steps of the derivation. Time t runs from 1 to n, and x[t − 1] is x_t.
"""

import math

import numpy as np

from minitransformer.positions import LearnedPositions
from minitransformer.pullback import chain, random_like
from minitransformer.related import (
    GRU,
    After,
    Alike,
    Attend,
    Candidates,
    FreeWeights,
    UnrolledGRU,
    gru_coefficients,
    rungs,
)

D, d, n = 3, 4, 5


def sigma(a):
    return 1 / (1 + math.exp(-a))


def times(W, x):
    """W x, with W of our orientation (inputs, outputs)."""
    return np.array([sum(W[a, b] * x[a] for a in range(len(x))) for b in range(W.shape[1])])


def weights(score):
    """α_i ∝ exp score_i"""
    total = sum(math.exp(s) for s in score)
    return [math.exp(s) / total for s in score]


def run_gru(seed):
    """Random parameters and tokens, with what the package makes of them."""
    rng = np.random.default_rng(seed)
    gru = GRU(D, d)
    p = random_like(gru.init(rng, np.float64), rng)
    x, h_0 = rng.standard_normal((n, D)), rng.standard_normal(d)
    H, pullback = gru(p, x, h_0)
    return p, x, np.vstack([h_0, H]), pullback


# -------------------------------------------------------------------------------------------- the GRU


def test_gru_update():
    """Gated recurrent neural networks:

    h_t = u_t ⊙ h_{t−1} + (1 − u_t) ⊙ h̃_t
    """
    _, _, h, pullback = run_gru(1)
    u, h_tilde = pullback.u, pullback.c

    for t in range(1, n + 1):
        for k in range(d):
            expected = u[t - 1, k] * h[t - 1, k] + (1 - u[t - 1, k]) * h_tilde[t - 1, k]
            assert abs(h[t, k] - expected) < 1e-14


def test_gru_candidate():
    """Gated recurrent neural networks:

    h̃_t = f(x_t, h_{t−1}) = tanh(W x_t + U h_{t−1} + b)
    """
    p, x, h, pullback = run_gru(2)

    for t in range(1, n + 1):
        for k in range(d):
            a = p.b_c[k]
            for m in range(D):
                a += p.W_c[m, k] * x[t - 1, m]
            for m in range(d):
                a += p.U_c[m, k] * h[t - 1, m]
            assert abs(pullback.c[t - 1, k] - math.tanh(a)) < 1e-14


def test_gru_gate():
    """Let's free the dependent weights, with x_t for the printed x_{t−1} (E62):

    u_t = σ(W_x x_t + U_h h_{t−1} + b_u)
    """
    p, x, h, pullback = run_gru(3)

    for t in range(1, n + 1):
        for k in range(d):
            a = p.b_u[k]
            for m in range(D):
                a += p.W_u[m, k] * x[t - 1, m]
            for m in range(d):
                a += p.U_u[m, k] * h[t - 1, m]
            assert abs(pullback.u[t - 1, k] - sigma(a)) < 1e-14


def test_gru_unrolled_by_hand():
    """What are these shortcut connections, the first two substitutions:

    h_t = u_t ⊙ (u_{t−1} ⊙ h_{t−2} + (1 − u_{t−1}) ⊙ h̃_{t−1}) + (1 − u_t) ⊙ h̃_t
    h_t = u_t ⊙ (u_{t−1} ⊙ (u_{t−2} ⊙ h_{t−3} + (1 − u_{t−2}) ⊙ h̃_{t−2}) + (1 − u_{t−1}) ⊙ h̃_{t−1}) + (1 − u_t) ⊙ h̃_t
    """
    _, _, h, pullback = run_gru(4)
    u, c = np.vstack([np.full(d, np.nan), pullback.u]), np.vstack([h[0], pullback.c])  # u[t] is u_t, and c[t] is h̃_t
    C, _ = gru_coefficients(pullback.u)
    t = n

    once = u[t] * (u[t - 1] * h[t - 2] + (1 - u[t - 1]) * c[t - 1]) + (1 - u[t]) * c[t]
    inner = u[t - 2] * h[t - 3] + (1 - u[t - 2]) * c[t - 2]
    twice = u[t] * (u[t - 1] * inner + (1 - u[t - 1]) * c[t - 1]) + (1 - u[t]) * c[t]

    np.testing.assert_allclose(once, h[t], rtol=0, atol=1e-14)
    np.testing.assert_allclose(twice, h[t], rtol=0, atol=1e-14)
    # multiplied out, the factors of the three youngest candidates are the coefficients
    np.testing.assert_allclose(C[t, t], 1 - u[t], rtol=1e-14)
    np.testing.assert_allclose(C[t, t - 1], u[t] * (1 - u[t - 1]), rtol=1e-14)
    np.testing.assert_allclose(C[t, t - 2], u[t] * u[t - 1] * (1 - u[t - 2]), rtol=1e-14)


def test_gru_unrolled():
    """What are these shortcut connections, the general form. The printed products run over other indices, and h_0 is
    missing (E61). It must be

        h_t = (∏_{j=1…t} u_j) ⊙ h_0 + Σ_{i=1…t} (∏_{j=i+1…t} u_j) ⊙ (1 − u_i) ⊙ h̃_i

    and the weights of a state sum to one.
    """
    p, x, h, pullback = run_gru(5)
    u, c = np.vstack([np.full(d, np.nan), pullback.u]), np.vstack([h[0], pullback.c])
    C, _ = gru_coefficients(pullback.u)
    H_sum, _ = UnrolledGRU(D, d)(p, x, h[0])

    for t in range(1, n + 1):
        for k in range(d):
            total, state = 0.0, 0.0
            for i in range(t + 1):
                weight = 1.0
                for j in range(i + 1, t + 1):
                    weight *= u[j, k]
                if i > 0:
                    weight *= 1 - u[i, k]
                assert abs(C[t, i, k] - weight) < 1e-15
                total += weight
                state += weight * c[i, k]
            assert abs(total - 1) < 1e-14
            assert abs(state - h[t, k]) < 1e-14
            assert abs(state - H_sum[t - 1, k]) < 1e-14


# ------------------------------------------------------------------------------------ causal attention


def test_gru_free_weights():
    """Let's free the dependent weights:

    h_t = Σ_{i=1…t} α_i h̃_i,   α_i ∝ exp ATT(h̃_i, x_t)

    The candidates are still those of the GRU, tanh(W x_t + U h_{t−1} + b). ATT(h̃, x) = ⟨h̃, W_q x⟩/√d is our choice.
    """
    rng = np.random.default_rng(6)
    layer = FreeWeights(D, d)
    p = random_like(layer.init(rng, np.float64), rng)
    x = rng.standard_normal((n, D))
    H, pullback = layer(p, x)

    h, h_tilde = np.zeros(d), []
    for t in range(1, n + 1):
        h_tilde.append(np.tanh(times(p.W_c, x[t - 1]) + times(p.U_c, h) + p.b_c))
        query = times(p.W_q, x[t - 1])
        alpha = weights([sum(h_tilde[i][k] * query[k] for k in range(d)) / math.sqrt(d) for i in range(t)])
        h = sum(alpha[i] * h_tilde[i] for i in range(t))
        np.testing.assert_allclose(pullback.A[t - 1, :t], alpha, rtol=0, atol=1e-14)
        np.testing.assert_allclose(H[t - 1], h, rtol=0, atol=1e-14)


def test_gru_free_candidates():
    """Let's free up candidate vectors:

    α_i ∝ exp ATT(f(x_i), f(x_t)),   h_t = Σ_{i=1…t} α_i f(x_i)

    f(x) = tanh(W x + b), the candidate of a GRU without the state; ATT(k, q) = ⟨k, q⟩/√d.
    """
    rng = np.random.default_rng(7)
    f, alike = Candidates(D, d), Alike(d)
    p = random_like(f.init(rng, np.float64), rng)
    x = rng.standard_normal((n, D))
    H, pullback = chain(f, alike)((p, ()), x)

    fx = [np.tanh(times(p.W, x_i) + p.b) for x_i in x]
    for t in range(1, n + 1):
        alpha = weights([sum(fx[i][k] * fx[t - 1][k] for k in range(d)) / math.sqrt(d) for i in range(t)])
        h = sum(alpha[i] * fx[i] for i in range(t))
        np.testing.assert_allclose(pullback[1].A[t - 1, :t], alpha, rtol=0, atol=1e-14)
        np.testing.assert_allclose(H[t - 1], h, rtol=0, atol=1e-14)


def heads_by_hand(p, f, heads, causal):
    """α^n_i ∝ exp ATT(K^n(f_i), Q^n(f_t)), h^n_t = Σ_i α^n_i V^n(f_i), concatenated over the heads n."""
    width = d // heads
    h = np.zeros((len(f), d))
    for head in range(heads):
        columns = range(head * width, (head + 1) * width)
        K = [times(p.W_k[:, columns], f_i) for f_i in f]
        Q = [times(p.W_q[:, columns], f_t) for f_t in f]
        V = [times(p.W_v[:, columns], f_i) for f_i in f]
        for t in range(len(f)):
            last = t + 1 if causal else len(f)
            alpha = weights([sum(K[i][k] * Q[t][k] for k in range(width)) / math.sqrt(width) for i in range(last)])
            h[t, columns] = sum(alpha[i] * V[i] for i in range(last))
    return h


def attend(seed, **options):
    """A layer with random parameters, and random f(x_i)."""
    rng = np.random.default_rng(seed)
    layer = Attend(d, **options)
    return layer, random_like(layer.init(rng, np.float64), rng), rng.standard_normal((n, d)), rng


def test_gru_separate():
    """Let's separate Keys and Values:

    α_i ∝ exp ATT(K(f(x_i)), Q(f(x_t))),   h_t = Σ_{i=1…t} α_i V(f(x_i))
    """
    layer, p, f, _ = attend(8)
    np.testing.assert_allclose(layer(p, f)[0], heads_by_hand(p, f, 1, causal=True), rtol=0, atol=1e-13)


def test_gru_heads():
    """Let's have multiple attention heads:

    h_t = [h_t¹; h_t²; …; h_tᴺ],   h_tⁿ = Σ_{i=1…t} α_iⁿ Vⁿ(f(x_i)),   α_iⁿ ∝ exp ATT(Kⁿ(f(x_i)), Qⁿ(f(x_t)))
    """
    layer, p, f, _ = attend(9, heads=2)
    np.testing.assert_allclose(layer(p, f)[0], heads_by_hand(p, f, 2, causal=True), rtol=0, atol=1e-13)


# --------------------------------------------------------------------------------- non-causal attention


def test_gru_non_causal():
    """Let's look at the entire input sequence:

    h_tⁿ = Σ_{i=1…T} α_iⁿ Vⁿ(f(x_i))
    """
    layer, p, f, _ = attend(10, heads=2, causal=False)
    np.testing.assert_allclose(layer(p, f)[0], heads_by_hand(p, f, 2, causal=False), rtol=0, atol=1e-13)


def test_gru_positions():
    """Let's give a sense of position. Printed are the key K(f(x_i)) and the query Q(f(x_t) + p(i)); the key must carry
    the position of the key, and the query that of the query (E64):

        h_tⁿ = Σ_{i=1…T} α_iⁿ Vⁿ(f(x_i) + p(i)),   α_iⁿ ∝ exp ATT(Kⁿ(f(x_i) + p(i)), Qⁿ(f(x_t) + p(t)))
    """
    layer, p, f, rng = attend(11, heads=2, causal=False)
    positions = LearnedPositions(d, n)
    table = random_like(positions.init(rng, np.float64), rng)
    H, _ = chain(positions, layer)((table, p), f)

    placed = [[f[i, k] + table.table[i, k] for k in range(d)] for i in range(n)]
    np.testing.assert_allclose(H, heads_by_hand(p, np.array(placed), 2, causal=False), rtol=0, atol=1e-13)


def g_by_hand(p, h):
    """g(h) = relu(W_1 h + b_1), then W_2 and b_2."""
    hidden = [max(a, 0) for a in times(p.W_1, h) + p.b_1]
    return times(p.W_2, hidden) + p.b_2


def test_gru_nonlinear():
    """Let's use non-linear attention:

    h_t = g([h_t¹; h_t²; …; h_tᴺ])
    """
    rng = np.random.default_rng(12)
    g, h = After(d, 7), rng.standard_normal((n, d))
    p = random_like(g.init(rng, np.float64), rng)

    Y, _ = g(p, h)
    for t in range(n):
        np.testing.assert_allclose(Y[t], g_by_hand(p, h[t]), rtol=0, atol=1e-13)


def test_gru_nonlinear_per_head():
    """Let's use non-linear attention, "for higher efficiency":

    h_t = [g(h_t¹); g(h_t²); …; g(h_tᴺ)]

    The source calls it the attention that the transformer uses; it is a cheaper relative (E66).
    """
    rng = np.random.default_rng(13)
    g, h = After(d, 7, heads=2), rng.standard_normal((n, d))
    p = random_like(g.init(rng, np.float64), rng)

    Y, _ = g(p, h)
    for t in range(n):
        for head in range(2):
            columns = [head * d // 2 + k for k in range(d // 2)]
            np.testing.assert_allclose(Y[t, columns], g_by_hand(p, h[t, columns]), rtol=0, atol=1e-13)


def test_gru_full_layer():
    """Full self-attention layer, with the query's own position (E64):

    h_tⁿ = Σ_{i=1…T} α_iⁿ Vⁿ(f(x_i) + p(i)),   α_iⁿ ∝ exp ATT(Kⁿ(f(x_i) + p(i)), Qⁿ(f(x_t) + p(t)))
    h_t = g([h_t¹; …; h_tᴺ])
    """
    rng = np.random.default_rng(14)
    layers = rungs(D, d, heads=2, longest=n, hidden=7)[9]
    params = random_like(tuple(layer.init(rng, np.float64) for layer in layers), rng)
    x = rng.standard_normal((n, D))
    H, _ = chain(*layers)(params, x)

    f, p, a, g = params
    placed = np.array([np.tanh(times(f.W, x[i]) + f.b) + p.table[i] for i in range(n)])
    for t, h in enumerate(heads_by_hand(a, placed, 2, causal=False)):
        np.testing.assert_allclose(H[t], g_by_hand(g, h), rtol=0, atol=1e-13)
