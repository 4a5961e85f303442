"""The equations of the CS224N notes, each written out with its sums visible.

The notes have tokens as column vectors, q_i = W x_i. For a token as a row the same is q_i = x_i Wᵀ.
"""

import math

import numpy as np

from minitransformer.attention import (
    MultiHeadAttention,
    MultiHeadParams,
    aggregate,
    attend,
    dot_product_attention,
    scores,
)
from minitransformer.functional import layer_norm_outside, linear, softmax
from minitransformer.models import FeedForward
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.pullback import random_like, residual


def test_cs224n_query_key_value():
    """CS224N notes, "Calculating QKV":

    q_i = W^(Q) x_i,   k_i = W^(K) x_i,   v_i = W^(V) x_i
    """
    rng = np.random.default_rng(1)
    n, D, d = 4, 5, 3
    x = rng.standard_normal((n, D))

    for W in rng.standard_normal((3, d, D)):  # W^(Q), W^(K), W^(V)
        projected = np.zeros((n, d))
        for i in range(n):
            for a in range(d):
                for c in range(D):
                    projected[i, a] += W[a, c] * x[i, c]

        np.testing.assert_allclose(linear(x, W.T)[0], projected, rtol=0, atol=1e-13)


def test_cs224n_score():
    """CS224N notes, "reduced-rank multiplicative attention":

    e_ij = q_i · k_j
    """
    rng = np.random.default_rng(2)
    n, d = 4, 3
    q, k = rng.standard_normal((2, n, d))

    e = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            e[i, j] = sum(q[i, a] * k[j, a] for a in range(d))

    np.testing.assert_allclose(scores(q, k, scale=1.0)[0], e, rtol=0, atol=1e-14)


def test_cs224n_reduced_rank():
    """CS224N notes, "reduced-rank multiplicative attention", with the projections put in:

        e_ij = x_iᵀ M x_j,    M = W^(Q)ᵀ W^(K), of size D × D and rank at most d

    M is all that the scores know of the two projections: R W^(Q) and R⁻ᵀ W^(K) give the same scores for every
    invertible R.
    """
    rng = np.random.default_rng(3)
    n, D, d = 7, 5, 2
    x = rng.standard_normal((n, D))
    W_Q, W_K = rng.standard_normal((2, d, D))

    M = [[sum(W_Q[a, b] * W_K[a, c] for a in range(d)) for c in range(D)] for b in range(D)]
    e = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            e[i, j] = sum(x[i, b] * M[b][c] * x[j, c] for b in range(D) for c in range(D))

    S, _ = scores(x @ W_Q.T, x @ W_K.T, scale=1.0)
    np.testing.assert_allclose(S, e, rtol=0, atol=1e-12)
    assert np.linalg.matrix_rank(np.array(M)) == d
    assert np.linalg.matrix_rank(S) == d  # although S is 7 × 7, and M is 5 × 5

    R = rng.standard_normal((d, d)) + 2 * np.eye(d)
    same, _ = scores(x @ (R @ W_Q).T, x @ (np.linalg.inv(R).T @ W_K).T, scale=1.0)
    np.testing.assert_allclose(same, S, rtol=0, atol=1e-11)


def test_cs224n_weight():
    """CS224N notes, "and normalize":

    a_ij = softmax(e_ij),    over j, for each i
    """
    rng = np.random.default_rng(4)
    n = 4
    e = rng.standard_normal((n, n))

    a = np.zeros((n, n))
    for i in range(n):
        total = sum(math.exp(e[i, k]) for k in range(n))
        for j in range(n):
            a[i, j] = math.exp(e[i, j]) / total

    np.testing.assert_allclose(softmax(e)[0], a, rtol=0, atol=1e-15)


def test_cs224n_output():
    """CS224N notes, "to obtain":

    O_i = Σ_j a_ij v_j
    """
    rng = np.random.default_rng(5)
    n, dv = 4, 3
    a, v = rng.random((n, n)), rng.standard_normal((n, dv))

    out = np.zeros((n, dv))
    for i in range(n):
        for j in range(n):
            for b in range(dv):
                out[i, b] += a[i, j] * v[j, b]

    np.testing.assert_allclose(aggregate(a, v)[0], out, rtol=0, atol=1e-14)


