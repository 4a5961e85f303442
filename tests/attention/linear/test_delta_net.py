"""DeltaNet: features in the place of unit keys, gates that reach up to 2, and heads of values that share queries and keys."""

import re
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    DeltaRule,
    MultiHeadAttention,
    attention_of,
    delta_rule_step,
    mean_pool_heads,
    padding_mask,
    repeat_heads,
)
from minitransformer.models import LanguageModel
from minitransformer.pullback import NoParams, tree_map

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV = 2, 3, 7, 4, 5
SIZES = {"width": 24, "heads": 4, "d": 6, "longest": 96}


def heads(seed=0):
    """Queries, keys and values of two samples and three heads, and a number for each token to make β of."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, N, width)) for width in (D, D, DV, 1)]


def features(x, nu):
    """[relu(x); relu(−x)]_i times its entry s places before, for s = 1 … ν; all divided by their sum."""
    both = [max(number, 0) for number in x] + [max(-number, 0) for number in x]
    found = [both[i] * both[i - s] for s in range(1, nu + 1) for i in range(len(both))]
    return [number / sum(found) for number in found]


# ------------------------------------------------------------------------------------------------ features


@pytest.mark.parametrize("nu", [1, 2, 3])
def test_features_and_the_delta_rule_in_loops(nu):
    """W_t = W_{t−1} + β_t (v_t − W_{t−1} φ(k_t)) φ(k_t)ᵀ, y_t = W_t φ(q_t), with φ divided by its sum."""
    Q, K, V, b = heads()
    Y, _ = attention_of(f"delta:nu={nu}", SIZES)(NoParams(), Q, K, V, b)
    for sample, head in np.ndindex(B, H):
        W = np.zeros((DV, 2 * D * nu))
        for t in range(N):
            q, k = (features(X[sample, head, t], nu) for X in (Q, K))
            beta = 1 / (1 + np.exp(-b[sample, head, t, 0]))
            for i in range(DV):
                held = sum(W[i, c] * k[c] for c in range(len(k)))
                for c in range(len(k)):
                    W[i, c] += beta * (V[sample, head, t, i] - held) * k[c]
                wanted = sum(W[i, c] * q[c] for c in range(len(q)))
                assert np.isclose(Y[sample, head, t, i], wanted, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("mask", [None, padding_mask(np.array([N, 4]), N)[:, None]], ids=["", "padding"])
@pytest.mark.parametrize("name", ["delta:nu=1", "delta:nu=3,reach=2", "delta:reach=1.5"])
def test_gradient(name, mask):
    check_pullback(partial(attention_of(name, SIZES), mask=mask), NoParams(), *heads(1), entries=20)


def test_keys_of_one_corner_are_corrected_and_others_are_not_disturbed():
    """φ of keys with no common pair of signs are at right angles: what is written under one is not read by the other."""
    core = DeltaRule(nu=1)
    K = np.array([[1.0, 2, -1, -2], [-1, -1, 2, 1], [2, 4, -2, -4]])  # the third is the first again, and longer
    F, _ = core.rows(K)
    assert F[0] @ F[1] == 0
    np.testing.assert_allclose(F[0], F[2], rtol=1e-12)


def test_what_it_remembers_is_as_wide_as_the_features():
    core = attention_of("delta:nu=3", SIZES)
    _, state = core.step(NoParams(), *heads())
    assert core.remembers == "S, 6 d·dv for each head"
    assert state.S.shape == (B, H, 6 * D, DV)


def test_without_an_end_there_are_too_many_features():
    with pytest.raises(ValueError, match="nu: 1025 should be a number up to 1024"):
        attention_of("delta:nu=1025", SIZES)
    with pytest.raises(ValueError, match="nu: 0 should be at least 1"):
        attention_of("delta:nu=0", SIZES)
    with pytest.raises(ValueError, match="nu of 'delta' should be int or None, got 'dpfp'"):
        attention_of("delta:nu=dpfp", SIZES)


# --------------------------------------------------------------------------------------------------- reach


@pytest.mark.parametrize("name", ["delta", "gated-delta"])
def test_the_reach_is_a_factor_of_the_gate(name):
    """β = c σ(b): with c = 2 and b = 0 it is that of c = 1 and b = ∞."""
    Q, K, V = np.random.default_rng(2).standard_normal((3, B, 4, N, 6))
    one, two = (attention_of(f"{name}:reach={c}", SIZES) for c in (1, 2))
    params = one.init(np.random.default_rng(0), np.float64)
    others = [np.zeros((B, 4, N, width)) for width in list(one.streams.values())[1:]]
    open_wide, half = np.full((B, 4, N, 1), 50.0), np.zeros((B, 4, N, 1))
    wanted, _ = one(params, Q, K, V, open_wide, *[X + 1 for X in others])
    np.testing.assert_allclose(two(params, Q, K, V, half, *[X + 1 for X in others])[0], wanted, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["delta", "gated-delta"])
@pytest.mark.parametrize("reach", [0, 2.01, 3])
def test_beyond_two_a_memory_would_grow(name, reach):
    with pytest.raises(ValueError, match=f"reach: {reach} should be above 0, and at most 2"):
        attention_of(f"{name}:reach={reach}", SIZES)


def test_one_bit_of_state_changes_its_sign_with_every_one():
    """In one dimension, k = 1 and v = 0: S_t = (1 − β_t) S_{t−1}. β = 2 for a one, 0 for a zero: the sign is the parity."""
    bits = np.random.default_rng(3).integers(0, 2, 50)
    one, zero = np.ones((50, 1)), np.zeros((50, 1))
    Y, _ = delta_rule_step(one, one, zero, 2.0 * bits, np.ones((1, 1)))
    assert np.array_equal(Y[:, 0], 1 - 2 * (bits.cumsum() % 2))


def test_with_a_gate_up_to_one_no_number_changes_its_sign():
    """Then 1 − β ≥ 0: what is left of the start shrinks, or stays, and a state that is positive stays so."""
    rng = np.random.default_rng(4)
    one = np.ones((50, 1))
    Y, _ = delta_rule_step(one, one, 0 * one, rng.random(50), np.ones((1, 1)))
    assert (Y > 0).all()
    assert (np.diff(Y[:, 0]) <= 0).all()


def test_two_mirrors_are_a_turn():
    """(I − 2 b bᵀ)(I − 2 a aᵀ) turns by twice the angle from a to b: five turns by 72° are none."""
    a, b = np.array([1.0, 0.0]), np.array([np.cos(np.pi / 5), np.sin(np.pi / 5)])
    K, nothing = np.tile([a, b], (5, 1)), np.zeros((10, 2))
    _, S = delta_rule_step(nothing, K, nothing, np.full(10, 2.0), np.eye(2))
    np.testing.assert_allclose(S, np.eye(2), atol=1e-12)
    _, S = delta_rule_step(nothing[:2], K[:2], nothing[:2], np.full(2, 2.0), np.eye(2))
    turn = 2 * np.pi / 5
    np.testing.assert_allclose(S, [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]], atol=1e-12)


# --------------------------------------------------------------------------------- heads that share their keys


SHARING = (
    "gated-delta:key_heads=2,taps=3,reach=2",
    "gated-delta:key_heads=1,channelwise=True",
    "ssd:key_heads=2,taps=4",
)


def layer_of(name):
    return MultiHeadAttention(24, 4, core=attention_of(name, SIZES))


def some(layer, seed=5):
    rng = np.random.default_rng(seed)
    return tree_map(lambda a: 0.6 * a, random_like(layer.init(rng, np.float64), rng))


def duplicated(W, each, heads_of_keys):
    """Columns of heads of keys, or rows of them, for each head of values."""
    if W is None or each == heads_of_keys:
        return W
    return np.repeat(W.reshape(*W.shape[:-1], heads_of_keys, -1), each // heads_of_keys, -2).reshape(*W.shape[:-1], -1)


def with_copies(params, few):
    """The parameters of a layer without sharing, in which the heads of a group have the same queries and keys."""
    G = few.core.key_heads
    change = {name: duplicated(getattr(params, name), 4, G) for name in ("W_q", "W_k", "b_q", "b_k")}
    core = params.core
    if core.kernel is not None:
        parts = (np.repeat(part, 4 // G, 0) for part in (core.kernel.theta[:G], core.kernel.theta[G : 2 * G]))
        theta = np.concatenate([*parts, core.kernel.theta[2 * G :]])
        b = core.kernel.b
        if b is not None:
            b = np.concatenate([np.repeat(b[:G], 4 // G, 0), np.repeat(b[G : 2 * G], 4 // G, 0), b[2 * G :]])
        core = core._replace(kernel=core.kernel._replace(theta=theta, b=b))
    return params._replace(core=core, **change)


@pytest.mark.parametrize("name", SHARING)
def test_sharing_is_that_of_equal_weights(name):
    few, many = layer_of(name), layer_of(re.sub(r"key_heads=\d,", "", name))
    params, X = some(few), np.random.default_rng(6).standard_normal((2, 9, 24))
    copies = with_copies(params, few)
    Y, pullback = few(params, X, causal=True)
    same, back = many(copies, X, causal=True)
    np.testing.assert_allclose(Y, same, rtol=1e-11, atol=1e-13)
    dY = np.random.default_rng(7).standard_normal(Y.shape)
    (found, dX), (each, dX_too) = pullback(dY), back(dY)
    np.testing.assert_allclose(dX, dX_too, rtol=1e-10, atol=1e-12)
    G = few.core.key_heads
    for part in ("W_q", "W_k", "b_q", "b_k"):  # the gradient of what is shared is the sum
        total = getattr(each, part).reshape(*getattr(each, part).shape[:-1], G, 4 // G, 6).sum(-2)
        np.testing.assert_allclose(
            getattr(found, part), total.reshape(getattr(found, part).shape), rtol=1e-9, atol=1e-11
        )


def test_a_model_with_fewer_heads_of_keys_has_fewer_parameters():
    sizes = {"vocabulary": 30, "context": 20, "width": 24, "depth": 1, "heads": 4, "hidden": 8}
    few, many = (LanguageModel(**sizes, attention=f"gated-delta{of}") for of in (":key_heads=1", ""))
    fewer = mt.tree_size(many.init(np.random.default_rng(0))) - mt.tree_size(few.init(np.random.default_rng(0)))
    assert fewer == 2 * (24 + 1) * 18  # of W_q and W_k, and their biases


def test_sharing_is_refused_where_it_makes_no_sense():
    with pytest.raises(ValueError, match="'softmax' has no option 'key_heads=2'"):
        attention_of("softmax:key_heads=2", SIZES)
    with pytest.raises(ValueError, match="key_heads: 4 heads of values can't be divided among 3 of queries and keys"):
        attention_of("gated-delta:key_heads=3", SIZES)
    with pytest.raises(ValueError, match="groups: GatedDelta has 2 heads of keys of its own"):
        MultiHeadAttention(24, 4, core=attention_of("gated-delta:key_heads=2", SIZES), groups=2)
    layer = layer_of("gated-delta:key_heads=2")
    for change in (partial(mean_pool_heads, groups=1), repeat_heads):
        with pytest.raises(ValueError, match="params: where heads of values share queries and keys"):
            change(some(layer), 4)
    X = np.random.default_rng(9).standard_normal((2, 9, 24))
    for axis in (2, 4):  # what is hidden is hidden for all heads
        with pytest.raises(ValueError, match="mask: shape"):
            layer(some(layer), X, causal=True, mask=np.ones((2, axis, 1, 9), bool))
