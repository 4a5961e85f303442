"""The equations of the Lecture notes, part B, each written out with its sums visible.

The notes have tokens as column vectors, q_i = W_q x_i; the book has them as rows, q_i = x_i W_q. A matrix of the notes
is the transpose of ours, and the tests say so where it matters. Where the notes print a slip, these tests follow what
is meant; tests/errata/test_lecture.py shows what is printed.
"""

import math

import numpy as np

from minitransformer.attention import (
    MultiHeadAttention,
    MultiHeadParams,
    aggregate,
    causal_mask,
    dot_product_attention,
    scores,
    unweighted_attention,
)
from minitransformer.functional import layer_norm, linear, softmax
from minitransformer.models import Block, FeedForward
from minitransformer.positions import sinusoids
from minitransformer.pullback import random_like, residual


def test_lecture_basic_score():
    """Lecture notes, B 2 (1), self-attention without learned weights, a:

    w′_ij = x_iᵀ x_j
    """
    rng = np.random.default_rng(1)
    n, D = 4, 3
    X = rng.standard_normal((n, D))

    w_prime = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            for c in range(D):
                w_prime[i, j] += X[i, c] * X[j, c]

    S, _ = scores(X, X, scale=1.0)

    np.testing.assert_allclose(S, w_prime, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(w_prime, w_prime.T)  # i likes j as much as j likes i


def test_lecture_basic_weight():
    """Lecture notes, B 2 (1), b:

        w_ij = exp w′_ij / Σ_j exp w′_ij

    The j under the sum is not the j on the left (call it k): the sum runs over row i.
    """
    rng = np.random.default_rng(2)
    n = 4
    w_prime = rng.standard_normal((n, n))

    w = np.zeros((n, n))
    for i in range(n):
        total = sum(math.exp(w_prime[i, k]) for k in range(n))
        for j in range(n):
            w[i, j] = math.exp(w_prime[i, j]) / total

    A, _ = softmax(w_prime)

    np.testing.assert_allclose(A, w, rtol=0, atol=1e-15)
    np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=1e-15)


def test_lecture_basic_output():
    """Lecture notes, B 2 (1), basic self-attention:

    y_i = Σ_j w_ij x_j,    with the weights of the two equations that follow it
    """
    rng = np.random.default_rng(3)
    n, D = 4, 3
    X = rng.standard_normal((n, D))

    y = np.zeros((n, D))
    for i in range(n):
        w_prime = [sum(X[i, c] * X[j, c] for c in range(D)) for j in range(n)]
        total = sum(math.exp(w) for w in w_prime)
        for j in range(n):
            w_ij = math.exp(w_prime[j]) / total
            for c in range(D):
                y[i, c] += w_ij * X[j, c]

    Y, _ = unweighted_attention(X)

    np.testing.assert_allclose(Y, y, rtol=0, atol=1e-14)


def test_lecture_query_key_value():
    """Lecture notes, B 2 (2), key-query-value attention:

        q_i = W_q x_i,   k_i = W_k x_i,   v_i = W_v x_i
        w′_ij = q_iᵀ k_j,   w_ij = softmax(w′_ij),   y_i = Σ_j w_ij v_j

    No 1/√d yet: it comes with "Scaled dot product attention". The W here act on columns, so ours are their transposes.
    """
    rng = np.random.default_rng(4)
    n, d = 4, 3
    X = rng.standard_normal((n, d))
    W_q, W_k, W_v = rng.standard_normal((3, d, d))

    q, k, v, y = np.zeros((4, n, d))
    for i in range(n):
        for a in range(d):
            q[i, a] = sum(W_q[a, c] * X[i, c] for c in range(d))
            k[i, a] = sum(W_k[a, c] * X[i, c] for c in range(d))
            v[i, a] = sum(W_v[a, c] * X[i, c] for c in range(d))
    for i in range(n):
        w_prime = [sum(q[i, a] * k[j, a] for a in range(d)) for j in range(n)]
        total = sum(math.exp(w) for w in w_prime)
        for j in range(n):
            for a in range(d):
                y[i, a] += math.exp(w_prime[j]) / total * v[j, a]

    Y, _ = dot_product_attention(X @ W_q.T, X @ W_k.T, X @ W_v.T, scale=1.0)

    np.testing.assert_allclose(Y, y, rtol=0, atol=1e-13)


