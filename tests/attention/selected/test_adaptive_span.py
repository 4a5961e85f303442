"""Adaptive attention span: the equations in loops, its limiting cases, the gradient of a span, and what the penalty does."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention
from minitransformer.attention.selected import AdaptiveSpan, adaptive_span_attention
from minitransformer.attention.selected.adaptive_span import SpanParams, tiles
from minitransformer.data.text import Text
from minitransformer.models import LanguageModel
from minitransformer.positions import OffsetScalars, Shaw
from minitransformer.pullback import added_losses, random_like, tree_set, with_added
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV = 2, 3, 11, 4, 5
Z = np.array([0.3, 2.6, 5.1])


def heads(n=N, m=N, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, rows, width)) for rows, width in ((n, D), (m, D), (m, DV))]


def soft(x, z, R):
    return min(max((R + z - x) / R, 0), 1)


def loops(Q, K, V, z, R, S):
    """(6) and (7), of one head."""
    Y = np.zeros((len(Q), V.shape[1]))
    first = len(K) - len(Q)
    for row in range(len(Q)):
        t = first + row
        total, weighted = 0.0, np.zeros(V.shape[1])
        for r in range(max(t - S, 0), t):
            weight = soft(t - r, z, R) * math.exp(sum(Q[row, a] * K[r, a] for a in range(D)) / math.sqrt(D))
            total, weighted = total + weight, weighted + weight * V[r]
        if total > 0:
            Y[row] = weighted / total
    return Y


@pytest.mark.parametrize(("n", "S"), [(N, N), (N, 4), (5, 8), (1, 20)])
def test_against_loops(n, S, tier):
    Q, K, V = heads(n)
    Y, _ = adaptive_span_attention(Q, K, V, Z, ramp=3, longest=S)
    for b, h in np.ndindex(B, H):
        np.testing.assert_allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], Z[h], 3, S), rtol=1e-10, atol=1e-14)


def test_the_gradient_of_a_span_on_its_ramp(tier):
    """Away from the kinks: no z + R − x is 0 or R."""
    arrays = heads()
    found = check_pullback(partial(adaptive_span_attention, ramp=3), *arrays, Z)
    assert found.error < 1e-6
    bias = np.random.default_rng(1).standard_normal((H, 2 * N - 1))
    check_pullback(partial(adaptive_span_attention, ramp=3), *arrays, Z, bias, entries=10)


def test_the_gradient_of_z_is_that_of_the_ramp_and_never_divides_by_zero():
    """dm_tr = exp(s_tr)/Z_t (g_tr − Σ_q a_tq g_tq), and dz = Σ dm / R over the pairs on the ramp."""
    Q, K, V = heads()
    R = 3
    Y, pullback = adaptive_span_attention(Q, K, V, Z, ramp=R)
    dY = np.random.default_rng(2).standard_normal(Y.shape)
    dz = np.zeros(H)
    for b, h, t in np.ndindex(B, H, N):
        weights = [math.exp(Q[b, h, t] @ K[b, h, r] / math.sqrt(D)) for r in range(t)]
        total = sum(weights[r] * soft(t - r, Z[h], R) for r in range(t))
        for r in range(t):
            if 0 < soft(t - r, Z[h], R) < 1:
                dz[h] += weights[r] / total * (dY[b, h, t] @ (V[b, h, r] - Y[b, h, t])) / R
    np.testing.assert_allclose(pullback(dY)[3], dz, rtol=1e-10)


def test_a_span_as_large_as_it_can_be_is_a_fixed_one(tier):
    """z ≥ S is attention to the last S positions."""
    Q, K, V = heads()
    x = np.arange(N)[:, None] - np.arange(N)
    for S in (1, 4, N):
        want, _ = dot_product_attention(Q, K, V, mask=(1 <= x) & (x <= S), scale=0.7)
        Y, pullback = adaptive_span_attention(Q, K, V, np.full(H, float(S)), ramp=2, longest=S, scale=0.7)
        np.testing.assert_allclose(Y, want, rtol=1e-12, atol=1e-15)
        assert not pullback(Y)[3].any(), "no pair is on the ramp"


def test_a_head_that_sees_nothing_gives_zeros(tier):
    """z + R ≤ 1, and the first row of every head."""
    Y, pullback = adaptive_span_attention(*heads(), np.array([-2.0, -1.5, 0.5]), ramp=2)
    gradients = pullback(np.ones_like(Y))
    assert not Y[:, :2].any()
    assert not Y[:, 2, 0].any()
    assert Y[:, 2, 1:].all()
    for gradient in gradients[:3]:
        assert not gradient[:, :2].any()
        assert np.isfinite(gradient).all()
    assert not gradients[3][:2].any()


def test_only_tiles_that_a_head_reaches_are_in_its_list():
    """64 × 64 pairs a tile: a head that sees 32 back needs its own tile and the one before, whatever the length."""
    lists = np.diff(tiles((0, 32, 200), 1000, 1000).starts, axis=1)
    assert lists[0].max() == 0
    assert lists[1].max() == 2
    assert lists[2].max() == 5


# ---------------------------------------------------------------------------------------------------- the core


def core(**options):
    return AdaptiveSpan(H, N, ramp=3, **options)


def test_the_core_is_the_function_and_adds_its_penalty():
    Q, K, V = heads()
    params = SpanParams(Z / N)
    Y, pullback = core(penalty=0.7)(params, Q, K, V)
    np.testing.assert_array_equal(Y, adaptive_span_attention(Q, K, V, N * (Z / N), ramp=3)[0])
    assert added_losses(pullback) == [pytest.approx(0.7 * Z.mean())]
    without, with_penalty = pullback(Y)[0].span, with_added(pullback, 1.0)(Y)[0].span
    np.testing.assert_allclose(with_penalty - without, N * 0.7 / H, rtol=1e-10)
    assert not added_losses(core(penalty=0.0)(params, Q, K, V)[1])[0]


def test_the_limit_is_the_longest_distance_and_what_a_span_is_a_part_of():
    """With s_max = 4, z = 4 · span, and nothing further away than 4 is seen, whatever the ramp says."""
    Q, K, V = heads()
    span = np.array([0.1, 0.6, 1.0])
    Y, pullback = core(limit=4, penalty=0.7)(SpanParams(span), Q, K, V)
    for b, h in np.ndindex(B, H):
        np.testing.assert_allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], 4 * span[h], 3, 4), rtol=1e-10, atol=1e-14)
    assert added_losses(pullback) == [pytest.approx(0.7 * 4 * span.mean())]
    check_pullback(core(limit=4), SpanParams(0.9 * span), Q, K, V, entries=8)


def test_a_span_is_brought_back_after_a_step():
    moved = core().after_step(SpanParams(np.array([-0.1, 0.4, 1.3])), None, np.random.default_rng(0))
    np.testing.assert_array_equal(moved.span, [0, 0.4, 1])


def test_with_the_vectors_of_offsets_that_the_equation_has():
    """(8): s_tr = q_t · (k_r + p_{t−r}), divided by √d; Shaw's tables hold such vectors."""
    Q, K, V = heads()
    encoding = Shaw(D, N, values=False)
    layer = core(encoding=encoding)
    rng = np.random.default_rng(1)
    params = SpanParams(Z / N, random_like(encoding.init(rng, np.float64), rng))
    Y, _ = layer(params, Q, K, V)
    p = params.encoding.a_k
    for b, h, t in np.ndindex(B, H, N):
        total, weighted = 0.0, np.zeros(DV)
        for r in range(t):
            score = Q[b, h, t] @ (K[b, h, r] + p[r - t + N]) / math.sqrt(D)
            weight = soft(t - r, Z[h], 3) * math.exp(score)
            total, weighted = total + weight, weighted + weight * V[b, h, r]
        if total > 0:
            np.testing.assert_allclose(Y[b, h, t], weighted / total, rtol=1e-10)
    check_pullback(layer, params, Q, K, V, entries=8)
    scalars = OffsetScalars(H, N)  # a bias of its own for each offset, beside that of the span
    both = SpanParams(Z / N, random_like(scalars.init(rng, np.float64), rng))
    check_pullback(core(encoding=scalars), both, Q, K, V, entries=8)


