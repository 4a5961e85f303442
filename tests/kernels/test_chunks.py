"""Kernel attention in chunks gives what the definition gives: values, gradients and weights, for every shape."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.arrays import inverse
from minitransformer.attention import elu_features, kernel_attention
from tests.kernels.promises import (
    IN_EVERY_TIER,
    TIERS,
    assert_agree,
    assert_any_memory_order,
    assert_any_number_of_threads,
    assert_no_past_is_changed,
    peaks_of,
)

pytestmark = IN_EVERY_TIER
TOLERANCE = {"float32": 5e-6, "float64": 5e-14}


def random_inputs(seed=0, batch=(2, 3), n=7, m=9, r=5, dv=4, dtype="float64"):
    """FQ and FK, which are positive, V and dY."""
    rng = np.random.default_rng(seed)
    features = (rng.random((*batch, length, r)) + 0.05 for length in (n, m))
    return tuple(a.astype(dtype) for a in (*features, *(rng.standard_normal((*batch, k, dv)) for k in (m, n))))


def everything(FQ, FK, V, dY, **options):
    """Y, dFQ, dFK, dV and A."""
    Y, pullback = kernel_attention(FQ, FK, V, **options)
    return dict(zip(["Y", "dFQ", "dFK", "dV", "A"], (Y, *pullback(dY), pullback.A), strict=True))


def assert_as_defined(*arrays, **options):
    """Compared with float64. What counts for dFK is what its sums are made of: of one key they cancel, and leave rounding."""
    have = everything(*arrays, **options)
    with mt.backend("numpy"):
        FQ, FK, V, dY = (a.astype("float64") for a in arrays)
        want = everything(FQ, FK, V, dY, **options)
        D = kernel_attention(FQ, FK, V, **options)[1].D[..., None]
    terms = np.abs(FQ).mT @ (np.abs(dY) * inverse(np.abs(D))) @ np.abs(V).mT  # without their signs
    sizes = {"dFK": terms.max(initial=0) / 64}
    assert_agree(have, want, arrays[0].dtype, TOLERANCE, sizes)


# ----------------------------------------------------------------------------------------------- agreement


lengths = st.integers(0, 70) | st.sampled_from([1, 1, 63, 64, 65, 128, 130, 200])
widths = st.integers(1, 9) | st.sampled_from([0, 13, 16, 63, 64, 65, 130])


@st.composite
def problems(draw):
    batch = tuple(draw(st.lists(st.integers(1, 3) | st.sampled_from([2, 0]), max_size=2)))
    n, m = draw(lengths), draw(lengths | st.none())
    dtype = draw(st.sampled_from(["float32", "float64"]))
    arrays = random_inputs(draw(st.integers(0, 99)), batch, n, n if m is None else m, draw(widths), draw(widths), dtype)
    return arrays, {
        "causal": draw(st.booleans()),
        "normalise": draw(st.booleans()),
        "eps": draw(st.sampled_from([0, 0, 0.1])),
    }


@given(problem=problems())
@pytest.mark.parametrize("tier", TIERS)
def test_the_tiers_agree(tier, problem):
    arrays, options = problem
    before = [a.copy() for a in arrays]
    with mt.backend(tier):
        assert_as_defined(*arrays, **options)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(130, 130), (200, 130), (130, 200), (64, 64), (129, 1), (1, 129), (191, 320)])
def test_several_chunks_and_several_panels(n, m, causal, dtype):
    assert_as_defined(*random_inputs(1, (2,), n, m, 70, 131, dtype), causal=causal)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("causal", [False, True])
def test_without_values_there_are_weights(n, causal):
    """From arrays of 7 first, so that what is not filled would hold them."""
    for _ in range(20):
        del [np.full((2, n), 7.0) for _ in range(50)][:]
        assert_as_defined(*random_inputs(6, (2,), n, n, 3, 0), causal=causal)


def test_features_of_both_signs_without_a_denominator():
    rng = np.random.default_rng(2)
    args = (rng.standard_normal((2, 150, d)) for d in (20, 20, 33, 33))
    assert_as_defined(*args, causal=True, normalise=False)


def test_arrays_in_any_memory_order_and_read_only():
    assert_any_memory_order(partial(everything, causal=True), random_inputs(4, (2, 3), 12, 16, 8, 4))


# ---------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("causal", [False, True])
def test_a_denominator_of_zero_gives_zeros_and_zero_gradients(causal):
    FQ, FK, V, _ = random_inputs(5, (2,), 100, 100)
    FQ[1, 70] = 0
    FK[0] = 0
    Y, pullback = kernel_attention(FQ, FK, V, causal=causal)
    assert not Y[0].any()
    assert not Y[1, 70].any()
    assert Y[1, 71].all()
    dY = np.zeros_like(Y)
    dY[0], dY[1, 70] = 1, 1
    assert not any(g.any() for g in pullback(dY))


def test_the_future_does_not_change_a_bit_of_the_past():
    *arrays, _ = random_inputs(7, (2,), 140, 140)
    assert_no_past_is_changed(partial(kernel_attention, causal=True), arrays, (1, 15, 16, 63, 64, 100, 139))


def test_a_nan_stays_where_it_belongs():
    FQ, FK, V, _ = random_inputs(8, (2,), 140, 140)
    FQ[0, 3, 1] = np.nan
    Y, _ = kernel_attention(FQ, FK, V, causal=True)
    assert np.isnan(Y[0, 3]).all()
    assert np.isnan(Y).sum() == Y[0, 3].size


@pytest.mark.parametrize("sizes", [(200, 200, 64, 64), (150, 130, 5, 4)], ids=["in a sweep", "in chunks"])
def test_the_same_bits_with_any_number_of_threads(sizes):
    arrays = random_inputs(9, (3,), *sizes)
    assert_any_number_of_threads(partial(everything, causal=True), arrays)


def test_the_pullback_remembers_no_matrix_and_refuses_another_shape():
    FQ, FK, V, dY = random_inputs(10, (2,), 100, 90)
    Y, pullback = kernel_attention(FQ, FK, V)
    assert pullback._fields == ("FQ", "FK", "V", "Y", "D", "S_before", "z_before", "causal")
    assert pullback.FQ is FQ
    assert np.shares_memory(pullback.Y, Y)
    np.testing.assert_allclose(pullback.D, (FQ @ FK.mT).sum(-1))
    with pytest.raises(ValueError, match=r"dY: shape \(2, 4, 100\) should be that of Y, \(2, 100, 4\)"):
        pullback(dY.mT)


def test_memory_is_linear_in_the_length():
    small, large = peaks_of(partial(kernel_attention, causal=True), lambda n: random_inputs(11, (1,), n, n, 32, 32))
    assert large < 2.1 * small
    assert large < 8 * 4096 * 32 * 8  # Y, dN, three gradients, and little else: no 32 × 32 state for a position


# ------------------------------------------------------------------------------------------ features of elu


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (0, 3), (4, 0), (2, 70, 65)])
def test_elu_features_agree(shape, dtype):
    X = (5 * np.random.default_rng(12).standard_normal(shape)).astype(dtype)
    Y, pullback = elu_features(X)
    with mt.backend("numpy"):
        want, want_pullback = elu_features(X)
    assert Y.dtype == want.dtype == X.dtype
    np.testing.assert_allclose(Y, want, rtol=1e-5 if dtype == "float32" else 1e-13)
    np.testing.assert_allclose(pullback(X), want_pullback(X), rtol=1e-5 if dtype == "float32" else 1e-13)


def test_elu_features_at_the_edges_and_their_gradient():
    X = np.array([[0, -0.0, np.inf, -np.inf, np.nan, -2000, 1e30]])
    np.testing.assert_array_equal(elu_features(X)[0], [[1, 1, np.inf, 0, np.nan, 0, 1e30]])
    mt.check_pullback(elu_features, np.random.default_rng(13).standard_normal((2, 3, 4)))
