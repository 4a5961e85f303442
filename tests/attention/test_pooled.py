"""Pooled attention: loops, gradients, what it is a case of, decoding, and DeepSeek's own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import (
    Pooled,
    PooledParams,
    Window,
    dot_product_attention,
    pool_blocks,
    pooled_attention,
)
from minitransformer.attention.block_sparse import TILE, block_pattern, keys_of_both
from minitransformer.attention.compressed.memory_compressed import compress
from minitransformer.functional import rms_norm
from minitransformer.models import LanguageModel
from minitransformer.positions import RoPE
from minitransformer.pullback import random_like, tree_items, tree_map
from tests.pieces import in_pieces
from tests.waves import waves

STORED = Path(__file__).parent / "data" / "pooled.json"
B, H, M, D, S, W = 2, 3, 11, 4, 3, 4
HIDES = np.array([[1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0]], bool)


def rows(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


# ------------------------------------------------------------------------------------------------------ pooling


def test_pooling_against_loops():
    C, Z, beta = rows(0, (B, M, D), (B, M, D), (S, D))
    E, _ = pool_blocks(C, Z, beta)
    assert E.shape == (B, M // S, D)
    for b, k, c in np.ndindex(E.shape):
        weights = [math.exp(Z[b, k * S + t, c] + beta[t, c]) for t in range(S)]
        average = sum(w * C[b, k * S + t, c] for t, w in enumerate(weights)) / sum(weights)
        assert math.isclose(E[b, k, c], average, rel_tol=1e-12)


@pytest.mark.parametrize("mask", [None, np.arange(M) % 5 > 0], ids=["all", "some"])
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_gradient_of_pooling(batch, mask):
    C, Z, beta = rows(1, (*batch, M, D), (*batch, M, D), (S, D))
    seen = None if mask is None else np.broadcast_to(mask, (*batch, M))
    check_pullback(lambda *arrays: pool_blocks(*arrays, mask=seen), C, Z, beta)


def test_a_logit_of_zero_is_a_mean_and_a_large_one_picks_a_token():
    """The mean is a fixed kernel of memory-compressed attention; each channel may pick another token."""
    (C,) = rows(2, (12, D))
    theta = np.broadcast_to(1 / S, (1, S, D)).copy()
    assert np.allclose(
        pool_blocks(C, np.zeros((12, D)), np.zeros((S, D)))[0], compress(C[None], theta)[0][0], rtol=1e-13
    )
    Z = np.zeros((12, D))
    picks = np.random.default_rng(3).integers(0, S, (4, D))
    for k, c in np.ndindex(picks.shape):
        Z[k * S + picks[k, c], c] = 100
    E, _ = pool_blocks(C, Z, np.zeros((S, D)))
    assert np.allclose(E, [[C[k * S + picks[k, c], c] for c in range(D)] for k in range(4)], rtol=1e-13)


def test_what_is_hidden_has_no_part_whatever_stands_in_it():
    C, Z, beta = rows(4, (M, D), (M, D), (S, D))
    mask = np.array([1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1], bool)
    E, pullback = pool_blocks(C, Z, beta, mask=mask)
    wild = np.where(mask[:, None], C, np.nan)
    assert np.array_equal(pool_blocks(wild, Z, beta, mask=mask)[0], E)
    assert (E[1] == 0).all()
    for G in pullback(np.ones_like(E))[:2]:
        assert (G[~mask] == 0).all()


def test_logits_of_any_size():
    C, Z, beta = rows(5, (6, D), (6, D), (S, D))
    E, _ = pool_blocks(C.astype(np.float32), np.float32(1000) * Z.astype(np.float32), beta.astype(np.float32))
    assert np.isfinite(E).all()


# ---------------------------------------------------------------------------------------------------- attention


def blocks_of(C, block=S):
    """A row for each complete block, some average."""
    return pool_blocks(C, np.zeros_like(C), np.zeros((block, C.shape[-1])))[0]


@pytest.mark.parametrize("mask", [None, HIDES], ids=["all", "some"])
@pytest.mark.parametrize("n", [M, 4])
def test_attention_against_loops(n, mask, tier):
    """Which rows a query sees, and that they are keys and values: entry by entry, for the last n of the positions.

    Of what a mask hides, a block is seen as long as one of its tokens is there.
    """
    Q, C, sink = rows(6, (B, H, n, D), (B, M, D), (H,))
    E, there = blocks_of(C), np.ones((B, M), bool) if mask is None else mask
    Y, _ = pooled_attention(Q, C, E, sink, block=S, window=W, mask=mask)
    for b, h, t in np.ndindex(B, H, n):
        i = M - n + t
        seen = [C[b, j] for j in range(max(i - W + 1, 0), i + 1) if there[b, j]]
        complete = (k for k in range(M // S) if all(k * S + place <= i for place in range(S)))
        seen += [E[b, k] for k in complete if any(there[b, k * S + place] for place in range(S))]
        weights = [math.exp(sum(Q[b, h, t, c] * row[c] for c in range(D)) / math.sqrt(D)) for row in seen]
        total = sum(weights) + math.exp(sink[h])
        for c in range(D):
            value = sum(w * row[c] for w, row in zip(weights, seen, strict=True)) / total
            assert math.isclose(Y[b, h, t, c], value, rel_tol=1e-10)


@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_gradient_of_attention(masked, sink, tier):
    Q, C, b = rows(7, (B, H, M, D), (B, M, D), (H,))
    mask = np.random.default_rng(8).random((B, M)) < 0.7 if masked else None

    def attend(Q, C, E, *sink):
        return pooled_attention(Q, C, E, *sink, block=S, window=W, mask=mask)

    check_pullback(attend, Q, C, blocks_of(C), *([b] if sink else []), entries=25)


def test_gradient_beyond_a_tile(tier):
    """Blocks fill more than one tile of keys, and tokens too."""
    Q, C = rows(9, (1, 2, 150, D), (1, 150, D))
    check_pullback(lambda *a: pooled_attention(*a, block=2, window=70), Q, C, blocks_of(C, 2), entries=8)


@pytest.mark.parametrize("radius", [9, 150])
@pytest.mark.parametrize(("n", "m", "count"), [(5, 5, 0), (70, 130, 3), (130, 130, 64), (64, 70, 100), (1, 300, 130)])
def test_patterns_side_by_side(n, m, count, radius):
    """The columns of one, and behind them the columns of the other, which may have tiles without a mask."""
    whole = -(-count // TILE) * TILE
    left = block_pattern(n, whole, lambda i, j: (j < count) & ((i * j) % 7 < 3))
    right = Window(radius)(n, m, causal=True)
    both = keys_of_both(left, right)
    assert (both.n, both.m) == (n, whole + m)
    assert np.array_equal(both.mask, np.concatenate([left.mask, right.mask], -1))
    assert both.pairs == left.pairs + right.pairs
    with pytest.raises(ValueError, match="keys should fill whole tiles of 64"):
        keys_of_both(block_pattern(n, whole + 1, lambda i, j: i >= j), right)


# ------------------------------------------------------------------------------------------------ limiting cases


def some(layer, seed=10):
    return random_like(layer.init(np.random.default_rng(0), np.float64), np.random.default_rng(seed))


def test_without_a_complete_block_it_is_attention_in_a_window_to_keys_that_are_values():
    """One group of heads, keys and values of one matrix, turned; the values turned as well, and what they sum to turned back."""
    layer = Pooled(24, 3, block=50, window=W, rotary=4, base=500.0)
    params, (X,) = some(layer), rows(11, (B, 12, 24))
    rope = RoPE(8, 500.0, part=4)
    Q, _ = rms_norm((X @ params.W_q).reshape(B, 12, 3, 8).swapaxes(1, 2), params.gamma_q)
    C, _ = rms_norm(X @ params.W_c, params.gamma_c)
    Q, C = (rope.turn(rows, length=12)[0] for rows in (Q, C))
    seen = Window(W - 1)(12, 12, causal=True).mask
    U = dot_product_attention(Q, C[:, None], C[:, None], None, params.sink, mask=seen)[0].copy()
    cos, sin = (table[:12] for table in rope.table(12, np.dtype(float)))
    first, second = U[..., 0:4:2].copy(), U[..., 1:4:2].copy()
    U[..., 0:4:2], U[..., 1:4:2] = first * cos + second * sin, second * cos - first * sin
    assert np.allclose(layer(params, X)[0], U.swapaxes(1, 2).reshape(B, 12, 24) @ params.W_o, rtol=1e-11, atol=1e-12)


def test_blocks_of_one_token_and_a_window_of_one_are_dense_attention_that_sees_itself_twice():
    """E_b is C_b then: all earlier tokens are seen as blocks, and a query's own token also as itself."""
    Q, C = rows(12, (H, M, D), (M, D))
    Y, _ = pooled_attention(Q, C, C, block=1, window=1)
    scores = Q @ C.T / math.sqrt(D) + np.log(1.0 + np.eye(M))
    scores = np.where(np.tri(M, dtype=bool), scores, -np.inf)
    A = np.exp(scores - scores.max(-1, keepdims=True))
    assert np.allclose(Y, A / A.sum(-1, keepdims=True) @ C, rtol=1e-12)


