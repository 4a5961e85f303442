"""A sink beside the keys, and a cap over the scores: definitions in loops, limiting cases, and the checker, in every tier."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    LearnedSink,
    SoftmaxAttention,
    Window,
    block_sparse_attention,
    dot_product_attention,
    flash_attention,
    merge,
    padding_mask,
    partial_attention,
    soft_cap,
    softmax_with_sink,
)
from minitransformer.attention.merge import log_sum_exp
from minitransformer.models import LanguageModel
from minitransformer.positions import place
from minitransformer.pullback import NoParams
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("tier")

B, H, N, M, D, DV = 2, 3, 67, 70, 4, 5
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def random_inputs(seed=0, n=N, m=M, dtype=np.float64):
    """Q, K, V, and b of each head."""
    rng = np.random.default_rng(seed)
    shapes = (B, H, n, D), (B, H, m, D), (B, H, m, DV), (H,)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def both(dtype, options, *arrays, function=dot_product_attention, **others):
    """Y and all gradients for one dY."""
    Y, pullback = function(*arrays, **options, **others)
    assert Y.dtype == dtype
    return Y, *pullback(np.random.default_rng(9).standard_normal(Y.shape).astype(dtype))


def assert_same(have, want, dtype):
    for h, w in zip(have, want, strict=True):
        assert h.dtype == dtype
        assert np.abs(h - w).max() <= TOLERANCE[dtype] * (1 + np.abs(w).max())


# ------------------------------------------------------------------------------------------- the definition


def loops(Q, K, V, b, cap):
    """A_ij = e^{S_ij} / (e^b + Σ_l e^{S_il}) with S_ij = c tanh(⟨q_i, k_j⟩ / (√d c)), entry by entry."""
    Y = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        weights = []
        for j in range(len(K)):
            score = sum(Q[i, c] * K[j, c] for c in range(D)) / math.sqrt(D)
            weights.append(math.exp(cap * math.tanh(score / cap)))
        for j, w in enumerate(weights):
            Y[i] += w / (math.exp(b) + sum(weights)) * V[j]
    return Y


def test_against_loops():
    Q, K, V, b = random_inputs(n=7, m=9)
    Y, _ = dot_product_attention(Q, K, V, None, b, cap=1.5)
    for sample, head in itertools.product(range(B), range(H)):
        want = loops(*(X[sample, head] for X in (Q, K, V)), b[head], 1.5)
        assert np.allclose(Y[sample, head], want, rtol=1e-11)


@pytest.mark.parametrize("options", [{}, {"cap": 1.5}, {"causal": True}, {"cap": 1.5, "causal": True}], ids=str)
@pytest.mark.parametrize("own", [(H,), (B, 1), (B, H)])
def test_gradient(options, own):
    Q, K, V, _ = random_inputs(1, n=7, m=9)
    bias = np.random.default_rng(2).standard_normal((H, 15))
    b = np.asarray(np.random.default_rng(3).standard_normal(own))
    check_pullback(partial(dot_product_attention, **options), Q, K, V, bias, b, entries=20)


def test_gradient_in_tiles():
    """Lengths that are no multiple of a tile, and a mask."""
    mask = np.random.default_rng(4).random((B, 1, N, M)) < 0.6
    mask[:, :, 3] = False
    check_pullback(
        lambda Q, K, V, b: dot_product_attention(Q, K, V, None, b, mask=mask, cap=2.0), *random_inputs(5), entries=8
    )


@dtypes
def test_the_stages(dtype):
    """A cap, then a softmax with a sink, is what attention does; of weights and of every gradient."""
    Q, K, V, b = random_inputs(6, dtype=dtype)
    S = Q @ K.mT / dtype(math.sqrt(D))
    A, _ = softmax_with_sink(soft_cap(S, 2.0)[0], b)
    Y, pullback = dot_product_attention(Q, K, V, None, b, cap=2.0)
    assert_same((pullback.A, Y), (A, A @ V), dtype)
    assert (A.sum(-1) < 1).all()


# ------------------------------------------------------------------------------------------------ identities


@dtypes
def test_a_sink_is_a_gate_that_has_read_the_scores(dtype):
    """y_i = σ(L_i − b) Σ_j softmax(S_i)_j v_j, with L_i = ln Σ_j e^{S_ij}."""
    Q, K, V, b = random_inputs(7, dtype=dtype)
    (Y, L), _ = partial_attention(Q, K, V)
    opened = 1 / (1 + np.exp(b[:, None] - L))
    assert_same((dot_product_attention(Q, K, V, None, b)[0],), (opened[..., None] * Y,), dtype)
    assert 0.3 < opened.min() < 0.99


@dtypes
def test_a_sink_is_a_key_more_whose_value_is_zero(dtype):
    """There is a channel more, 1 in every query and b √d in that key, so that its score is b; its gradient there is db/√d."""
    Q, K, V, b = random_inputs(8, dtype=dtype)
    one = np.ones((B, H, N, 1), dtype)
    queries = np.concatenate([Q, one], -1)
    keys = np.concatenate([K, np.zeros((B, H, M, 1), dtype)], -1)
    key = np.zeros((B, H, 1, D + 1), dtype)
    key[..., 0, -1] = b * dtype(math.sqrt(D))
    keys, values = np.concatenate([keys, key], -2), np.concatenate([V, np.zeros((B, H, 1, DV), dtype)], -2)
    Y, dQ, dK, dV = both(dtype, {"scale": D**-0.5}, queries, keys, values)
    have = both(dtype, {}, Q, K, V, None, b)
    db = math.sqrt(D) * dK[..., -1, -1].sum(0)
    assert_same(have, (Y, dQ[..., :-1], dK[..., :-1, :-1], dV[..., :-1, :], db), dtype)


@dtypes
def test_a_sink_of_minus_infinity_is_none(dtype):
    Q, K, V, b = random_inputs(9, dtype=dtype)
    want = both(dtype, {}, Q, K, V)
    *have, db = both(dtype, {}, Q, K, V, None, np.full_like(b, -np.inf))
    assert_same(have, want, dtype)
    assert (db == 0).all()
    assert_same(both(dtype, {}, Q, K, V, None, b - 60)[:-1], want, dtype)


@dtypes
def test_a_query_that_sees_nothing_gives_zeros(dtype):
    """Its whole weight is in the sink: no case of its own is needed, and nothing goes to b, for D = 0."""
    Q, K, V, b = random_inputs(10, dtype=dtype)
    mask = np.ones((N, M), bool)
    mask[[2, 66]] = False
    Y, dQ, *_, db = both(dtype, {"mask": mask, "cap": 3.0}, Q, K, V, None, b)
    assert (Y[..., [2, 66], :] == 0).all()
    assert (dQ[..., [2, 66], :] == 0).all()
    everywhere, *gradients = both(dtype, {"mask": np.zeros((N, M), bool)}, Q, K, V, None, b)
    assert all((X == 0).all() for X in (everywhere, *gradients))
    assert np.abs(db).min() > 0


@dtypes
def test_a_sink_of_100_takes_everything_and_nothing_overflows(dtype):
    """e^100 is no float32: the sink takes part in the largest score that is subtracted."""
    Q, K, V, b = random_inputs(11, dtype=dtype)
    found = both(dtype, {}, Q, K, V, None, np.full_like(b, 100))
    assert all(np.isfinite(X).all() for X in found)
    assert np.abs(found[0]).max() < 1e-35
    scores = both(dtype, {"scale": 100.0}, Q, K, V, None, np.full_like(b, 100))
    assert all(np.isfinite(X).all() for X in scores)


@dtypes
def test_a_cap_far_away_is_none(dtype):
    Q, K, V, _ = random_inputs(12, dtype=dtype)
    want = both(dtype, {}, Q, K, V)
    assert_same(both(dtype, {"cap": 1e7}, Q, K, V), want, dtype)
    third = [np.abs(dot_product_attention(Q, K, V, cap=c)[0] - want[0]).max() for c in (20.0, 40.0)]
    assert 3 < third[0] / third[1] < 5 or dtype == np.float32  # c tanh(S/c) = S − S³/3c² + …


def test_no_score_passes_a_cap():
    """At c = 1, no weight can be more than e² times another one, whatever the queries are; uncapped, one has it all."""
    Q, K, V, _ = random_inputs(13)
    A = dot_product_attention(100 * Q, K, V, cap=1.0)[1].A
    assert 7 < (A.max(-1) / A.min(-1)).max() < math.e**2 * (1 + 1e-12)
    assert dot_product_attention(100 * Q, K, V)[1].A.max() > 0.999


def test_what_is_hidden_is_hidden_after_the_cap():
    """Under a cap −∞ would be −c: a key that is hidden has weight 0, and what stands in it, be it NaN, reaches nothing."""
    Q, K, V, b = random_inputs(14)
    mask = np.ones((N, M), bool)
    mask[:, 5] = False
    options = {"mask": mask, "cap": 2.0}
    want = both(np.float64, options, Q, K, V, None, b)
    leak = np.exp(soft_cap(np.where(mask, Q @ K.mT / 2, -np.inf), 2.0)[0])
    assert leak[..., 5].min() == pytest.approx(math.exp(-2))
    for other in (1e3, np.inf, np.nan):
        keys, values = K.copy(), V.copy()
        keys[..., 5, :] = values[..., 5, :] = other
        with np.errstate(invalid="ignore"):
            have = both(np.float64, options, Q, keys, values, None, b)
        assert_same(have, want, np.float64)


# ------------------------------------------------------------------------------------------------- elsewhere


@dtypes
@pytest.mark.parametrize("block", [1, 13, 64, 200])
def test_in_blocks_it_begins_with_what_is_found_in_the_sink(dtype, block):
    """(m, total, sum) = (b, 1, 0), whatever the blocks are."""
    Q, K, V, b = random_inputs(15, dtype=dtype)
    mask = padding_mask(np.array([M, 50]), M)[:, None]
    want = both(dtype, {"mask": mask}, Q, K, V, None, b)
    assert_same(both(dtype, {"mask": mask, "block": block}, Q, K, V, b, function=flash_attention), want, dtype)


def test_a_sink_is_one_part_more_and_in_every_part_it_is_counted_often():
    Q, K, V, b = random_inputs(16)
    (Y_1, L_1), _ = partial_attention(Q, K[..., :30, :], V[..., :30, :])
    (Y_2, L_2), _ = partial_attention(Q, K[..., 30:, :], V[..., 30:, :])
    sinks = np.broadcast_to(b[:, None], L_1.shape)
    (Y, L), _ = merge(np.stack([Y_1, Y_2, 0 * Y_1]), np.stack([L_1, L_2, sinks]))
    want = dot_product_attention(Q, K, V, None, b)[0]
    assert np.allclose(Y, want, rtol=1e-12)
    in_each = [dot_product_attention(Q, K[..., k, :], V[..., k, :], None, b)[0] for k in (slice(30), slice(30, M))]
    with_sink = [log_sum_exp(np.stack([part, sinks]), 0) for part in (L_1, L_2)]
    (twice, _), _ = merge(np.stack(in_each), np.stack(with_sink))
    assert np.abs(twice - want).max() > 0.01
    assert np.allclose(twice, np.exp(L - np.logaddexp(L, sinks))[..., None] * Y, rtol=1e-9)


@dtypes
def test_beside_a_sink_a_constant_of_a_row_counts(dtype):
    """Softmax doesn't see it, so ALiBi may add m_h j in place of −m_h |i − j|; with a sink that is another model."""
    Q, K, V, b = random_inputs(17, n=M, dtype=dtype)
    distance = np.arange(-(M - 1), M).astype(dtype) / 10
    mine = [
        dot_product_attention(Q, K, V, distance + dtype(c), sink, causal=True)[0] for sink in (None, b) for c in (0, 2)
    ]
    assert np.abs(mine[0] - mine[1]).max() < 1e-5
    assert np.abs(mine[2] - mine[3]).max() > 0.05


