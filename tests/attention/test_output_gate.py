"""The two stages beside a core: queries and keys that are normalised, and a gate over Y."""

from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import MultiHeadAttention, SoftmaxAttention, output_gate, split_heads
from minitransformer.attention.multi_head import Gains
from minitransformer.functional import rms_norm
from minitransformer.positions import RoPE
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("tier")

B, N, D, H = 2, 9, 24, 4
d = D // H


def layer_and_inputs(seed=0, **options):
    """A layer with rotary positions, parameters at which nothing hides, and X."""
    options = {"bias": False, "rotate": RoPE(d), **options}
    layer, rng = MultiHeadAttention(D, H, **options), np.random.default_rng(seed)
    params = mt.tree_map(lambda a: 0.5 * rng.standard_normal(a.shape), layer.init(rng, np.float64))
    return layer, params, rng.standard_normal((B, N, D))


# ------------------------------------------------------------------------------------------------------ the gate


@pytest.mark.parametrize("width", [1, 6])
def test_the_gate_in_loops(width):
    rng = np.random.default_rng(1)
    Y, G = rng.standard_normal((B, H, N, 6)), rng.standard_normal((B, H, N, width))
    Z, _ = output_gate(Y, G)
    for place in np.ndindex(Z.shape):
        opened = 1 / (1 + np.exp(-G[(*place[:-1], place[-1] if width > 1 else 0)]))
        assert Z[place] == pytest.approx(Y[place] * opened, rel=1e-12)
    check_pullback(output_gate, Y, G, entries=20)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("gate", "columns"), [("head", H), ("element", D)])
def test_where_nothing_is_learned_yet_half_goes_through(gate, columns, dtype):
    """W_g = 0: σ(0) = 1/2, of every gradient too."""
    core = SoftmaxAttention(gate=gate)
    layer, params, X = layer_and_inputs(2, core=core)
    params, X = mt.tree_map(lambda a: a.astype(dtype), params), X.astype(dtype)
    assert params.streams["gate"].W.shape == (D, columns)
    shut = params._replace(streams=mt.tree_map(np.zeros_like, params.streams))
    plain = MultiHeadAttention(D, H, bias=False, rotate=RoPE(d))
    Y, pullback = layer(shut, X, causal=True)
    Z, without = plain(params._replace(streams=None), X, causal=True)
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == np.float32 else {"rtol": 1e-12}
    assert np.allclose(2 * Y, Z, **close)
    assert Y.dtype == dtype
    (dparams, _), (same, _) = pullback(Z), without(Z)
    assert np.allclose(2 * dparams.W_v, same.W_v, **close)
    assert np.abs(dparams.streams["gate"].W).max() > 0.01


@pytest.mark.parametrize("gate", ["head", "element"])
def test_the_gate_stands_between_attention_and_the_output(gate):
    """[head_h ⊙ σ(X W_g,h)] W_o."""
    layer, params, X = layer_and_inputs(3, core=SoftmaxAttention(gate=gate))
    plain = MultiHeadAttention(D, H, bias=False, rotate=RoPE(d))
    heads, _ = plain(params._replace(streams=None, W_o=np.eye(D)), X)
    opened = 1 / (1 + np.exp(-X @ params.streams["gate"].W))
    opened = opened if gate == "element" else np.repeat(opened, d, -1)
    assert np.allclose(layer(params, X)[0], (heads * opened) @ params.W_o, rtol=1e-11)


# ------------------------------------------------------------------------------------------------------ the norm


def test_queries_and_keys_are_normalised_before_they_are_turned():
    layer, params, X = layer_and_inputs(4, core=SoftmaxAttention(norm="rms"))
    Q, K = (split_heads(X @ W, H) for W in (params.W_q, params.W_k))
    Q, K = (g * M / np.sqrt((M * M).mean(-1, keepdims=True) + 1e-6) for g, M in zip(params.gains, (Q, K), strict=True))
    Q, K = (RoPE(d).turn(M, length=N)[0] for M in (Q, K))
    S = Q @ K.mT / np.sqrt(d)
    A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    assert np.allclose(layer(params, X)[1].A, A, rtol=1e-10)