def test_only_distances_count():
    """The same text after others that nobody sees: R_{−i} Σ_j A_ij R_j c_j knows j − i alone, R_i Σ_j A_ij c_j would not."""
    layer = Pooled(24, 3, block=50, window=4, rotary=8)
    params, (X,) = some(layer), rows(13, (14, 24))
    early, late = layer(params, X[5:])[0], layer(params, X)[0]
    assert np.allclose(early[3:], late[8:], rtol=1e-11, atol=1e-13)


def test_a_block_is_seen_when_it_is_complete_and_not_before():
    """A change of token t reaches no earlier row, and with a window of one it reaches every row from its block's end on."""
    layer = Pooled(24, 3, block=S, window=1)
    params, (X,) = some(layer), rows(14, (12, 24))
    before = layer(params, X)[0]
    for t in range(12):
        changed = X.copy()
        changed[t] += 1
        differs = (layer(params, changed)[0] != before).any(-1)
        end = t // S * S + S - 1
        assert differs.tolist() == [i == t or i >= end for i in range(12)]


def test_what_a_mask_hides_reaches_nothing_wherever_it_stands(tier):
    """In front and in the middle of a block too, where it has a part in what later tokens see, unless it is left out."""
    layer = Pooled(24, 3, block=S, window=W)
    params, (X, dY) = some(layer), rows(22, (B, M, 24), (B, M, 24))
    there, other = HIDES[..., None], X.copy()
    other[~HIDES] += 1
    Y, pullback = layer(params, X, mask=HIDES[:, None, None, :])
    Z, _ = layer(params, other, mask=HIDES[:, None, None, :])
    assert np.array_equal(np.where(there, Y, 0), np.where(there, Z, 0))
    assert (pullback(np.where(there, dY, 0))[1][~HIDES] == 0).all()


