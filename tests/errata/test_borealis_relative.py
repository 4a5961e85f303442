"""Where Borealis II slips on the way from absolute to relative positions: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.attention import attend, dot_product_attention, scores
from minitransformer.functional import softmax
from minitransformer.positions import sinusoids
from minitransformer.positions.deberta import DeBERTa, DeBERTaParams
from minitransformer.positions.four_terms import four_terms
from minitransformer.positions.multiplicative import Multiplicative, MultiplicativeParams
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars, T5Bias, t5_buckets


def unit_scores(encoding, n, rng):
    """Scores of random content and a random table, where every query and key, of either kind, has entries of variance 1."""
    D = encoding.width
    P = rng.standard_normal((2 * encoding.k, D))
    params = DeBERTaParams(P, *rng.standard_normal((2, D, D)) / math.sqrt(D))
    Q, K = rng.standard_normal((2, 1, n, D))
    return encoding.scores(params, Q, K)[0][0], params, Q[0], K[0]


def test_E1_the_scale_goes_missing_on_the_way():
    """Borealis II, (7) to (15), below (16), and (22).

    printed  Scores without the 1/√d_q that (1), (2), (5) and (6) have. (7) calls itself un-normalized.
    wrong    At d = 64 they are eight times as large; the largest weight in a row is above 0.8 on average, and below
             0.4 with the division.
    holds    QKᵀ/√d wherever a softmax follows; for the four terms of (8) a common factor does not matter.
    """
    rng = np.random.default_rng(1)
    n, D, d = 32, 64, 64
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d)) / math.sqrt(D)
    Phi_v = rng.standard_normal((D, d))
    Z = X + Pi
    sa_5, _ = dot_product_attention(Z @ Phi_q, Z @ Phi_k, Z @ Phi_v)

    a_7, _ = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)  # as printed
    assert np.abs(softmax(a_7)[0] @ Z @ Phi_v - sa_5).max() > 1
    assert softmax(a_7)[0].max(1).mean() > 0.8

    S, _ = four_terms(X, Pi, Phi_q, Phi_k)  # 1/√d, unless another scale is asked for
    np.testing.assert_allclose(softmax(S)[0] @ Z @ Phi_v, sa_5, rtol=0, atol=1e-10)
    assert softmax(S)[0].max(1).mean() < 0.4
    np.testing.assert_allclose(a_7, math.sqrt(d) * S, rtol=0, atol=1e-10)


def test_E2_the_transpose_of_an_index():
    """The last of the four terms in (8) ends in π_{jᵀ}. An index has no transpose: the vector has, π_jᵀ.

    Without it x Φ_q Φ_kᵀ π_j is a product of a 1 × D row with another 1 × D row, which does not exist.
    """
    rng = np.random.default_rng(2)
    n, D, d = 4, 6, 3
    Pi = rng.standard_normal((n, D))
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    i, j = 1, 2
    pi_i, pi_j = Pi[i : i + 1], Pi[j : j + 1]  # rows, 1 × D

    with pytest.raises(ValueError):
        pi_i @ Phi_q @ Phi_k.T @ pi_j

    _, pullback = four_terms(np.zeros((n, D)), Pi, Phi_q, Phi_k, scale=1.0)
    assert pullback.pp[i, j] == pytest.approx((pi_i @ Phi_q @ Phi_k.T @ pi_j.T).item(), abs=1e-12)


def test_E3_tokens_are_rows():
    """The text before "Separating position and word embeddings" applies Φ_q and Φ_k to X + Π and takes "dot products
    between every pair of columns in the resulting matrices". Words are the rows of X.

    Columns are features: their dot products make a d × d matrix, the same size for every sentence, and the same numbers if
    the words are shuffled. Rows make the n × n matrix of (7).
    """
    rng = np.random.default_rng(3)
    n, D, d = 5, 6, 3
    X, Pi = rng.standard_normal((n, D)), sinusoids(n, D)
    Phi_q, Phi_k = rng.standard_normal((2, D, d))
    Q, K = (X + Pi) @ Phi_q, (X + Pi) @ Phi_k

    columns = np.array([[Q[:, a] @ K[:, b] for b in range(d)] for a in range(d)])
    rows = np.array([[Q[i] @ K[j] for j in range(n)] for i in range(n)])
    S, _ = four_terms(X, Pi, Phi_q, Phi_k, scale=1.0)

    assert columns.shape != S.shape
    np.testing.assert_allclose(S, rows, rtol=0, atol=1e-12)

    order = rng.permutation(n)
    shuffled = Q[order].T @ K[order]
    np.testing.assert_allclose(shuffled, columns, rtol=0, atol=1e-12)  # it can't tell the order of words at all
    assert np.abs(Q[order] @ K[order].T - rows).max() > 0.1


def test_E8_the_offset_has_a_sign():
    """Borealis II, the sentence above (10).

    printed  Shaw et al. "add a term π_|i−j|"; (10) and the sentence below it have π_{i−j}, "for each signed position
             offset".
    wrong    With π_|i−j|, and one word everywhere, scores are symmetric: a word can't tell left from right. They
             differ from the signed ones by more than 0.1.
    holds    The equation. The paper, and Aalto's copy of it, counts j − i: the same table, read from its other end.
    """
    rng = np.random.default_rng(8)
    n, d = 5, 4
    Q = np.tile(rng.standard_normal(d), (n, 1))  # all words ask the same
    K = np.zeros((n, d))  # and content has no say
    pi = rng.standard_normal((2 * n - 1, d))  # row offset + n − 1

    by_distance = np.array([[Q[i] @ pi[abs(i - j) + n - 1] for j in range(n)] for i in range(n)]) / math.sqrt(d)
    signed = np.array([[Q[i] @ pi[i - j + n - 1] for j in range(n)] for i in range(n)]) / math.sqrt(d)
    np.testing.assert_array_equal(by_distance, by_distance.T)  # the neighbour to the left looks like that to the right
    assert np.abs(signed - signed.T).max() > 0.1

    S, _ = Shaw(d, n - 1, values=False).scores(ShawParams(pi[::-1].copy()), Q, K)  # our rows are j − i
    np.testing.assert_allclose(S, signed, rtol=0, atol=1e-12)
    assert np.abs(S - by_distance).max() > 0.1

    # the wrong end of the table: every word sees its right neighbours where its left ones are
    S, _ = Shaw(d, n - 1, values=False).scores(ShawParams(pi), Q, K)
    np.testing.assert_allclose(S, signed.T, rtol=0, atol=1e-12)


def test_E9_a_scalar_for_each_signed_offset_and_what_t5_does_with_it():
    """Borealis II, the sentence above (11).

    printed  Raffel et al. "adding a learnable scalar π_|i−j|"; in (11) and below it π_{i−j}, "a different scalar for
             each signed offset".
    wrong    With |i − j|, a text read backwards gives the same, and a head that wants the token before gives it 1/2
             of its weight and never more.
    holds    π_{i−j}, with which it gets 1. (T5 also shares numbers between offsets and has no scale: the next two
             tests.)
    """
    rng = np.random.default_rng(9)
    n, d = 6, 4
    Q, K, V = rng.standard_normal((3, 1, n, d))
    encoding = OffsetScalars(heads=1, longest=n)
    of_distance = np.abs(np.arange(-(n - 1), n))
    pi = rng.standard_normal(n)

    # π_|i−j|: backwards in, backwards out
    printed = OffsetScalarParams(pi[of_distance][None])
    forwards, _ = attend(encoding, printed, Q, K, V)
    backwards, _ = attend(encoding, printed, Q[:, ::-1], K[:, ::-1], V[:, ::-1])
    np.testing.assert_allclose(backwards[:, ::-1], forwards, rtol=0, atol=1e-12)

    # π_{i−j}: it matters which way one reads
    signed = OffsetScalarParams(rng.standard_normal((1, 2 * n - 1)))
    forwards, _ = attend(encoding, signed, Q, K, V)
    backwards, _ = attend(encoding, signed, Q[:, ::-1], K[:, ::-1], V[:, ::-1])
    assert np.abs(backwards[:, ::-1] - forwards).max() > 0.1

    # the best that a head can do which wants the token before it, and has only distances: half of its weight
    zeros = np.zeros((1, n, d))
    _, pullback = attend(encoding, OffsetScalarParams(np.where(of_distance == 1, 50.0, 0)[None]), zeros, zeros, V)
    assert pullback.A[0, 3, 2] == pytest.approx(0.5)
    one_before = np.where(np.arange(-(n - 1), n) == -1, 50.0, 0)
    _, pullback = attend(encoding, OffsetScalarParams(one_before[None]), zeros, zeros, V)
    assert pullback.A[0, 3, 2] == pytest.approx(1)


def test_E9_not_a_scalar_for_each_offset_but_for_each_bucket():
    """1023 signed offsets among 512 tokens, and 31 numbers of a head for them. So there is one for any offset."""
    offset = np.arange(-511, 512)
    assert len(set(t5_buckets(offset, causal=False))) == 31
    assert t5_buckets(np.array([-91]), causal=False) == t5_buckets(np.array([-500]), causal=False)

    rng = np.random.default_rng(1)
    T5 = T5Bias(heads=2)
    X = rng.standard_normal((2, 300, 4))
    attend(T5, T5.init(rng, np.float64), X, X, X)
    printed = OffsetScalars(heads=2, longest=200)
    with pytest.raises(ValueError, match="the table ends at 199"):
        attend(printed, printed.init(rng, np.float64), X, X, X)


def test_E9_no_scale_and_what_that_asks_of_the_weights():
    """Without 1/√d, scores of usual weights have a deviation of √d, and softmax is close to an argmax at the first step.

    With W_q drawn smaller by √d, as T5 draws it, they have a deviation of 1, as those of other models with their scale.
    """
    rng = np.random.default_rng(2)
    n, D, d = 64, 512, 64
    X = rng.standard_normal((n, D))
    W_q, W_k = rng.standard_normal((2, D, d)) / math.sqrt(D)
    Q, K = X @ W_q, X @ W_k
    scaled, _ = scores(Q, K)
    printed, _ = scores(Q, K, scale=T5Bias.scale)
    meant, _ = scores(Q / math.sqrt(d), K, scale=T5Bias.scale)

    assert printed.std() == pytest.approx(math.sqrt(d), rel=0.1)
    assert softmax(printed)[0].max(-1).mean() > 0.7
    np.testing.assert_allclose(meant, scaled, rtol=0, atol=1e-13)
    assert softmax(meant)[0].max(-1).mean() < 0.2


def test_E10_a_scalar_for_each_distance():
    """Equation (12) multiplies by π_|i−j|; the line below it reads "where π_{i−j} is a different scalar for each absolute
    offset |i − j|". The equation is right: n scalars, not the 2n − 1 that π_{i−j} has. Both exist (M1 and M2).
    """
    rng = np.random.default_rng(10)
    n, d = 4, 3
    Q, K = rng.standard_normal((2, n, d))
    pi = rng.standard_normal(2 * n - 1)

    def with_factors(factor):
        return np.array([[Q[i] @ K[j] * factor(i - j) for j in range(n)] for i in range(n)]) / math.sqrt(d)

    absolute = with_factors(lambda offset: pi[abs(offset)])
    signed = with_factors(lambda offset: pi[offset + n - 1])

    M1, _ = Multiplicative(d, n - 1, "M1").scores(MultiplicativeParams(pi[:n].copy()), Q, K)
    np.testing.assert_allclose(M1, absolute, rtol=0, atol=1e-12)
    assert np.abs(M1 - signed).max() > 0.1

    factors = M1 / (Q @ K.T)
    np.testing.assert_allclose(factors, factors.T, rtol=0, atol=1e-12)  # one number for both directions

    M2, _ = Multiplicative(d, n - 1, "M2").scores(MultiplicativeParams(pi[::-1].copy()), Q, K)
    np.testing.assert_allclose(M2, signed, rtol=0, atol=1e-12)


def test_E11_three_products_need_a_scale_for_three():
    """Borealis II, (13).

    printed  Three products of d terms each are added, and divided by nothing.
    wrong    The variance is 3d, and softmax of that nearly an argmax: at d = 64 the largest of 64 weights is above
             0.8 on average. The √d of one product would leave a variance of 3.
    holds    DeBERTa divides by √(3d): a variance of 1, and a largest weight below 0.2.
    """
    d, n = 64, 64
    encoding = DeBERTa(d, 1, n)
    S, *_ = unit_scores(encoding, n, np.random.default_rng(11))
    printed = S * math.sqrt(3 * d)

    assert math.isclose(encoding.scale, 1 / math.sqrt(3 * d))
    assert 2 * d < printed.var() < 4 * d
    assert 2 < (printed / math.sqrt(d)).var() < 4
    assert 0.7 < S.var() < 1.3

    assert softmax(printed)[0].max(-1).mean() > 0.8
    assert softmax(S)[0].max(-1).mean() < 0.2


def test_E11_offsets_are_clipped_or_the_table_ends():
    """(13) has a π for each signed offset i − j. For n tokens those are 2n − 1, and a longer text has offsets without a row.

    What is not said: δ(i,j) = clip(i − j + k, 0, 2k − 1). A table of 2k rows then serves a text of any length.
    """
    k, n = 4, 12
    P = np.arange(2 * k)

    def printed(offset):
        row = offset + k
        if row < 0:
            raise IndexError  # where Python would count from the other end
        return P[row]

    encoding = DeBERTa(6, 1, k)
    for offset in range(-k, k):
        assert printed(offset) == encoding.rows(np.array(offset))
    for offset in (k, n - 1, -k - 1, 1 - n):
        with pytest.raises(IndexError):
            printed(offset)
        assert encoding.rows(np.array(offset)) == (2 * k - 1 if offset > 0 else 0)
    S, *_ = unit_scores(encoding, n, np.random.default_rng(12))
    assert S.shape == (n, n)


def test_E11_the_published_code_has_another_index():
    """In (13), as in the paper, the last term has π_{j−i}. The published code gathers with that sign from the side of the
    key, and then transposes: what arrives at (i, j) is π_{i−j}, the same row as in the term before.

    Both are good models, trained from the start. But they are not the same: published weights need index="code".
    """
    n, k, D = 5, 5, 6
    rng = np.random.default_rng(13)
    paper, code = DeBERTa(D, 1, k, index="paper"), DeBERTa(D, 1, k, index="code")
    S, params, Q, K = unit_scores(paper, n, rng)

    keys, queries = params.P @ params.W_kr, params.P @ params.W_qr
    of_key = np.zeros(
        (n, n)
    )  # one row for each key, as the code gathers it: key j has the place of a query, −(j − i) + k
    for j in range(n):
        for i in range(n):
            of_key[j, i] = K[j] @ queries[-(j - i) + k]
    gathered, printed = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            shared = Q[i] @ K[j] + Q[i] @ keys[i - j + k]
            gathered[i, j] = (shared + of_key.T[i, j]) * paper.scale
            printed[i, j] = (shared + K[j] @ queries[j - i + k]) * paper.scale

    assert np.abs(gathered - printed).max() > 0.5  # what is printed is not what the published weights were trained with
    np.testing.assert_allclose(S, printed, rtol=0, atol=1e-12)
    np.testing.assert_allclose(code.scores(params, Q[None], K[None])[0][0], gathered, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.diag(gathered), np.diag(printed), rtol=0, atol=1e-12)  # except at distance 0
