"""The cores with a fading memory, each against its equations in plain loops, and what they have in common."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import GLA, SSD, GatedDelta, RetNet, padding_mask, retention_decays
from minitransformer.attention.linear.memory import norm_and_gate
from minitransformer.functional import silu
from minitransformer.models import LanguageModel
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D = 2, 3, 7, 4
CORES = {
    "retnet": RetNet(H, D),
    "gla": GLA(H, D, rank=5, root=3),
    "ssd": SSD(H, D),
    "gated-delta": GatedDelta(H, D),
    "kimi": GatedDelta(H, D, channelwise=True),
}
every = pytest.mark.parametrize("name", CORES)
PADDING = padding_mask(np.array([N, 5]), N)[:, None]


def inputs(core, seed=0):
    """Parameters, queries, keys, values and streams of two samples and three heads."""
    rng = np.random.default_rng(seed)
    params = random_like(core.init(rng, np.float64), rng)
    arrays = [rng.standard_normal((B, H, N, width)) for width in (D, D, D, *core.streams.values())]
    return params, *arrays


def sigma(x):
    return 1 / (1 + math.exp(-x))


def softplus(x):
    return math.log(1 + math.exp(x))


def rms_norm(y, gain):
    root = math.sqrt(sum(a * a for a in y) / len(y) + 1e-5)
    return [g * a / root for g, a in zip(gain, y, strict=True)]


def remember(Q, K, V, alpha, beta=None):
    """A memory of one head in loops: α (n, d), and β (n,) where it corrects."""
    S, said = np.zeros((D, D)), []
    for t in range(N):
        S = np.array([[alpha[t][c] * S[c, i] for i in range(D)] for c in range(D)])
        held = [sum(K[t, c] * S[c, i] for c in range(D)) for i in range(D)]
        for c, i in itertools.product(range(D), range(D)):
            S[c, i] += K[t, c] * V[t, i] if beta is None else beta[t] * K[t, c] * (V[t, i] - held[i])
        said.append([sum(Q[t, c] * S[c, i] for c in range(D)) for i in range(D)])
    return said


def of_retnet(params, Q, K, V, gate):
    """S_t = γ_h S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t / √d, z = RMS norm(y) ⊙ swish(g), γ_h = 1 − 2^(−5−h)."""
    Z = np.zeros((H, N, D))
    for h in range(H):
        Y = remember(Q[h] / math.sqrt(D), K[h], V[h], [[1 - 2.0 ** (-5 - h)] * D] * N)
        for t in range(N):
            Z[h, t] = [n * g * sigma(g) for n, g in zip(rms_norm(Y[t], [1] * D), gate[h, t], strict=True)]
    return Z


def of_gla(params, Q, K, V, low, gate):
    """α = σ([low of all heads] W + b)^(1/3), a number for each channel of each head."""
    Z = np.zeros((H, N, D))
    for h in range(H):
        alpha = np.zeros((N, D))
        for t, c in itertools.product(range(N), range(D)):
            side_by_side = [x for g in range(H) for x in low[g, t]]
            logit = sum(x * params.W[r, h * D + c] for r, x in enumerate(side_by_side)) + params.b[h * D + c]
            alpha[t, c] = sigma(logit) ** (1 / 3)
        Y = remember(Q[h] / math.sqrt(D), K[h], V[h], alpha)
        for t in range(N):
            Z[h, t] = [n * g * sigma(g) for n, g in zip(rms_norm(Y[t], params.gain), gate[h, t], strict=True)]
    return Z


def of_ssd(params, Q, K, V, delta, gate):
    """Δ = softplus(x + b), a = exp(−e^A Δ), values Δ v, z = RMS norm over all heads of (y + D v) ⊙ swish(g)."""
    Z = np.zeros((H, N, D))
    for h in range(H):
        step = [softplus(delta[h, t, 0] + params.b[h]) for t in range(N)]
        alpha = [[math.exp(-math.exp(params.A[h]) * s)] * D for s in step]
        Y = remember(Q[h], K[h], np.array(step)[:, None] * V[h], alpha)
        for t, i in itertools.product(range(N), range(D)):
            Z[h, t, i] = (Y[t][i] + params.D[h] * V[h, t, i]) * gate[h, t, i] * sigma(gate[h, t, i])
    for t in range(N):
        Z[:, t] = np.reshape(rms_norm(Z[:, t].ravel(), params.gain), (H, D))
    return Z


def of_gated_delta(params, Q, K, V, b, a, gate, channelwise=False):
    """α = exp(−e^A softplus(x + b)), β = σ, q / √d and k of norm one; the gate is swish, or σ with an α for each channel."""
    Z = np.zeros((H, N, D))
    for h in range(H):
        speed, alpha = math.exp(params.A[h]), np.zeros((N, D))
        for t, c in itertools.product(range(N), range(D)):
            logit = a[h, t, 0] + params.b[h] if not channelwise else params.b[h * D + c]
            if channelwise:
                side_by_side = [x for g in range(H) for x in a[g, t]]
                logit += sum(x * params.W[r, h * D + c] for r, x in enumerate(side_by_side))
            alpha[t, c] = math.exp(-speed * softplus(logit))
        q, k = (X[h] / np.sqrt((X[h] ** 2).sum(-1, keepdims=True) + 1e-6) for X in (Q, K))
        Y = remember(q / math.sqrt(D), k, V[h], alpha, [sigma(x) for x in b[h, :, 0]])
        for t in range(N):
            opened = [sigma(g) if channelwise else g * sigma(g) for g in gate[h, t]]
            Z[h, t] = [n * s for n, s in zip(rms_norm(Y[t], params.gain), opened, strict=True)]
    return Z


DEFINITIONS = {
    "retnet": of_retnet,
    "gla": of_gla,
    "ssd": of_ssd,
    "gated-delta": of_gated_delta,
    "kimi": partial(of_gated_delta, channelwise=True),
}


@every
def test_against_loops(name):
    params, *arrays = inputs(CORES[name])
    Y, _ = CORES[name](params, *arrays)
    for b in range(B):
        assert np.allclose(Y[b], DEFINITIONS[name](params, *(X[b] for X in arrays)), rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("mask", [None, PADDING], ids=["", "padding"])
def test_gradient(name, mask):
    check_pullback(partial(CORES[name], mask=mask), *inputs(CORES[name], 1), entries=15)


@every
def test_what_is_hidden_neither_writes_nor_fades(name):
    """Whatever stands there, NaN included: the rows after it are as if it had not been."""
    core, (params, *arrays) = CORES[name], inputs(CORES[name], 2)
    there = np.array([True, True, False, True, True, False, True])
    Y, pullback = core(params, *arrays, mask=there[None])
    without, _ = core(params, *(X[..., there, :] for X in arrays))
    assert np.allclose(Y[..., there, :], without, rtol=1e-10, atol=1e-13)
    dY = np.where(there[:, None], Y, 0)
    for d in pullback(dY)[1:]:
        assert not d[..., ~there, :].any()
    for X in arrays:
        X[..., ~there, :] = np.nan
    assert np.array_equal(core(params, *arrays, mask=there[None])[0][..., there, :], Y[..., there, :])


@every
@pytest.mark.parametrize("edges", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 5, 7), (0, 7), (0, 0, 7)])
def test_steps_are_the_whole(name, edges):
    core, (params, *arrays) = CORES[name], inputs(CORES[name], 3)
    said, state = in_pieces(core, params, arrays, edges)
    assert np.allclose(said, core(params, *arrays)[0], rtol=1e-10, atol=1e-13)
    assert state.length == 7
    assert state.S.shape == (B, H, D, D), "the same room for any text"


@every
def test_what_is_refused(name):
    core, (params, Q, *rest) = CORES[name], inputs(CORES[name], 4)
    with pytest.raises(ValueError, match="is always causal: it reads from left to right"):
        core(params, Q, *rest, causal=False)
    with pytest.raises(ValueError, match="K: 7 keys for 5 queries should be as many: a memory writes as it reads"):
        core(params, Q[..., :5, :], *rest[:2], *(X[..., :5, :] for X in rest[2:]))
    with pytest.raises(ValueError, match="a memory has no score for a pair"):
        core(params, Q, *rest, mask=np.ones((N, N), bool))


# ------------------------------------------------------------------------------------------------ limiting cases


def test_speeds_of_retention():
    assert np.allclose(retention_decays(4), [31 / 32, 63 / 64, 127 / 128, 255 / 256])
    half_life = np.log(0.5) / np.log(retention_decays(4))
    assert [round(x) for x in half_life] == [22, 44, 88, 177]


def test_rows_divided_by_their_sums_are_the_same_behind_the_norm():
    """microsoft/torchscale (05a9628) divides each row of L ⊙ Q Kᵀ by |Σ|, or by 1 if that is more, as a constant.

    The norm takes no notice of a positive factor of a row, but for its ε: neither does what is read, nor what comes back.
    """
    core = CORES["retnet"]
    params, Q, K, V, gate = inputs(core, 10)
    V = 1e4 * V  # so large that ε, 10⁻⁵, is nothing
    entries, _ = core.prepare(params, Q, K, V)
    Y, memory = entries.recall()
    rows = np.maximum(np.abs(memory.A.sum(-1, keepdims=True)), 1)
    assert rows.max() > 2
    divided, ones = memory.A / rows @ V, np.ones(D)
    (Z, back), (same, back_too) = (norm_and_gate(X, gate, ones, silu) for X in (Y, divided))
    np.testing.assert_allclose(core(params, Q, K, V, gate)[0], Z, rtol=1e-12)
    np.testing.assert_allclose(same, Z, rtol=1e-9, atol=1e-12)
    dZ = np.random.default_rng(11).standard_normal(Z.shape)
    np.testing.assert_allclose(back_too(dZ)[0] / rows, back(dZ)[0], rtol=1e-6, atol=1e-12)


def test_gla_with_constant_gates_is_retnet():
    """W = 0, and b such that σ(b)^(1/root) = γ_h in all channels of a head."""
    retnet, gla = CORES["retnet"], CORES["gla"]
    params, Q, K, V, low, gate = inputs(gla, 5)
    closed = retention_decays(H) ** gla.root
    params = params._replace(W=0 * params.W, b=np.repeat(np.log(closed / (1 - closed)), D), gain=np.ones(D))
    same, _ = retnet(retnet.init(None), Q, K, V, gate)
    assert np.allclose(gla(params, Q, K, V, low, gate)[0], same, rtol=1e-9, atol=1e-12)


def test_kimi_with_equal_channels_is_gated_deltanet():
    one, each = CORES["gated-delta"], CORES["kimi"]
    params, Q, K, V, beta, alpha, gate = inputs(one, 6)
    narrow = np.zeros((B, H, N, each.streams["alpha"]))
    narrow[..., :1] = alpha
    rows = each.streams["alpha"]
    W = np.zeros((H * rows, H * D))
    for h in range(H):
        W[h * rows, h * D : (h + 1) * D] = 1  # each head hands its number to all its channels
    wide = params._replace(b=np.repeat(params.b, D), W=W)
    Y, _ = one(params, Q, K, V, beta, alpha, gate)
    Z, _ = each(wide, Q, K, V, beta, narrow, gate)
    opened = gate * (1 / (1 + np.exp(-gate)))
    assert np.allclose(Y / opened, Z * (1 + np.exp(-gate)), rtol=1e-9, atol=1e-12)


def test_a_memory_of_mamba_that_does_not_step_keeps_what_it_has():
    """Δ → 0: nothing fades and nothing is written, and D v is all that comes through."""
    core = CORES["ssd"]
    params, Q, K, V, delta, gate = inputs(core, 7)
    Y, _ = core(params, Q, K, V, 0 * delta - 800, gate)
    Z, _ = core(params, 0 * Q, K, V, delta, gate)
    assert np.allclose(Y, Z, rtol=1e-12)


@pytest.mark.parametrize(("step", "more"), [(0.01, 1.005), (0.1, 1.0508), (1, 1.582)])
def test_a_step_of_eulers_writes_more_than_the_equation(step, more):
    """h′ = −h + x with x = 1 settles at 1; the memory settles at Δ / (1 − e^−Δ)."""
    state = 0.0
    for _ in range(round(60 / step)):
        state = math.exp(-step) * state + step
    assert state == pytest.approx(more, rel=1e-3)
    assert state == pytest.approx(step / (1 - math.exp(-step)), rel=1e-9)


def test_how_gates_start(rng):
    """e^A on 1 … 16, and softplus(b) between 0.001 and 0.1, every order of magnitude as likely; GLA's are 2^(−1/root)."""
    for params in (SSD(9000, 2).init(rng, np.float64), GatedDelta(9000, 2).init(rng, np.float64)):
        speed, step = np.exp(params.A), np.log10(np.logaddexp(0, params.b))
        for X, low, high in ((speed, 1, 16), (step, -3, -1)):
            assert (low <= X).all()
            assert (X <= high).all()
            where = (np.quantile(X, (0.01, 0.5, 0.99)) - low) / (high - low)
            np.testing.assert_allclose(where, (0.01, 0.5, 0.99), atol=0.02)
    gla = GLA(H, D, rank=16, root=7)
    assert gla.streams["low"] == 6, "16 columns for three heads together, or a little more"
    Q, K, V, low = (np.zeros((H, N, width)) for width in (D, D, D, 6))
    entries, _ = gla.prepare(gla.init(rng, np.float64), Q, K, V, low)
    np.testing.assert_allclose(entries.log_decay, -math.log(2) / 7)


