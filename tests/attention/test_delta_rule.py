"""The delta rule: the definition against loops, its chunk form, its limiting cases, and the checker."""

from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import DeltaRule, delta_rule, kernel_attention, padding_mask
from minitransformer.attention.delta_rule import unit
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, N, R, DV = 2, 6, 3, 5


def random_inputs(seed=0, batch=(B,), n=N, r=R, dv=DV):
    """Q, K of norm one, V, and β between 0 and 1."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((*batch, n, d)) for d in (r, r, dv))
    return Q, K / np.linalg.norm(K, axis=-1, keepdims=True), V, rng.random((*batch, n))


def loops(Q, K, V, beta):
    """W_t = W_{t−1} + β_t (v_t − W_{t−1} k_t) k_tᵀ, y_t = W_t q_t, entry by entry; W = Sᵀ as the papers print it."""
    (n, r), dv = Q.shape, V.shape[1]
    W, Y = np.zeros((dv, r)), np.zeros((n, dv))
    for t in range(n):
        held = [sum(W[i, j] * K[t, j] for j in range(r)) for i in range(dv)]
        for i in range(dv):
            for j in range(r):
                W[i, j] += beta[t] * (V[t, i] - held[i]) * K[t, j]
        for i in range(dv):
            Y[t, i] = sum(W[i, j] * Q[t, j] for j in range(r))
    return Y


def test_against_loops():
    arrays = random_inputs()
    Y, _ = delta_rule(*arrays)
    for b in range(B):
        assert np.allclose(Y[b], loops(*(a[b] for a in arrays)), rtol=1e-12)


# ------------------------------------------------------------------------------------------- the same, otherwise


def test_the_chunk_form_is_the_same():
    """With T = (I + strict lower part of diag(β) K Kᵀ)⁻¹ the steps of a chunk become a few products of matrices."""
    Q, K, V, beta = random_inputs(4, n=12)
    Y, _ = delta_rule(Q, K, V, beta)
    S = np.zeros((B, R, DV))
    for chunk in (slice(0, 5), slice(5, 9), slice(9, 12)):
        q, k, v, b = Q[:, chunk], K[:, chunk], V[:, chunk], beta[:, chunk, None]
        T = np.linalg.inv(np.eye(k.shape[1]) + np.tril(b * k @ k.mT, -1))
        U = T @ (b * v) - T @ (b * k) @ S
        assert np.allclose(Y[:, chunk], q @ S + np.tril(q @ k.mT) @ U, rtol=1e-10)
        S = S + k.mT @ U


# ----------------------------------------------------------------------------------------------- what it means


def test_a_closed_gate_writes_nothing():
    Q, K, V, beta = random_inputs(6)
    assert not delta_rule(Q, K, V, 0 * beta)[0].any()
    beta[:, 3] = 0
    Y, _ = delta_rule(Q, K, V, beta)
    V[:, 3] += 100
    assert np.array_equal(delta_rule(Q, K, V, beta)[0], Y)
    _, pullback = delta_rule(Q, K, V, beta)
    _, dK, dV, dbeta = pullback(np.ones_like(Y))
    assert not dV[:, 3].any()
    assert not dK[:, 3].any()
    assert dbeta[:, 3].all(), "but the gate learns what opening it would have done"


def test_as_many_orthonormal_keys_as_there_are_dimensions_are_read_exactly():
    rng = np.random.default_rng(7)
    K = np.linalg.qr(rng.standard_normal((2, 8, 8)))[0].mT
    V, beta = rng.standard_normal((2, 8, 5)), np.ones((2, 16))
    beta[:, 8:] = 0  # first write all of them, then only read
    twice = [np.concatenate([X, X], 1) for X in (K, K, V)]
    Y, _ = delta_rule(*twice, beta)
    assert np.allclose(Y[:, 8:], V, rtol=1e-12, atol=1e-13)


def test_a_second_value_under_the_same_key_replaces_the_first_where_a_sum_adds_them():
    k = np.array([0.6, 0.8, 0.0])
    K, V = np.stack([k, k]), np.array([[1.0, 2.0], [5.0, -1.0]])
    assert np.allclose(delta_rule(K, K, V, np.ones(2))[0], V)
    assert np.allclose(kernel_attention(K, K, V, causal=True, normalise=False)[0], V.cumsum(0))


def test_with_orthogonal_keys_it_is_kernel_attention_without_a_denominator():
    """Then nothing is held yet under any key, and e_t = v_t."""
    rng = np.random.default_rng(8)
    K = np.linalg.qr(rng.standard_normal((B, 7, 7)))[0] * rng.random((B, 7, 1))
    Q, V, beta = rng.standard_normal((B, 7, 7)), rng.standard_normal((B, 7, DV)), rng.random((B, 7))
    want, _ = kernel_attention(Q, K, beta[..., None] * V, causal=True, normalise=False)
    assert np.allclose(delta_rule(Q, K, V, beta)[0], want, rtol=1e-10, atol=1e-13)


def test_what_is_remembered_is_linear_in_the_length():
    def remembered(n):
        return mt.pullback.tree_bytes(delta_rule(*random_inputs(10, (1,), n, 16, 16))[1])

    assert remembered(1024) < 2.1 * remembered(512)
    assert remembered(1024) < 1024 * 16 * 16 * 8 / 2  # far from a state for each position


# ---------------------------------------------------------------------------------------------------- the core


def heads(seed=13):
    """Queries, keys and values of two samples and three heads, and a number for each token to make β of."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, 3, N, width)) for width in (R, R, DV, 1)]


