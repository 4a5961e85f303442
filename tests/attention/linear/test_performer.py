"""Performer: features against their definition, directions, what is drawn anew and when, no leak, no overflow, gradients."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, kernel_attention, padding_mask
from minitransformer.attention.linear import (
    Performer,
    PerformerParams,
    gaussian_rows,
    of_same_length,
    orthogonal_rows,
    performer_attention,
    positive_features,
    relu_features,
    trigonometric_features,
)
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, M, D, DV, ROWS = 2, 3, 4, 6, 5, 7, 8
KINDS = ("positive", "hyperbolic", "trigonometric", "relu")
SOFTMAX = KINDS[:3]
every = pytest.mark.parametrize("kind", KINDS)


def heads(rng, n=N, m=M):
    return [rng.standard_normal(shape) for shape in ((B, H, n, D), (B, H, m, D), (B, H, m, DV))]


def one(kind, x, w):
    """All features of one vector, one direction at a time, with nothing left out; hyperbolic ones for w and −w."""
    m, h, u = len(w), sum(x * x) / 2, [sum(x * row) for row in w]
    if kind == "positive":
        return [math.exp(a - h) / math.sqrt(m) for a in u]
    if kind == "hyperbolic":
        return [math.exp(sign * a - h) / math.sqrt(2 * m) for sign in (1, -1) for a in u]
    if kind == "trigonometric":
        return [f(a) * math.exp(h) / math.sqrt(m) for f in (math.sin, math.cos) for a in u]
    return [max(a, 0) + 1e-3 for a in u]


FEATURES = {
    "positive": positive_features,
    "hyperbolic": partial(positive_features, both_signs=True),
    "trigonometric": trigonometric_features,
    "relu": relu_features,
}


# ------------------------------------------------------------------------------------------------- features


@every
def test_features_against_loops(kind, rng):
    X, W = rng.standard_normal((B, H, N, D)), rng.standard_normal((H, ROWS, D))
    F, _ = FEATURES[kind](X, W)
    for b, h, i in np.ndindex(B, H, N):
        assert np.allclose(F[b, h, i], one(kind, X[b, h, i], W[h]), rtol=1e-12)


@pytest.mark.parametrize("kind", SOFTMAX)
def test_of_a_query_only_a_factor_is_left_out(kind, rng):
    X, W = rng.standard_normal((B, H, N, D)), rng.standard_normal((H, ROWS, D))
    ratio = FEATURES[kind](X, W, query=True)[0] / FEATURES[kind](X, W)[0]
    assert np.allclose(ratio, ratio[..., :1], rtol=1e-12)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_attention_against_loops(kind, causal, rng):
    """The definition: features of q/d^¼ and k/d^¼, weights their products, pair by pair."""
    Q, K, V = heads(rng)
    W = rng.standard_normal((H, ROWS, D))
    Y, pullback = performer_attention(Q, K, V, W=W, kind=kind, causal=causal)
    for b, h, i in np.ndindex(B, H, N):
        q = one(kind, Q[b, h, i] / D**0.25, W[h])
        seen = range(i + M - N + 1) if causal else range(M)
        weights = [sum(np.multiply(q, one(kind, K[b, h, j] / D**0.25, W[h]))) for j in seen]
        y = sum(w * V[b, h, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
        assert np.allclose(Y[b, h, i], y, rtol=1e-9)
    assert np.allclose(pullback.A.sum(-1), 1)


def test_the_directions_may_be_those_of_all_heads(rng):
    Q, K, V = heads(rng)
    W = rng.standard_normal((ROWS, D))
    Y, _ = performer_attention(Q, K, V, W=W)
    assert np.allclose(Y, performer_attention(Q, K, V, W=np.tile(W, (H, 1, 1)))[0], rtol=1e-13)


# ------------------------------------------------------------------------------------ towards softmax attention


@pytest.mark.parametrize("kind", SOFTMAX)
def test_with_many_directions_it_is_softmax_attention(kind, rng):
    Q, K, V = (0.5 * X for X in heads(rng))
    want, _ = dot_product_attention(Q, K, V)
    W = gaussian_rows(rng, (200_000, D))
    Y = np.empty_like(want)
    for at in np.ndindex(B, H):  # head by head: the features of all would fill 200 MB
        Y[at] = performer_attention(Q[at], K[at], V[at], W=W, kind=kind)[0]
    assert np.linalg.norm(Y - want) < 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize("kind", SOFTMAX)
def test_four_times_the_directions_halve_the_error(kind):
    """A slope of −1/2 on logarithmic axes, from where errors are small; longer queries and keys need more."""
    rng = np.random.default_rng(0)
    Q, K, V = (0.3 * rng.standard_normal((32, 8)) for _ in range(3))
    want, _ = dot_product_attention(Q, K, V)
    ms = 2 ** np.arange(6, 13)
    errors = []
    for m in ms:
        draws = gaussian_rows(rng, (40, m, 8))
        off = [np.linalg.norm(performer_attention(Q, K, V, W=W, kind=kind)[0] - want) for W in draws]
        errors.append(np.mean(off))
    assert np.polyfit(np.log(ms), np.log(errors), 1)[0] == pytest.approx(-0.5, abs=0.04)


def test_orthogonal_directions_are_nearer():
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((32, 16)) for _ in range(3))
    want, _ = dot_product_attention(Q, K, V)
    errors = {}
    for draw in (gaussian_rows, orthogonal_rows):
        Ws = draw(rng, (300, 16, 16))
        errors[draw] = np.mean([np.linalg.norm(performer_attention(Q, K, V, W=W)[0] - want) ** 2 for W in Ws])
    assert errors[orthogonal_rows] < 0.9 * errors[gaussian_rows]


# ------------------------------------------------------------------------------------------------ directions


def test_rows_are_orthogonal_within_blocks_of_d(rng):
    W = orthogonal_rows(rng, (2, 11, 4))
    assert W.shape == (2, 11, 4)
    G = W @ W.mT
    block = np.arange(11) // 4
    same = (block[:, None] == block) & ~np.eye(11, dtype=bool)
    assert np.abs(G[:, same]).max() < 1e-12
    assert np.abs(G[:, block[:, None] != block]).min() > 1e-6


def test_their_lengths_are_those_of_normal_rows():
    """χ with d degrees of freedom: ‖w‖² has mean d and variance 2 d."""
    W = orthogonal_rows(np.random.default_rng(0), (2000, 8, 8))
    squares = (W**2).sum(-1)
    assert squares.mean() == pytest.approx(8, rel=0.02)
    assert squares.var() == pytest.approx(16, rel=0.06)
    assert np.allclose((of_same_length(W) ** 2).sum(-1), 8)


def test_lapacks_q_is_not_uniform_and_features_without_the_sign_are_biased():
    """The paper wants directions uniform on a sphere. Its authors' code, and others', take Q of a QR factorisation as it is.

    A reflection of LAPACK's leaves Q with more of its weight on one side, so that directions e₁ and −e₁ are not alike. With
    the signs of R's diagonal in Q they are: for z = x + y = ±e₁, E e^⟨w, z⟩ should be e^½ = 1.649 both times.
    """
    rng = np.random.default_rng(0)
    d, draws = 8, 20_000
    Q, _ = np.linalg.qr(rng.standard_normal((draws, d, d)))
    lengths = np.linalg.norm(rng.standard_normal((draws, d, d)), axis=-1, keepdims=True)
    as_it_is, ours = Q.mT * lengths, orthogonal_rows(rng, (draws, d, d))

    def mean(W, sign):
        """Average of e^⟨w, z⟩ over all rows, and its standard error; rows of one matrix are not independent."""
        of_each = np.exp(sign * W[..., 0]).mean(1)
        return of_each.mean(), of_each.std() / math.sqrt(draws)

    for sign in (1, -1):
        value, error = mean(ours, sign)
        assert abs(value - math.exp(0.5)) < 3.5 * error
    (plus, error), (minus, _) = mean(as_it_is, 1), mean(as_it_is, -1)
    assert abs(plus - 1.506) < 0.02
    assert abs(minus - 1.789) < 0.02
    assert min(math.exp(0.5) - plus, minus - math.exp(0.5)) > 20 * error


# ----------------------------------------------------------------------------- no leak, no overflow, no zero


@every
def test_later_keys_change_no_bit_however_large_they_are(kind, tier, rng):
    """With the published stabiliser they do, through ε: see the next test."""
    Q, K, V = (X.astype(np.float32) for X in heads(rng, n=70, m=70))
    W = rng.standard_normal((H, ROWS, D)).astype(np.float32)
    later = [X.copy() for X in (Q, K, V)]
    for X in later:
        X[..., 40:, :] *= 5
    before, _ = performer_attention(Q, K, V, W=W, kind=kind, causal=True)
    after, _ = performer_attention(*later, W=W, kind=kind, causal=True)
    assert np.array_equal(before[..., :40, :], after[..., :40, :])
    assert (before[..., 40:, :] != after[..., 40:, :]).any()


def published(Q, K, V, W, eps):
    """As the authors' code does it: from the keys' exponents their largest ⟨w, y⟩ is subtracted, then ε is added."""
    x, y = Q / D**0.25, K / D**0.25
    u, v = x @ W.T, y @ W.T
    FQ = np.exp(u - (x**2).sum(-1, keepdims=True) / 2 - u.max(-1, keepdims=True)) + eps
    FK = np.exp(v - (y**2).sum(-1, keepdims=True) / 2 - v.max()) + eps
    return kernel_attention(FQ, FK, V, causal=True)[0]


def test_a_maximum_over_all_keys_tells_of_the_later_ones(rng):
    """With ε = 0 it cancels up to rounding. With ε > 0 it doesn't: a later key makes all earlier features smaller, and not ε."""
    Q, K, V = (X[0, 0] for X in heads(rng, n=M))
    W = rng.standard_normal((ROWS, D))
    later = K.copy()
    later[-1] = D**0.25 * 1.5 * W[np.linalg.norm(W, axis=1).argmax()]  # next to the longest direction
    for eps, leaks in ((0.0, False), (1e-6, True), (1e-4, True)):
        before, after = (published(Q, keys, V, W, eps)[:-1] for keys in (K, later))
        assert (np.abs(after - before).max() > 1e-9) == leaks, eps
    assert np.abs(after - before).max() > 1e-4
    ours = [performer_attention(Q, keys, V, W=W, causal=True)[0][:-1] for keys in (K, later)]
    assert np.array_equal(*ours)
    assert np.allclose(ours[0], published(Q, K, V, W, 0.0)[:-1], rtol=1e-11), "the same attention"