def test_lecture_positional_encoding():
    """Lecture notes, B 2, #1:

    PE(pos, 2i)   = sin(pos / 10000^(2i/d_model))
    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))
    """
    n, d_model = 7, 6
    PE = np.zeros((n, d_model))
    for pos in range(n):
        for i in range(d_model // 2):
            PE[pos, 2 * i] = math.sin(pos / 10000 ** (2 * i / d_model))
            PE[pos, 2 * i + 1] = math.cos(pos / 10000 ** (2 * i / d_model))

    np.testing.assert_allclose(sinusoids(n, d_model), PE, rtol=0, atol=1e-14)


def test_lecture_ffn():
    """Lecture notes, B 2, #2, where the x_i is what attention has made of token i (E32):

    m_i = MLP(x_i) = ReLU(x_i W_1 + b_1) W_2 + b_2
    """
    rng = np.random.default_rng(5)
    n, D, hidden = 4, 3, 5
    X = rng.standard_normal((n, D))
    ffn = FeedForward(D, hidden)
    params = random_like(ffn.init(rng, np.float64), rng)
    W_1, b_1, W_2, b_2 = params

    m = np.zeros((n, D))
    for i in range(n):
        h = [max(sum(X[i, c] * W_1[c, u] for c in range(D)) + b_1[u], 0) for u in range(hidden)]
        for c in range(D):
            m[i, c] = sum(h[u] * W_2[u, c] for u in range(hidden)) + b_2[c]

    Y, _ = ffn(params, X)

    np.testing.assert_allclose(Y, m, rtol=0, atol=1e-13)


def test_lecture_masking():
    """Lecture notes, B 2, #3, masking, with j ≤ i for the printed j < i (E29):

    e_ij = q_iᵀ k_j if j ≤ i, and −∞ otherwise
    """
    rng = np.random.default_rng(6)
    n, d = 4, 3
    Q, K, V = rng.standard_normal((3, n, d))

    y, A = np.zeros((n, d)), np.zeros((n, n))
    for i in range(n):
        e = [sum(Q[i, a] * K[j, a] for a in range(d)) if j <= i else -math.inf for j in range(n)]
        total = sum(math.exp(e_ij) for e_ij in e)  # exp(−∞) is 0
        for j in range(n):
            A[i, j] = math.exp(e[j]) / total
            for a in range(d):
                y[i, a] += A[i, j] * V[j, a]

    Y, _ = dot_product_attention(Q, K, V, causal=True, scale=1.0)
    by_mask, _ = dot_product_attention(Q, K, V, mask=causal_mask(n), scale=1.0)

    np.testing.assert_allclose(Y, y, rtol=0, atol=1e-14)
    np.testing.assert_allclose(by_mask, y, rtol=0, atol=1e-14)
    assert all(A[i, j] == 0 for i in range(n) for j in range(i + 1, n))  # no weight on the future
    np.testing.assert_allclose(A.sum(1), 1, rtol=0, atol=1e-15)  # and all weight on the rest


def test_lecture_residual():
    """Lecture notes, B 2 (3), residual connection:

    X^(i) = X^(i−1) + Layer(X^(i−1))
    """
    rng = np.random.default_rng(7)
    n, D = 4, 3
    X, W, dY = rng.standard_normal((n, D)), rng.standard_normal((D, D)), rng.standard_normal((n, D))

    after, dX = np.zeros((n, D)), np.zeros((n, D))
    for i in range(n):
        for c in range(D):
            after[i, c] = X[i, c] + sum(X[i, a] * W[a, c] for a in range(D))  # a linear layer, for example
            dX[i, c] = dY[i, c] + sum(dY[i, a] * W[c, a] for a in range(D))  # one gradient around, one through

    def layer(W, X):
        Y, pullback = linear(X, W)
        return Y, lambda dY: pullback(dY)[::-1]  # a layer sends back (dparams, dX)

    Y, pullback = residual(layer)(W, X)

    np.testing.assert_allclose(Y, after, rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback(dY)[1], dX, rtol=0, atol=1e-14)


def test_lecture_layer_norm():
    """Lecture notes, B 2 (3), layer normalisation, as meant (E27 and E28 tell what is printed):

    μ = (1/d) Σ_j x_j,   σ = √((1/d) Σ_j (x_j − μ)²),   output = (x − μ)/√(σ² + ε) ⊙ γ + β
    """
    rng = np.random.default_rng(8)
    n, d, eps = 3, 5, 1e-5
    X, gamma, beta = rng.standard_normal((n, d)), rng.standard_normal(d), rng.standard_normal(d)

    output = np.zeros((n, d))
    for i in range(n):
        mu = sum(X[i, j] for j in range(d)) / d
        sigma = math.sqrt(sum((X[i, j] - mu) ** 2 for j in range(d)) / d)
        for j in range(d):
            output[i, j] = (X[i, j] - mu) / math.sqrt(sigma**2 + eps) * gamma[j] + beta[j]

    Y, _ = layer_norm(X, gamma, beta, eps=eps)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-13)