# --------------------------------------------------------------------------------------------- as a layer, decoding

LAYERS = {
    "as it comes": Pooled(24, 3),
    "small": Pooled(24, 3, block=3, window=4),
    "wide rows": Pooled(24, 3, block=2, window=1, head_width=10, rotary=6, base=500.0),
    "one token a block": Pooled(24, 3, block=1, window=2),
}
layers = pytest.mark.parametrize("name", LAYERS)


@pytest.mark.parametrize(("head_width", "turned"), [(2, 2), (3, 2), (6, 2), (8, 4), (None, 4)])
def test_what_nobody_chooses(head_width, turned):
    """Half of the channels are turned, in whole pairs; gains are one, β and sinks zero. A width that is given needs no D/H."""
    layer = Pooled(24, 3, head_width=head_width)
    assert layer.rotate.part == turned
    assert Pooled(24, 5, head_width=8).d == 8
    params = layer.init(np.random.default_rng(0))
    for gain in (params.gamma_q, params.gamma_c, params.gamma_e):
        assert (gain == 1).all()
    assert not params.beta.any()
    assert not params.sink.any()


@layers
def test_gradient_of_the_layer(name, tier):
    layer = LAYERS[name]
    (X,) = rows(15, (2, 19, 24))
    zero = ("params.W_z", "params.beta") if layer.block == 1 else ()  # one token has all of the weight
    check_pullback(lambda params, X: layer(params, X), some(layer), X, entries=6, zero=zero)


@layers
@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 11, 12, 40), range(41)], ids=["pieces", "each token"])
def test_decoding_is_the_whole(name, cuts, tier):
    layer, (X,) = LAYERS[name], rows(16, (2, 40, 24))
    said, state = in_pieces(layer, some(layer), X, tuple(cuts))
    assert np.allclose(said, layer(some(layer), X)[0], rtol=1e-10, atol=1e-12)
    assert state.length == 40
    assert state.blocks.length == 40 // layer.block


def test_a_long_text_leaves_a_row_for_each_block_behind():
    layer = Pooled(32, 4, block=8, window=16)
    X = np.random.default_rng(17).standard_normal((200, 32)).astype(np.float32)
    _, state = layer.step(layer.init(np.random.default_rng(0)), X)
    assert state.blocks.keys.shape == (1, 25, 8)
    assert state.recent.keys.shape == (1, 15, 8)
    assert state.blocks.values.size == state.recent.values.size == 0
    assert state.E.shape == state.Z.shape == (0, 8)
    assert state.E.base is state.Z.base is None, "a view would hold the rows of all 200 tokens"


def test_two_ways_to_go_on_from_one_state_do_not_meet():
    layer, (X, other) = LAYERS["small"], rows(18, (20, 24), (4, 24))
    params = some(layer)
    _, state = layer.step(params, X[:13])
    first, _ = layer.step(params, X[13:], state)
    layer.step(params, other, state)
    again, _ = layer.step(params, X[13:], state)
    assert np.array_equal(first, again)