@pytest.mark.parametrize("d", [16, 64, 256])
@pytest.mark.parametrize("size", [0.01, 1, 3])
@every
def test_in_float32_nothing_overflows_and_it_is_as_in_float64(kind, size, d):
    """Entries of a few units, heads as wide as anybody's: values and gradients."""
    rng = np.random.default_rng(d)
    Q, K, V = rng.standard_normal((3, 1, 2, 40, d))
    Q, K = size * Q, size * K
    W, found = orthogonal_rows(rng, (2, 2 * d, d)), []
    for dtype in (np.float64, np.float32):
        arrays = [X.astype(dtype) for X in (Q, K, V)]
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            Y, pullback = performer_attention(*arrays, W=W.astype(dtype), kind=kind, causal=True)
            found.append((Y, *pullback(V.astype(dtype))))
    assert all(np.isfinite(X).all() for X in found[1])
    if kind == "trigonometric" and size == 3:
        return  # denominators are anything there
    for ours, exact in zip(found[1], found[0], strict=True):
        assert np.abs(ours - exact).max() < 2e-3 * np.abs(exact).max()


def test_keys_as_large_as_their_directions_are_no_danger():
    """The largest exponent there is: x = w. With ‖w‖ = 14 it is infinite in float32; up to ‖w‖² = 120 nothing is capped."""
    W = np.zeros((2, 16), np.float32)
    W[0, 0], W[1, 1] = 14, 1
    K = 2 * W  # d^¼ = 2
    assert 14**2 / 2 > math.log(np.finfo(np.float32).max)
    with np.errstate(over="raise", invalid="raise"):
        Y, pullback = performer_attention(K, K, np.eye(2, dtype=np.float32), W=W)
        assert np.allclose(Y, [[1, 0], [1, 0]], atol=1e-6)
        assert all(np.isfinite(X).all() for X in pullback(Y))
    W[0, 0] = math.sqrt(119)
    F, pullback = positive_features(W, W)
    assert F[0, 0] == pytest.approx(math.exp(119 / 2) / math.sqrt(2), rel=1e-4)
    assert pullback.capped is None


