"""Linear attention with gates: the definition against loops, its three forms, its limiting cases, and the checker."""

import itertools
import math

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import decay_mask, gated_linear_attention, kernel_attention
from minitransformer.backend import available
from minitransformer.functional import softmax
from tests.tiers import assert_every_tier_gives

pytestmark = pytest.mark.usefixtures("definitions")

B, N, R, DV = 2, 7, 3, 5


def random_inputs(seed=0, batch=(B,), n=N, r=R, dv=DV, channels=False):
    """Q, K, V, and ln α for α between 0.2 and 1: one number for each position, or one for each channel too."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((*batch, n, d)) for d in (r, r, dv))
    return Q, K, V, np.log(rng.uniform(0.2, 1, (*batch, n, r) if channels else (*batch, n)))


gates = pytest.mark.parametrize("channels", [False, True], ids=["one gate", "a gate for each channel"])


def loops(Q, K, V, log_decay):
    """S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t, entry by entry."""
    (n, r), dv = Q.shape, V.shape[1]
    S, Y = np.zeros((r, dv)), np.zeros((n, dv))
    for t in range(n):
        for c in range(r):
            alpha = math.exp(log_decay[t] if log_decay.ndim == 1 else log_decay[t, c])
            for i in range(dv):
                S[c, i] = alpha * S[c, i] + K[t, c] * V[t, i]
        for i in range(dv):
            Y[t, i] = sum(Q[t, c] * S[c, i] for c in range(r))
    return Y


def quadratic(Q, K, V, log_decay):
    """(L ⊙ Q Kᵀ) V, with L_ij = α_{j+1} ⋯ α_i as a product that one can read; for each channel Σ_c q_ic L_ijc k_jc."""
    n = len(Q)
    alpha = np.exp(log_decay if log_decay.ndim == 2 else log_decay[:, None] * np.ones(Q.shape[1]))
    W = np.zeros((n, n))
    for i, j in itertools.product(range(n), range(n)):
        if j <= i:
            W[i, j] = (Q[i] * alpha[j + 1 : i + 1].prod(0) * K[j]).sum()
    return W @ V


def chunked(Q, K, V, log_decay, size):
    """The past through S, each other through L, chunk by chunk; every exponent is a difference that is at most 0."""
    log_decay = log_decay if log_decay.ndim == 2 else log_decay[:, None] * np.ones(K.shape[1])
    S, said = np.zeros((K.shape[1], V.shape[1])), []
    for a in range(0, len(K), size):
        q, k, v, c = Q[a : a + size], K[a : a + size], V[a : a + size], log_decay[a : a + size].cumsum(0)
        past = np.tril(np.ones((len(k), len(k))))[..., None] > 0
        R_ = np.exp(np.where(past, c[:, None] - c, -np.inf))
        assert R_.max() <= 1
        said.append((np.exp(c) * q) @ S + np.einsum("ic,ijc,jc->ij", q, R_, k) @ v)
        S = np.exp(c[-1])[:, None] * S + (np.exp(c[-1] - c) * k).T @ v
    return np.concatenate(said)


@gates
def test_against_loops(channels):
    arrays = random_inputs(channels=channels)
    Y, _ = gated_linear_attention(*arrays)
    for b in range(B):
        assert np.allclose(Y[b], loops(*(a[b] for a in arrays)), rtol=1e-12)


@gates
def test_a_memory_that_grows(channels):
    """ln α above 0 is refused nowhere, and the tiers agree there, too."""
    *others, log_decay = random_inputs(16, (), n=40, channels=channels)
    arrays = *others, -log_decay / 4
    assert_every_tier_gives(loops(*arrays), gated_linear_attention, *arrays)


@gates
@pytest.mark.parametrize("size", [1, 3, 4, N, 64])
def test_three_forms_are_one(channels, size):
    arrays = random_inputs(1, (), channels=channels)
    Y, pullback = gated_linear_attention(*arrays)
    assert np.allclose(quadratic(*arrays), Y, rtol=1e-11)
    assert np.allclose(chunked(*arrays, size), Y, rtol=1e-11)
    assert np.allclose(pullback.A @ arrays[2], Y, rtol=1e-11)


# ------------------------------------------------------------------------------------------------ limiting cases


def test_without_forgetting_it_is_kernel_attention_without_a_denominator():
    Q, K, V, log_decay = random_inputs(6)
    same, _ = kernel_attention(Q, K, V, causal=True, normalise=False)
    assert np.allclose(gated_linear_attention(Q, K, V, 0 * log_decay)[0], same, rtol=1e-12)


def test_a_column_of_ones_in_the_values_is_its_denominator():
    Q, K, V, log_decay = random_inputs(7)
    Q, K = np.exp(Q), np.exp(K)
    Y, _ = gated_linear_attention(Q, K, np.concatenate([V, np.ones((B, N, 1))], -1), 0 * log_decay)
    same, _ = kernel_attention(Q, K, V, causal=True)
    assert np.allclose(Y[..., :-1] / Y[..., -1:], same, rtol=1e-12)


def test_equal_gates_of_all_channels_are_one_gate_and_get_its_gradient_in_parts():
    Q, K, V, log_decay = random_inputs(8)
    Y, pullback = gated_linear_attention(Q, K, V, log_decay)
    Z, other = gated_linear_attention(Q, K, V, log_decay[..., None] * np.ones(R))
    assert np.allclose(Y, Z, rtol=1e-12)
    assert np.allclose(pullback(Y)[3], other(Y)[3].sum(-1), rtol=1e-10, atol=1e-12)


@gates
def test_a_closed_gate_forgets_all_before_it(channels):
    """Also with ln 0 = −∞: the rest is as if the text began there."""
    Q, K, V, log_decay = random_inputs(9, channels=channels)
    log_decay[:, 3] = -np.inf
    Y, pullback = gated_linear_attention(Q, K, V, log_decay)
    alone, _ = gated_linear_attention(*(X[:, 3:] for X in (Q, K, V, log_decay)))
    assert np.allclose(Y[:, 3:], alone, rtol=1e-12)
    for tier in available():
        with mt.backend(tier):
            assert all(np.isfinite(g).all() for g in pullback(Y))


@gates
def test_rounding_leaves_nothing_for_a_closed_gate(tier, channels):
    """dln α = α ⟨S, G⟩ is as good as nothing there, and is not what is left of a sum of large numbers: dA = Σ ln α dln α."""
    arrays = [X.astype(np.float32) for X in random_inputs(9, (), n=64, channels=channels)]
    log_decay = arrays[3]
    log_decay[[20, 40, 50]] = np.array([-np.inf, -1e4, -50], np.float32).reshape(-1, *[1] * (log_decay.ndim - 1))
    Y, pullback = gated_linear_attention(*arrays)
    dlog_decay = pullback(Y)[3]
    assert abs(dlog_decay).max() > 1
    assert abs(dlog_decay[[20, 40, 50]]).max() < 1e-15


def test_a_gate_of_the_first_position_has_no_effect():
    Q, K, V, log_decay = random_inputs(10)
    Y, pullback = gated_linear_attention(Q, K, V, log_decay)
    assert np.allclose(pullback(Y)[3][:, 0], 0, atol=1e-13)
    log_decay[:, 0] = -3
    assert np.array_equal(gated_linear_attention(Q, K, V, log_decay)[0], Y)


def test_strong_decay_overflows_nowhere():
    """α = 0.2 for 200 positions in float32: a product of all is 0, its inverse infinite, and nobody needs either."""
    Q, K, V, _ = (X.astype(np.float32) for X in random_inputs(11, (), n=200))
    log_decay = np.full(200, math.log(0.2), np.float32)
    with np.errstate(over="raise", invalid="raise"):
        Y, pullback = gated_linear_attention(Q, K, V, log_decay)
        assert all(np.isfinite(g).all() for g in pullback(Y))
    with np.errstate(over="ignore", divide="ignore"):
        assert np.isinf(1 / np.exp(log_decay).cumprod()[64:]).all()


# ------------------------------------------------------------------------------------------------- the structure


def test_the_inverse_of_the_mask_is_the_recurrence():
    """L⁻¹ = I − subdiag(α), a matrix of two diagonals: s = L x is s_i = α_i s_{i−1} + x_i."""
    log_decay = random_inputs(12, (), n=9)[3]
    L = decay_mask(log_decay)
    assert np.allclose(np.linalg.inv(L), np.eye(9) - np.diag(np.exp(log_decay[1:]), -1), atol=1e-12)


def test_blocks_below_the_diagonal_have_the_rank_of_the_state():
    """Of L: rank one. Of L ⊙ Q Kᵀ: at most r, for all that the past can say goes through r rows of S."""
    Q, K, V, log_decay = random_inputs(13, (), n=12)
    _, pullback = gated_linear_attention(Q, K, V, log_decay)
    L, W = decay_mask(log_decay), pullback.A
    for t in range(12):
        assert np.linalg.matrix_rank(L[t:, : t + 1], tol=1e-10) == 1
        assert np.linalg.matrix_rank(W[t:, : t + 1], tol=1e-10) == min(t + 1, 12 - t, R)


@gates
def test_what_is_read_less_what_is_written(channels):
    """dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i), and two checks that cost nothing: ⟨q, dq⟩ = ⟨y, dy⟩, ⟨k, dk⟩ = ⟨v, dv⟩."""
    Q, K, V, log_decay = random_inputs(14, channels=channels)
    Y, pullback = gated_linear_attention(Q, K, V, log_decay)
    dY = np.random.default_rng(15).standard_normal(Y.shape)
    dQ, dK, dV, dlog_decay = pullback(dY)
    assert np.allclose(np.vecdot(Q, dQ), np.vecdot(Y, dY), rtol=1e-10)
    assert np.allclose(np.vecdot(K, dK), np.vecdot(V, dV), rtol=1e-10)
    between = Q * dQ - K * dK
    between = between if channels else between.sum(-1)
    assert np.allclose(np.flip(np.flip(between, 1).cumsum(1), 1), dlog_decay, rtol=1e-9, atol=1e-12)


def test_under_a_softmax_the_mask_is_added_as_a_logarithm():
    """softmax(S + ln L) = the rows of L ⊙ exp S, each divided by its sum: that is forgetting attention (forgetting.py)."""
    Q, K, _, log_decay = random_inputs(16, ())
    L, S, past = decay_mask(log_decay), Q @ K.T, np.tril(np.ones((N, N), bool))
    A, _ = softmax(S + np.log(np.where(past, L, 1)), mask=past)
    assert np.allclose(A, L * np.exp(S) / (L * np.exp(S)).sum(-1, keepdims=True), rtol=1e-12)


def test_sums_between_two_positions_are_not_differences_of_long_sums():
    """In float32, at n = 4096: L next to the diagonal is right to 10⁻⁶; from one long sum it is off by more than 10⁻⁴."""
    n = 4096
    log_decay = np.log(np.random.default_rng(17).uniform(0.2, 1, n))
    late = slice(n - 40, n)
    exact = decay_mask(log_decay[late])
    near = decay_mask(log_decay[late].astype(np.float32))
    c = log_decay.astype(np.float32).cumsum(dtype=np.float32)[late]
    with np.errstate(over="ignore", divide="ignore"):
        far = np.where(exact > 0, np.exp(c[:, None] - c), 0)
    below = exact > 1e-9
    assert abs(near[below] / exact[below] - 1).max() < 1e-5
    assert abs(far[below] / exact[below] - 1).max() > 1e-4


def test_a_gate_that_closed_before_costs_the_mask_no_digits():
    """L between later positions is the same without it. From one long sum, −10⁵ would leave two digits, and −∞ nothing at all."""
    log_decay = np.log(np.random.default_rng(18).uniform(0.2, 1, 40)).astype(np.float32)
    for closed in (-1e5, -np.inf):
        L = decay_mask(np.concatenate([np.float32([0, closed]), log_decay]))
        assert np.allclose(L[2:, 2:], decay_mask(log_decay), rtol=1e-6, atol=0)
        assert (L[1:, 0] == 0).all()


# --------------------------------------------------------------------------------------------------- bad input


def test_gates_of_another_shape_are_refused():
    Q, K, V, _ = random_inputs(20)
    with pytest.raises(TypeError, match=r"parameter 'log_decay': shape \(2, 7, 5\) should be \(2, 7\), or \(2, 7, 3\)"):
        gated_linear_attention(Q, K, V, V)
