"""Where the Lecture notes slip: what is printed fails, what we use holds.

These are notes from a lecture, written down while somebody spoke. Every slip here is one that people make.
"""

import math

import numpy as np
import pytest

from minitransformer.attention import (
    MultiHeadAttention,
    MultiHeadParams,
    causal_mask,
    dot_product_attention,
    scores,
    unweighted_attention,
)
from minitransformer.functional import layer_norm, softmax
from minitransformer.models import FeedForward
from minitransformer.pullback import random_like


def test_E27_the_mean_has_lost_its_1_over_d():
    """Lecture notes, layer normalisation.

    printed  μ = Σ_j x_j, "which is mean".
    wrong    The row is not centred: five numbers around 10 come out around −40.
    holds    μ = Σ_j x_j / d; the centred row has mean 0.
    """
    rng = np.random.default_rng(1)
    x = 10 + rng.standard_normal(5)

    mu_printed = x.sum()
    mu = x.sum() / 5

    assert abs((x - mu_printed).mean()) > 30  # a centred row has mean zero; this one has not
    assert abs((x - mu).mean()) < 1e-14

    Y, _ = layer_norm(x[None], np.ones(5), np.zeros(5))
    assert abs(Y.mean()) < 1e-14


def test_E28_the_deviation_has_lost_its_square():
    """Lecture notes, layer normalisation.

    printed  (x − μ)/√(σ + ε), where σ is already the standard deviation, a root. Gain γ and bias β, announced two
             lines before, are missing.
    wrong    The root of a root: rows that spread by 0.01, 1 and 100 come out with 0.1, 1 and 10.
    holds    γ ⊙ (x − μ)/√(σ² + ε) + β, with which all three come out with 1, but for ε.
    """
    rng = np.random.default_rng(2)
    eps = 1e-5
    for spread in (0.01, 1.0, 100.0):
        x = spread * rng.standard_normal(64)
        sigma = x.std()

        printed = (x - x.mean()) / math.sqrt(sigma + eps)
        meant, _ = layer_norm(x[None], np.ones(64), np.zeros(64), eps=eps)

        assert printed.std() == pytest.approx(math.sqrt(sigma), rel=0.01)  # 0.1, 1 and 10: not one
        assert meant.std() == pytest.approx(sigma / math.sqrt(sigma**2 + eps), rel=1e-12)  # one, but for ε

    gamma, beta = rng.standard_normal((2, 64))
    modulated, _ = layer_norm(x[None], gamma, beta, eps=eps)
    np.testing.assert_allclose(modulated, gamma * meant + beta, rtol=0, atol=1e-12)