def test_an_exponent_that_is_capped_has_no_gradient(rng):
    W = 13 * np.eye(3) + 0.1 * rng.standard_normal((3, 3))
    X = W + 0.3 * rng.standard_normal((3, 3))
    F, pullback = positive_features(X, W)
    assert np.array_equal(pullback.capped, np.eye(3, dtype=bool))
    assert np.allclose(np.diag(F), math.exp(60) / math.sqrt(3))
    one = np.eye(3)
    assert not pullback(one).any()
    assert pullback(1 - one).any()


@pytest.mark.parametrize("d", [4, 128])
def test_keys_that_are_far_from_every_direction_weigh_nothing(tier, d):
    """Where float32 has no number small enough for any of them, the query sees nothing: zeros, and no NaN on the way there."""
    rng = np.random.default_rng(0)
    Q, K, V, dY = rng.standard_normal((4, 60, d), np.float32)
    W, seen = orthogonal_rows(rng, (ROWS, d)).astype(np.float32), []
    for size in np.linspace(1, 40, 79, dtype=np.float32):
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            Y, pullback = performer_attention(size * Q, size * K, V, W=W, causal=True)
            assert all(np.isfinite(X).all() for X in (Y, *pullback(dY)))
            seen.append(Y.any(-1).mean())
    assert seen[0] == 1
    assert seen[-1] < (0.7 if d == 4 else 0.1)


