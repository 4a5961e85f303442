"""The simplified GRU: as steps, and as a weighted sum."""

import math

import numpy as np
import pytest

from minitransformer import check_pullback, random_like, tree_items
from minitransformer.attention import dot_product_attention
from minitransformer.related import GRU, UnrolledGRU, gru_coefficients

rng = np.random.default_rng(0)
D, d, n = 3, 4, 5
BOTH = (GRU(D, d), UnrolledGRU(D, d))
gru, unrolled = BOTH
params = random_like(gru.init(rng, np.float64), rng)
X = rng.standard_normal((2, n, D))
h_0 = rng.standard_normal((2, d))


def with_constant_gate(u, p=params):
    """The gate no longer depends on anything: u in every coordinate."""
    b_u = np.full(d, math.log(u / (1 - u)))
    return p._replace(W_u=np.zeros_like(p.W_u), U_u=np.zeros_like(p.U_u), b_u=b_u)


@pytest.mark.parametrize("layer", BOTH)
def test_gradient(layer):
    check_pullback(layer, params, X, h_0)


@pytest.mark.parametrize("layer", BOTH)
def test_gradient_from_a_state_of_zeros(layer):
    check_pullback(layer, params, X)


def test_gradient_of_the_coefficients():
    check_pullback(gru_coefficients, rng.random((2, n, d)))


def test_unrolled_has_the_same_values_and_gradients():
    X, h_0 = rng.standard_normal((3, 20, D)), rng.standard_normal((3, d))
    (H, pullback), (H_sum, pullback_sum) = gru(params, X, h_0), unrolled(params, X, h_0)
    np.testing.assert_allclose(H_sum, H, rtol=0, atol=1e-12)
    dH = rng.standard_normal(H.shape)
    for (path, g), (_, g_sum) in zip(tree_items(pullback(dH)), tree_items(pullback_sum(dH)), strict=True):
        np.testing.assert_allclose(g_sum, g, rtol=1e-12, atol=1e-12 * np.abs(g).max(), err_msg=path)


def test_coefficients_sum_to_one_and_make_the_states():
    H, pullback = gru(params, X, h_0)
    C, _ = gru_coefficients(pullback.u)
    assert C.shape == (2, n + 1, n + 1, d)
    assert C.min() >= 0
    np.testing.assert_allclose(C.sum(-2), 1, rtol=0, atol=1e-14)
    terms = np.concatenate([h_0[:, None], pullback.c], axis=1)
    np.testing.assert_allclose(np.einsum("btid,bid->btd", C, terms)[:, 1:], H, rtol=0, atol=1e-13)


def test_coefficients_are_products_of_gates():
    u = rng.random((n, d))
    C, _ = gru_coefficients(u)
    for t in range(n + 1):
        for i in range(n + 1):
            expected = np.zeros(d) if i > t else np.prod(u[i:t], axis=0) * (1 - u[i - 1] if i else 1)  # u[i] is u_{i+1}
            np.testing.assert_allclose(C[t, i], expected, rtol=1e-13)


def test_what_is_forgotten_stays_forgotten():
    """Down a column the weight of a candidate can only fall."""
    C, _ = gru_coefficients(rng.random((2, 9, d)))
    for i in range(10):
        assert np.diff(C[:, i:, i], axis=1).max(initial=0) <= 0


def test_constant_gate_is_an_exponential_kernel():
    u = 0.8
    _, pullback = gru(with_constant_gate(u), X)
    C, _ = gru_coefficients(pullback.u)
    for t in range(1, n + 1):
        np.testing.assert_allclose(C[:, t, 0], u**t, rtol=1e-13)
        for i in range(1, t + 1):
            np.testing.assert_allclose(C[:, t, i], u ** (t - i) * (1 - u), rtol=1e-13)


def biased_attention(u, candidates, h_0=None):
    """Softmax attention with scores (t − i) log u and nothing else: a bias by distance, made of two channels.

    h_0, if given, is one more key in front, with the score t log u − log(1 − u).
    """
    n = candidates.shape[-2]
    t = np.arange(1.0, n + 1)
    Q = np.stack([t, np.ones(n)], axis=-1)
    K = np.stack([np.full(n, math.log(u)), -t * math.log(u)], axis=-1)
    if h_0 is not None:
        K = np.concatenate([[[math.log(u), -math.log(1 - u)]], K])
        candidates = np.concatenate([h_0[..., None, :], candidates], axis=-2)
    Q, K = (np.broadcast_to(M, (*candidates.shape[:-2], *M.shape)).copy() for M in (Q, K))
    return dot_product_attention(Q, K, candidates, causal=True, scale=1.0)


