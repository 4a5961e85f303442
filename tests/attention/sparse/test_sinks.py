"""A window with attention sinks: against a cache that is turned anew for every token, and its limiting cases."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    MultiHeadAttention,
    Sinks,
    SoftmaxAttention,
    Window,
    dot_product_attention,
    sink_attention,
)
from minitransformer.models import LanguageModel
from minitransformer.positions import NTK, ALiBi, DynamicNTK, RoPE
from minitransformer.positions.alibi import alibi_slopes
from minitransformer.pullback import NoParams, tree_bytes, tree_items
from tests.pieces import in_pieces

D = 4
ROPE = RoPE(D, base=10.0)


def arrays(n, m=None, batch=(2,), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*batch, rows, D)) for rows in (n, m or n, m or n)]


def turned(x, position):
    """R_t x, pair by pair."""
    y = np.zeros(D)
    for f in range(D // 2):
        angle = position * 10.0 ** (-2 * f / D)
        y[2 * f] = x[2 * f] * math.cos(angle) - x[2 * f + 1] * math.sin(angle)
        y[2 * f + 1] = x[2 * f] * math.sin(angle) + x[2 * f + 1] * math.cos(angle)
    return y


def by_cache(Q, K, V, first, last):
    """Token by token: put the key into the cache, throw out what is too old, turn all by their places in it, attend."""
    cache, Y = [], np.zeros((len(Q), D))
    for t in range(len(K)):
        cache.append(t)
        if len(cache) > first + last:
            del cache[first]
        i = t - (len(K) - len(Q))
        if i < 0:
            continue
        q = turned(Q[i], len(cache) - 1)
        weights = [math.exp(q @ turned(K[j], place) / math.sqrt(D)) for place, j in enumerate(cache)]
        Y[i] = sum(w * V[j] for w, j in zip(weights, cache, strict=True)) / sum(weights)
    return Y


@pytest.mark.parametrize(("first", "last"), [(2, 5), (0, 4), (4, 1), (3, 100)])
@pytest.mark.parametrize(("n", "m"), [(30, 30), (3, 30), (1, 9), (150, 150)])
def test_against_a_cache(first, last, n, m, tier):
    Q, K, V = arrays(n, m)
    Y, _ = sink_attention(Q, K, V, first=first, last=last, rotate=ROPE)
    for b in range(2):
        assert np.allclose(Y[b], by_cache(Q[b], K[b], V[b], first, last), atol=1e-12)


@pytest.mark.parametrize("rotate", [None, ROPE])
def test_a_text_that_fits_is_dense(rotate, tier):
    """n ≤ a + w. One token more, and one key is gone."""
    Q, K, V = arrays(12)
    Y, _ = sink_attention(Q, K, V, first=4, last=8, rotate=rotate)
    if rotate is not None:
        Q, K = (rotate.turn(X, length=12)[0] for X in (Q, K))
    dense, _ = dot_product_attention(Q, K, V, causal=True)
    assert np.allclose(Y, dense, atol=1e-13)
    less, _ = sink_attention(*arrays(12), first=4, last=7, rotate=rotate)
    assert np.allclose(less[:, :-1], dense[:, :-1], atol=1e-13)
    assert not np.allclose(less[:, -1], dense[:, -1], atol=1e-6)


def test_without_positions_it_is_a_window_with_globals(tier):
    Q, K, V = arrays(90)
    want, _ = SoftmaxAttention(Window(6, global_tokens=3))(NoParams(), Q, K, V, causal=True)
    assert np.allclose(sink_attention(Q, K, V, first=3, last=7)[0], want, atol=1e-14)


@pytest.mark.parametrize(("n", "m"), [(12, 12), (4, 12), (70, 70)])
@pytest.mark.parametrize("rotate", [None, ROPE])
def test_gradient(n, m, rotate):
    mask = np.random.default_rng(1).random((1, m)) < 0.8
    with mt.backend("numpy"):
        check_pullback(partial(sink_attention, first=2, last=4, rotate=rotate, mask=mask), *arrays(n, m), entries=15)


@pytest.mark.parametrize("pieces", [(1,) * 40, (7, 1, 1, 30, 2), (3, 1, 4, 1, 5, 70)])
@pytest.mark.parametrize("scaling", [None, NTK(2.0)])
def test_step_by_step_is_the_whole(pieces, scaling, tier):
    core, given = Sinks(3, 5, RoPE(D, scaling=scaling)), list(arrays(sum(pieces)))
    said, state = in_pieces(core, NoParams(), given, np.cumsum((0, *pieces)))
    assert np.allclose(said, core(NoParams(), *given)[0], atol=1e-13)
    assert state.keys.shape[-2] == 3 + 5 - 1


def test_no_angle_is_larger_than_in_a_text_that_fits():
    """However long the text: what a query and a key are turned by against each other stays below a + w."""
    seen = []

    class Watched(RoPE):
        def turn(self, X, *, first=0, length):
            seen.append(first + X.shape[-2])
            return super().turn(X, first=first, length=length)

    core, state = Sinks(2, 6, Watched(D)), None
    Q, K, V = arrays(300)
    for t in range(300):
        _, state = core.step(NoParams(), *(X[:, t : t + 1] for X in (Q, K, V)), state=state)
    assert max(seen) <= 2 + 6


def test_memory_is_constant_in_a_model(tier):
    model = LanguageModel(40, 96, 16, 2, 2, 10, attention="sinks:first=2,last=9", positions="rope")
    assert isinstance(model.body.blocks[0].attention.core.rotate, RoPE)
    assert model.body.blocks[0].attention.rotate is None
    params = model.init(np.random.default_rng(0))
    state, sizes = None, []
    for t in range(300):
        logits, state = model.step(params, np.array([[t % 40]]), state)
        assert np.isfinite(logits).all()
        sizes.append(tree_bytes(state))
    assert len(set(sizes[100:])) == 1


def test_a_mask_beside_an_encoding(tier, rng):
    """Pairs are hidden from queries whose cache is not full yet, and from those whose cache is."""
    Q, K, V = arrays(20)
    mask = rng.random((20, 20)) < 0.6
    mask |= np.eye(20, dtype=bool)
    Y, _ = sink_attention(Q, K, V, first=2, last=5, mask=mask, encoding=ALiBi(2), params=NoParams())
    for h, t in np.ndindex(2, 20):
        cache = np.array([j for j in range(t + 1) if j < 2 or j > t - 5])
        bias = -alibi_slopes(2)[h] * np.arange(len(cache))[::-1]  # by their places, the query's own the last
        weights = np.exp(Q[h, t] @ K[h, cache].T / math.sqrt(D) + bias) * mask[t, cache]
        np.testing.assert_allclose(Y[h, t], weights @ V[h, cache] / weights.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("positions", ["tupe", "grid:columns=4", "learned"])
def test_a_text_shorter_than_its_cache_asks_for_no_position_behind_it(positions, tier):
    model = LanguageModel(40, 16, 16, 1, 2, 10, attention="sinks:first=4,last=64", positions=positions)
    dense = LanguageModel(40, 16, 16, 1, 2, 10, positions=positions)
    params, tokens = dense.init(np.random.default_rng(0), np.float64), np.arange(12)
    expected = dense(params, tokens)[0]
    np.testing.assert_allclose(model(params, tokens)[0], expected, atol=1e-12)
    np.testing.assert_allclose(in_pieces(model, params, tokens, range(13))[0], expected, atol=1e-12)


@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("positions", ["shaw", "t5", "tupe", "fire"])
def test_an_empty_text_is_none_for_an_encoding_either(first, positions, tier):
    """Of no tokens there is nothing to say, and a step of none changes nothing."""
    model = LanguageModel(9, 12, 8, 1, 2, attention=f"sinks:first={first},last=2", positions=positions)
    layer, rng = model.body.blocks[0].attention, np.random.default_rng(0)
    params, X = layer.init(rng, np.float64), rng.standard_normal((2, 5, 8))
    for mask in (None, np.ones((2, 1, 1, 0), bool)):
        Y, pullback = layer(params, X[:, :0], causal=True, mask=mask)
        dparams, dX = pullback(Y)
        assert Y.shape == dX.shape == (2, 0, 8)
        assert not any(d.any() for _, d in tree_items(dparams) if isinstance(d, np.ndarray))
    said, _ = in_pieces(layer, params, X, [0, 0, 3, 3, 4, 5])
    np.testing.assert_allclose(said, layer(params, X, causal=True)[0], rtol=1e-10, atol=1e-12)


def test_what_can_not_be():
    with pytest.raises(ValueError, match="first: -1 should be at least 0"):
        sink_attention(*arrays(4), first=-1, last=3)
    with pytest.raises(ValueError, match="last: 0 should be at least 1"):
        Sinks(2, 0)
    with pytest.raises(ValueError, match="Q: 5 queries"):
        sink_attention(*arrays(5, 4))
    with pytest.raises(ValueError, match="always causal"):
        Sinks()(NoParams(), *arrays(4), causal=False)
    with pytest.raises(
        ValueError, match="rotate: positions can act on queries and keys, or on scores by an encoding, not on both"
    ):
        sink_attention(*arrays(4), rotate=RoPE(D), encoding=ALiBi(2), params=NoParams())
    with pytest.raises(TypeError, match="rotate: object turns nothing; RoPE does"):
        sink_attention(*arrays(4), rotate=object())
    assert not MultiHeadAttention(8, 2, core=Sinks(rotate=RoPE(D, scaling=DynamicNTK(2.0, 6)))).decodes