PADDING = padding_mask(np.array([N, 4]), N)[:, None]


def test_the_core_is_the_function_of_unit_keys_and_an_open_gate():
    Q, K, V, b = heads()
    q, k = (X / np.sqrt((X**2).sum(-1, keepdims=True) + R * 1e-6) for X in (Q, K))
    same, _ = delta_rule(q, k, V, 1 / (1 + np.exp(-b[..., 0])))
    np.testing.assert_allclose(DeltaRule()(NoParams(), Q, K, V, b)[0], same, rtol=1e-10)


def test_unit_length():
    """A row of zeros stays, and has a gradient that is finite."""
    X = heads()[0]
    np.testing.assert_allclose((unit(X)[0] ** 2).sum(-1), 1, rtol=1e-4)
    Y, pullback = unit(0 * X)
    assert not Y.any()
    assert np.isfinite(pullback(np.ones_like(X))).all()
    check_pullback(unit, X)


@pytest.mark.parametrize("mask", [None, PADDING], ids=["", "padding"])
def test_gradient_of_the_core(mask):
    check_pullback(partial(DeltaRule(), mask=mask), NoParams(), *heads(), entries=20)


def test_what_is_hidden_has_written_nothing():
    """Whatever stands there, NaN included: the rows after it are as if it had not been."""
    core, arrays = DeltaRule(), heads()
    middle = np.array([True, True, False, True, True, False])
    Y, pullback = core(NoParams(), *arrays, mask=middle[None])
    without, _ = core(NoParams(), *(X[..., middle, :] for X in arrays))
    np.testing.assert_allclose(Y[..., middle, :], without, rtol=1e-11)
    for d in pullback(Y)[2:]:
        assert not d[..., ~middle, :].any()
    for X in arrays[1:]:
        X[..., ~middle, :] = np.nan
    np.testing.assert_array_equal(core(NoParams(), *arrays, mask=middle[None])[0], Y)


def test_what_the_core_refuses():
    Q, K, V, b = heads()
    core = partial(DeltaRule(), NoParams())
    with pytest.raises(ValueError, match="attention: DeltaRule is always causal: it reads from left to right"):
        core(Q, K, V, b, causal=False)
    with pytest.raises(ValueError, match="K: 6 keys for 5 queries should be as many: this rule writes as it reads"):
        core(Q[..., :5, :], K, V, b[..., :5, :])
    with pytest.raises(ValueError, match="the delta rule has no score for a pair"):
        core(Q, K, V, b, mask=np.ones((N, N), bool))