def test_cs224n_matrix_form():
    """CS224N notes, the second list, with tokens as the rows of x so that Q Kᵀ is n × n (E67):

    Q = x W^(Q),   K = x W^(K),   V = x W^(V)
    """
    rng = np.random.default_rng(6)
    n, D, d = 5, 4, 3
    x = rng.standard_normal((n, D))
    W_Q, W_K, W_V = rng.standard_normal((3, D, d))

    Q, K, V = np.zeros((3, n, d))
    for i in range(n):
        for a in range(d):
            Q[i, a] = sum(x[i, c] * W_Q[c, a] for c in range(D))
            K[i, a] = sum(x[i, c] * W_K[c, a] for c in range(D))
            V[i, a] = sum(x[i, c] * W_V[c, a] for c in range(D))

    rows = [linear(x, W)[0] for W in (W_Q, W_K, W_V)]

    for by_loops, in_one_line in zip((Q, K, V), rows, strict=True):
        np.testing.assert_allclose(in_one_line, by_loops, rtol=0, atol=1e-14)
    assert scores(*rows[:2])[0].shape == (n, n)  # one score for each pair of tokens


def test_cs224n_scaled_dot_product():
    """CS224N notes, "scale dot-product attention":

    Out = softmax(Q Kᵀ / √d_k) V
    """
    rng = np.random.default_rng(7)
    n, d_k, dv = 4, 3, 2
    Q, K, V = rng.standard_normal((n, d_k)), rng.standard_normal((n, d_k)), rng.standard_normal((n, dv))

    out = np.zeros((n, dv))
    for i in range(n):
        score = [sum(Q[i, a] * K[j, a] for a in range(d_k)) / math.sqrt(d_k) for j in range(n)]
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            for b in range(dv):
                out[i, b] += math.exp(score[j]) / total * V[j, b]

    np.testing.assert_allclose(dot_product_attention(Q, K, V)[0], out, rtol=0, atol=1e-14)


def test_cs224n_transformer_block():
    """CS224N notes, "Transformer Block": attention is a rolling average, "to introduce nonlinearity, we apply a linear
    layer with a ReLU after". There are two linear layers, and the ReLU stands between them (E71):

        FFN(x) = ReLU(x W_1 + b_1) W_2 + b_2
    """
    rng = np.random.default_rng(8)
    n, D, hidden = 3, 4, 6
    x = rng.standard_normal((n, D))
    ffn = FeedForward(D, hidden)
    W_1, b_1, W_2, b_2 = params = random_like(ffn.init(rng, np.float64), rng)

    out = np.zeros((n, D))
    for i in range(n):
        u = [sum(x[i, c] * W_1[c, h] for c in range(D)) + b_1[h] for h in range(hidden)]
        for h in range(hidden):
            if u[h] > 0:  # the ReLU
                for c in range(D):
                    out[i, c] += u[h] * W_2[h, c]
        out[i] += b_2

    np.testing.assert_allclose(ffn(params, x)[0], out, rtol=0, atol=1e-13)


def test_cs224n_skip():
    """CS224N notes, "Tricks in Training", skip connections:

    x_l = F(x_{l−1}) + x_{l−1}
    """
    rng = np.random.default_rng(9)
    n, D = 3, 4
    x = rng.standard_normal((n, D))
    F = FeedForward(D, 5)
    params = random_like(F.init(rng, np.float64), rng)

    of_F, _ = F(params, x)
    x_l = [[of_F[i, c] + x[i, c] for c in range(D)] for i in range(n)]

    np.testing.assert_array_equal(residual(F)(params, x)[0], x_l)


def test_cs224n_layer_norm():
    """CS224N notes, "Tricks in Training", layernorm, "we use population mean and population standard deviation":

        x′ = (x − μ) / (σ + ε)

    ε stands beside σ and not under a root (E68). The package adds a gain and a bias; here they are 1 and 0.
    """
    rng = np.random.default_rng(10)
    n, d, eps = 3, 5, 1e-2
    x = rng.standard_normal((n, d))

    out = np.zeros((n, d))
    for i in range(n):
        mu = sum(x[i, c] for c in range(d)) / d
        sigma = math.sqrt(sum((x[i, c] - mu) ** 2 for c in range(d)) / d)  # population: divided by d, not d − 1
        for c in range(d):
            out[i, c] = (x[i, c] - mu) / (sigma + eps)

    np.testing.assert_allclose(layer_norm_outside(x, np.ones(d), np.zeros(d), eps=eps)[0], out, rtol=0, atol=1e-14)