def test_spans_shrink_as_the_penalty_grows():
    letters = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40
    objective = NextByte(Text(letters, letters[:600], "letters", ""), 24)
    training, half = Training(12, 4, Cosine(3e-2, 12, 1), parts=1, look_every=12), np.full(2, 0.5, np.float32)
    spans = []
    for penalty in (0.0, 1e-3, 1.0):
        model = LanguageModel(40, 24, 12, 2, 2, 10, attention=AdaptiveSpan(2, 24, ramp=8, penalty=penalty))
        state = start(model, training)
        for k in range(2):
            state = state._replace(params=tree_set(state.params, f"stack.blocks.{k}.attention.core.span", half))
        params = train(model, objective, training, state=state, progress=False).params
        spans.append(float(sum(block.attention.core.span.sum() for block in params.stack.blocks)))
    assert spans[0] > spans[1] + 0.1
    assert spans[1] > spans[2] + 0.1


def test_what_is_refused():
    Q, K, V = heads()
    with pytest.raises(ValueError, match=r"Q: \d+ queries for 5 keys: should be at most 5"):
        adaptive_span_attention(Q, K[:, :, :5], V[:, :, :5], Z)
    with pytest.raises(
        ValueError, match=r"bias: shape \(3, 2\) does not broadcast to the shape of one number for each offset"
    ):
        adaptive_span_attention(Q, K, V, Z, np.ones((3, 2)))
    with pytest.raises(ValueError, match="with 3 heads"):
        core()(SpanParams(Z / N), Q[:, :2], K[:, :2], V[:, :2])
    with pytest.raises(ValueError, match="AdaptiveSpan is always causal"):
        core()(SpanParams(Z / N), Q, K, V, causal=False)


def test_the_furthest_head_decides_what_is_read(tier):
    core = AdaptiveSpan(heads=2, longest=40, ramp=2)
    params = core.init(np.random.default_rng(0), np.float64)._replace(span=np.array([0.05, 0.8]))
    Q, K, V = np.random.default_rng(1).standard_normal((3, 1, 2, 30, 4))
    Y, _ = core(params, Q, K, V)
    _, state = core.step(params, *(X[..., :29, :] for X in (Q, K, V)))
    last, _ = core.step(params, *(X[..., 29:, :] for X in (Q, K, V)), state=state)
    assert np.allclose(last, Y[..., 29:, :])