@pytest.mark.parametrize("name", ["gated-delta", "kimi"])
def test_eps_is_that_of_the_norm_behind_the_memory(name, tier):
    core = replace(CORES[name], eps=3.0)
    params, *arrays = inputs(core, 9)
    entries, _ = core.prepare(params, *arrays[:-1])
    Y, _ = entries.recall()
    normed = params.gain * Y / np.sqrt((Y**2).mean(-1, keepdims=True) + 3)
    opened = 1 / (1 + np.exp(-arrays[-1]))
    Z = normed * opened * (1 if core.channelwise else arrays[-1])
    np.testing.assert_allclose(core(params, *arrays)[0], Z, rtol=1e-9)
    np.testing.assert_allclose(in_pieces(core, params, arrays, range(N + 1))[0], Z, rtol=1e-9)


@every
def test_how_fast_a_fresh_memory_fades(name):
    """Half is left after 15 tokens or more, in some head: RetNet's by what is fixed, the others' by how they start."""
    core = {"gla": GLA(H, D)}.get(name, CORES[name])
    rng = np.random.default_rng(8)
    params = core.init(rng, np.float64)
    arrays = [rng.standard_normal((B, H, 50, width)) for width in (D, D, D, *core.streams.values())]
    quiet = [0 * X for X in arrays[3:-1]]
    entries, _ = core.prepare(params, *arrays[:3], *quiet)
    assert entries.log_decay.max() > math.log(0.5) / 15
    assert entries.log_decay.max() < 0


def test_a_model_of_each_writes_with_a_state_that_does_not_grow():
    for name in ("retnet", "gla", "ssd", "gated-delta", "gated-delta:channelwise=True"):
        model = LanguageModel(40, 96, 12, depth=2, heads=2, hidden=10, attention=name, positions="rope")
        params = model.init(np.random.default_rng(0))
        tokens = np.random.default_rng(1).integers(0, 40, (1, 60))
        _, early = model.step(params, tokens[:, :5])
        _, late = model.step(params, tokens)
        sizes = [mt.pullback.tree_bytes(tuple(state)) for state in (early, late)]
        assert sizes[0] == sizes[1] == 2 * 2 * 6 * 6 * 4
