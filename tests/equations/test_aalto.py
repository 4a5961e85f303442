"""The equations and named parts of the Aalto thesis, section 2.1, each written out with its sums visible.

The thesis numbers three equations there; the parts without one carry the number of their section.
"""

import math

import numpy as np
import pytest

from minitransformer.attention import MultiHeadAttention, MultiHeadParams, causal_mask, dot_product_attention
from minitransformer.functional import embedding
from minitransformer.models import Block, FeedForward, Stack
from minitransformer.positions import SinusoidalPositions, sinusoids
from minitransformer.pullback import random_like


def layer_norm_by_hand(X, gamma, beta, eps=1e-5):
    out = np.zeros_like(X)
    for i, row in enumerate(X):
        mu = sum(row) / len(row)
        variance = sum((x - mu) ** 2 for x in row) / len(row)
        for c, x in enumerate(row):
            out[i, c] = (x - mu) / math.sqrt(variance + eps) * gamma[c] + beta[c]
    return out


def test_aalto_eq_1_sine():
    """Aalto (1), 2.1.2 Positional Embedding:

        PE(pos, 2i) = sin(pos / 10000^(2i/d_model))

    The even *columns* hold sines; i counts pairs of columns, and pos is the position (E60).
    """
    n, d_model = 9, 8
    table = sinusoids(n, d_model)
    for pos in range(n):
        for i in range(d_model // 2):
            assert table[pos, 2 * i] == pytest.approx(math.sin(pos / 10000 ** (2 * i / d_model)), abs=1e-14)


def test_aalto_eq_2_cosine():
    """Aalto (2), 2.1.2 Positional Embedding, and the sentence before it: the table is added to the embeddings.

    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model))
    """
    n, d_model = 9, 8
    table = sinusoids(n, d_model)
    for pos in range(n):
        for i in range(d_model // 2):
            assert table[pos, 2 * i + 1] == pytest.approx(math.cos(pos / 10000 ** (2 * i / d_model)), abs=1e-14)

    X = np.random.default_rng(1).standard_normal((n, d_model))
    positions = SinusoidalPositions(d_model)
    Y, _ = positions(positions.init(np.random.default_rng(1)), X)
    np.testing.assert_array_equal(Y, X + table)


def test_aalto_eq_3_scaled_dot_product():
    """Aalto (3), 2.1.3 Scaled Dot-Product Attention:

        Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

    The formula has the root; the sentence above it has lost it (E45).
    """
    rng = np.random.default_rng(2)
    n, m, d_k, d_v = 3, 5, 4, 2
    Q, K, V = rng.standard_normal((n, d_k)), rng.standard_normal((m, d_k)), rng.standard_normal((m, d_v))

    output = np.zeros((n, d_v))
    for i in range(n):
        score = [sum(Q[i, a] * K[j, a] for a in range(d_k)) / math.sqrt(d_k) for j in range(m)]
        total = sum(math.exp(s) for s in score)
        for b in range(d_v):
            output[i, b] = sum(math.exp(score[j]) / total * V[j, b] for j in range(m))

    Y, _ = dot_product_attention(Q, K, V)

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-14)


def test_aalto_2_1_1_input_embedding():
    """Aalto 2.1.1: "takes the word indices in the vocabulary and converts them into word embeddings".

    x_t = E[token_t], which is the one-hot row of token_t times E
    """
    rng = np.random.default_rng(3)
    vocabulary, D = 6, 3
    E = rng.standard_normal((vocabulary, D))
    tokens = np.array([4, 0, 4, 2])

    X = np.zeros((len(tokens), D))
    for t, token in enumerate(tokens):
        one_hot = [1 if v == token else 0 for v in range(vocabulary)]
        for c in range(D):
            X[t, c] = sum(one_hot[v] * E[v, c] for v in range(vocabulary))

    np.testing.assert_array_equal(embedding(tokens, E)[0], X)


def test_aalto_2_1_4_multi_head():
    """Aalto 2.1.4: project queries, keys and values down, attend in each head, concatenate, one more linear layer.

        head_h = Attention(Q W_h^Q, K W_h^K, V W_h^V),    output = [head_1 … head_H] W^O

    "… while keeping the total computational cost the same": H heads of width D/H make as many products as one of
    width D.
    """
    rng = np.random.default_rng(4)
    n, D = 4, 6
    X = rng.standard_normal((n, D))
    W_Q, W_K, W_V, W_O = rng.standard_normal((4, D, D))

    for H in (1, 2, 3):
        d, products = D // H, 0
        concatenated = np.zeros((n, D))
        for h in range(H):
            mine = range(h * d, (h + 1) * d)  # the columns that head h owns
            for i in range(n):
                score = []
                for j in range(n):
                    score.append(sum((X[i] @ W_Q[:, a]) * (X[j] @ W_K[:, a]) for a in mine) / math.sqrt(d))
                    products += d
                total = sum(math.exp(s) for s in score)
                for a in mine:
                    concatenated[i, a] = sum(math.exp(score[j]) / total * (X[j] @ W_V[:, a]) for j in range(n))
        output = np.array([[sum(row[r] * W_O[r, c] for r in range(D)) for c in range(D)] for row in concatenated])

        Y, _ = MultiHeadAttention(D, H, bias=False)(MultiHeadParams(W_Q, W_K, W_V, W_O), X)

        np.testing.assert_allclose(Y, output, rtol=0, atol=1e-12)
        assert products == n * n * D  # whatever H is


def test_aalto_2_1_5_encoder():
    """Aalto 2.1.5: a stack of identical layers, each self-attention and a feed-forward network, "both … utilize
    residual connection after which layer normalization is applied".

        Z = LN(X + MultiHead(X)),    X ← LN(Z + FFN(Z)),    with its own parameters in every layer
    """
    rng = np.random.default_rng(5)
    n, D = 4, 6
    X = rng.standard_normal((n, D))
    stack = Stack((Block.of(D, heads=2, hidden=5, order="post"),) * 3)
    params = random_like(stack.init(rng, np.float64), rng)

    Z = X
    for p in params.blocks:
        F, _ = MultiHeadAttention(D, heads=2)(p.attention, Z)  # its loops: test_aalto_2_1_4_multi_head
        Z = layer_norm_by_hand(Z + F, *p.attention_norm)
        F, _ = FeedForward(D, 5)(p.ffn, Z)  # its loops: test_aalto_2_1_6_feed_forward
        Z = layer_norm_by_hand(Z + F, *p.ffn_norm)

    Y, _ = stack(params, X)

    np.testing.assert_allclose(Y, Z, rtol=0, atol=1e-12)


def test_aalto_2_1_5_decoder():
    """Aalto 2.1.5: "optionally masked self-attention and cross-attention with the encoder outputs".

        Z = LN(X + masked MultiHead(X)),   Z = LN(Z + MultiHead(Z, M, M)),   X ← LN(Z + FFN(Z))

    M is what the encoder has made of its input, (m, D); queries come from the decoder, keys and values from M.
    """
    rng = np.random.default_rng(6)
    n, m, D = 4, 5, 6
    X, M = rng.standard_normal((n, D)), rng.standard_normal((m, D))
    stack = Stack((Block.of(D, heads=2, hidden=5, order="post", cross=True),) * 2)
    params = random_like(stack.init(rng, np.float64), rng)
    attention = MultiHeadAttention(D, heads=2)

    Z = X
    for p in params.blocks:
        F, _ = attention(p.attention, Z, causal=True)
        Z = layer_norm_by_hand(Z + F, *p.attention_norm)
        F, _ = attention.cross(p.cross, Z, M)
        Z = layer_norm_by_hand(Z + F, *p.cross_norm)
        F, _ = FeedForward(D, 5)(p.ffn, Z)
        Z = layer_norm_by_hand(Z + F, *p.ffn_norm)

    Y, _ = stack(params, X, M, causal=True)

    np.testing.assert_allclose(Y, Z, rtol=0, atol=1e-12)


def test_aalto_2_1_6_feed_forward():
    """Aalto 2.1.6: "two linear transformations with a ReLU activation function in between … applied to each position
    separately".

        FFN(x) = max(0, x W_1 + b_1) W_2 + b_2
    """
    rng = np.random.default_rng(7)
    n, D, hidden = 4, 3, 5
    X = rng.standard_normal((n, D))
    ffn = FeedForward(D, hidden)
    W_1, b_1, W_2, b_2 = params = random_like(ffn.init(rng, np.float64), rng)

    output = np.zeros((n, D))
    for i in range(n):
        inner = [max(0, b_1[u] + sum(X[i, c] * W_1[c, u] for c in range(D))) for u in range(hidden)]
        for c in range(D):
            output[i, c] = b_2[c] + sum(inner[u] * W_2[u, c] for u in range(hidden))

    Y, _ = ffn(params, X)
    alone, _ = ffn(params, X[2:3])

    np.testing.assert_allclose(Y, output, rtol=0, atol=1e-13)
    np.testing.assert_allclose(alone[0], Y[2], rtol=0, atol=1e-13)  # a token doesn't know that it has neighbours


def test_aalto_2_1_7_masking():
    """Aalto 2.1.7: "negative infinity values for all the future tokens in the mask filter matrix which is then added".

        softmax(Q Kᵀ / √d_k + M) V,    M_ij = 0 for j ≤ i and −∞ for j > i

    It is added to the scores, before softmax. Our masks say True where M is 0.
    """
    rng = np.random.default_rng(8)
    n, d_k = 4, 3
    Q, K, V = rng.standard_normal((3, n, d_k))
    M = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1, n):
            M[i, j] = -math.inf

    output = np.zeros((n, d_k))
    for i in range(n):
        score = [sum(Q[i, a] * K[j, a] for a in range(d_k)) / math.sqrt(d_k) + M[i, j] for j in range(n)]
        total = sum(math.exp(s) for s in score)
        for b in range(d_k):
            output[i, b] = sum(math.exp(score[j]) / total * V[j, b] for j in range(n))

    causal, _ = dot_product_attention(Q, K, V, causal=True)
    masked, _ = dot_product_attention(Q, K, V, mask=M == 0)
    np.testing.assert_array_equal(causal_mask(n), M == 0)

    np.testing.assert_allclose(causal, output, rtol=0, atol=1e-14)
    np.testing.assert_allclose(masked, output, rtol=0, atol=1e-14)

    # what the mask is for: the model "can not see the true answer", so changing it changes nothing before it
    t = 2
    K2, V2 = K.copy(), V.copy()
    K2[t], V2[t] = 7, -7
    after, _ = dot_product_attention(Q, K2, V2, causal=True)
    np.testing.assert_array_equal(after[:t], causal[:t])
    assert np.abs(after[t:] - causal[t:]).min(axis=-1).max() > 0
