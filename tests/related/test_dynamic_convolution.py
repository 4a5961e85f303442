"""Lightweight and dynamic convolutions: against loops, at their limits, beside the published code, and tier by tier."""

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.depthwise import depthwise_convolution
from minitransformer.attention.dot_product import aggregate
from minitransformer.functional import glu, softmax
from minitransformer.related import (
    DynamicConvolution,
    LightweightConvolution,
    dynamic_convolution,
    lightweight_convolution,
)

B, N, D, H, K = 2, 9, 6, 3, 5
causal_or_not = pytest.mark.parametrize("causal", [False, True])
borders = pytest.mark.parametrize("renormalise", [False, True])
both = pytest.mark.parametrize("function", [lightweight_convolution, dynamic_convolution])


def kernel(function, rng, taps=K, D=D, H=H):
    """S (H, K), or W (D, H, K)."""
    return rng.standard_normal((H, taps) if function is lightweight_convolution else (D, H, taps))


def inputs(function, seed=0, taps=K):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, N, D)), kernel(function, rng, taps)


def in_loops(X, logits, causal, renormalise, there=None):
    """One text X (n, D); logits (n, H, K): one token, head and tap at a time."""
    (n, D), (_, H, K) = X.shape, logits.shape
    left = K - 1 if causal else (K - 1) // 2
    there = np.ones(n, bool) if there is None else there
    Y = np.zeros_like(X)
    for i, h in np.ndindex(n, H):
        on_a_token = [0 <= i - left + s < n and there[i - left + s] for s in range(K)]
        weights = [math.exp(logits[i, h, s]) if on_a_token[s] or not renormalise else 0.0 for s in range(K)]
        for c in range(h * D // H, (h + 1) * D // H):
            terms = [weights[s] * X[i - left + s, c] for s in range(K) if on_a_token[s]]
            Y[i, c] = sum(terms) / sum(weights) if any(weights) else 0
    return Y


def logits_of(function, X, kernel):
    if function is lightweight_convolution:
        return np.broadcast_to(kernel, (*X.shape[:-1], *kernel.shape))
    return np.einsum("...d,dhk->...hk", X, kernel)


# ------------------------------------------------------------------------------------- values and gradients


@both
@causal_or_not
@borders
@pytest.mark.parametrize("taps", [1, 2, 5, N + 4])
def test_against_loops(function, causal, renormalise, taps, tier):
    X, W = inputs(function, taps=taps)
    Y, _ = function(X, W, causal=causal, renormalise=renormalise)
    for b in range(B):
        want = in_loops(X[b], logits_of(function, X[b], W), causal, renormalise)
        np.testing.assert_allclose(Y[b], want, rtol=0, atol=1e-13)


@both
@causal_or_not
@borders
def test_a_token_that_is_not_there_counts_as_zeros(function, causal, renormalise, tier):
    """At any place of a text, and be it NaN; renormalised, the taps that fall on it get nothing. No gradient goes to it."""
    X, W = inputs(function, 1)
    mask = np.ones((B, N), bool)
    mask[0, 3:5] = mask[1, :2] = mask[1, 8] = False
    given = np.where(mask[..., None], X, np.nan)
    Y, pullback = function(given, W, causal=causal, renormalise=renormalise, mask=mask)
    dX, dW = pullback(np.ones_like(Y))
    for b in range(B):
        zeros = np.where(mask[b, :, None], X[b], 0)
        want = in_loops(zeros, logits_of(function, zeros, W), causal, renormalise, mask[b])
        np.testing.assert_allclose(Y[b], want, rtol=0, atol=1e-13)
    assert not dX[~mask].any()
    assert np.isfinite(dX).all()
    assert np.isfinite(dW).all()


@both
@causal_or_not
@borders
@pytest.mark.parametrize("masked", [False, True])
def test_gradient(function, causal, renormalise, masked):
    mask = padding_mask(np.array([N, N - 3]), N)[:, 0] if masked else None
    options = {"causal": causal, "renormalise": renormalise, "mask": mask}
    with mt.backend("numpy"):
        check_pullback(partial(function, **options), *inputs(function, 2))


@both
@borders
def test_gradient_where_taps_are_dropped(function, renormalise):
    """The same taps both ways: the generator begins anew at each call."""

    def dropping(X, W):
        return function(X, W, renormalise=renormalise, drop=0.4, rng=np.random.default_rng(5))

    with mt.backend("numpy"):
        check_pullback(dropping, *inputs(function, 3))


@both
def test_dropped_taps_are_none_of_those_that_are_left(function):
    """A weight is a / (1 − p) or 0, a tap of a lightweight convolution in all of the batch; without a generator nothing drops."""
    X, W = inputs(function, 4)
    _, plain = function(X, W)
    _, dropped = function(X, W, drop=0.5, rng=np.random.default_rng(6))
    kept = dropped.weights != 0
    assert 0.3 < kept.mean() < 0.7
    np.testing.assert_allclose(dropped.weights[kept], 2 * plain.weights[kept], rtol=1e-12)
    assert dropped.weights.shape == plain.weights.shape == ((H, K) if W.ndim == 2 else (B, N, H, K))
    np.testing.assert_array_equal(function(X, W, drop=0.5)[0], function(X, W)[0])


@pytest.mark.parametrize("kind", [LightweightConvolution, DynamicConvolution])
def test_a_block_drops_taps_if_there_is_a_generator(kind):
    X, rng = inputs(dynamic_convolution)[0], np.random.default_rng(0)
    params = random_like(kind(D, H).init(rng, np.float64), rng)
    _, pullback = kind(D, H, drop=0.5)(params, X, rng=np.random.default_rng(1))
    assert 0.3 < (pullback.convolve.weights == 0).mean() < 0.7
    (Y, _), (Z, _) = kind(D, H)(params, X, rng=np.random.default_rng(1)), kind(D, H, drop=0.5)(params, X)
    np.testing.assert_array_equal(Y, Z)


# ------------------------------------------------------------------------------------------ limiting cases


@causal_or_not
def test_no_logits_are_a_moving_average(causal):
    X, _ = inputs(dynamic_convolution, 7)
    left = K - 1 if causal else K // 2
    for W in (np.zeros((H, K)), np.zeros((D, H, K))):
        function = lightweight_convolution if W.ndim == 2 else dynamic_convolution
        Y, _ = function(X, W, causal=causal)
        Z, _ = function(X, W, causal=causal, renormalise=True)
        for i in range(N):
            near = X[:, max(0, i - left) : i - left + K]
            np.testing.assert_allclose(Y[:, i], near.sum(1) / K, rtol=0, atol=1e-14)
            np.testing.assert_allclose(Z[:, i], near.mean(1), rtol=0, atol=1e-14)


@both
@causal_or_not
def test_renormalised_it_is_attention_in_a_window_that_scores_offsets(function, causal):
    """S_ij = R_{j − i}(x_i): a bias for each pair, which depends on the query and the offset, and on no key."""
    X, W = inputs(function, 8)
    left = K - 1 if causal else K // 2
    logits = logits_of(function, X, W)
    bias, window = np.zeros((B, H, N, N)), np.zeros((N, N), bool)
    for i, s in np.ndindex(N, K):
        if 0 <= (j := i - left + s) < N:
            bias[:, :, i, j], window[i, j] = logits[:, i, :, s], True
    V = X.reshape(B, N, H, D // H).swapaxes(1, 2)
    A, _ = softmax(bias, mask=window)
    want, _ = aggregate(A, V)
    Y, pullback = function(X, W, causal=causal, renormalise=True)
    np.testing.assert_allclose(Y, want.swapaxes(1, 2).reshape(B, N, D), rtol=0, atol=1e-14)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-14)
    assert np.array_equal(pullback.A[0, 0] > 0, window)


def test_a_lightweight_convolution_is_attention_with_a_bias_for_each_offset():
    """With no content in its scores and the same window: the whole of it is in one line of attention."""
    X, S = inputs(lightweight_convolution, 9)
    bias = np.full((H, 2 * N - 1), -np.inf)
    bias[:, N - 1 - K // 2 : N + K // 2] = S  # B_ij = bias_{j − i + n − 1}
    V = X.reshape(B, N, H, D // H).swapaxes(1, 2)
    want, _ = dot_product_attention(np.zeros_like(V), V, V, bias=bias)
    Y, _ = lightweight_convolution(X, S, renormalise=True)
    np.testing.assert_allclose(Y, want.swapaxes(1, 2).reshape(B, N, D), rtol=0, atol=1e-14)


@both
@causal_or_not
def test_away_from_the_borders_both_conventions_agree(function, causal):
    """And at a border the weights of the first one sum to less than one."""
    X, W = inputs(function, 10)
    Y, cut = function(X, W, causal=causal)
    Z, again = function(X, W, causal=causal, renormalise=True)
    left = K - 1 if causal else K // 2
    inside = slice(left, N - (K - 1 - left))
    np.testing.assert_allclose(Y[:, inside], Z[:, inside], rtol=0, atol=1e-14)
    sums = cut.A.sum(-1)
    np.testing.assert_allclose(sums[..., inside], 1, rtol=0, atol=1e-14)
    assert (sums[..., :left] < 0.999).all()
    np.testing.assert_allclose(again.A.sum(-1), 1, rtol=0, atol=1e-14)


def test_the_matrix_is_the_map():
    """Y = A X in each head, whatever the weights."""
    X, W = inputs(dynamic_convolution, 11)
    mask = padding_mask(np.array([N, N - 3]), N)[:, 0]
    Y, pullback = dynamic_convolution(X, W, mask=mask)
    V = np.where(mask[..., None], X, 0).reshape(B, N, H, D // H).swapaxes(1, 2)
    np.testing.assert_allclose(Y, (pullback.A @ V).swapaxes(1, 2).reshape(B, N, D), rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------ the blocks


@pytest.mark.parametrize("kind", [LightweightConvolution, DynamicConvolution])
@causal_or_not
def test_the_block(kind, causal):
    """A gated linear unit, the convolution, a linear map."""
    layer, function = kind(D, H, K), dynamic_convolution if kind is DynamicConvolution else lightweight_convolution
    rng = np.random.default_rng(12)
    params = random_like(layer.init(rng, np.float64), rng)
    X = rng.standard_normal((B, N, D))
    V = (X @ params.U_2 + params.b_2) / (1 + np.exp(-(X @ params.U_1 + params.b_1)))
    want = function(V, params.kernel, causal=causal)[0] @ params.W_o + params.b_o
    Y, pullback = layer(params, X, causal=causal)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-12)
    assert pullback.A.shape == (B, H, N, N)


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("kind", [LightweightConvolution, DynamicConvolution])
def test_what_is_remembered_has_one_size(kind, renormalise):
    """K − 1 rows, also of a text that is shorter; nothing of a long text is held on to."""
    layer = kind(D, H, K, renormalise)
    rng = np.random.default_rng(13)
    params, X = random_like(layer.init(rng, np.float64), rng), rng.standard_normal((B, N, D))
    whole, _ = layer(params, X, causal=True)
    state = None
    for a, b in itertools.pairwise((0, 1, 1, 3, N)):
        Y, state = layer.step(params, X[:, a:b], state)
        np.testing.assert_allclose(Y, whole[:, a:b], rtol=0, atol=1e-13)
        assert (state.rows.shape, state.rows.base, state.length) == ((B, K - 1, D), None, b)


def test_what_the_way_back_of_a_long_text_remembers(tier):
    """Chapter 15: of 1,024 tokens in 8 heads of width 64 the convolution remembers less than attention does, in every tier."""
    rng = np.random.default_rng(14)
    X, W = rng.standard_normal((1024, 512)).astype("f"), rng.standard_normal((512, 8, 31)).astype("f")
    heads = (X.reshape(1024, 8, 64).swapaxes(0, 1).copy() for _ in range(3))
    dense, convolved = dot_product_attention(*heads)[1], dynamic_convolution(X, W)[1]
    dense, convolved = (mt.tree_bytes(pullback) / 2**20 for pullback in (dense, convolved))
    assert dense > 2 * convolved
    if tier == "micro":
        assert (round(dense, 1), round(convolved, 1)) == (8.0, 3.5)
    if tier == "numpy":  # the tokens are there twice, once with zeros in front and behind
        assert round(convolved - X.nbytes / 2**20, 1) == 3.5


def test_how_a_block_starts():
    """Matrices that keep the variance of a row; the logits of a token have a deviation below one, so that no tap has it all."""
    layer = DynamicConvolution(64, 4)
    params, X = layer.init(np.random.default_rng(0)), np.random.default_rng(1).standard_normal((1, 50, 64)).astype("f")
    for W, deviation in ((params.U_1, 1 / 8), (params.W_o, 1 / 8), (params.kernel, np.sqrt(2 / (64 + 4 * 7)))):
        assert W.dtype == np.float32
        assert abs(W.std() / deviation - 1) < 0.05
    _, pullback = layer(params, X)
    weights = pullback.convolve.weights
    assert weights.shape == (1, 50, 4, 7)
    assert 0.2 < weights.max(-1).mean() < 0.4
    V, _ = glu(X, params.U_1, params.U_2)
    np.testing.assert_allclose(weights, softmax(np.einsum("bnd,dhk->bnhk", V, params.kernel))[0], rtol=1e-4)
    light = LightweightConvolution(1200, 300, taps=11).init(np.random.default_rng(0)).kernel
    assert light.shape == (300, 11)
    assert abs(light.std() / np.sqrt(2 / (11 * 301)) - 1) < 0.05


def test_what_is_refused():
    X, S, W = np.ones((B, N, D)), np.ones((H, K)), np.ones((D, H, K))
    for function, name, kernel in ((lightweight_convolution, "S", S), (dynamic_convolution, "W", W)):
        with pytest.raises(ValueError, match=f"{name}: no taps, should be at least one"):
            function(X, kernel[..., :0])
        with pytest.raises(ValueError, match=r"drop: 1\.0 should be in"):
            function(X, kernel, drop=1.0)
        with pytest.raises(TypeError, match="mask"):
            function(X, kernel, mask=np.ones((B, N - 1), bool))
    for heads in (4, 0):
        with pytest.raises(ValueError, match=f"X: 6 channels can't be divided into {heads} heads"):
            lightweight_convolution(X, np.ones((heads, K)))
    with pytest.raises(TypeError, match="W"):
        dynamic_convolution(X, W[:3])
    with pytest.raises(ValueError, match="width: 6 is not divisible into 4 heads"):
        DynamicConvolution(6, 4)
    with pytest.raises(ValueError, match="before: 4 rows for 5 taps, should be 4, with causal=True"):
        depthwise_convolution(X[..., None, :], S[:1, :, None], before=X[:, :4, None])
    with pytest.raises(ValueError, match=r"A: shape .* does not broadcast"):
        depthwise_convolution(X[..., None, :], np.ones((2, K, 1)))
    with pytest.raises(ValueError, match=r"b: shape \(5,\) does not broadcast to the shape of X"):
        depthwise_convolution(X[..., None, :], S[:1, :, None], np.ones(5))


# -------------------------------------------------------------------------------------- as it was published


def test_as_fairseq_computes_it(tier):
    """Values and gradients of facebookresearch/fairseq, in float64; data/README.md says how they were made."""
    published = np.load(Path(__file__).with_name("data") / "fairseq_convolution.npz")
    names = sorted({key.rpartition(".")[0] for key in published})
    assert len(names) == 6
    for name in names:
        X, W, dY, Y, dX, dW = (published[f"{name}.{part}"] for part in ("X", "W", "dY", "Y", "dX", "dW"))
        kind, side, border = name.split("-")
        function = dynamic_convolution if kind == "dynamic" else lightweight_convolution
        ours, pullback = function(X, W, causal=side == "causal", renormalise=border == "renormalised")
        for have, want in zip((ours, *pullback(dY)), (Y, dX, dW), strict=True):
            np.testing.assert_allclose(have, want, rtol=0, atol=1e-14, err_msg=name)