def test_E29_the_first_word_must_see_itself():
    """Lecture notes, mask of the decoder.

    printed  A score where j < i, −∞ otherwise. The diagonal has gone with the future.
    wrong    The first row has no key at all, and softmax divides 0 by 0; the second gives all of its weight, 1, to
             the first word; no word sees itself.
    holds    j ≤ i: with "inputs shifted to the right", word i is known when word i + 1 is predicted.
    """
    rng = np.random.default_rng(3)
    n, d = 4, 3
    Q, K, V = rng.standard_normal((3, n, d))
    printed = np.array([[j < i for j in range(n)] for i in range(n)])

    S, _ = scores(Q, K)
    e = np.where(printed, S, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(e) / np.exp(e).sum(1, keepdims=True)
    assert np.isnan(weights[0]).all()  # the first word: 0/0
    assert weights[1, 0] == 1  # the second word can only copy the first
    assert (np.diag(weights)[1:] == 0).all()  # nobody sees itself

    Y, _ = dot_product_attention(Q, K, V, causal=True)
    np.testing.assert_allclose(Y[0], V[0], rtol=0, atol=1e-15)  # with j ≤ i the first word sees one: itself
    np.testing.assert_array_equal(causal_mask(n), printed | np.eye(n, dtype=bool))

    # if a row really has no key, the book answers zeros, and zero gradient, rather than NaN
    Y, pullback = dot_product_attention(Q, K, V, mask=printed)
    assert (Y[0] == 0).all()
    dQ, dK, dV = pullback(rng.standard_normal((n, d)))
    assert (dQ[0] == 0).all()
    assert np.isfinite(dK).all()
    assert np.isfinite(dV).all()


def test_E30_divided_by_the_root_of_d_over_h():
    """Lecture notes, scaled dot product, in words.

    printed  "Divide the attention scores by d/h". The formula below has √(d/h).
    wrong    A score is a sum of d/h products, of deviation √(d/h). Divided by d/h = 256 it is 1/16, and the largest
             of 64 weights less than 1.25/64: a plain average.
    holds    √(d/h): a deviation of 1, a largest weight above 5/64.
    """
    rng = np.random.default_rng(4)
    d, h, keys = 1024, 4, 64
    width = d // h
    Q, K = rng.standard_normal((200, 1, width)), rng.standard_normal((200, keys, width))

    as_said, _ = scores(Q, K, scale=1 / (d / h))
    as_printed, _ = scores(Q, K, scale=1 / math.sqrt(d / h))
    default, _ = scores(Q, K)

    assert as_said.std() < 0.07  # 1/√256 = 0.0625
    assert as_printed.std() == pytest.approx(1, abs=0.03)
    np.testing.assert_allclose(default, as_printed, rtol=1e-14)

    largest = [softmax(S)[0].max(-1).mean() for S in (as_said, as_printed)]
    assert largest[0] < 1.25 / keys  # hardly more than a plain average, 1/64
    assert largest[1] > 5 / keys


def test_E31_the_transpose_belongs_to_the_product():
    """Lecture notes, cross-attention.

    printed  softmax(Z Q (H Kᵀ)) H V, with Z and H both of length T, and no scale.
    wrong    Z Q is T_1 × d and H Kᵀ is T_2 × d: they do not fit. They do when T_2 = d by accident, and then the
             scores are off by more than 1. One letter T for two lengths hides that there are two.
    holds    (H K)ᵀ = Kᵀ Hᵀ, as the notes' next line has it, and 1/√d, without which the output is off by more than
             0.1.
    """
    rng = np.random.default_rng(5)
    T_1, T_2, d = 3, 5, 4
    Z, H = rng.standard_normal((T_1, d)), rng.standard_normal((T_2, d))
    Q, K, V = rng.standard_normal((3, d, d))

    with pytest.raises(ValueError, match="matmul"):
        (Z @ Q) @ (H @ K.T)

    meant = (Z @ Q) @ (H @ K).T
    np.testing.assert_allclose(meant, Z @ Q @ K.T @ H.T, rtol=0, atol=1e-12)
    assert meant.shape == (T_1, T_2)

    accident = rng.standard_normal((d, d))  # as many encoder words as channels
    assert np.abs((Z @ Q) @ (accident @ K.T) - (Z @ Q) @ (accident @ K).T).max() > 1

    Y, _ = MultiHeadAttention(d, heads=1, bias=False).cross(MultiHeadParams(Q, K, V, np.eye(d)), Z, H)
    np.testing.assert_allclose(Y, softmax(meant / math.sqrt(d))[0] @ H @ V, rtol=0, atol=1e-12)
    unscaled = softmax(meant)[0] @ H @ V
    assert np.abs(Y - unscaled).max() > 0.1  # the scale is no detail


def test_E32_the_feed_forward_network_reads_what_attention_wrote():
    """FFN, printed: m_i = MLP(x_i), under the line "FFNN network processes the result of attention".

    x_i was the word as it came in. If the network read that, the other words could not reach it.
    """
    rng = np.random.default_rng(6)
    n, D = 4, 6
    X = 0.5 * rng.standard_normal((n, D))
    ffn = FeedForward(D, 8)
    params = random_like(ffn.init(rng, np.float64), rng)
    other = X.copy()
    other[3] = 0.5 * rng.standard_normal(D)  # the last word is replaced; look at what is said about the first

    def as_printed(X):
        return ffn(params, X)[0]

    def as_meant(X):
        Y, _ = unweighted_attention(X)
        return ffn(params, Y)[0]

    np.testing.assert_array_equal(as_printed(other)[0], as_printed(X)[0])  # it hears nothing
    assert np.abs(as_meant(other)[0] - as_meant(X)[0]).max() > 0.01


def test_E33_weights_are_not_zeroed_but_scores_are_hidden():
    """Lecture notes, masking.

    printed  "by artificially setting attention weights to 0", and then "scores to −∞".
    wrong    Weights that are zeroed after softmax leave rows that sum to less than 0.95, and the future still speaks
             in the denominators: replaced words move them by more than 0.01.
    holds    Scores to −∞ before softmax: rows sum to one, and earlier rows stay the same to the last bit.
    """
    rng = np.random.default_rng(7)
    n, d, t = 5, 4, 3
    Q, K, V = rng.standard_normal((3, n, d))
    K_other = K.copy()
    K_other[t:] = rng.standard_normal((n - t, d))  # words t, t + 1, … are replaced
    mask = causal_mask(n)

    def zeroed(K):
        return np.where(mask, softmax(scores(Q, K)[0])[0], 0)

    def hidden(K):
        return softmax(scores(Q, K)[0], mask=mask)[0]

    assert zeroed(K)[:-1].sum(1).max() < 0.95  # weight is missing in every row but the last
    np.testing.assert_allclose(hidden(K).sum(1), 1, rtol=0, atol=1e-15)

    assert np.abs(zeroed(K_other)[:t] - zeroed(K)[:t]).max() > 0.01  # rows before t have noticed
    np.testing.assert_array_equal(hidden(K_other)[:t], hidden(K)[:t])  # here they have not, to the last bit

    # the two agree again once the zeroed rows are divided by their sums
    np.testing.assert_allclose(zeroed(K) / zeroed(K).sum(1, keepdims=True), hidden(K), rtol=0, atol=1e-15)

    Y, _ = dot_product_attention(Q, K, V, causal=True)
    np.testing.assert_allclose(Y, hidden(K) @ V, rtol=0, atol=1e-14)


def test_E44_who_answers_which_problem():
    """The notes list three problems of attention: #1 order, #2 no nonlinearity, #3 it looks at the future. Under #3
    comes "for this, a feed-forward network is added". The network is the answer to #2; masking is the answer to #3.

    Each claim is a test. Look-ahead: does the output of word i change when a later word does? Nonlinearity: with the
    weights held fixed, is the output of the sum of two values the sum of the outputs?
    """
    rng = np.random.default_rng(8)
    n, D, t = 5, 6, 3
    X = rng.standard_normal((n, D))
    other = X.copy()
    other[t:] = rng.standard_normal((n - t, D))
    ffn = FeedForward(D, 8)
    params = random_like(ffn.init(rng, np.float64), rng)

    def looks_ahead(layer):
        return not np.array_equal(layer(X)[:t], layer(other)[:t])

    def attention(X):
        return unweighted_attention(X)[0]

    def attention_and_ffn(X):
        return ffn(params, unweighted_attention(X)[0])[0]

    def masked(X):
        return unweighted_attention(X, causal=True)[0]

    assert looks_ahead(attention)
    assert looks_ahead(attention_and_ffn)  # as printed: the network has not cured #3
    assert not looks_ahead(masked)  # masking has

    Q, K, V, V2 = rng.standard_normal((4, n, D))

    def is_linear(layer):
        bend = layer(V + V2) - layer(V) - layer(V2) + layer(np.zeros_like(V))
        return bool(np.abs(bend).max() < 1e-12)

    assert is_linear(lambda V: dot_product_attention(Q, K, V)[0])
    assert is_linear(lambda V: dot_product_attention(Q, K, V, causal=True)[0])  # masking does not cure #2
    assert not is_linear(lambda V: ffn(params, dot_product_attention(Q, K, V)[0])[0])  # the network does


def test_E76_as_a_key_a_token_makes_a_weight_of_another_row():
    """Lecture notes, B 2 (1), the second of three ways: x_i is used for the "attention weight w_ij for output y_j (key)".

    y_j = Σ_i w_ji x_i: the weight of x_i in it is w_ji. The raw weights w′ are symmetric, but each is divided by the sum of
    its own row.
    """
    X = 0.7 * np.random.default_rng(76).standard_normal((4, 3))
    Y, pullback = unweighted_attention(X)
    w = pullback.A
    printed, meant = ([sum(weights[i, j] * X[i] for i in range(4)) for j in range(4)] for weights in (w, w.T))
    np.testing.assert_allclose(meant, Y, rtol=1e-12)
    assert np.abs(np.array(printed) - Y).max() > 0.1
    raw = np.exp(X @ X.T)
    np.testing.assert_allclose(raw, raw.T)
    np.testing.assert_allclose(w, raw / raw.sum(1, keepdims=True))


def test_E79_the_sum_runs_over_all_keys():
    """Lecture notes, B 2 (1): w_ij = exp w′_ij / Σ_j exp w′_ij, and in words a sum "from 1 to j".

    The j below is another one than the j above. Summed up to the j above, the first weight of every row is 1, and the rest
    comes on top of it.
    """
    X = 0.5 * np.random.default_rng(79).standard_normal((4, 3))
    raw = np.exp(X @ X.T)
    up_to_j = np.array([[raw[i, j] / raw[i, : j + 1].sum() for j in range(4)] for i in range(4)])
    over_all = np.array([[raw[i, j] / sum(raw[i, k] for k in range(4)) for j in range(4)] for i in range(4)])
    np.testing.assert_allclose(unweighted_attention(X)[1].A, over_all, rtol=1e-12)
    assert (up_to_j[:, 0] == 1).all()
    assert (up_to_j.sum(1) > 1.5).all()