def test_long_queries_are_no_problem_and_the_published_eps_makes_them_an_average(rng):
    """lucidrains' code subtracts ‖x‖²/2 from a query too, and adds ε = 10⁻⁴ then: for ‖x‖² > 18 all features are about ε."""
    Q, K, V = (X[0, 0] for X in heads(rng))
    W = rng.standard_normal((100, D))
    Q = 9 * Q / np.linalg.norm(Q, axis=-1, keepdims=True) * D**0.25
    x = Q / D**0.25
    u = x @ W.T
    FQ = np.exp(u - u.max(-1, keepdims=True) - (x**2).sum(-1, keepdims=True) / 2)
    FK = np.exp(K / D**0.25 @ W.T - (K**2).sum(-1, keepdims=True) / D**0.5 / 2)
    exact, flat = (kernel_attention(FQ + eps, FK, V)[0] for eps in (0.0, 1e-4))
    assert np.allclose(performer_attention(Q, K, V, W=W)[0], exact, rtol=1e-10)
    average = kernel_attention(np.ones_like(FQ), FK, V)[0]
    assert np.abs(flat - average).max() < 1e-6
    assert np.abs(exact - average).max() > 0.1


def test_a_hidden_key_is_not_there_nan_included(rng):
    core = Performer(H, D, rows=ROWS)
    params = core.init(rng, np.float64)
    Q, K, V = heads(rng)
    mask = padding_mask(np.array([M, 4]), M)[:, None]
    Y, pullback = core(params, Q, K, V, mask=mask)
    alone, _ = core(params, Q[1:], K[1:, :, :4], V[1:, :, :4])
    assert np.allclose(Y[1], alone[0], rtol=1e-12)
    K[1, :, 4:] = V[1, :, 4:] = np.nan
    again, pullback = core(params, Q, K, V, mask=mask)
    assert np.array_equal(again, Y)
    _, *grads = pullback(np.ones_like(Y))
    assert all(np.isfinite(X).all() for X in grads[:2])
    assert not grads[1][1, :, 4:].any()


# --------------------------------------------------------------------------------------------- parameters


def test_what_is_drawn_is_a_parameter_that_is_not_learned(rng):
    core = Performer(H, D)
    params = core.init(rng)
    assert params.W.shape == (H, int(D * math.log(D)), D)
    assert core.untrained == ("W", "age")
    assert not np.array_equal(params.W[0], params.W[1]), "each head has its own"
    Q, K, V = (X.astype(np.float32) for X in heads(rng))
    Y, pullback = core(params, Q, K, V, causal=True)
    assert np.array_equal(Y, performer_attention(Q, K, V, W=params.W, causal=True)[0])
    assert pullback(Y)[0] == PerformerParams(None, None)
    again, _ = core(params, Q, K, V, causal=True, rng=np.random.default_rng(5))
    assert np.array_equal(Y, again), "nothing is drawn on the way, whatever the seed or the data"


