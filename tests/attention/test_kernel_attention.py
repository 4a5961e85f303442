"""Kernel attention: the definition against loops, against its two associative forms, and against the checker."""

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    EluFeatures,
    KernelAttention,
    dot_product_attention,
    elu_features,
    kernel_attention,
    kernel_attention_step,
    kernel_state,
    padding_mask,
)
from minitransformer.positions import RoPE
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, N, M, R, DV = 2, 4, 6, 3, 5
fixed = np.random.default_rng(0)
FQ, FK, V = (fixed.random((B, N, R)) + 0.1, fixed.random((B, M, R)) + 0.1, fixed.standard_normal((B, M, DV)))
OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "unnormalised": {"normalise": False},
    "causal, unnormalised": {"causal": True, "normalise": False},
    "eps": {"causal": True, "eps": 0.3},
}


def loops(FQ, FK, V, *, causal=False, normalise=True, eps=0.0):
    """y_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / (Σ_j ⟨φ(q_i), φ(k_j)⟩ + ε), one pair at a time."""
    (n, r), (m, dv) = FQ.shape, V.shape
    Y = np.zeros((n, dv))
    for i in range(n):
        total = eps
        for j in range(m):
            if causal and j > i + m - n:
                continue
            w = sum(FQ[i, c] * FK[j, c] for c in range(r))
            total += w
            Y[i] += w * V[j]
        if normalise:
            Y[i] = Y[i] / total if total != 0 else 0
    return Y


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_against_loops(options):
    Y, pullback = kernel_attention(FQ, FK, V, **options)
    for b in range(B):
        assert np.allclose(Y[b], loops(FQ[b], FK[b], V[b], **options), rtol=1e-12)
    assert np.allclose(pullback.A @ V, Y, rtol=1e-12)


@given(n=st.integers(0, 5), m=st.integers(0, 5), r=st.integers(1, 3), causal=st.booleans(), normalise=st.booleans())
def test_any_lengths_against_loops(n, m, r, causal, normalise):
    """Also no queries, no keys, and more queries than keys, where the first queries see nothing when causal."""
    g = np.random.default_rng(n + 10 * m)
    args = g.random((n, r)), g.random((m, r)), g.standard_normal((m, 2))
    Y, pullback = kernel_attention(*args, causal=causal, normalise=normalise)
    assert np.allclose(Y, loops(*args, causal=causal, normalise=normalise), rtol=1e-10, atol=1e-13)
    assert [d.shape for d in pullback(Y)] == [a.shape for a in args]
    assert all(np.isfinite(d).all() for d in pullback(Y))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradient(options):
    check_pullback(partial(kernel_attention, **options), FQ, FK, V)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_gradient_with_other_batch_axes(batch, rng):
    args = rng.random((*batch, N, R)), rng.random((*batch, M, R)), rng.standard_normal((*batch, M, DV))
    check_pullback(partial(kernel_attention, causal=True), *args, entries=10)


def test_gradient_of_features_of_both_signs_without_a_denominator(rng):
    args = rng.standard_normal((B, N, R)), rng.standard_normal((B, M, R)), V
    check_pullback(partial(kernel_attention, normalise=False, causal=True), *args)


# ------------------------------------------------------------------------------------- the three forms are one


def test_sums_first_is_the_same():
    """φ(q_i)ᵀ (Σ_j φ(k_j) v_jᵀ): the brackets moved, and no matrix of n × m."""
    S, z = np.einsum("bjr,bjd->brd", FK, V), FK.sum(-2)
    Y = np.einsum("bir,brd->bid", FQ, S) / np.einsum("bir,br->bi", FQ, z)[..., None]
    assert np.allclose(kernel_attention(FQ, FK, V)[0], Y, rtol=1e-12)


