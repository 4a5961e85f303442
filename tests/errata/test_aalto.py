"""Where the Aalto thesis slips: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.attention import attend, dot_product_attention, scores
from minitransformer.functional import softmax
from minitransformer.positions import sinusoids
from minitransformer.positions.shaw import Shaw, ShawParams


def test_E45_the_root_of_the_dimension():
    """Aalto, 2.1.3.

    printed  "scaled by dividing by the dimension of the key vector". Equation (3), right below, has its root.
    wrong    Divided by d_k = 256, scores have a standard deviation of 1/16, and outputs are within 10 % of the plain
             average of all words.
    holds    √256 = 16: a deviation of 1.
    """
    rng = np.random.default_rng(1)
    d_k, keys = 256, 64
    Q, K = rng.standard_normal((200, 1, d_k)), rng.standard_normal((200, keys, d_k))
    V = rng.standard_normal((200, keys, 8))

    as_said, _ = scores(Q, K, scale=1 / d_k)
    as_printed, _ = scores(Q, K, scale=1 / math.sqrt(d_k))

    assert as_said.std() == pytest.approx(1 / 16, rel=0.05)
    assert as_printed.std() == pytest.approx(1, rel=0.05)

    average = V.mean(1, keepdims=True)
    far_said = np.linalg.norm(softmax(as_said)[0] @ V - average) / np.linalg.norm(average)
    Y, _ = dot_product_attention(Q, K, V)
    far_printed = np.linalg.norm(Y - average) / np.linalg.norm(average)
    assert far_said < 0.1
    assert far_printed > 0.8


def test_E46_zero_is_a_score_like_any_other():
    """Aalto, (4) and (5).

    printed  A pattern of allowed pairs puts 0 into the score matrix everywhere else.
    wrong    e^0 = 1: a hidden key gets weight 1/Σ, more than a visible one with a negative score. In our row 31 % of
             the weight is on hidden keys; of 1000 keys of which two are seen, these two get less than 1 %.
    holds    −∞, as 2.1.7 has it for the future.
    """
    S = np.log(2) * np.array([[2.0, -1.0, 3.0, 3.0]])  # powers of two: exp gives 4, 1/2, 8, 8
    visible = np.array([[True, True, False, False]])

    printed, _ = softmax(np.where(visible, S, 0.0))
    meant, _ = softmax(S, mask=visible)

    np.testing.assert_allclose(printed, np.array([[4, 0.5, 1, 1]]) / 6.5, rtol=0, atol=1e-15)
    assert printed[0, 2] > printed[0, 1]  # what is hidden counts for more than what is seen
    assert printed[0, 2:].sum() == pytest.approx(2 / 6.5)  # 31 % of the weight is on hidden keys

    np.testing.assert_allclose(meant, np.array([[4, 0.5, 0, 0]]) / 4.5, rtol=0, atol=1e-15)

    # it gets worse with length: of n keys two are seen, and the n − 2 zeros win
    n = 1000
    long = np.zeros((1, n))
    long[0, :2] = S[0, :2]
    assert softmax(long)[0][0, :2].sum() < 0.01


def test_E56_relative_positions_change_the_attention():
    """Section 3.3, "Non-Attention Improvements", opens with relative position representations. Those of its own
    equation (16) add something to the keys, so they change the attention logits and nothing else.

    e_ij = q_i · (k_j + a_{j−i}) / √d: with a ≠ 0 the attention matrix is another one, and before softmax the difference
    depends on i only through q_i, and on the offset j − i.
    """
    rng = np.random.default_rng(2)
    n, d = 5, 4
    Q, K = rng.standard_normal((2, n, d))
    a = rng.standard_normal((2 * n - 1, d))  # one vector for each offset j − i = −(n − 1) … n − 1

    e = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            e[i, j] = sum(Q[i, c] * (K[j, c] + a[j - i + n - 1, c]) for c in range(d)) / math.sqrt(d)

    S, _ = scores(Q, K)
    A_with, A_without = softmax(e)[0], softmax(S)[0]
    assert np.abs(A_with - A_without).max() > 0.1  # "non-attention", as the title says, it is not

    bias = e - S
    Q_same = np.tile(Q[0], (n, 1))  # if all words ask the same, the bias is one number for each offset
    bias_same = np.array([[Q_same[i] @ a[j - i + n - 1] for j in range(n)] for i in range(n)]) / math.sqrt(d)
    for offset in range(1 - n, n):
        assert np.ptp(np.diagonal(bias_same, offset)) < 1e-14
    np.testing.assert_allclose(bias[0], bias_same[0], rtol=0, atol=1e-14)


def test_E56_the_attention_matrix_is_another_one():
    """Section 3.3 is called "Non-Attention Improvements", "mechanisms [that] do not try to attempt the problem with the
    self-attention", and opens with relative position representations, (16) and (17).

    An improvement outside of attention would leave the attention matrix as it was. (17) by itself does; (16) does not.
    """
    rng = np.random.default_rng(56)
    n, d, k = 7, 4, 3
    Q, K, V = rng.standard_normal((3, n, d))
    a_k, a_v = rng.standard_normal((2, 2 * k + 1, d))
    _, plain = dot_product_attention(Q, K, V)

    encoding = Shaw(d, k)
    _, values_only = attend(encoding, ShawParams(np.zeros_like(a_k), a_v), Q, K, V)
    _, both = attend(encoding, ShawParams(a_k, a_v), Q, K, V)

    np.testing.assert_allclose(values_only.A, plain.A, rtol=0, atol=1e-14)
    assert np.abs(both.A - plain.A).max() > 0.1
    assert "scores" in encoding.acts_on


def test_E60_i_is_a_channel_and_not_a_position():
    """2.1.2: "sin function is used for when i is even and cos is used when i is odd". In (1) and (2) below it, i counts
    pairs of *channels*, and the columns 2i and 2i + 1 are the even and the odd one. The position is called pos.

    A reader who takes i for the position, as in most of the chapter, builds a table whose even rows are all sines.
    """
    n, D = 8, 6
    by_channel, by_position = np.zeros((n, D)), np.zeros((n, D))
    for pos in range(n):
        for column in range(D):
            angle = pos / 10000 ** (2 * (column // 2) / D)
            by_channel[pos, column] = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            by_position[pos, column] = math.sin(angle) if pos % 2 == 0 else math.cos(angle)

    np.testing.assert_allclose(sinusoids(n, D), by_channel, rtol=0, atol=1e-14)

    # why it matters: dot products of the right table depend on the distance alone; of the other they do not
    right, wrong = by_channel @ by_channel.T, by_position @ by_position.T
    for offset in range(n):
        assert np.ptp(np.diagonal(right, offset)) < 1e-13
    assert np.ptp(np.diagonal(wrong, 1)) > 0.5
    # and half of its columns say nothing that the other half has not said
    assert np.linalg.matrix_rank(by_position) == D // 2
    assert np.linalg.matrix_rank(by_channel) == D
