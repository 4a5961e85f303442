"""Longformer: the definition in loops, its limiting cases, and what the implementation everybody uses computes."""

import math
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    Longformer,
    MultiHeadAttention,
    MultiHeadParams,
    Window,
    block_sparse_attention,
    dot_product_attention,
    longformer_attention,
    padding_mask,
)
from minitransformer.attention.multi_head import ProjectionParams
from minitransformer.functional import softmax
from minitransformer.models import LanguageModel, SequenceModel
from minitransformer.positions import ALiBi, RoPE
from minitransformer.positions.alibi import alibi_slopes
from minitransformer.pullback import NoParams

B, H, D = 2, 2, 4


def arrays(n, seed=0):
    """Q, K, V, and the three of the global rows."""
    return np.random.default_rng(seed).standard_normal((6, B, H, n, D))


@pytest.mark.parametrize(
    ("n", "radius", "step", "global_tokens"), [(12, 2, 1, 1), (12, 2, 2, 3), (5, 3, 1, 5), (3, 1, 1, 7)]
)
def test_in_loops(n, radius, step, global_tokens, tier):
    Q, K, V, Q_g, K_g, V_g = all_six = arrays(n)
    Y, _ = longformer_attention(*all_six, radius=radius, dilation=step, global_tokens=global_tokens)
    for b, h, i in np.ndindex(B, H, n):
        if i < global_tokens:
            q, keys, values, seen = Q_g[b, h, i], K_g[b, h], V_g[b, h], range(n)
        else:
            near = {j for j in range(n) if abs(i - j) <= radius * step and (i - j) % step == 0}
            q, keys, values, seen = (
                Q[b, h, i],
                K[b, h],
                V[b, h],
                near | set(range(min(global_tokens, n))),
            )  # a set: each key once
        weights = {j: math.exp(q @ keys[j] / math.sqrt(D)) for j in seen}
        want = sum(w * values[j] for j, w in weights.items()) / sum(weights.values())
        assert np.allclose(Y[b, h, i], want, atol=1e-13)


def test_everything_global_and_shared_projections_is_dense(tier):
    Q, K, V = arrays(70)[:3]
    Y, _ = longformer_attention(Q, K, V, Q, K, V, radius=1, global_tokens=70)
    assert np.allclose(Y, dot_product_attention(Q, K, V)[0], atol=1e-13)


def test_a_window_over_everything_and_shared_projections_is_dense(tier):
    Q, K, V = arrays(70)[:3]
    Y, _ = longformer_attention(Q, K, V, Q, K, V, radius=69, global_tokens=2)
    assert np.allclose(Y, dot_product_attention(Q, K, V)[0], atol=1e-13)


def test_nothing_global_is_a_window(tier):
    six = arrays(70)
    Y, pullback = longformer_attention(*six, radius=3, global_tokens=0)
    want, _ = block_sparse_attention(*six[:3], Window(3)(70, 70, causal=False))
    assert np.allclose(Y, want, atol=1e-14)
    assert not any(d.any() for d in pullback(np.ones_like(Y))[3:])


def test_with_shared_projections_it_is_the_pattern(tier):
    """A window with globals, in one softmax for every row."""
    Q, K, V = arrays(90)[:3]
    Y, _ = longformer_attention(Q, K, V, Q, K, V, radius=4, dilation=2, global_tokens=3)
    want, _ = block_sparse_attention(Q, K, V, Window(4, 2, 3)(90, 90, causal=False))
    assert np.allclose(Y, want, atol=1e-13)


def test_a_mask_of_pairs_reaches_both_kinds_of_rows(tier, rng):
    Q, K, V = arrays(20)[:3]
    mask = rng.random((B, 1, 20, 20)) < 0.7
    Y, _ = longformer_attention(Q, K, V, Q, K, V, radius=4, global_tokens=3, mask=mask)
    want, _ = dot_product_attention(Q, K, V, mask=mask & Window(4, 1, 3)(20, 20, causal=False).mask)
    assert np.allclose(Y, want, atol=1e-13)


# -------------------------------------------------------------------------------------------------- in a layer


@pytest.mark.parametrize("wide", [False, True])
def test_a_mask_beside_an_encoding_reaches_both_kinds_of_rows(wide, tier, rng):
    """Of keys or of pairs: the rows that are global, and those that are not."""
    Q, K, V, Q_g, K_g, V_g = all_six = arrays(12)
    mask, i = rng.random((12 if wide else 1, 12)) < 0.6, np.arange(12)
    mask[:, 3] = True
    Y, _ = longformer_attention(*all_six, radius=4, global_tokens=2, mask=mask, encoding=ALiBi(H), params=NoParams())
    bias = -alibi_slopes(H)[:, None, None] * np.abs(i[:, None] - i)
    near = (np.abs(i[:, None] - i) <= 4) | (i < 2)
    rows, _ = softmax(Q @ K.mT / math.sqrt(D) + bias, mask=mask & near)
    of_globals, _ = softmax(Q_g @ K_g.mT / math.sqrt(D) + bias, mask=np.broadcast_to(mask, (12, 12)))
    want = np.where(i[:, None] < 2, of_globals @ V_g, rows @ V)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-12)


