"""Memories, in sweeps, give what their recurrences give: values and gradients, for every shape."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import delta_rule, gated_delta_rule, gated_linear_attention
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
TOLERANCE = {"float32": 1e-5, "float64": 3e-14}


def random_inputs(seed=0, batch=(2, 3), n=7, r=5, dv=4, dtype="float64", channels=True):
    """Q, K of norm one, V, β between 0 and 1, ln α with α between 0.3 and 1, and dY."""
    rng = np.random.default_rng(seed)
    Q, K, V, dY = (rng.standard_normal((*batch, n, d)) for d in (r, r, dv, dv))
    K /= np.maximum(np.linalg.norm(K, axis=-1, keepdims=True), 1e-3)
    log_decay = np.log(rng.uniform(0.3, 1, (*batch, n, r) if channels else (*batch, n)))
    return tuple(a.astype(dtype) for a in (Q, K, V, rng.random((*batch, n)), log_decay, dY))


def everything(Q, K, V, beta, log_decay, dY):
    """Y and all gradients, of three memories."""
    found = {}
    for function, arrays, names in (
        (delta_rule, (Q, K, V, beta), ("Q", "K", "V", "beta")),
        (gated_linear_attention, (Q, K, V, log_decay), ("Q", "K", "V", "log_decay")),
        (gated_delta_rule, (Q, K, V, beta, log_decay), ("Q", "K", "V", "beta", "log_decay")),
    ):
        Y, pullback = function(*arrays)
        found |= {f"{function.__name__} Y": Y}
        found |= {f"{function.__name__} d{name}": d for name, d in zip(names, pullback(dY), strict=True)}
    return found


def assert_as_defined(*arrays):
    have = everything(*arrays)
    with mt.backend("numpy"):
        assert_agree(have, everything(*arrays), arrays[0].dtype, TOLERANCE)


lengths = st.integers(0, 70) | st.sampled_from([1, 1, 31, 32, 33, 64, 65, 100, 200])
widths = st.integers(1, 9) | st.sampled_from([0, 13, 16, 32, 33, 64, 65, 130])


@st.composite
def problems(draw):
    batch = tuple(draw(st.lists(st.integers(1, 3) | st.sampled_from([2, 0]), max_size=2)))
    dtype, channels = draw(st.sampled_from(["float32", "float64"])), draw(st.booleans())
    return random_inputs(draw(st.integers(0, 99)), batch, draw(lengths), draw(widths), draw(widths), dtype, channels)


@given(arrays=problems())
@pytest.mark.parametrize("tier", TIERS)
def test_the_tiers_agree(tier, arrays):
    before = [a.copy() for a in arrays]
    with mt.backend(tier):
        assert_as_defined(*arrays)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n", "r", "dv"), [(130, 24, 131), (64, 70, 64), (200, 64, 65)])
def test_several_blocks_and_several_panels(n, r, dv, dtype, channels):
    assert_as_defined(*random_inputs(1, (2,), n, r, dv, dtype, channels))


@pytest.mark.parametrize("channels", [False, True])
def test_any_decay_will_do(channels):
    """From none to all: α = 1, 10⁻²⁰, 0, in float32, in any order."""
    Q, K, V, beta, log_decay, dY = random_inputs(4, (2,), 90, dtype="float32", channels=channels)
    log_decay[:] = np.resize([0, np.log(1e-20), -np.inf, 0, 0, -1], log_decay.shape)
    assert_as_defined(Q, K, V, beta, log_decay, dY)


def test_gates_are_right_where_nearly_all_is_forgotten():
    """dln α is then small, though what is read and written is not: a sum over the whole text would leave its rounding."""
    Q, K, V, beta, log_decay, dY = random_inputs(5, (1,), 4000, 8, 8, channels=False)
    log_decay[:] = np.log(1e-3)
    exact = [everything(Q, K, V, beta, log_decay, dY)[f"{name} dlog_decay"] for name in ("gated_linear_attention",)]
    single = everything(*(a.astype("float32") for a in (Q, K, V, beta, log_decay, dY)))
    error = abs(single["gated_linear_attention dlog_decay"] - exact[0]).max()
    between = np.vecdot(Q, everything(Q, K, V, beta, log_decay, dY)["gated_linear_attention dQ"])
    assert error < 2e-7 * 32**0.5 * abs(between).max()


def test_arrays_in_any_memory_order_and_read_only():
    assert_any_memory_order(everything, random_inputs(6, (2, 3), 12))


def test_the_future_does_not_change_a_bit_of_the_past():
    Q, K, V, beta, log_decay, _ = random_inputs(7, (2,), 80)
    for function, arrays in (
        (delta_rule, (Q, K, V, beta)),
        (gated_linear_attention, (Q, K, V, log_decay[..., 0])),
        (gated_delta_rule, (Q, K, V, beta, log_decay)),
    ):
        assert_no_past_is_changed(function, arrays, (1, 2, 15, 16, 31, 32, 63, 64, 79))


def test_the_same_bits_with_any_number_of_threads():
    assert_any_number_of_threads(everything, random_inputs(8, (3,), 170, 66, 66))


@pytest.mark.parametrize("function", [delta_rule, gated_linear_attention, gated_delta_rule])
def test_a_gradient_of_another_shape_is_refused(function):
    Q, K, V, beta, log_decay, dY = random_inputs(9, (2,), 6)
    rest = {delta_rule: (beta,), gated_linear_attention: (log_decay,), gated_delta_rule: (beta, log_decay)}[function]
    _, pullback = function(Q, K, V, *rest)
    with pytest.raises(ValueError, match=r"dY: shape \(2, 4, 6\) should be that of Y, \(2, 6, 4\)"):
        pullback(dY.mT)


@pytest.mark.parametrize(("function", "arrays"), [(delta_rule, 6), (gated_delta_rule, 10)])
def test_memory_is_linear_in_the_length(function, arrays):
    """Y, e and the gradients; with gates also α, and a state for 32 positions. A state for each would be 32 arrays more."""

    def inputs(n):
        *given, log_decay, dY = random_inputs(10, (1,), n, 32, 32)
        return (*given, *((log_decay,) if function is gated_delta_rule else ()), dY)

    small, large = peaks_of(function, inputs)
    assert large < 2.1 * small
    assert large < arrays * 4096 * 32 * 8


def test_few_dimensions_where_every_key_meets_every_other():
    """n = 300 keys in 4 dimensions, β up to 1: each write overlaps all the earlier ones."""
    assert_as_defined(*random_inputs(2, (2,), 300, 4, 6))


def test_a_closed_gate_writes_nothing_and_still_learns():
    Q, K, V, beta, _, dY = random_inputs(4, (2,), 100)
    beta[:, 70] = 0
    _, pullback = delta_rule(Q, K, V, beta)
    _, dK, dV, dbeta = pullback(dY)
    assert not dV[:, 70].any()
    assert not dK[:, 70].any()
    assert dbeta[:, 70].all()
    assert not delta_rule(Q, K, V, 0 * beta)[0].any()


def test_orthonormal_keys_are_read_exactly():
    rng = np.random.default_rng(5)
    K = np.linalg.qr(rng.standard_normal((2, 100, 100)))[0].mT
    V, beta = rng.standard_normal((2, 100, 5)), np.ones((2, 200))
    beta[:, 100:] = 0  # first write all of them, then only read
    Y, _ = delta_rule(*(np.concatenate([X, X], 1) for X in (K, K, V)), beta)
    np.testing.assert_allclose(Y[:, 100:], V, atol=1e-12)