@dtypes
def test_over_the_tiles_of_a_window(dtype):
    """As gpt-oss has it: a window in every second layer, and a sink in each."""
    Q, K, V, b = random_inputs(18, n=200, m=200, dtype=dtype)
    pattern = Window(70)(200, 200, causal=True)
    have = both(dtype, {"causal": True, "cap": 5.0}, Q, K, V, pattern, None, b, function=block_sparse_attention)
    want = both(dtype, {"mask": pattern.mask, "cap": 5.0}, Q, K, V, None, b)
    assert_same(have, want, dtype)


def test_heads_that_share_keys():
    Q, K, V, _ = random_inputs(19)
    b = np.array([0.5, -1, 2])
    K, V = K[:, :1], V[:, :1]
    Y, _ = dot_product_attention(Q, K, V, None, b, cap=3.0)
    same, _ = dot_product_attention(Q, np.repeat(K, H, 1), np.repeat(V, H, 1), None, b, cap=3.0)
    assert np.allclose(Y, same, rtol=1e-12)


# ------------------------------------------------------------------------------------------------- the core


@pytest.mark.parametrize("positions", ["none", "alibi", "t5", "shaw", "deberta"])
@pytest.mark.parametrize("pattern", [None, Window(9)], ids=["dense", "window"])
def test_a_core_with_all_of_it(positions, pattern):
    """With scores of offsets in the tiles, and with scores that are formed; gradients of the sink and of the positions."""
    encoding = place(positions, width=H * D, heads=H, longest=20).in_attention if positions != "none" else None
    core = SoftmaxAttention(pattern, encoding, sink=LearnedSink(H), cap=3.0)
    rng = np.random.default_rng(20)
    params = core.init(rng, np.float64)
    params = mt.tree_map(lambda a: rng.standard_normal(a.shape), params)
    arrays = [rng.standard_normal((B, H, 11, D)) for _ in range(3)]
    check_pullback(partial(core, causal=True), params, *arrays, entries=6)
    said, _ = in_pieces(core, params, arrays, (0, 4, 5, 11))
    assert np.allclose(said, core(params, *arrays, causal=True)[0], rtol=1e-10)