def test_lecture_encoder_block():
    """Lecture notes, B 2, the encoder block: "Self-attention layer -> Layer normalization -> Dense layer".

        Z = LN(X + MultiHead(X)),    output = LN(Z + FFN(Z))

    Each of the two steps is a layer, a residual connection around it, and a norm.
    """
    rng = np.random.default_rng(9)
    n, D = 4, 6
    X = rng.standard_normal((n, D))
    block = Block.of(D, heads=2, hidden=5, order="post")
    params = random_like(block.init(rng, np.float64), rng)

    def norm(X, p):
        out = np.zeros_like(X)
        for i in range(n):
            mu = sum(X[i, c] for c in range(D)) / D
            variance = sum((X[i, c] - mu) ** 2 for c in range(D)) / D
            for c in range(D):
                out[i, c] = (X[i, c] - mu) / math.sqrt(variance + 1e-5) * p.gamma[c] + p.beta[c]
        return out

    F, _ = MultiHeadAttention(D, heads=2)(params.attention, X)  # spelled out in test_lecture_multi_head
    Z = norm(X + F, params.attention_norm)
    F, _ = FeedForward(D, 5)(params.ffn, Z)  # spelled out in test_lecture_ffn
    output = norm(Z + F, params.ffn_norm)

    Y, _ = block(params, X)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-12)


def test_lecture_matrix_form():
    """Lecture notes, B 2 (3), "Instead of the self-attention function we've seen":

        output_ℓ = softmax(X Q_ℓ K_ℓᵀ Xᵀ) X V_ℓ

    Here Q_ℓ, K_ℓ, V_ℓ are the weight matrices of head ℓ, and tokens are rows, as in the book.
    """
    rng = np.random.default_rng(10)
    n, D, d = 4, 6, 3
    X = rng.standard_normal((n, D))
    Q_l, K_l, V_l = rng.standard_normal((3, D, d))

    # the middle first: M = Q_ℓ K_ℓᵀ is D × D, and the score of i and j is x_i M x_jᵀ
    M = [[sum(Q_l[a, c] * K_l[b, c] for c in range(d)) for b in range(D)] for a in range(D)]
    output = np.zeros((n, d))
    for i in range(n):
        score = [sum(X[i, a] * M[a][b] * X[j, b] for a in range(D) for b in range(D)) for j in range(n)]
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            for c in range(d):
                output[i, c] += math.exp(score[j]) / total * sum(X[j, a] * V_l[a, c] for a in range(D))

    Y, _ = dot_product_attention(X @ Q_l, X @ K_l, X @ V_l, scale=1.0)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-11)  # scores are near 50 here: exp magnifies rounding