def test_a_gain_for_each_channel_does_not_commute_with_turning():
    """One for all channels does: then normalised before or after is the same."""
    rope, rng = RoPE(d), np.random.default_rng(5)
    X, gains = rng.standard_normal((B, H, N, d)), {"each": rng.standard_normal(d), "one": np.full(d, 1.3)}
    differs = {}
    for name, gain in gains.items():
        first = rope.turn(rms_norm(X, gain)[0], length=N)[0]
        later = rms_norm(rope.turn(X, length=N)[0], gain)[0]
        differs[name] = np.abs(first - later).max()
    assert differs["one"] < 1e-12
    assert differs["each"] > 0.5


@pytest.mark.parametrize("size", [0.1, 1, 1000])
def test_no_score_is_larger_than_the_gains_allow(size):
    """|S_ij| ≤ √d max |g_q g_k|, however large X and the projections are; without a gain √d is reached by q = k."""
    layer, params, X = layer_and_inputs(6, core=SoftmaxAttention(norm="rms"), rotate=None)
    params = params._replace(W_q=size * params.W_q)
    bound = np.sqrt(d) * np.abs(params.gains.q * params.gains.k).max()
    A = layer(params, X)[1].A
    spread = np.log(A.max(-1) / A.min(-1))
    assert spread.max() <= 2 * bound
    ones = np.ones(d)
    same = params._replace(W_k=params.W_q, gains=Gains(ones, ones))
    Q = rms_norm(split_heads(X @ same.W_q, H), ones, eps=0.0)[0]
    assert np.allclose((Q * Q).sum(-1) / np.sqrt(d), np.sqrt(d), rtol=1e-12)


def test_the_gradient_of_a_query_stands_at_right_angles_to_it():
    """Its length has no effect, so the loss does not change along it; nor along the columns of a head of W_q together."""
    rng = np.random.default_rng(7)
    Q, gain = rng.standard_normal((B, H, N, d)), rng.standard_normal(d)
    dQ, _ = rms_norm(Q, gain, eps=0.0)[1](rng.standard_normal(Q.shape))
    assert np.abs(np.vecdot(dQ, Q)).max() < 1e-12 * np.abs(dQ).max()
    layer, params, X = layer_and_inputs(8, core=SoftmaxAttention(norm="rms", sink=0.0, cap=2.0, gate="head"))
    Y, pullback = layer(params, X, causal=True)
    dparams, _ = pullback(rng.standard_normal(Y.shape))
    for dW, W in ((dparams.W_q, params.W_q), (dparams.W_k, params.W_k)):
        along = (dW * W).reshape(D, H, d).sum((0, 2))
        assert np.abs(along).max() < 1e-5 * np.abs(dW * W).sum()  # ε = 10⁻⁶ under the root leaves that much


# ------------------------------------------------------------------------------------------------- all together


@pytest.mark.parametrize("groups", [None, 2])
def test_gradient_of_everything_at_once(groups):
    core = SoftmaxAttention(sink=0.5, cap=2.0, norm="rms", gate="element")
    layer, params, X = layer_and_inputs(9, core=core, groups=groups)
    check_pullback(partial(layer, causal=True), params, X, entries=6)
    said, _ = in_pieces(layer, params, X, range(N + 1))
    assert np.allclose(said, layer(params, X, causal=True)[0], rtol=1e-11)


def test_cross_attention_is_dense_and_says_so():
    layer, params, X = layer_and_inputs(10, core=SoftmaxAttention(norm="rms"))
    with pytest.raises(ValueError, match=r"^cross: SoftmaxAttention has parameters or norms"):
        layer.cross(params, X, X)


def test_a_gate_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"^G: shape \(2, 3\) should have 1 or 4 columns"):
        output_gate(np.ones((2, 4)), np.ones((2, 3)))