def test_the_recurrence_is_the_same(rng):
    """S_i = S_{i−1} + φ(k_i) v_iᵀ, z_i = z_{i−1} + φ(k_i): attention as a recurrent network."""
    FQ = rng.random((B, M, R))
    S, z = np.zeros((B, R, DV)), np.zeros((B, R))
    Y, _ = kernel_attention(FQ, FK, V, causal=True)
    N, _ = kernel_attention(FQ, FK, V, causal=True, normalise=False)
    for i in range(M):
        S = S + FK[:, i, :, None] * V[:, i, None, :]
        z = z + FK[:, i]
        read = np.einsum("br,brd->bd", FQ[:, i], S)
        assert np.allclose(N[:, i], read, rtol=1e-12)
        assert np.allclose(Y[:, i], read / np.vecdot(FQ[:, i], z)[:, None], rtol=1e-12)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("cuts", [(1, 2, 3, 4, 5), (2,), (3, 5), ()])
def test_generation_is_the_same(cuts, normalise, rng):
    """A prompt and then steps, of one position or of a few, give the rows of the parallel form."""
    FQ, options = rng.random((B, M, R)), {"normalise": normalise, "eps": 0.1}
    Y, _ = kernel_attention(FQ, FK, V, causal=True, **options)
    for prompt in range(3):
        state = kernel_state(FK[:, :prompt], V[:, :prompt])
        edges = [prompt, *(c for c in cuts if c > prompt), M]
        for a, b in itertools.pairwise(edges):
            y, state = kernel_attention_step(FQ[:, a:b], FK[:, a:b], V[:, a:b], state, **options)
            assert np.allclose(y, Y[:, a:b], rtol=1e-12)
    assert np.allclose(state.S, FK.mT @ V)
    assert np.allclose(state.z, FK.sum(-2))
    assert state.length == M


def test_a_state_does_not_grow():
    assert mt.pullback.tree_bytes(kernel_state(FK, V)) == mt.pullback.tree_bytes(kernel_state(FK[:, :0], V[:, :0]))


# ------------------------------------------------------------------------------------------- limiting cases


def test_features_of_infinite_number_are_softmax_attention(rng):
    """⟨z(q), z(k)⟩ = Σ_p (qk)^p / p! = exp(qk) for one-dimensional q, k and z_p(x) = x^p / √p!."""
    q, k, v = rng.standard_normal((3, 7, 1))
    powers = np.arange(40)
    root = np.sqrt(np.cumprod(np.maximum(powers, 1.0)))
    Y, _ = kernel_attention(q**powers / root, k**powers / root, v, causal=True)
    assert np.allclose(Y, dot_product_attention(q, k, v, causal=True, scale=1.0)[0], rtol=1e-12)


def test_constant_features_give_the_running_mean():
    one = np.ones((B, M, 1))
    Y, _ = kernel_attention(one, one, V, causal=True)
    assert np.allclose(Y, V.cumsum(1) / np.arange(1, M + 1)[:, None])


def test_one_key_gives_its_value_and_positive_features_stay_among_the_values():
    assert np.allclose(kernel_attention(FQ, FK[:, :1], V[:, :1])[0], V[:, :1])
    Y, pullback = kernel_attention(FQ, FK, V)
    assert np.allclose(pullback.A.sum(-1), 1)
    assert (pullback.A >= 0).all()
    assert (Y <= V.max(1, keepdims=True)).all()