def test_constant_gate_is_attention_with_a_distance_bias():
    """Exactly, when h_0 is a key that stands for all candidates before the first: Σ_{i≤0} u^{t−i} = u^t/(1 − u)."""
    u = 0.8
    H, pullback = gru(with_constant_gate(u), X, h_0)
    Y, attention = biased_attention(u, pullback.c, h_0)
    np.testing.assert_allclose(Y, H, rtol=0, atol=1e-13)
    C, _ = gru_coefficients(pullback.u)
    np.testing.assert_allclose(attention.A, C[:, 1:, :, 0], rtol=0, atol=1e-13)


def test_constant_gate_without_the_infinite_past():
    """From h_0 = 0 and without its key, attention shares the weight u^t among the candidates: H = (1 − u^t) Y.

    The two meet where the past is long: after 200 steps with u = 0.8 they are equal to rounding.
    """
    u, n = 0.8, 200
    H, pullback = gru(with_constant_gate(u), rng.standard_normal((2, n, D)))
    Y, _ = biased_attention(u, pullback.c)
    t = np.arange(1, n + 1)[:, None]
    np.testing.assert_allclose(H, (1 - u**t) * Y, rtol=0, atol=1e-13)
    assert np.abs(H[:, 0] - Y[:, 0]).max() > 0.1
    np.testing.assert_allclose(H[:, -1], Y[:, -1], rtol=0, atol=1e-13)


def test_gates_at_their_ends():
    """u → 1 copies the state, u → 0 takes the candidate."""
    H, pullback = gru(with_constant_gate(1 - 1e-16), X, h_0)
    np.testing.assert_allclose(H, np.repeat(h_0[:, None], n, axis=1), rtol=0, atol=1e-14)
    H, pullback = gru(with_constant_gate(1e-300), X, h_0)
    assert np.array_equal(H, pullback.c)


def test_state_carries_everything():
    H, _ = gru(params, X, h_0)
    first, _ = gru(params, X[:, :2], h_0)
    second, _ = gru(params, X[:, 2:], first[:, -1])
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), H, rtol=0, atol=1e-13)


@pytest.mark.parametrize("layer", BOTH)
@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(layer, length):
    H, pullback = layer(params, X[:, :length], h_0)
    _, dX, dh_0 = pullback(np.ones_like(H))
    assert H.shape == (2, length, d)
    assert dX.shape == (2, length, D)
    assert np.any(dh_0) == (length > 0)
    assert gru_coefficients(pullback.u)[0].shape == (2, length + 1, length + 1, d)


def test_a_very_long_memory_does_not_overflow():
    """Large sums inside the gate: no warning, no NaN."""
    H, pullback = gru(params._replace(b_u=np.full(d, 1e4)), X, h_0)
    assert np.array_equal(H[:, -1], h_0)
    assert all(np.isfinite(g).all() for _, g in tree_items(pullback(np.ones_like(H))))


def test_bad_input():
    with pytest.raises(TypeError, match="'X'"):
        gru(params, rng.standard_normal((2, n, D + 1)))
    with pytest.raises(TypeError, match="'X'"):
        unrolled(params, np.ones((2, n, D), int))
    with pytest.raises(TypeError, match="'h_0'"):
        gru(params, X, rng.standard_normal((2, d + 1)))
    for layer in (gru, unrolled):
        with pytest.raises(TypeError, match="X, h_0: should have one dtype, got float64, float32"):
            layer(params, X, np.zeros((2, d), np.float32))
    with pytest.raises(TypeError, match="'u'"):
        gru_coefficients(np.ones((n, d), int))


def test_both_forms_show_the_same_gates():
    _, steps = gru(params, X, h_0)
    _, sums = unrolled(params, X, h_0)
    np.testing.assert_allclose(sums.u, steps.u, rtol=1e-12)
    assert ((steps.u > 0) & (steps.u < 1)).all()
    assert sums.u.shape == (2, n, d)