def test_the_second_projections_start_as_copies_of_the_first(rng):
    for groups in (None, 1, 2):
        layer = MultiHeadAttention(8, 4, core=Longformer(2, radius=2), groups=groups)
        params = layer.init(rng, np.float64)
        X = rng.standard_normal((2, 9, 8))
        Y, _ = layer(params, X)
        same = MultiHeadAttention(8, 4, core=mt.attention.SoftmaxAttention(Window(2, 1, 1)), groups=groups)
        assert np.allclose(Y, same(params._replace(streams=None), X)[0], atol=1e-13)
        assert not any(np.shares_memory(params.streams["q_g"].W, W) for W in (params.W_q, params.W_k))


def test_a_rotary_encoding_turns_the_second_queries_and_keys_too(rng):
    """Only differences of positions count: with rotary positions moving a text along changes nothing."""
    rope = RoPE(4, base=10.0)
    model = SequenceModel(40, 24, 8, 1, 2, 10, "longformer:radius=2", rope)
    core = model.body.blocks[0].attention.core
    assert (core.rotate, model.body.blocks[0].attention.rotate) == (rope, None)
    Q, K, V, Q_g, K_g, V_g = arrays(12)
    Y, _ = core(NoParams(), Q, K, V, Q_g, K_g, V_g)
    turned = [rope.turn(X, first=7, length=30)[0] for X in (Q, K, Q_g, K_g)]
    want, _ = longformer_attention(turned[0], turned[1], V, turned[2], turned[3], V_g, radius=2)
    assert np.allclose(Y, want, atol=1e-13)
    plain, _ = longformer_attention(Q, K, V, Q_g, K_g, V_g, radius=2)
    assert not np.allclose(Y[..., 0, :], plain[..., 0, :], atol=1e-3)
    layer = MultiHeadAttention(8, 2, bias=False, core=core)
    params = random_like(layer.init(rng, np.float64), rng)
    with mt.backend("numpy"):
        check_pullback(layer, params, rng.standard_normal((2, 9, 8)), entries=5)


@pytest.mark.parametrize("case", range(3))
def test_it_computes_what_transformers_does(case, tier):
    """Values, and gradients of the input and of all six projections; see data/README.md."""
    with np.load(Path(__file__).with_name("data") / "longformer.npz") as file:
        theirs = {name.partition(".")[2]: file[name] for name in file if name.startswith(f"{case}.")}
    n, window, global_tokens, padded = map(int, theirs["n"])
    names = {"q": "query", "k": "key", "v": "value"}

    def projection(name, sign=""):
        return ProjectionParams(theirs[f"{sign}{name}.weight"].T, theirs[f"{sign}{name}.bias"])

    own = [projection(name) for name in names.values()]
    streams = {f"{short}_g": projection(f"{name}_global") for short, name in names.items()}
    params = MultiHeadParams(
        *(p.W for p in own), np.eye(8), *(p.b for p in own), np.zeros(8), NoParams(), streams
    )  # fmt: skip
    layer = MultiHeadAttention(8, 2, core=Longformer(4, radius=window // 2, global_tokens=global_tokens))
    there = padding_mask(np.array([n, n - padded]), n)
    Y, pullback = layer(params, theirs["X"], mask=there[:, None])
    assert np.allclose(Y * there.mT, theirs["Y"], atol=1e-13)
    dparams, dX = pullback(theirs["dY"])
    assert np.allclose(dX, theirs["dX"], atol=1e-12)
    for short, name in names.items():
        want, want_g = projection(name, "d_"), projection(f"{name}_global", "d_")
        assert np.allclose(getattr(dparams, f"W_{short}"), want.W, atol=1e-12)
        assert np.allclose(getattr(dparams, f"b_{short}"), want.b, atol=1e-12)
        assert np.allclose(dparams.streams[f"{short}_g"].W, want_g.W, atol=1e-12)
        assert np.allclose(dparams.streams[f"{short}_g"].b, want_g.b, atol=1e-12)


def test_what_can_not_be(rng):
    with pytest.raises(ValueError, match="Longformer can't be causal"):
        LanguageModel(attention="longformer")
    with pytest.raises(
        ValueError, match="global_tokens: 0 should be at least 1; without a global token it is a Window"
    ):
        Longformer(4, global_tokens=0)
    with pytest.raises(ValueError, match="radius: -1 should be at least 0"):
        Longformer(4, radius=-1)
    with pytest.raises(ValueError, match="global_tokens: -1"):
        longformer_attention(*arrays(4), global_tokens=-1)
    for rows in (2, 4):
        with pytest.raises(ValueError, match=r"mask: shape .* does not broadcast"):
            longformer_attention(*arrays(7), global_tokens=rows - 1, mask=np.ones((rows, 7), bool))
    layer, X = MultiHeadAttention(8, 2, core=Longformer(4)), rng.standard_normal((2, 5, 8))
    with pytest.raises(ValueError, match="K: 7 keys for 5 queries"):
        layer(layer.init(rng, np.float64), X, memory=X[:, :2])