def test_cs224n_variance_of_a_sum():
    """CS224N notes, "Tricks in Training", as meant (E69): the variance of a sum of d independent terms is the sum of
    their variances, so a score q · k of unit-variance entries has variance d, and q · k / √d has variance 1.
    """
    rng = np.random.default_rng(11)
    draws = 40_000
    for d in (4, 16, 64):
        q, k = rng.standard_normal((2, draws, d))
        score = np.zeros(draws)
        for a in range(d):
            score += q[:, a] * k[:, a]  # each term has mean 0 and variance 1

        scaled, _ = scores(q[:, None, :], k[:, None, :])  # 40,000 pairs, each a 1 × 1 matrix of scores

        np.testing.assert_allclose(scaled[:, 0, 0], score / math.sqrt(d), rtol=0, atol=1e-13)
        assert abs(score.var() / d - 1) < 0.05  # five standard errors at d = 4
        assert abs(scaled.var() - 1) < 0.05


def test_cs224n_multi_head():
    """CS224N notes, "Multi-Head Attention": attend several times and concatenate. "For each single head, divide by
    number of heads (so you end up doing the same amount of computation)": what is divided is the width, d = D/H (E72).
    """
    rng = np.random.default_rng(12)
    n, D, H = 4, 6, 3
    d = D // H
    x = rng.standard_normal((n, D))
    params = MultiHeadParams(*rng.standard_normal((4, D, D)))

    concatenated = np.zeros((n, D))
    for h in range(H):
        q, k, v = (x @ W[:, h * d : (h + 1) * d] for W in params[:3])  # n × d each: a third of the width
        for i in range(n):
            score = [sum(q[i, a] * k[j, a] for a in range(d)) / math.sqrt(d) for j in range(n)]
            total = sum(math.exp(s) for s in score)
            for a in range(d):
                concatenated[i, h * d + a] = sum(math.exp(score[j]) / total * v[j, a] for j in range(n))

    Y, _ = MultiHeadAttention(D, H, bias=False)(params, x)

    np.testing.assert_allclose(Y, concatenated @ params.W_o, rtol=0, atol=1e-12)
    assert params.W_q.size == D * D  # the same number of parameters, and of products, as one head of width D


def test_cs224n_relative_positions():
    """CS224N notes, "Relative Position Embeddings": they "are LEARNED and added to the self-attention outputs".

        O_i = Σ_j a_ij v_j + Σ_j a_ij r^V_{j−i}      a learned vector for each offset, added to the outputs,
        e_ij = q_i · (k_j + r^K_{j−i}) / √d          and one in the keys, which the phrase leaves out (E70)

    The first line alone is Shaw with zeros for the keys' vectors; learned means: gradients reach both tables.
    """
    rng = np.random.default_rng(1)
    n, d = 4, 3
    q, k, v = rng.standard_normal((3, n, d))
    r_K, r_V = rng.standard_normal((2, 2 * n - 1, d))  # row j − i + n − 1

    def outputs(r_K):
        O = np.zeros((n, d))  # noqa: E741
        for i in range(n):
            e = [sum(q[i, c] * (k[j, c] + r_K[j - i + n - 1, c]) for c in range(d)) / math.sqrt(d) for j in range(n)]
            total = sum(math.exp(e[j]) for j in range(n))
            for j in range(n):
                for c in range(d):
                    O[i, c] += math.exp(e[j]) / total * v[j, c]
                    O[i, c] += math.exp(e[j]) / total * r_V[j - i + n - 1, c]
        return O

    encoding = Shaw(d, n - 1)
    added, _ = attend(encoding, ShawParams(np.zeros_like(r_K), r_V), q, k, v)
    np.testing.assert_allclose(added, outputs(np.zeros_like(r_K)), rtol=0, atol=1e-13)

    Y, pullback = attend(encoding, ShawParams(r_K, r_V), q, k, v)
    np.testing.assert_allclose(Y, outputs(r_K), rtol=0, atol=1e-13)

    dparams, *_ = pullback(rng.standard_normal((n, d)))
    assert (np.abs(dparams.a_k).max(1) > 1e-4).all()
    assert (np.abs(dparams.a_v).max(1) > 1e-4).all()
