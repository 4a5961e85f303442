"""The delta rule with gates: the definition against loops, its chunk form, its limiting cases, and the checker."""

import math

import numpy as np
import pytest

from minitransformer.attention import delta_rule, gated_delta_rule, gated_delta_step, gated_linear_attention
from tests.tiers import assert_every_tier_gives

pytestmark = pytest.mark.usefixtures("definitions")

B, N, R, DV = 2, 7, 3, 5


def random_inputs(seed=0, batch=(B,), n=N, r=R, dv=DV, channels=False):
    """Q, K of norm one, V, β between 0 and 1, and ln α for α between 0.2 and 1."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((*batch, n, d)) for d in (r, r, dv))
    log_decay = np.log(rng.uniform(0.2, 1, (*batch, n, r) if channels else (*batch, n)))
    return Q, K / np.linalg.norm(K, axis=-1, keepdims=True), V, rng.random((*batch, n)), log_decay


gates = pytest.mark.parametrize("channels", [False, True], ids=["one gate", "a gate for each channel"])


def loops(Q, K, V, beta, log_decay):
    """S̄ = Diag(α_t) S_{t−1}, S_t = S̄ + β_t k_t (v_t − k_tᵀ S̄)ᵀ, y_t = q_tᵀ S_t, entry by entry."""
    (n, r), dv = Q.shape, V.shape[1]
    S, Y = np.zeros((r, dv)), np.zeros((n, dv))
    for t in range(n):
        for c in range(r):
            for i in range(dv):
                S[c, i] *= math.exp(log_decay[t] if log_decay.ndim == 1 else log_decay[t, c])
        held = [sum(K[t, c] * S[c, i] for c in range(r)) for i in range(dv)]
        for c in range(r):
            for i in range(dv):
                S[c, i] += beta[t] * K[t, c] * (V[t, i] - held[i])
        for i in range(dv):
            Y[t, i] = sum(Q[t, c] * S[c, i] for c in range(r))
    return Y


@gates
def test_against_loops(channels):
    arrays = random_inputs(channels=channels)
    Y, _ = gated_delta_rule(*arrays)
    for b in range(B):
        assert np.allclose(Y[b], loops(*(a[b] for a in arrays)), rtol=1e-12)


@gates
def test_a_memory_that_grows(channels):
    """ln α above 0 is refused nowhere, and the tiers agree there, too."""
    *others, log_decay = random_inputs(16, (), n=40, channels=channels)
    arrays = *others, -log_decay / 4
    assert_every_tier_gives(loops(*arrays), gated_delta_rule, *arrays)


@gates
@pytest.mark.parametrize("size", [1, 3, 4, N, 64])
def test_the_chunk_form_is_the_same(channels, size):
    """With B_ij = Σ_c k_ic R_ijc k_jc and T = (I + strict lower part of diag(β) B)⁻¹ diag(β), R what is left from j to i.

    U = T V − T (γ ⊙ K) S is what is written, Y = (γ ⊙ Q) S + [Σ_c q_ic R_ijc k_jc]_{j ≤ i} U. No exponent is positive.
    """
    Q, K, V, beta, log_decay = random_inputs(1, (), channels=channels)
    Y, _ = gated_delta_rule(Q, K, V, beta, log_decay)
    log_decay = log_decay if channels else log_decay[:, None] * np.ones(R)
    S = np.zeros((R, DV))
    for a in range(0, N, size):
        q, k, v, b = (X[a : a + size] for X in (Q, K, V, beta))
        c = log_decay[a : a + size].cumsum(0)
        past = np.tril(np.ones((len(k), len(k)), bool))[..., None]
        R_ = np.exp(np.where(past, c[:, None] - c, -np.inf))
        overlap, weights = (np.einsum("ic,ijc,jc->ij", x, R_, k) for x in (k, q))
        T = np.linalg.inv(np.eye(len(k)) + b[:, None] * np.tril(overlap, -1)) * b
        U = T @ v - T @ (np.exp(c) * k) @ S
        assert np.allclose(Y[a : a + size], (np.exp(c) * q) @ S + weights @ U, rtol=1e-9, atol=1e-12)
        S = np.exp(c[-1])[:, None] * S + (np.exp(c[-1] - c) * k).T @ U


# ------------------------------------------------------------------------------------------------ limiting cases


@gates
def test_without_forgetting_it_is_the_delta_rule_with_its_gradients(channels):
    *arrays, log_decay = random_inputs(6, channels=channels)
    Y, pullback = gated_delta_rule(*arrays, 0 * log_decay)
    same, other = delta_rule(*arrays)
    assert np.allclose(Y, same, rtol=1e-11)
    for a, b in zip(pullback(Y)[:4], other(Y), strict=True):
        assert np.allclose(a, b, rtol=1e-10, atol=1e-13)


def test_equal_gates_of_all_channels_are_one_gate_and_get_its_gradient_in_parts():
    *arrays, log_decay = random_inputs(7)
    Y, pullback = gated_delta_rule(*arrays, log_decay)
    Z, other = gated_delta_rule(*arrays, log_decay[..., None] * np.ones(R))
    assert np.allclose(Y, Z, rtol=1e-12)
    assert np.allclose(pullback(Y)[4], other(Y)[4].sum(-1), rtol=1e-10, atol=1e-12)


@gates
def test_closed_gates_keep_the_last_pair_only(channels):
    """α = 0: y_t = β_t ⟨q_t, k_t⟩ v_t."""
    Q, K, V, beta, log_decay = random_inputs(8, channels=channels)
    Y, _ = gated_delta_rule(Q, K, V, beta, np.full_like(log_decay, -np.inf))
    assert np.allclose(Y, (beta * np.vecdot(Q, K))[..., None] * V, rtol=1e-12)


@gates
def test_beta_zero_writes_nothing(channels):
    """It is not linear attention: nothing comes in, and what is there fades, S = Π α S_0."""
    Q, K, V, beta, log_decay = random_inputs(9, channels=channels)
    S = np.random.default_rng(10).standard_normal((B, R, DV))
    _, after = gated_delta_step(Q, K, V, 0 * beta, log_decay, S)
    faded = np.exp(log_decay.sum(1)) if channels else np.exp(log_decay.sum(1))[:, None]
    assert np.allclose(after, faded[..., None] * S, rtol=1e-12)
    assert not gated_delta_rule(Q, K, V, 0 * beta, log_decay)[0].any()


def test_beta_zero_still_learns():
    Q, K, V, beta, log_decay = random_inputs(11)
    beta[:, 3] = 0
    Y, pullback = gated_delta_rule(Q, K, V, beta, log_decay)
    _, dK, dV, dbeta, _ = pullback(np.ones_like(Y))
    assert not dV[:, 3].any()
    assert not dK[:, 3].any()
    assert dbeta[:, 3].all()


@gates
def test_with_orthonormal_keys_there_is_nothing_to_correct(channels):
    """One gate for all channels, β = 1: gated linear attention. With a gate for each, keys that have faded overlap again."""
    rng = np.random.default_rng(12)
    K = np.linalg.qr(rng.standard_normal((B, 6, 6)))[0]
    Q, V = rng.standard_normal((B, 6, 6)), rng.standard_normal((B, 6, DV))
    log_decay = np.log(rng.uniform(0.5, 1, (B, 6, 6) if channels else (B, 6)))
    Y, _ = gated_delta_rule(Q, K, V, np.ones((B, 6)), log_decay)
    assert np.allclose(Y, gated_linear_attention(Q, K, V, log_decay)[0], rtol=1e-10, atol=1e-12) is not channels


@gates
def test_a_second_value_under_the_same_key_replaces_the_first(channels):
    """Whatever is left of the first: with β = 1 and a key of norm one, k reads v."""
    _, K, V, _, log_decay = random_inputs(13, channels=channels)
    K[:, 1] = K[:, 0]
    Y, _ = gated_delta_rule(K, K, V, np.ones((B, N)), log_decay)
    assert np.allclose(Y, V, rtol=1e-12)


@pytest.mark.parametrize(("beta", "other"), [(0.5, 0.5), (1, 0), (2, -1)])
def test_what_one_step_does_to_the_memory(beta, other):
    """Its matrix I − β k kᵀ has the eigenvalue 1 − β along k, and 1 across it."""
    K = random_inputs(14)[1]
    k = K[0, :1]
    zero = np.zeros((1, R))
    steps = [gated_delta_step(zero, k, zero, np.full(1, float(beta)), np.zeros(1), np.eye(R))[1]]
    assert np.allclose(np.sort(np.linalg.eigvalsh(steps[0])), np.sort([other, 1, 1]), atol=1e-12)


def test_to_fade_first_or_to_correct_first_is_not_the_same():
    """It is for one gate: then Diag(α) is a number. With a gate for each channel the order has to be known."""
    for channels, same in ((False, True), (True, False)):
        _, K, V, beta, log_decay = random_inputs(15, (), channels=channels)
        alpha = np.exp(log_decay if channels else log_decay[:, None] * np.ones(R))
        fade_first, correct_first = np.zeros((R, DV)), np.zeros((R, DV))
        for t in range(N):
            held = np.eye(R) - beta[t] * np.outer(K[t], K[t])
            fade_first = held @ (alpha[t][:, None] * fade_first) + beta[t] * np.outer(K[t], V[t])
            correct_first = alpha[t][:, None] * (held @ correct_first) + beta[t] * np.outer(K[t], V[t])
        Y, _ = gated_delta_rule(K, K, V, beta, log_decay)
        assert np.allclose(K[-1] @ fade_first, Y[-1], rtol=1e-11)
        assert np.allclose(K[-1] @ correct_first, Y[-1], rtol=1e-6) is same


@gates
def test_what_is_read_less_what_is_written(channels):
    """A key reads and writes, so the gates get k ⊙ (β G e + S̄ dv), where dk = β G e − S̄ dv. For one gate that is ⟨v, dv⟩."""
    Q, K, V, beta, log_decay = random_inputs(16, channels=channels)
    Y, pullback = gated_delta_rule(Q, K, V, beta, log_decay)
    dY = np.random.default_rng(17).standard_normal(Y.shape)
    dQ, _, dV, _, dlog_decay = pullback(dY)
    assert np.allclose(np.vecdot(Q, dQ), np.vecdot(Y, dY), rtol=1e-10)
    between = np.vecdot(Y, dY) - np.vecdot(V, dV)
    total = dlog_decay.sum(-1) if channels else dlog_decay
    assert np.allclose(np.flip(np.flip(between, 1).cumsum(1), 1), total, rtol=1e-9, atol=1e-12)