def test_they_are_drawn_anew_after_so_many_steps():
    core = Performer(H, D, redraw=3)
    params = core.init(np.random.default_rng(0))
    changed = []
    for step in range(1, 10):
        new = core.after_step(params, None, np.random.default_rng(step))
        changed.append(not np.array_equal(new.W, params.W))
        assert (new.W.dtype, new.W.shape) == (params.W.dtype, params.W.shape)
        params = new
    assert changed == [False, False, True] * 3
    never = Performer(H, D, redraw=None)
    assert not never.moves
    assert np.array_equal(never.after_step(params, None, np.random.default_rng(0)).W, params.W)


def test_options(rng):
    W = Performer(2, 4, rows=6).init(rng, np.float64).W
    assert abs(W[0, 0] @ W[0, 1]) < 1e-12
    W = Performer(2, 4, rows=6, orthogonal=False).init(rng, np.float64).W
    assert abs(W[0, 0] @ W[0, 1]) > 1e-6
    W = Performer(2, 4, rows=6, same_length=True).init(rng, np.float64).W
    assert np.allclose(np.linalg.norm(W, axis=-1), 2)
    assert Performer(2, 1).drawn == 1


@every
def test_steps_are_the_whole(kind, rng):
    core = Performer(H, D, kind=kind, rows=ROWS)
    params = core.init(rng, np.float64)
    arrays = list(heads(rng, n=M))
    said, state = in_pieces(core, params, arrays, (0, 2, 3, 6))
    assert np.allclose(said, core(params, *arrays, causal=True)[0], rtol=1e-9)
    assert state.S.shape == (B, H, ROWS * (2 if kind in ("hyperbolic", "trigonometric") else 1), DV)


# ------------------------------------------------------------------------------------------------ gradients


@every
@pytest.mark.parametrize("query", [False, True])
def test_gradient_of_the_features(kind, query, rng):
    options = {} if kind == "relu" else {"query": query}
    X, W = 0.6 * rng.standard_normal((B, H, N, D)), rng.standard_normal((H, ROWS, D))
    check_pullback(lambda X: FEATURES[kind](X, W.astype(X.dtype), **options), X, entries=40)


@every
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_attention(kind, causal, rng):
    Q, K, V = (0.4 * X for X in heads(rng))
    W = rng.standard_normal((H, 40, D))
    check_pullback(
        lambda Q, K, V: performer_attention(Q, K, V, W=W.astype(Q.dtype), kind=kind, causal=causal),
        *(Q, K, V),
        entries=20,
    )


def test_where_the_size_of_a_key_is_capped_it_has_no_gradient(rng):
    """Trigonometric features beyond ‖x‖²/2 = 60 grow no more: what they have is finite, and its gradient is its own."""
    X = rng.standard_normal((3, D))
    X *= 12 / np.linalg.norm(X, axis=-1, keepdims=True)
    W = rng.standard_normal((ROWS, D))
    F, _ = trigonometric_features(X, W)
    assert np.allclose((F**2).sum(-1), math.exp(120))
    check_pullback(lambda X: trigonometric_features(X, W.astype(X.dtype)), X)


# --------------------------------------------------------------------------------------------------- errors


def test_what_does_not_fit(rng):
    Q, K, V = heads(rng)
    with pytest.raises(ValueError, match="W: shape"):
        performer_attention(Q, K, V, W=rng.standard_normal((H + 1, ROWS, D)))
    with pytest.raises(ValueError, match="W: shape"):
        performer_attention(Q[0, 0], K[0, 0], V[0, 0], W=rng.standard_normal((H, ROWS, D)))
    with pytest.raises(TypeError, match="'W'"):
        performer_attention(Q, K, V, W=rng.standard_normal((ROWS, D + 1)))
    with pytest.raises(ValueError, match="kind: no 'cosine'"):
        performer_attention(Q, K, V, W=rng.standard_normal((ROWS, D)), kind="cosine")
    core = Performer(H + 1, D)
    with pytest.raises(ValueError, match="4 heads"):
        core(core.init(rng, np.float64), Q, K, V)
