"""The sliding window: pair by pair, its limiting case, how far it reaches, and what it remembers."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import (
    EachHead,
    MultiHeadAttention,
    SoftmaxAttention,
    Window,
    block_sparse_attention,
    dot_product_attention,
)
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.models import LanguageModel
from minitransformer.positions import RoPE
from minitransformer.pullback import NoParams, tree_bytes
from tests.pieces import in_pieces


def arrays(n, d=4, batch=(2, 2), seed=0):
    return np.random.default_rng(seed).standard_normal((3, *batch, n, d))


def test_pair_by_pair():
    """|i − j| ≤ ρ r and r divides i − j, or one of the two is global."""
    n, radius, step, global_tokens = 30, 3, 2, 4
    mask = Window(radius, step, global_tokens)(n, n, causal=False).mask
    for i in range(n):
        for j in range(n):
            near = abs(i - j) <= radius * step and (i - j) % step == 0
            assert mask[i, j] == (near or i < global_tokens or j < global_tokens)


@pytest.mark.parametrize(("radius", "step"), [(1, 1), (65, 1), (13, 5), (64, 1)])
def test_a_window_may_reach_one_pair_of_a_tile(radius, step):
    """64 positions are a tile, and |i − j| = 1 can be the last of one and the first of the next."""
    i, j = np.arange(200)[:, None], np.arange(200)
    expected = (abs(i - j) <= radius * step) & ((i - j) % step == 0)
    np.testing.assert_array_equal(Window(radius, step)(200, 200, causal=False).mask, expected)


@pytest.mark.parametrize(("radius", "step", "first"), [(3, 1, 0), (3, 1, 2), (0, 1, 4), (3, 2, 2), (300, 1, 1)])
@pytest.mark.parametrize("m", [1, 2, 5, 6, 7, 20, 305])
@pytest.mark.parametrize("forgotten", [0, 50])
def test_rows_of_a_state_that_the_next_query_sees(radius, step, first, m, forgotten):
    """Those whose positions it sees by the rule: the first rows are the first positions, the others the last ones."""
    rows = np.arange(m)
    position = np.where(rows < first, rows, rows + forgotten)
    gap = m - 1 + forgotten - position
    expected = ((gap <= radius * step) & (gap % step == 0)) | (position < first)
    seen = Window(radius, step, global_tokens=first).last_rows(1, m, m + forgotten)
    if isinstance(seen, slice):
        assert expected[seen].all()
        assert not expected[: seen.start].any()
    else:
        np.testing.assert_array_equal(seen, expected[None])


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_over_everything_is_dense(causal, tier):
    """Radius ≥ n − 1. One less, and the corners are hidden."""
    Q, K, V = arrays(70)
    dense, _ = dot_product_attention(Q, K, V, causal=causal)
    wide, _ = block_sparse_attention(Q, K, V, Window(69)(70, 70, causal=causal))
    assert np.allclose(wide, dense, atol=1e-13)
    less, _ = block_sparse_attention(Q, K, V, Window(68)(70, 70, causal=causal))
    assert not np.allclose(less[..., -1, :], dense[..., -1, :], atol=1e-6)
    assert np.allclose(less[..., 1:-1, :], dense[..., 1:-1, :], atol=1e-13)


@pytest.mark.parametrize(("radius", "step", "depth"), [(3, 1, 1), (3, 1, 3), (2, 4, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_the_receptive_field_of_a_stack(radius, step, depth, causal):
    """L layers reach L · radius · step to either side, or back: measured, by which inputs have a gradient."""
    n, rng = 60, np.random.default_rng(0)
    layer = MultiHeadAttention(8, 2, core=SoftmaxAttention(Window(radius, step)))
    X, pullbacks = rng.standard_normal((n, 8)), []
    with mt.backend("numpy"):
        for _ in range(depth):
            X, pullback = layer(layer.init(rng, np.float64), X, causal=causal)
            pullbacks.append(pullback)
        dX = np.zeros((n, 8))
        dX[30] = rng.standard_normal(8)
        for pullback in reversed(pullbacks):
            _, dX = pullback(dX)
    reached = np.flatnonzero(np.abs(dX).max(1) > 0)
    expected = np.arange(30 - depth * radius * step, 31 if causal else 31 + depth * radius * step, step)
    np.testing.assert_array_equal(reached, expected)


def test_w_is_one_thing_before_a_token_and_another_around_it():
    """w keys in a causal window are radius w − 1; the "w" of a window to both sides is its radius, of 2 w + 1 keys."""
    w, i = 5, 20
    assert Window(w - 1)(30, 30, causal=True).mask[i].sum() == w
    assert Window(w)(30, 30, causal=False).mask[i].sum() == 2 * w + 1
    assert [Window(w - 1)(30, 30, causal=True).mask[i].sum() for i in range(7)] == [1, 2, 3, 4, 5, 5, 5]


def test_a_dilation_for_each_head():
    tiles = EachHead((Window(2), Window(2, 3)))(40, 40, causal=True)
    assert [np.flatnonzero(mask[30]).tolist() for mask in tiles.mask] == [[28, 29, 30], [24, 27, 30]]


# ------------------------------------------------------------------------------------------- what it remembers


def test_a_ring_of_w_places_is_enough():
    """Token t overwrites the key at t mod w. The order of the others does not matter to a sum, and turned keys stay turned."""
    n, w, d = 40, 6, 4
    Q, K, V = arrays(n, d, ())
    rope = RoPE(d)
    Q, K = (rope.turn(X, length=n)[0] for X in (Q, K))
    with mt.backend("numpy"):
        whole, _ = block_sparse_attention(Q, K, V, Window(w - 1)(n, n, causal=True))
        ring_K, ring_V = np.zeros((2, w, d))
        for t in range(n):
            ring_K[t % w], ring_V[t % w] = K[t], V[t]
            there = min(t + 1, w)
            y, _ = dot_product_attention(Q[t : t + 1], ring_K[:there], ring_V[:there])
            assert np.allclose(y[0], whole[t], atol=1e-14)


@pytest.mark.parametrize(
    "pattern", [Window(5), Window(3, 4), Window(5, global_tokens=3), EachHead((Window(2), Window(9, 2, 1)))]
)
@pytest.mark.parametrize("pieces", [(1,) * 150, (7, 1, 1, 200, 1, 4, 5, 70), (100, 100, 1), (3, 65, 64, 1)])
def test_step_by_step_is_the_whole(pattern, pieces, tier):
    core, given = SoftmaxAttention(pattern), list(arrays(sum(pieces)))
    said, state = in_pieces(core, NoParams(), given, np.cumsum((0, *pieces)))
    assert np.allclose(said, core(NoParams(), *given, causal=True)[0], atol=1e-13)
    assert state.length == sum(pieces)
    assert state.keys.shape[-2] <= sum(pattern.kept) - 1


def test_memory_is_constant_while_it_writes(tier):
    model = LanguageModel(40, 96, 12, 2, 2, 10, attention=Window(7, global_tokens=2), positions="rope")
    params = model.init(np.random.default_rng(0))
    _, state = model.step(params, np.arange(40)[None])
    sizes = []
    for t in range(300):
        _, state = model.step(params, np.array([[t % 40]]), state)
        sizes.append(tree_bytes(state))
    assert len(set(sizes[100:])) == 1, "kept in room of one size, however long the text"
    dense = LanguageModel(40, 96, 12, 2, 2, 10, positions="rope")
    _, everything = dense.step(params, np.arange(340)[None] % 40)
    assert max(sizes) < tree_bytes(everything) / 3


def test_a_wide_window_takes_no_room_before_it_needs_it():
    K = np.ones((1, 100, 4))
    assert Recent.of(K, K, Kept(0, 10**9)).extended(K, K).K.shape[-2] <= 400


def test_an_old_state_still_has_its_keys():
    """Far behind the last one written, when a ring would have overwritten them."""
    core = SoftmaxAttention(Window(4, global_tokens=1))
    Q, K, V = arrays(500)
    _, old = core.step(NoParams(), Q[..., :20, :], K[..., :20, :], V[..., :20, :])
    before, state = old.keys.copy(), old
    for t in range(20, 500):
        _, state = core.step(NoParams(), *(X[..., t : t + 1, :] for X in (Q, K, V)), state=state)
    assert np.array_equal(old.keys, before)
    again, _ = core.step(NoParams(), *(X[..., 20:21, :] for X in (Q, K, V)), state=old)
    whole, _ = core(NoParams(), *(X[..., :21, :] for X in (Q, K, V)), causal=True)
    assert np.allclose(again, whole[..., 20:, :], atol=1e-13)


def test_two_ways_to_go_on_from_one_state():
    """They have room in common, and the second does not write over the first."""
    core = SoftmaxAttention(Window(4))
    Q, K, V = arrays(30)
    other = arrays(30, seed=1)[1]
    _, state = core.step(NoParams(), Q[..., :20, :], K[..., :20, :], V[..., :20, :])
    _, one = core.step(NoParams(), *(X[..., 20:22, :] for X in (Q, K, V)), state=state)
    core.step(NoParams(), *(X[..., 20:22, :] for X in (Q, other, V)), state=state)
    again, _ = core.step(NoParams(), *(X[..., 22:23, :] for X in (Q, K, V)), state=one)
    whole, _ = core(NoParams(), *(X[..., :23, :] for X in (Q, K, V)), causal=True)
    assert np.allclose(again, whole[..., 22:, :], atol=1e-13)


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 5), (3, 5)])
def test_the_rows_know_where_they_stand(first, last):
    K, V = np.arange(400.0)[:, None] * np.ones((2, 1, 1, 1))
    state = Recent.of(K[:, :9], V[:, :9], Kept(first, last))
    for t in range(9, 400):
        state = state.extended(K[:, t : t + 1], V[:, t : t + 1])
        np.testing.assert_array_equal(state.K[0, : state.end, 0], state.positions)
        assert {*range(min(first, t)), *range(max(t + 2 - last, 0), t + 1)} <= {*state.positions}
        assert state.K.shape[-2] <= first + 2 * last + 64


def test_scores_that_know_offsets_keep_the_last_keys_and_others_all():
    cases = (("alibi", True), ("t5", True), ("shaw", False), ("rope", True), ("sinusoidal", True))
    for positions, short, global_tokens in (*((*case, 0) for case in cases), ("alibi", False, 2), ("rope", True, 2)):
        model = LanguageModel(
            40, 96, 12, 1, 2, 10, attention=Window(5, global_tokens=global_tokens), positions=positions
        )
        params = model.init(np.random.default_rng(0), np.float64)
        tokens = np.random.default_rng(1).integers(0, 40, (1, 60))
        said, state = in_pieces(model, params, tokens, range(61))
        assert np.allclose(said, model(params, tokens)[0], atol=1e-12)
        assert state.blocks[0].keys.shape[-2] == (5 + global_tokens if short else 60)
