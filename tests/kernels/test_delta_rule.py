"""The delta rule in sweeps gives what the recurrence gives: values and gradients, for every shape."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import delta_rule
from tests.kernels.promises import (
    TIERS,
    assert_any_memory_order,
    assert_any_number_of_threads,
    assert_no_past_is_changed,
    difference_as_plain_python,
    peaks_of,
)

pytestmark = pytest.mark.skipif(not TIERS, reason="needs Numba")
TOLERANCE = {"float32": 1e-5, "float64": 3e-14}


@pytest.fixture(params=TIERS, autouse=True)
def tier(request):
    with mt.backend(request.param):
        yield request.param


def random_inputs(seed=0, batch=(2, 3), n=7, r=5, dv=4, dtype="float64"):
    """Q, K of norm one, V, β between 0 and 1, and dY."""
    rng = np.random.default_rng(seed)
    Q, K, V, dY = (rng.standard_normal((*batch, n, d)) for d in (r, r, dv, dv))
    K /= np.maximum(np.linalg.norm(K, axis=-1, keepdims=True), 1e-3)
    return tuple(a.astype(dtype) for a in (Q, K, V, rng.random((*batch, n)), dY))


def everything(Q, K, V, beta, dY):
    """Y, dQ, dK, dV and dbeta."""
    Y, pullback = delta_rule(Q, K, V, beta)
    return dict(zip(["Y", "dQ", "dK", "dV", "dbeta"], (Y, *pullback(dY)), strict=True))


def assert_as_defined(*arrays):
    have = everything(*arrays)
    with mt.backend("numpy"):
        want = everything(*arrays)
    for name, w in want.items():
        h = have[name]
        assert h.shape == w.shape, name
        assert h.dtype == w.dtype == arrays[0].dtype, name
        assert np.isfinite(h).all(), name
        error = np.abs(h - w).max(initial=0) / (1 + np.abs(w).max(initial=0))
        assert error <= TOLERANCE[str(h.dtype)], f"{name} differs by {error:.2g}"


lengths = st.integers(0, 70) | st.sampled_from([1, 1, 63, 64, 65, 128, 130, 200])
widths = st.integers(1, 9) | st.sampled_from([0, 13, 16, 63, 64, 65, 130])


@st.composite
def problems(draw):
    batch = tuple(draw(st.lists(st.integers(1, 3) | st.sampled_from([2, 0]), max_size=2)))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    return random_inputs(draw(st.integers(0, 99)), batch, draw(lengths), draw(widths), draw(widths), dtype)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(arrays=problems())
@pytest.mark.parametrize("tier", TIERS)
def test_the_tiers_agree(tier, arrays):
    before = [a.copy() for a in arrays]
    with mt.backend(tier):
        assert_as_defined(*arrays)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "r", "dv"), [(130, 24, 131), (64, 70, 64), (200, 64, 65)])
def test_several_panels(n, r, dv, dtype):
    assert_as_defined(*random_inputs(1, (2,), n, r, dv, dtype))


def test_few_dimensions_where_every_key_meets_every_other():
    """n = 300 keys in 4 dimensions, β up to 1: each write overlaps all the earlier ones."""
    assert_as_defined(*random_inputs(2, (2,), 300, 4, 6))


@pytest.mark.parametrize(("n", "r", "dv"), [(5, 3, 4), (70, 4, 3)])
def test_the_pullback_is_the_derivative(n, r, dv):
    mt.check_pullback(delta_rule, *random_inputs(3, (2,), n, r, dv)[:4], entries=30)


def test_a_closed_gate_writes_nothing_and_still_learns():
    Q, K, V, beta, dY = random_inputs(4, (2,), 100)
    beta[:, 70] = 0
    have = everything(Q, K, V, beta, dY)
    assert not have["dV"][:, 70].any()
    assert not have["dK"][:, 70].any()
    assert have["dbeta"][:, 70].all()
    assert not delta_rule(Q, K, V, 0 * beta)[0].any()


def test_orthonormal_keys_are_read_exactly():
    rng = np.random.default_rng(5)
    K = np.linalg.qr(rng.standard_normal((2, 100, 100)))[0].mT
    V, beta = rng.standard_normal((2, 100, 5)), np.ones((2, 200))
    beta[:, 100:] = 0  # first write all of them, then only read
    Y, _ = delta_rule(*(np.concatenate([X, X], 1) for X in (K, K, V)), beta)
    np.testing.assert_allclose(Y[:, 100:], V, atol=1e-12)


def test_arrays_in_any_memory_order_and_read_only():
    assert_any_memory_order(everything, random_inputs(6, (2, 3), 12))


def test_the_future_does_not_change_a_bit_of_the_past():
    *arrays, _ = random_inputs(7, (2,), 140)
    assert_no_past_is_changed(delta_rule, arrays, (1, 15, 16, 63, 64, 100, 139))


def test_the_same_bits_with_any_number_of_threads():
    assert_any_number_of_threads(everything, random_inputs(8, (3,), 150))


def test_a_gradient_of_another_shape_is_refused():
    *arrays, dY = random_inputs(9, (2,), 6)
    _, pullback = delta_rule(*arrays)
    with pytest.raises(ValueError, match=r"dY: shape \(2, 4, 6\) should be that of Y, \(2, 6, 4\)"):
        pullback(dY.mT)


def test_memory_is_linear_in_the_length():
    small, large = peaks_of(delta_rule, lambda n: random_inputs(10, (1,), n, 32, 32))
    assert large < 2.1 * small
    assert large < 9 * 4096 * 32 * 8  # Y, E, what the sweeps find, the gradients: no 32 × 32 state for any position


def test_the_loops_run_as_plain_python():
    code = """
from minitransformer.attention import delta_rule
args = rng.random((1, 66, 2)), rng.random((1, 66, 2)), rng.standard_normal((1, 66, 2)), rng.random((1, 66)) / 2
def run():
    Y, pullback = delta_rule(*args)
    return Y, *pullback(Y)
"""
    assert difference_as_plain_python(code) < 1e-12
