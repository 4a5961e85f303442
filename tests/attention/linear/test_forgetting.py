"""Forgetting attention: the definition in loops, its limiting cases, and the checker."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import Forgetting, dot_product_attention, forgetting_attention, padding_mask
from minitransformer.positions import ALiBi, RoPE, Shaw
from minitransformer.pullback import NoParams
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("tier")

B, H, N, D, DV = 2, 3, 7, 4, 5
PADDING = padding_mask(np.array([N, 5]), N)[:, None]


def random_inputs(seed=0, batch=(B,), n=N):
    """Q, K, V, and ln f for f between 0.3 and 1."""
    rng = np.random.default_rng(seed)
    Q, K, V = (rng.standard_normal((*batch, n, d)) for d in (D, D, DV))
    return Q, K, V, np.log(rng.uniform(0.3, 1, (*batch, n)))


def loops(Q, K, V, log_forget):
    """softmax over j ≤ i of ⟨q_i, k_j⟩ / √d + Σ_{j < t ≤ i} ln f_t, entry by entry."""
    n, Y = len(Q), np.zeros((len(Q), V.shape[1]))
    for i in range(n):
        weights = []
        for j in range(i + 1):
            score = sum(Q[i, c] * K[j, c] for c in range(D)) / math.sqrt(D)
            weights.append(math.exp(score + sum(log_forget[t] for t in range(j + 1, i + 1))))
        for j, w in enumerate(weights):
            Y[i] += w / sum(weights) * V[j]
    return Y


def test_against_loops():
    arrays = random_inputs()
    Y, _ = forgetting_attention(*arrays)
    for b in range(B):
        assert np.allclose(Y[b], loops(*(X[b] for X in arrays)), rtol=1e-11)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_gradient(batch):
    check_pullback(forgetting_attention, *random_inputs(1, batch), entries=30)


def test_gradient_of_the_gates_by_the_rule():
    """Rows of dS sum to zero, so dln f_t = −Σ_{j ≥ t} Σ_i dS_ij = Σ_{i ≥ t} Σ_{j < t} dS_ij: what the gate stands between."""
    Q, K, V, log_forget = random_inputs(2, ())
    Y, pullback = forgetting_attention(Q, K, V, log_forget)
    dY = np.random.default_rng(3).standard_normal(Y.shape)
    A, dA = pullback.A, dY @ V.T
    dS = A * (dA - (A * dA).sum(-1, keepdims=True))
    dlog_forget = pullback(dY)[3]
    assert np.allclose([dS[t:, :t].sum() for t in range(N)], dlog_forget, rtol=1e-9, atol=1e-13)
    assert abs(dlog_forget[0]) < 1e-13


def test_without_forgetting_it_is_dense():
    Q, K, V, log_forget = random_inputs(4)
    same, _ = dot_product_attention(Q, K, V, causal=True)
    assert np.allclose(forgetting_attention(Q, K, V, 0 * log_forget)[0], same, rtol=1e-11)


def test_one_gate_for_all_positions_is_alibi():
    """Its slope is −ln f: a bias of o · ln f for a key that stands o back."""
    Q, K, V, log_forget = random_inputs(5)
    slope = 0.25
    bias = -slope * np.abs(np.arange(-(N - 1), N))
    same, _ = dot_product_attention(Q, K, V, bias, causal=True)
    assert np.allclose(forgetting_attention(Q, K, V, np.full_like(log_forget, -slope))[0], same, rtol=1e-11)


def test_a_closed_gate_hides_all_before_it():
    Q, K, V, log_forget = random_inputs(6)
    alone, _ = forgetting_attention(*(X[:, 3:] for X in (Q, K, V, log_forget)))
    log_forget[:, 3] = -800
    assert np.allclose(forgetting_attention(Q, K, V, log_forget)[0][:, 3:], alone, rtol=1e-9)


def test_a_gate_closed_beyond_all_bounds_wipes_out_the_others():
    """Which is why ln f should be what σ gives, and a border between two texts a mask: −10¹⁵ leaves the sum no decimals."""
    Q, K, V, log_forget = random_inputs(7)
    alone, _ = forgetting_attention(*(X[:, 3:] for X in (Q, K, V, log_forget)))
    log_forget[:, 3] = -1e15
    assert abs(forgetting_attention(Q, K, V, log_forget)[0][:, 3:] - alone).max() > 0.01


def test_a_long_text_costs_float32_no_digits():
    """After 1500 gates c is −2000, whose rounding in float32 is 10⁻⁴: nothing of it is in Y, in a gradient, or in a step."""
    rng = np.random.default_rng(15)
    *heads, x = (rng.standard_normal((1, 1, 1510, width)) for width in (D, D, DV, 1))
    x -= 1
    dY, found = rng.standard_normal((1, 1, 1510, DV)), []
    for dtype in (np.float64, np.float32):
        Q, K, V, log_forget = (X.astype(dtype) for X in (*heads, -np.log1p(np.exp(-x[..., 0]))))
        Y, pullback = forgetting_attention(Q, K, V, log_forget)
        steps, _ = in_pieces(Forgetting(), NoParams(), [Q, K, V, x.astype(dtype)], (0, 1500, 1501, 1503, 1510))
        found.append((Y, *pullback(dY.astype(dtype)), steps))
    for exact, single in zip(*found, strict=True):
        assert single.dtype == np.float32
        assert abs(exact - single).max() < 1e-5 * abs(exact).max()


def test_the_gate_of_the_first_position_has_no_effect():
    Q, K, V, log_forget = random_inputs(8)
    Y, _ = forgetting_attention(Q, K, V, log_forget)
    log_forget[:, 0] += 3
    assert np.allclose(forgetting_attention(Q, K, V, log_forget)[0], Y, rtol=1e-12)


@pytest.mark.parametrize("encoding", [None, ALiBi(H)])
def test_the_scale_is_that_of_the_scores(encoding):
    Q, K, V, log_forget = random_inputs(16, (B, H))
    options = {"encoding": encoding, "params": NoParams()}
    Y, _ = forgetting_attention(Q, K, V, log_forget, scale=3 / math.sqrt(D), **options)
    same, _ = forgetting_attention(3 * Q, K, V, log_forget, **options)
    np.testing.assert_allclose(Y, same, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("n", [0, 1, 64, 65, 130])
def test_any_length(n):
    arrays = random_inputs(9, n=n)
    Y, pullback = forgetting_attention(*arrays)
    grads = pullback(Y)
    assert [g.shape for g in grads] == [a.shape for a in arrays]
    assert all(np.isfinite(g).all() for g in (Y, *grads))


# ---------------------------------------------------------------------------------------------------- the core


def heads(seed=10):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, N, width)) for width in (D, D, DV, 1)]


def test_the_core_is_the_function_of_an_open_gate():
    Q, K, V, x = heads()
    same, _ = forgetting_attention(Q, K, V, np.log(1 / (1 + np.exp(-x[..., 0]))))
    assert np.allclose(Forgetting()(NoParams(), Q, K, V, x)[0], same, rtol=1e-10)


@pytest.mark.parametrize("mask", [None, PADDING], ids=["", "padding"])
def test_gradient_of_the_core(mask):
    check_pullback(partial(Forgetting(), mask=mask), NoParams(), *heads(11), entries=20)


def test_what_is_hidden_neither_speaks_nor_fades():
    """Whatever stands there, NaN included: the rows after it are as if it had not been."""
    core, arrays = Forgetting(), heads(12)
    there = np.array([True, True, False, True, True, False, True])
    Y, pullback = core(NoParams(), *arrays, mask=there[None])
    without, _ = core(NoParams(), *(X[..., there, :] for X in arrays))
    assert np.allclose(Y[..., there, :], without, rtol=1e-10)
    for d in pullback(np.where(there[:, None], Y, 0))[1:]:
        assert not d[..., ~there, :].any()
    for X in arrays:
        X[..., ~there, :] = np.nan
    Z, _ = core(NoParams(), *arrays, mask=there[None])
    assert np.allclose(Z[..., there, :], Y[..., there, :], rtol=1e-12)


@pytest.mark.parametrize("n", [1, N])
def test_a_step_of_keys_that_are_one_number(n):
    """d = 1: nothing is divided by."""
    Q, K, V, x = (X[..., :n, :1] for X in heads(15))
    whole, _ = Forgetting()(NoParams(), Q, K, V, x)
    assert np.allclose(Forgetting().step(NoParams(), Q, K, V, x)[0], whole, rtol=1e-10)


def test_what_is_refused():
    Q, K, V, x = heads(14)
    core = partial(Forgetting(), NoParams())
    with pytest.raises(ValueError, match="attention: Forgetting is always causal"):
        core(Q, K, V, x, causal=False)
    with pytest.raises(ValueError, match="K: 7 keys for 5 queries should be as many: each token has a gate"):
        core(Q[..., :5, :], K, V, x[..., :5, :])
    with pytest.raises(ValueError, match="a sum of gates has no score for a pair"):
        core(Q, K, V, x, mask=np.ones((N, N), bool))
    with pytest.raises(TypeError, match="parameter 'log_forget'"):
        forgetting_attention(Q, K, V, x)
    shaw, log_forget = Shaw(D), -np.exp(x[..., 0])
    options = {"encoding": shaw, "params": shaw.init(np.random.default_rng(0), np.float64)}
    with pytest.raises(ValueError, match="scale: Shaw has a scale of its own, so none can be given"):
        forgetting_attention(Q, K, V, log_forget, scale=1.0, **options)
    with pytest.raises(TypeError, match="parameter 'encoding': RoPE"):
        forgetting_attention(Q, K, V, log_forget, encoding=RoPE(D), params=NoParams())
    with pytest.raises(TypeError, match=r"^encoding: RoPE"):
        Forgetting(RoPE(D))