# ------------------------------------------------------------------------------------------------ DeepSeek's own


@pytest.mark.parametrize(("block", "window"), [(4, 5), (3, 1), (8, 20)])
def test_the_same_numbers_as_in_transformers(block, window, tier):
    stored = json.loads(STORED.read_text())[f"block={block},window={window}"]
    layer = Pooled(24, 3, block=block, window=window, rotary=4)
    form = layer.init(np.random.default_rng(0), np.float64)
    params = PooledParams(*(waves(a.shape, k) for k, a in enumerate(form)))._replace(gamma_q=np.ones(8))
    X, dY = waves((2, 21, 24), 20), waves((2, 21, 24), 21)
    Y, pullback = layer(params, X)
    dparams, dX = pullback(dY)
    assert np.allclose(Y[:, [0, 3, 7, 20], :4], stored["Y"], rtol=1e-10, atol=1e-12)
    gradients = {**dict(tree_items(dparams)), "X": dX}
    assert gradients.keys() - stored["gradients"].keys() == {"gamma_q"}
    for name, wanted in stored["gradients"].items():
        G = gradients[name]
        assert np.allclose([np.vdot(G, waves(G.shape, 30)), np.vdot(G, G)], wanted, rtol=1e-9, atol=1e-9), name


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": 0}, "window: 0"),
        ({"rotary": 3}, "rotary: 3 should be even, and from 2 to 8"),
        ({"rotary": 10}, "rotary: 10 should be even, and from 2 to 8"),
        ({"heads": 5}, "width: 24 is not divisible"),
        ({"head_width": 1}, "head_width: heads of width 1 should have at least 2 channels"),
        ({"width": 3, "heads": 3}, "width, heads: heads of width 1 should have at least 2 channels"),
    ],
)
def test_what_can_not_be_chosen_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        Pooled(**{"width": 24, "heads": 3, **options})


def test_what_does_not_fit_is_refused():
    Q, C, sink = rows(19, (B, H, M, D), (B, M, D), (H,))
    E, sizes = blocks_of(C), {"block": S, "window": W}
    with pytest.raises(ValueError, match="E: 2 rows for 3 complete blocks of 3 in 11 tokens"):
        pooled_attention(Q, C, E[:, 1:], **sizes)
    with pytest.raises(ValueError, match="Q: 11 queries for 10 keys"):
        pooled_attention(Q, C[:, 1:], E, **sizes)
    with pytest.raises(ValueError, match="sink: shape"):
        pooled_attention(Q, C, E, sink[:2], **sizes)
    with pytest.raises(ValueError, match="window: 0 should be at least 1"):
        pooled_attention(Q, C, E, block=S, window=0)
    with pytest.raises(TypeError, match="E, sink: should have one dtype"):
        pooled_attention(Q, C, E, sink.astype(np.float32), **sizes)
    with pytest.raises(TypeError, match="mask"):
        pooled_attention(Q, C, E, **sizes, mask=np.ones((B, M + 1), bool))
    with pytest.raises(ValueError, match="beta: should have a row"):
        pool_blocks(C, C, np.zeros((0, D)))
    layer = LAYERS["small"]
    with pytest.raises(ValueError, match="the tokens, which are all that it can hide"):
        layer(some(layer), np.zeros((2, 5, 24)), mask=np.ones((5, 5), bool))
    with pytest.raises(ValueError, match=r"pooled has no queries and keys.*at the embeddings.* such as 'sinusoidal'"):
        LanguageModel(width=24, heads=3, attention="pooled", positions="rope")
    _, state = layer.step(some(layer), np.zeros((2, 5, 24)))
    with pytest.raises(ValueError, match=r"state: blocks, last rows and what waits .* should all be of 6 tokens"):
        layer.step(some(layer), np.zeros((2, 1, 24)), state._replace(length=6))
    _, longer = layer.step(some(layer), np.zeros((2, 1, 24)), state)
    for other in (state._replace(recent=longer.recent), state._replace(Z=state.Z[:, :1])):
        with pytest.raises(ValueError, match=r"state: blocks, last rows and what waits .* should all be of 5 tokens"):
            layer.step(some(layer), np.zeros((2, 1, 24)), other)


def test_float32_stays():
    layer = LAYERS["small"]
    params = tree_map(lambda a: a.astype(np.float32), some(layer))
    Y, pullback = layer(params, np.ones((7, 24), np.float32))
    assert {a.dtype for _, a in tree_items((Y, pullback(Y)))} == {np.dtype(np.float32)}
