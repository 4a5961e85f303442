"""Pooled attention with an indexer: pairs of blocks, chosen rows, the choice and its loss, limiting cases, and DeepSeek's own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import (
    Pooled,
    PooledIndexer,
    PooledIndexerParams,
    PooledParams,
    chosen_rows_attention,
    pool_blocks,
    pool_pairs,
    pooled_attention,
)
from minitransformer.attention.selected import index_scores
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_items, tree_map, with_added
from tests.attention.test_pooled import rows, some
from tests.pieces import in_pieces
from tests.waves import waves

STORED = Path(__file__).parent / "data" / "pooled_indexer.json"
B, H, M, D, S, W = 2, 3, 11, 4, 3, 4
HIDES = np.array([[1, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0]], bool)


# --------------------------------------------------------------------------------------------- pairs of blocks


@pytest.mark.parametrize("mask", [None, HIDES], ids=["all", "some"])
def test_pairs_against_loops(mask):
    """Of 2s tokens one softmax in each channel; the first block has none before it."""
    C, Z, beta = rows(0, (B, M, 2 * D), (B, M, 2 * D), (2 * S, D))
    there = np.ones((B, M), bool) if mask is None else mask
    E, _ = pool_pairs(C, Z, beta, mask=mask)
    assert E.shape == (B, M // S, D)
    for b, k, c in np.ndindex(E.shape):
        before = [(C[b, j, c], Z[b, j, c] + beta[t, c], j) for t, j in enumerate(range((k - 1) * S, k * S)) if j >= 0]
        own = [(C[b, j, D + c], Z[b, j, D + c] + beta[S + t, c], j) for t, j in enumerate(range(k * S, k * S + S))]
        seen = [(value, math.exp(logit)) for value, logit, j in before + own if there[b, j]]
        average = sum(value * w for value, w in seen) / sum(w for _, w in seen) if seen else 0
        assert math.isclose(E[b, k, c], average, rel_tol=1e-12, abs_tol=1e-15)


@pytest.mark.parametrize("mask", [None, np.arange(M) % 5 > 0], ids=["all", "some"])
@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_gradient_of_pairs(batch, mask):
    C, Z, beta = rows(1, (*batch, M, 2 * D), (*batch, M, 2 * D), (2 * S, D))
    seen = None if mask is None else np.broadcast_to(mask, (*batch, M))
    check_pullback(lambda *arrays: pool_pairs(*arrays, mask=seen), C, Z, beta)


def test_blocks_that_do_not_look_back_are_blocks_alone():
    C, Z, beta = rows(2, (B, M, 2 * D), (B, M, 2 * D), (2 * S, D))
    beta[:S] = -1000
    alone, _ = pool_blocks(C[..., D:].copy(), Z[..., D:].copy(), beta[S:].copy())
    np.testing.assert_allclose(pool_pairs(C, Z, beta)[0], alone, rtol=1e-13)


def test_what_is_hidden_has_no_part_whatever_stands_in_it():
    C, Z, beta = rows(3, (B, M, 2 * D), (B, M, 2 * D), (2 * S, D))
    E, pullback = pool_pairs(C, Z, beta, mask=HIDES)
    wild = np.where(HIDES[..., None], C, np.nan)
    np.testing.assert_array_equal(pool_pairs(wild, Z, beta, mask=HIDES)[0], E)
    assert (E[1, :2] == 0).all()
    for G in pullback(np.ones_like(E))[:2]:
        assert (G[~HIDES] == 0).all()


# ------------------------------------------------------------------------------------------------ chosen rows


def choices(seed, n, k, count):
    """For each query some k of the rows, in any order, and sometimes fewer."""
    rng = np.random.default_rng(seed)
    chosen = rng.permuted(np.broadcast_to(np.arange(count), (B, n, count)), axis=-1)[..., :k]
    return np.where(rng.random(chosen.shape) < 0.8, chosen, -1)


@pytest.mark.parametrize("mask", [None, HIDES], ids=["all", "some"])
@pytest.mark.parametrize("n", [M, 4, 1])
def test_attention_against_loops(n, mask, tier):
    Q, C, E, sink = rows(4, (B, H, n, D), (B, M, D), (B, 5, D), (H,))
    there, chosen = np.ones((B, M), bool) if mask is None else mask, choices(5, n, 3, 5)
    Y, pullback = chosen_rows_attention(Q, C, E, sink, chosen, window=W, mask=mask)
    for b, h, t in np.ndindex(B, H, n):
        i = M - n + t
        numbers = [e for e in chosen[b, t] if e >= 0]
        near = [j for j in range(max(i - W + 1, 0), i + 1) if there[b, j]]
        seen = [E[b, e] for e in numbers] + [C[b, j] for j in near]
        weights = [math.exp(Q[b, h, t] @ row / math.sqrt(D)) for row in seen]
        total = sum(weights) + math.exp(sink[h])
        value = sum((w * row for w, row in zip(weights, seen, strict=True)), np.zeros(D)) / total
        np.testing.assert_allclose(Y[b, h, t], value, rtol=1e-10, atol=1e-14)
        A = np.zeros(5 + M)
        A[[*numbers, *(5 + j for j in near)]] = np.array(weights) / total
        np.testing.assert_allclose(pullback.A[b, h, t], A, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("mask", [None, HIDES], ids=["all", "some"])
def test_gradient_of_attention(mask, tier):
    Q, C, E, sink = rows(6, (B, H, 6, D), (B, M, D), (B, 5, D), (H,))
    chosen = choices(7, 6, 3, 5)
    check_pullback(
        lambda *arrays: chosen_rows_attention(*arrays, chosen, window=W, mask=mask), Q, C, E, sink, entries=25
    )


def test_to_choose_every_complete_block_is_pooled_attention(tier):
    """And with a sink of −∞ there is none."""
    Q, C, sink = rows(8, (B, H, M, D), (B, M, D), (H,))
    E, _ = pool_blocks(C, np.zeros_like(C), np.zeros((S, D)))
    complete = np.where(np.arange(M // S) < (np.arange(M)[:, None] + 1) // S, np.arange(M // S), -1)
    chosen, dY = np.broadcast_to(complete, (B, M, M // S)).copy(), Q[::-1].copy()
    for b in (sink, np.full(H, -np.inf)):
        Y, pullback = chosen_rows_attention(Q, C, E, b, chosen, window=W)
        want, known = pooled_attention(Q, C, E, b, block=S, window=W)
        np.testing.assert_allclose(Y, want, rtol=1e-10, atol=1e-13)
        for found, right in zip(pullback(dY), known(dY), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(Y, pooled_attention(Q, C, E, block=S, window=W)[0], rtol=1e-10, atol=1e-13)


def test_a_query_that_sees_nothing_beside_no_sink_makes_no_nan(tier):
    """A sink of −∞ takes no weight there either, so it gets no gradient; the others get theirs."""
    Q, C, E, sink = rows(9, (B, H, M, D), (B, M, D), (B, 5, D), (H,))
    sink[0], chosen = -np.inf, np.full((B, M, 2), -1)
    Y, pullback = chosen_rows_attention(Q, C, E, sink, chosen, window=W, mask=HIDES)
    gradients = pullback(np.ones_like(Y))
    assert not Y[1, :, :6].any()
    assert all(np.isfinite(G).all() for G in gradients)
    assert not gradients[-1][0].any()
    assert gradients[-1][1:].all()


# -------------------------------------------------------------------------------------- the layer and its choice

LAYERS = {
    "as it comes": PooledIndexer(24, 3),
    "small": PooledIndexer(24, 3, block=3, window=4, chosen=3, small=5, narrow=6),
    "wide rows": PooledIndexer(24, 3, block=2, window=1, head_width=10, rotary=6, base=500.0, chosen=2, narrow=5),
    "one token a block": PooledIndexer(24, 3, block=1, window=2, chosen=4, small=7),
}
layers = pytest.mark.parametrize("name", LAYERS)


def turned(x, position, base, channels):
    """Pairs of neighbouring channels, turned by position · base^(−2f/channels)."""
    y = x.copy()
    for f in range(channels // 2):
        a, z = position * base ** (-2 * f / channels), complex(x[2 * f], x[2 * f + 1])
        z *= complex(math.cos(a), math.sin(a))
        y[2 * f], y[2 * f + 1] = z.real, z.imag
    return y


SOME = np.isin(np.arange(20), (6, 7, 8, 18, 19))  # of the blocks of three, 2 is there, and for 3 the one before it


@pytest.mark.parametrize("there", [np.ones(20, bool), SOME], ids=["all", "some"])
@pytest.mark.parametrize("name", ["small", "wide rows"])
def test_the_choice_in_loops(name, there, tier):
    """Keys are pooled, normed and turned as their first token; queries are turned; the best of the complete blocks are seen.

    Of a block that is hidden, and the one before it too, nobody can choose the row.
    """
    layer = LAYERS[name]
    s, k, base, sizes = layer.block, layer.chosen, layer.base, (layer.small, layer.narrow)
    params, (X,) = some(layer), rows(11, (20, 24))
    _, pullback = layer(params, X, mask=there)
    keys, _ = pool_pairs(X @ params.U_e, X @ params.U_z, params.beta_i, mask=there)
    keys = params.gamma_i * keys / np.sqrt((keys**2).mean(-1, keepdims=True) + 1e-6)
    keys = [turned(key, s * b, base, 4) for b, key in enumerate(keys)]
    for i in range(20):
        asks, w = [turned(q, i, base, 4) for q in (X[i] @ params.U_q).reshape(sizes)], X[i] @ params.U_w
        seen = [b for b in range((i + 1) // s) if there[max(s * (b - 1), 0) : s * (b + 1)].any()]
        scores = {b: sum(w[h] * max(q @ keys[b], 0) for h, q in enumerate(asks)) for b in seen}
        best = sorted(sorted(seen, key=lambda b, scores=scores: -scores[b])[:k])
        assert [b for b in pullback.lesson.chosen[i] if b >= 0] == best


def test_behind_whole_blocks_of_padding_a_text_is_as_it_is_alone(tier):
    """The row of a block without a token is seen by nobody, and turned rows know distances only."""
    layer = LAYERS["small"]
    params, (X, dY, noise) = some(layer), rows(13, *[(B, 20, 24)] * 2, (B, 6, 24))
    padded, mask = np.concatenate([noise, X], -2), np.broadcast_to(np.arange(26) >= 6, (B, 1, 1, 26))
    (Y, pullback), (Z, behind) = layer(params, X), layer(params, padded, mask=mask)
    np.testing.assert_allclose(Z[:, 6:], Y, rtol=1e-9, atol=1e-11)
    assert behind.added == pytest.approx(pullback.added, rel=1e-9)
    dparams, dX = with_added(pullback, 1.0)(dY)
    again, dpadded = with_added(behind, 1.0)(np.concatenate([np.zeros_like(noise), dY], -2))
    np.testing.assert_allclose(dpadded[:, 6:], dX, rtol=1e-8, atol=1e-10)
    for (name, G), (_, other) in zip(tree_items(dparams), tree_items(again), strict=True):
        np.testing.assert_allclose(other, G, rtol=1e-8, atol=1e-9, err_msg=name)


def test_with_all_blocks_and_no_look_back_it_is_pooled_attention(tier):
    """Whatever its indexer says; the halves of W_e and W_z that are for the block behind then get no gradient."""
    layer, alone = PooledIndexer(24, 3, block=3, window=4, chosen=9), Pooled(24, 3, block=3, window=4)
    params, (X, dY) = some(layer), rows(12, (B, 19, 24), (B, 19, 24))
    params.beta[:3] = -1000
    own = {name: getattr(params, name) for name in PooledParams._fields}
    own |= {name: own[name][:, 8:].copy() for name in ("W_e", "W_z")} | {"beta": params.beta[3:].copy()}
    (Y, pullback), (want, known) = layer(params, X), alone(PooledParams(**own), X)
    np.testing.assert_allclose(Y, want, rtol=1e-10, atol=1e-12)
    (dparams, dX), (right, dX_right) = pullback(dY), known(dY)
    np.testing.assert_allclose(dX, dX_right, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(dparams.W_e[:, 8:], right.W_e, rtol=1e-9, atol=1e-11)
    assert not dparams.W_e[:, :8].any()


@layers
def test_gradient_of_the_layer(name, tier):
    layer = LAYERS[name]
    (X,) = rows(15, (2, 19, 24))
    check_pullback(
        lambda params, X: layer(params, X), some(layer), X, entries=6, zero=[f"params.{path}" for path in layer.apart]
    )


def test_the_indexer_learns_from_its_loss_alone_and_the_rest_from_the_other():
    """Difference quotients of the added loss, with what attention gives held: the gradient of U. None of it reaches the rest."""
    layer, (X, dY) = (
        PooledIndexer(24, 3, block=2, window=3, chosen=3, small=5, weight=0.7),
        rows(16, *[(B, 17, 24)] * 2),
    )
    params, apart = some(layer), layer.apart

    def loss(U_q, U_w, U_e, U_z, beta_i, gamma_i):
        own, dtype = dict(zip(apart, (U_q, U_w, U_e, U_z, beta_i, gamma_i), strict=True)), U_q.dtype
        all_of_it = tree_map(lambda a: a.astype(dtype), params)._replace(**own)
        _, pullback = layer(all_of_it, X.astype(dtype))
        zeros = np.zeros(X.shape, dtype)
        return np.asarray(pullback.added, dtype), lambda d: tuple(
            getattr(with_added(pullback, float(d))(zeros)[0], name) for name in apart
        )

    check_pullback(loss, *(getattr(params, name) for name in apart), entries=12)
    _, pullback = layer(params, X)
    (without, dX), (paid, dX_paid) = pullback(dY), with_added(pullback, 1.0)(dY)
    np.testing.assert_array_equal(dX, dX_paid)
    for name, G in without._asdict().items():
        np.testing.assert_array_equal(G.any(), name not in apart)
        np.testing.assert_array_equal((G == getattr(paid, name)).all(), name not in apart)


def test_the_loss_is_what_it_says():
    """KL(p ‖ softmax I) over the chosen blocks, averaged over the queries that have chosen some; sinks are left out of p."""
    layer = LAYERS["small"]
    params, (X,) = some(layer), rows(17, (20, 24))
    _, pullback = layer(params, X)
    chosen, inner = pullback.lesson.chosen, pullback.attention.attention
    given = inner.A[:, :, :6] / inner.A.sum(-1, keepdims=True)  # of the blocks; what the sink takes is left out
    asks = pullback.lesson.scores
    index, _ = index_scores(asks.Q, asks.K, asks.w)
    found = []
    for i in range(20):
        numbers = [b for b in chosen[i] if b >= 0]
        if numbers:
            p = given[:, i, numbers].sum(0)
            p /= p.sum()
            scores = index[i, 0][chosen[i] >= 0]
            found.append(sum(p * (np.log(p) - scores + np.log(np.exp(scores).sum()))))
    assert pullback.added == pytest.approx(np.mean(found), rel=1e-9)


def test_what_a_mask_hides_reaches_nothing_wherever_it_stands(tier):
    layer = LAYERS["small"]
    params, (X, dY) = some(layer), rows(22, (B, M, 24), (B, M, 24))
    there, other = HIDES[..., None], X.copy()
    other[~HIDES] += 1
    Y, pullback = layer(params, X, mask=HIDES[:, None, None, :])
    Z, again = layer(params, other, mask=HIDES[:, None, None, :])
    np.testing.assert_array_equal(np.where(there, Y, 0), np.where(there, Z, 0))
    assert pullback.added == again.added
    assert (with_added(pullback, 1.0)(np.where(there, dY, 0))[1][~HIDES] == 0).all()


# ------------------------------------------------------------------------------------------------------ decoding


@layers
@pytest.mark.parametrize("cuts", [(0, 1, 2, 3, 11, 12, 40), range(41)], ids=["pieces", "each token"])
def test_decoding_is_the_whole(name, cuts, tier):
    layer, (X,) = LAYERS[name], rows(18, (2, 40, 24))
    said, state = in_pieces(layer, some(layer), X, tuple(cuts))
    np.testing.assert_allclose(said, layer(some(layer), X)[0], rtol=1e-10, atol=1e-12)
    assert state.length == 40
    assert state.blocks.length == state.small.length == 40 // layer.block


def test_a_long_text_leaves_two_rows_for_each_block_behind():
    layer = PooledIndexer(32, 4, block=8, window=16, narrow=6)
    X = np.random.default_rng(19).standard_normal((203, 32)).astype(np.float32)
    _, state = layer.step(layer.init(np.random.default_rng(0)), X)
    assert state.blocks.keys.shape == (1, 25, 8)
    assert state.small.keys.shape == (25, 6)
    assert state.recent.keys.shape == (1, 15, 8)
    assert state.blocks.values.size == state.small.values.size == 0
    assert state.E.shape == state.Z.shape == (11, 16)  # of the last complete block, and of what follows it
    assert state.E_i.shape == state.Z_i.shape == (11, 12)
    assert all(part.base is None for part in (state.E, state.Z, state.E_i, state.Z_i)), "views hold all 203 rows"


def test_two_ways_to_go_on_from_one_state_do_not_meet():
    layer, (X, other) = LAYERS["small"], rows(20, (20, 24), (4, 24))
    params = some(layer)
    _, state = layer.step(params, X[:13])
    first, _ = layer.step(params, X[13:], state)
    layer.step(params, other, state)
    again, _ = layer.step(params, X[13:], state)
    np.testing.assert_array_equal(first, again)


# ------------------------------------------------------------------------------------------------ DeepSeek's own


@pytest.mark.parametrize(("block", "window", "chosen", "narrow"), [(4, 5, 2, 6), (3, 1, 3, 4), (2, 20, 4, 8)])
def test_the_same_numbers_as_in_transformers(block, window, chosen, narrow, tier):
    stored = json.loads(STORED.read_text())[f"block={block},window={window},chosen={chosen},narrow={narrow}"]
    layer = PooledIndexer(24, 3, block=block, window=window, rotary=4, chosen=chosen, small=6, narrow=narrow)
    form = layer.init(np.random.default_rng(0), np.float64)
    params = PooledIndexerParams(*(waves(a.shape, k) for k, a in enumerate(form)))._replace(gamma_q=np.ones(8))
    X, dY = waves((2, 21, 24), 20), waves((2, 21, 24), 21)
    Y, pullback = layer(params, X)
    dparams, dX = pullback(dY)
    np.testing.assert_allclose(Y[:, [0, 3, 7, 20], :4], stored["Y"], rtol=1e-10, atol=1e-12)
    gradients = {**dict(tree_items(dparams)), "X": dX}
    assert gradients.keys() - stored["gradients"].keys() == {"gamma_q", *layer.apart}
    for name, wanted in stored["gradients"].items():
        G = gradients[name]
        np.testing.assert_allclose([np.vdot(G, waves(G.shape, 30)), np.vdot(G, G)], wanted, rtol=1e-9, atol=1e-9)


# ------------------------------------------------------------------------------------------------------- refusals


def test_what_can_not_be_chosen_is_refused():
    for options, says in (
        ({"narrow": 1}, "narrow: 1 should be at least 2"),
        ({"rotary": 3}, "rotary: 3 should be even"),
    ):
        with pytest.raises(ValueError, match=says):
            PooledIndexer(**{"width": 24, "heads": 3, **options})
    for name in ("small=3", "narrow=4", "weight=0.5"):
        with pytest.raises(ValueError, match=f"{name.partition('=')[0]}: is of an indexer"):
            LanguageModel(width=24, heads=3, attention=f"pooled:{name}")
    model = LanguageModel(width=24, heads=3, attention="pooled:chosen=3,block=4")
    assert model.body.blocks[0].attention == PooledIndexer(24, 3, block=4, chosen=3)
    assert model.adds_loss
    with pytest.raises(ValueError, match="rope: pooled has no queries and keys that it could act on"):
        LanguageModel(width=24, heads=3, attention="pooled:chosen=3,block=4", positions="rope")


def test_what_does_not_fit_is_refused():
    Q, C, E, sink = rows(23, (B, H, M, D), (B, M, D), (B, 5, D), (H,))
    chosen = choices(24, M, 3, 5)
    for wrong in (chosen + 3, chosen - 1, np.maximum(chosen, 3), np.minimum(chosen, 0)):
        with pytest.raises(ValueError, match="chosen: should be rows of E, from 0 to 4 and each at most once, or −1"):
            chosen_rows_attention(Q, C, E, sink, wrong, window=W)
    for wrong in (chosen[:, 1:], chosen[:1], chosen.astype(float)):
        with pytest.raises(TypeError, match="chosen"):
            chosen_rows_attention(Q, C, E, sink, wrong, window=W)
    with pytest.raises(ValueError, match="Q: 11 queries for 10 keys"):
        chosen_rows_attention(Q, C[:, 1:], E, sink, chosen, window=W)
    with pytest.raises(ValueError, match="beta: 3 rows, but there is one for each place in two blocks"):
        pool_pairs(C, C, np.zeros((3, 2)))
    with pytest.raises(ValueError, match="beta: 0 rows, but there is one for each place in two blocks"):
        pool_pairs(C, C, np.zeros((0, 2)))
    with pytest.raises(ValueError, match="C: rows of width 4 should be 8 wide"):
        pool_pairs(C, C, np.zeros((4, 4)))
    layer = LAYERS["small"]
    _, state = layer.step(some(layer), np.zeros((2, 8, 24)))
    _, longer = layer.step(some(layer), np.zeros((2, 1, 24)), state)
    for other in (
        state._replace(recent=longer.recent),
        state._replace(Z=state.Z[:, :1]),
        state._replace(E_i=state.E_i[:, :1]),
        state._replace(small=longer.small),
        state._replace(length=9),
    ):
        with pytest.raises(
            ValueError, match=r"state: blocks, last rows and what waits .* should all be of [89] tokens"
        ):
            layer.step(some(layer), np.zeros((2, 1, 24)), other)


def test_float32_stays():
    layer = LAYERS["small"]
    params = tree_map(lambda a: a.astype(np.float32), some(layer))
    Y, pullback = layer(params, np.ones((7, 24), np.float32))
    assert {a.dtype for _, a in tree_items((Y, with_added(pullback, 1.0)(Y)))} == {np.dtype(np.float32)}


def test_a_text_without_a_complete_block_is_a_window_alone(tier):
    layer = PooledIndexer(24, 3, block=9, window=4)
    params, (X,) = some(layer), rows(25, (B, 8, 24))
    Y, pullback = layer(params, X)
    alone = Pooled(24, 3, block=9, window=4)
    own = PooledParams(
        *params[:4], params.W_e[:, :8].copy(), params.W_z[:, :8].copy(), params.beta[9:].copy(), *params[7:10]
    )
    np.testing.assert_allclose(Y, alone(own, X)[0], rtol=1e-11, atol=1e-13)
    assert pullback.added == 0
    assert not any(getattr(with_added(pullback, 1.0)(X)[0], name).any() for name in layer.apart)
