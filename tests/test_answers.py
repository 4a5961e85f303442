"""The answers that chapters give to their exercises by hand: the package says the same."""

import numpy as np
import pytest

from minitransformer.attention import (
    dot_product_attention,
    merge,
    partial_attention,
    softmax_with_sink,
)
from minitransformer.functional import layer_norm, layer_norm_outside, softmax
from minitransformer.related import (
    classical_recall,
    convolve_with_heads,
    edge_weights,
    edges_of,
    gru_coefficients,
    hebbian,
    propagate,
    route,
)




def test_14_a_star():
    star = edges_of(np.array([[0, 1], [0, 2], [0, 3], [0, 4]]), 5, both_ways=True, loops=True)
    x = np.array([[0.0], [10], [10], [10], [10]])
    np.testing.assert_allclose(propagate(x, star, scaling="rows")[0][:, 0], [8, 5, 5, 5, 5])
    np.testing.assert_allclose(propagate(x, star)[0][:, 0], [40 / np.sqrt(10), 5, 5, 5, 5])
    assert edge_weights(star, "symmetric")[:5].sum() == pytest.approx(1.46, abs=0.005)


def test_13_agreement_of_two_inputs():
    V, pullback = route(np.array([[[2.0], [2.0]], [[2.0], [-2.0]]]), iterations=2)
    c = 1 / (1 + np.exp(-8 / 5))
    assert pullback.C[1][0, 0] == pytest.approx(c) == pytest.approx(0.832, abs=5e-4)
    assert V[0, 0] == pytest.approx((4 * c) ** 2 / (1 + (4 * c) ** 2)) == pytest.approx(0.917, abs=5e-4)


def test_13_a_random_synthesizer_that_copies_the_token_before():
    A, _ = softmax(20 * np.eye(16, k=-1))
    assert np.diagonal(A, -1).min() > 0.999


def test_16_a_minimum_comes_with_its_negative():
    x = np.array([1.0, 1, -1])
    found = classical_recall(hebbian(x[None]), -np.ones(3))
    assert found.states[-1].tolist() == (-x).tolist()
    assert found.energies[-1] == -1


def test_15_heads_without_a_frame():
    Y = convolve_with_heads(np.array([[3.0], [6], [12], [9]]), np.array([1.0, -2, 1]), (4,))
    np.testing.assert_allclose(Y[:, 0], [7.5, 3, -9, 1.5], atol=1e-12)
    np.testing.assert_allclose(np.convolve([3.0, 6, 12, 9], [1, -2, 1], "same"), [0, 3, -9, -6])


def test_17_two_parts_and_one_key_at_a_time():
    S, V = np.log(np.array([3.0, 1, 6, 1])), np.array([[1.0], [0], [1], [2]])
    Q, K = np.ones((1, 1, 1)), S[None, :, None]
    parts = [partial_attention(Q, K[:, j], V[None, j], scale=1.0)[0] for j in (slice(0, 2), slice(2, 4))]
    (Y, L), _ = merge(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    assert Y.item() == pytest.approx(1)
    assert L.item() == pytest.approx(np.log(6) + np.log(11 / 6))
    for scores in (S, S[::-1]):
        tops = np.maximum.accumulate(scores)
        assert (np.diff(tops) > 0).sum() == 1


def test_19_the_printed_sum_of_four_steps():
    u = np.full(5, 0.5)
    printed = [u[1 : 4 - i + 2].prod() * (1 - u[1:i]).prod() for i in range(1, 5)]
    assert printed == [1 / 16] * 4
    C, _ = gru_coefficients(u[1:, None])
    assert C[4, :, 0].tolist() == [1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2]


def test_19_which_norm_leaves_small_rows_alone():
    one, zero, x = np.ones(2), np.zeros(2), np.array([[-1.0, 1]])
    for norm, sigma in ((layer_norm, 0.0222), (layer_norm_outside, 0.00099)):
        below, above = (norm(factor * sigma * x, one, zero, eps=1e-5)[0].std() for factor in (0.98, 1.02))
        assert below < 0.99 < above


def test_18_a_sink_and_the_same_twice():
    one, K, V, b = np.ones((1, 1)), np.log([[2.0], [6]]), np.array([[3.0], [1]]), np.array(np.log(4.0))
    A, _ = softmax_with_sink(K.T, b)
    np.testing.assert_allclose(A, [[1 / 6, 1 / 2]])
    Y, plain = (dot_product_attention(one, K, V, None, sink, scale=1.0)[0][0, 0] for sink in (b, None))
    assert Y == pytest.approx(1)
    assert plain == pytest.approx(3 / 2)
    assert Y / plain == pytest.approx(2 / 3)
    twice, _ = dot_product_attention(one, K, V, None, np.array(np.log(8.0)), scale=1.0)
    assert twice[0, 0] == pytest.approx(3 / 4)