def test_lecture_scaled_dot_product():
    """Lecture notes, B 2 (3), scaled dot product attention (the formula; the sentence before it forgets the root, E30):

        output_ℓ = softmax(X Q_ℓ K_ℓᵀ Xᵀ / √(d/h)) X V_ℓ

    d/h is the width of one head.
    """
    rng = np.random.default_rng(11)
    n, d, h = 4, 6, 2
    width = d // h
    X = rng.standard_normal((n, d))
    Q_l, K_l, V_l = rng.standard_normal((3, d, width))

    output = np.zeros((n, width))
    for i in range(n):
        q_i = [sum(X[i, b] * Q_l[b, a] for b in range(d)) for a in range(width)]
        score = []
        for j in range(n):
            k_j = [sum(X[j, b] * K_l[b, a] for b in range(d)) for a in range(width)]
            score.append(sum(q_i[a] * k_j[a] for a in range(width)) / math.sqrt(d / h))
        total = sum(math.exp(s) for s in score)
        for j in range(n):
            for a in range(width):
                output[i, a] += math.exp(score[j]) / total * sum(X[j, b] * V_l[b, a] for b in range(d))

    Y, _ = dot_product_attention(X @ Q_l, X @ K_l, X @ V_l)  # the default scale is 1/√(width of q)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-13)


def test_lecture_multi_head():
    """Lecture notes, B 2 (3), with self-attention as the case Q = K = V = X:

        MultiHead(Q, K, V) = Concat(head_1, …, head_h) W^O,    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)
        W_i^Q, W_i^K, W_i^V: d_model × d_k,    W^O: h d_v × d_model

    The package keeps the h small projections side by side in one matrix: head i owns columns i·d_k … (i+1)·d_k − 1.
    """
    rng = np.random.default_rng(12)
    n, d_model, h = 4, 6, 2
    d_k = d_model // h
    X = rng.standard_normal((n, d_model))
    W_Q, W_K, W_V = rng.standard_normal((3, h, d_model, d_k))  # one of each for every head
    W_O = rng.standard_normal((h * d_k, d_model))

    concat = np.zeros((n, h * d_k))
    for head in range(h):
        q = [[sum(X[i, c] * W_Q[head, c, a] for c in range(d_model)) for a in range(d_k)] for i in range(n)]
        k = [[sum(X[i, c] * W_K[head, c, a] for c in range(d_model)) for a in range(d_k)] for i in range(n)]
        v = [[sum(X[i, c] * W_V[head, c, a] for c in range(d_model)) for a in range(d_k)] for i in range(n)]
        for i in range(n):
            score = [sum(q[i][a] * k[j][a] for a in range(d_k)) / math.sqrt(d_k) for j in range(n)]
            total = sum(math.exp(s) for s in score)
            for j in range(n):
                for a in range(d_k):
                    concat[i, head * d_k + a] += math.exp(score[j]) / total * v[j][a]
    output = [[sum(concat[i, r] * W_O[r, c] for r in range(h * d_k)) for c in range(d_model)] for i in range(n)]

    params = MultiHeadParams(*(np.concatenate(list(W), axis=1) for W in (W_Q, W_K, W_V)), W_O)
    Y, _ = MultiHeadAttention(d_model, h, bias=False)(params, X)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-13)