@pytest.mark.parametrize("causal", [False, True])
def test_a_denominator_of_zero_gives_zeros_and_zero_gradients(causal):
    blind = FQ.copy()
    blind[1, 2] = 0
    Y, pullback = kernel_attention(blind, FK, V, causal=causal)
    assert not Y[1, 2].any()
    dY = np.zeros_like(Y)
    dY[1, 2] = 1
    assert not any(g.any() for g in pullback(dY))
    assert not pullback.A[1, 2].any()
    Y, pullback = kernel_attention(FQ, 0 * FK, V, causal=causal)
    assert not Y.any()
    assert not any(g.any() for g in pullback(np.ones_like(Y)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_denominator_too_small_to_divide_by_counts_as_zero(tier, dtype):
    """1 / D is infinite for the smallest numbers there are, and for larger ones what comes back by it."""
    smallest, seen = np.finfo(dtype).smallest_subnormal, []
    for power in np.linspace(0, 1, 60):
        FQ, FK = np.ones((1, 2, 1), dtype), np.full((1, 2, 1), smallest ** dtype(power))
        FK[0, 1] = 1
        with np.errstate(over="raise", invalid="raise"):
            Y, pullback = kernel_attention(FQ, FK, np.full((1, 2, 3), dtype(5)), causal=True)
            assert all(np.isfinite(g).all() for g in pullback(np.full_like(Y, 1e4)))
        assert np.allclose(Y[0, 1], 5)
        seen.append(Y[0, 0, 0])
    assert np.allclose(seen[:39], 5)
    assert not any(seen[55:])


def test_a_key_of_zeros_is_not_there():
    padded = np.concatenate([FK, np.zeros((B, 3, R))], 1), np.concatenate([V, 100 * V[:, :3]], 1)
    assert np.allclose(kernel_attention(FQ, *padded)[0], kernel_attention(FQ, FK, V)[0], rtol=1e-13)


# ------------------------------------------------------------------------------------------ features of elu


def test_elu_features_are_elu_plus_one(rng):
    X = rng.standard_normal((B, N, 7))
    Y, _ = elu_features(X)
    for x, y in zip(X.ravel(), Y.ravel(), strict=True):
        assert np.isclose(y, x + 1 if x > 0 else np.exp(x), rtol=1e-14)
    assert (Y > 0).all()
    assert elu_features(np.zeros((1, 1)))[0] == 1
    assert np.isfinite(elu_features(np.full((1, 2), 1e4))[0]).all()
    check_pullback(elu_features, X)


def test_elu_features_are_smooth_at_zero():
    """Both branches give value 1 and slope 1 at 0, so the gradient there is exact."""
    _, pullback = elu_features(np.array([[-1e-12, 0.0, 1e-12]]))
    assert np.allclose(pullback(np.ones((1, 3))), 1, atol=1e-11)


# ------------------------------------------------------------------------------------ the linear transformer


def of_elu(X):
    return elu_features(X)[0]


def test_padding_is_left_out_after_the_features_are_made(rng):
    """elu(0) + 1 is 1: a key that is set to zero before the features is as good as many others, and its weight is there."""
    Q, K, V = (rng.standard_normal(shape) for shape in ((B, N, R), (B, M, R), (B, M, DV)))
    alone, _ = kernel_attention(of_elu(Q), of_elu(K[:, :4]), V[:, :4])
    K[:, 4:] = 0
    before, _ = kernel_attention(of_elu(Q), of_elu(K), np.where(np.arange(M)[:, None] < 4, V, 0))
    after, _ = kernel_attention(of_elu(Q), np.where(np.arange(M)[:, None] < 4, of_elu(K), 0), V)
    assert np.allclose(after, alone, rtol=1e-13)
    assert np.linalg.norm(before) < 0.9 * np.linalg.norm(alone)


def test_eps_makes_the_average_smaller_and_the_more_so_the_smaller_the_features(rng):
    """The authors' 10⁻⁶ beside a denominator of 1 does nothing; beside one of 10⁻⁶ it takes half."""
    V = rng.standard_normal((1, M, DV))
    for size, share in ((1.0, 1.0), (1e-3, 1 / 2), (1e-5, 1e-4)):
        one = np.full((1, M, 1), size / np.sqrt(M))
        Y, _ = kernel_attention(one * np.sqrt(M), one / np.sqrt(M), V, eps=1e-6)
        assert np.allclose(Y, share * V.mean(1), rtol=1e-3)
        assert np.allclose(kernel_attention(one, one, V)[0], V.mean(1), rtol=1e-12), "and without it nothing"


def test_there_is_no_scale_and_the_length_of_a_query_matters_little(rng):
    """No 1/√d: of long queries features are x + 1 or 0, so that weights are nearly the same for a query twice as long."""
    Q, K, V = (rng.standard_normal(shape) for shape in ((B, 3, N, R), (B, 3, M, R), (B, 3, M, DV)))
    Y, _ = KernelAttention()(NoParams(), 100 * Q, K, V)
    assert np.allclose(Y, KernelAttention()(NoParams(), 200 * Q, K, V)[0], atol=0.05)
    assert np.allclose(Y, kernel_attention(of_elu(100 * Q), of_elu(K), V)[0])
    sharp = [dot_product_attention(c * Q, K, V)[0] for c in (1.0, 2.0)]
    assert np.abs(sharp[0] - sharp[1]).max() > 0.1


# ------------------------------------------------------------------------------------------------- the core


def heads(rng, n=N, m=M):
    """Queries, keys and values of two samples and three heads."""
    return [rng.standard_normal(shape) for shape in ((B, 3, n, R), (B, 3, m, R), (B, 3, m, DV))]


@pytest.mark.parametrize("features", ["elu", EluFeatures, RoPE(4), None])
def test_features_are_made_by_an_object(features):
    with pytest.raises(TypeError, match=r"^features: .* should be an object that makes features, like EluFeatures\(\)"):
        KernelAttention(features)


PADDING = padding_mask(np.array([M, 4]), M)[:, None]


@pytest.mark.parametrize("causal", [False, True])
def test_the_core_is_the_function_of_features(causal, rng):
    Q, K, V = heads(rng)
    Y, pullback = KernelAttention()(NoParams(), Q, K, V, causal=causal)
    features, (FQ, FK) = EluFeatures(), (elu_features(X)[0] for X in (Q, K))
    same, direct = kernel_attention(FQ, FK, V, causal=causal)
    assert np.array_equal(Y, same)
    assert np.array_equal(pullback.A, direct.A)
    assert features.init(rng) == KernelAttention().init(rng) == NoParams()


@pytest.mark.parametrize("mask", [None, PADDING], ids=["", "padding"])
@pytest.mark.parametrize("causal", [False, True])
def test_gradient_of_the_core(causal, mask, rng):
    core = partial(KernelAttention(), causal=causal, mask=mask)
    check_pullback(core, NoParams(), *heads(rng), entries=20)


def test_a_hidden_key_is_not_there(rng):
    """Neither its features nor its value, whatever stands there, NaN included; and nothing is sent back to it."""
    Q, K, V = heads(rng)
    Y, pullback = KernelAttention()(NoParams(), Q, K, V, mask=PADDING)
    alone, _ = KernelAttention()(NoParams(), Q[1], K[1, :, :4], V[1, :, :4])
    np.testing.assert_allclose(Y[1], alone, rtol=1e-12)
    _, _, dK, dV = pullback(Y)
    assert not dK[1, :, 4:].any()
    assert not dV[1, :, 4:].any()
    V[1, :, 4:] = np.nan
    K[1, :, 4:] = 1e4
    assert np.array_equal(KernelAttention()(NoParams(), Q, K, V, mask=PADDING)[0], Y)


@pytest.mark.parametrize("shape", [(N, M), (B, 3, N, M), (M,)])
def test_a_mask_that_hides_pairs_is_refused(shape, rng):
    with pytest.raises(ValueError, match=r"mask: shape \(.*\); kernel attention has no score for a pair .*\(…, 1, m\)"):
        KernelAttention()(NoParams(), *heads(rng), mask=np.ones(shape, bool))


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("args", "name"),
    [((FQ, FK[..., :2], V), "FK"), ((FQ, FK, V[:, :4]), "V"), ((FQ[0], FK, V), "FK"), ((FQ.astype(int), FK, V), "FQ")],
)
def test_wrong_shapes_and_types_are_refused(args, name):
    with pytest.raises(TypeError, match=f"parameter '{name}'"):
        kernel_attention(*args)


def test_mixed_dtypes_are_refused():
    with pytest.raises(TypeError, match="FK, V: should have one dtype"):
        kernel_state(FK, V.astype(np.float32))


def test_a_state_of_another_shape_is_refused():
    args, state = (FQ, FK[:, :N], V[:, :N]), kernel_state(FK, V)
    for wrong in (state._replace(S=state.S[:1]), state._replace(S=state.S.mT), state._replace(z=state.S)):
        with pytest.raises(ValueError, match=r"state: S .* and z .* should be \(2, 3, 5\) and \(2, 3\)"):
            kernel_attention_step(*args, wrong)
    with pytest.raises(TypeError, match="should have one dtype"):
        kernel_attention_step(*args, state._replace(S=state.S.astype(np.float32)))