def test_off_by_one_learns_nothing():
    core = SoftmaxAttention(sink=0)
    Q, K, V, b = random_inputs(21)
    assert core.init(np.random.default_rng(0)) == NoParams()
    Y, pullback = core(NoParams(), Q, K, V)
    assert np.allclose(Y, dot_product_attention(Q, K, V, None, 0 * b)[0], rtol=1e-12)
    assert pullback(Y)[0] == NoParams()
    assert np.allclose(pullback.A, np.exp(S := Q @ K.mT / 2) / (1 + np.exp(S).sum(-1, keepdims=True)), rtol=1e-11)


def test_a_sink_begins_at_zero():
    assert (LearnedSink(4).init(np.random.default_rng(0)) == 0).all()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("softmax:sink=often", "^sink: no 'often'; it is 'learned', or a number$"),
        ("softmax:cap=0", "^cap: 0 should be above 0$"),
        ("softmax:cap=high", "cap of 'softmax' should be float"),
        ("softmax:norm=layer", "^norm: no 'layer'; there are rms$"),
        ("softmax:gate=channel", "^gate: no 'channel'; there are head, element$"),
        ("softmax:heads=3", "'softmax' has no option 'heads=3'"),
        ("differential:lambda_init=1", "^lambda_init: 1 should be in"),
    ],
)
def test_what_makes_no_sense_is_refused(name, says):
    with pytest.raises((TypeError, ValueError), match=says):
        LanguageModel(attention=name)


def test_arrays_that_do_not_fit_are_refused():
    Q, K, V, b = random_inputs(22)
    with pytest.raises(ValueError, match=r"^sink: shape \(2,\) does not broadcast .* one number for each head"):
        dot_product_attention(Q, K, V, None, b[:2])
    with pytest.raises(TypeError, match="Q, K, V, sink: should have one dtype"):
        dot_product_attention(Q, K, V, None, b.astype(np.float32))
    with pytest.raises(ValueError, match=r"^cap: 0 should be above 0"):
        soft_cap(Q, 0)