def test_lecture_cross_attention():
    """Lecture notes, B 3, cross-attention, with the transpose where it belongs, a scale, and two lengths (E31):

        output = softmax(Z Q (H K)ᵀ / √d) H V = softmax(Z Q Kᵀ Hᵀ / √d) H V

    Z are the decoder's vectors, T_1 of them; H the encoder's, T_2 of them; Q, K, V weight matrices.
    """
    rng = np.random.default_rng(13)
    T_1, T_2, D = 3, 5, 4
    Z, H = rng.standard_normal((T_1, D)), rng.standard_normal((T_2, D))
    Q, K, V = rng.standard_normal((3, D, D))

    output = np.zeros((T_1, D))
    for i in range(T_1):
        q_i = [sum(Z[i, c] * Q[c, a] for c in range(D)) for a in range(D)]
        score = []
        for j in range(T_2):
            k_j = [sum(H[j, c] * K[c, a] for c in range(D)) for a in range(D)]
            score.append(sum(q_i[a] * k_j[a] for a in range(D)) / math.sqrt(D))
        total = sum(math.exp(s) for s in score)
        for j in range(T_2):
            for a in range(D):
                output[i, a] += math.exp(score[j]) / total * sum(H[j, c] * V[c, a] for c in range(D))

    params = MultiHeadParams(Q, K, V, np.eye(D))
    Y, _ = MultiHeadAttention(D, heads=1, bias=False).cross(params, Z, H)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-12)


def test_lecture_decoder_block():
    """Lecture notes, B 3, the decoder block: masked self-attention, cross-attention to the last encoder layer, FFN.

        Z_1 = LN(X + masked MultiHead(X)),   Z_2 = LN(Z_1 + MultiHead(Z_1, H, H)),   output = LN(Z_2 + FFN(Z_2))

    "The output of the last encoder layer goes into every decoder layer": two blocks here look at the same H.
    """
    rng = np.random.default_rng(14)
    T_1, T_2, D = 3, 5, 6
    X, H = rng.standard_normal((T_1, D)), rng.standard_normal((T_2, D))
    block = Block.of(D, heads=2, hidden=5, order="post", cross=True)
    attention, ffn = MultiHeadAttention(D, heads=2), FeedForward(D, 5)
    layers = [random_like(block.init(rng, np.float64), rng) for _ in range(2)]

    written, packaged = X, X
    for p in layers:
        F, _ = attention(p.attention, written, causal=True)
        written, _ = layer_norm(written + F, *p.attention_norm)
        F, _ = attention.cross(p.cross, written, H)
        written, _ = layer_norm(written + F, *p.cross_norm)
        F, _ = ffn(p.ffn, written)
        written, _ = layer_norm(written + F, *p.ffn_norm)

        packaged, _ = block(p, packaged, H, causal=True)

    np.testing.assert_allclose(packaged, written, rtol=0, atol=1e-12)


def test_lecture_three_roles():
    """Lecture notes, B 2 (1), "Every input vector x_i is used in 3 ways": as query, as key and as value.

    So its gradient has three parts, which add up. Each part is measured by moving x_i in one role only.
    """
    rng = np.random.default_rng(15)
    n, D, h = 4, 3, 1e-6
    X, dY = rng.standard_normal((n, D)), rng.standard_normal((n, D))

    def loss(query, key, value):
        S, _ = scores(query, key, scale=1.0)
        A, _ = softmax(S)
        Y, _ = aggregate(A, value)
        return (dY * Y).sum()

    parts = np.zeros((3, n, D))
    for i in range(n):
        for c in range(D):
            e = np.zeros((n, D))
            e[i, c] = h
            parts[0, i, c] = (loss(X + e, X, X) - loss(X - e, X, X)) / (2 * h)  # as query
            parts[1, i, c] = (loss(X, X + e, X) - loss(X, X - e, X)) / (2 * h)  # as key
            parts[2, i, c] = (loss(X, X, X + e) - loss(X, X, X - e)) / (2 * h)  # as value

    _, pullback = unweighted_attention(X)

    np.testing.assert_allclose(pullback(dY), parts.sum(0), rtol=0, atol=1e-8)
    np.testing.assert_allclose(np.array(pullback.attention(dY)), parts, rtol=0, atol=1e-8)
