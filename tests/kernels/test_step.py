"""Memories from a state on, in loops, give what their definitions give, for every shape; and what the sweeps give."""

import numpy as np
import pytest
from hypothesis import given

import minitransformer as mt
from minitransformer.attention import (
    KernelState,
    delta_rule,
    delta_rule_step,
    gated_delta_rule,
    gated_delta_step,
    gated_linear_attention,
    gated_linear_step,
    kernel_attention,
    kernel_attention_step,
)
from tests.kernels.promises import (
    IN_EVERY_TIER,
    TIERS,
    assert_agree,
    assert_any_memory_order,
    assert_any_number_of_threads,
)
from tests.kernels.test_scan import TOLERANCE, problems, random_inputs

pytestmark = IN_EVERY_TIER


def a_state(Q, V):
    """S and z after some text."""
    rng = np.random.default_rng(17)
    S, z = rng.standard_normal((*Q.shape[:-2], Q.shape[-1], V.shape[-1])), rng.random((*Q.shape[:-2], Q.shape[-1]))
    return S.astype(Q.dtype), z.astype(Q.dtype)


def everything(Q, K, V, beta, log_decay):
    """Y and the state of four memories; features are positive, so that no denominator is near zero."""
    S, z = a_state(Q, V)
    found = {
        "delta": delta_rule_step(Q, K, V, beta, S),
        "gated": gated_linear_step(Q, K, V, log_decay, S),
        "gated delta": gated_delta_step(Q, K, V, beta, log_decay, S),
    }
    for normalise in (True, False):
        Y, state = kernel_attention_step(abs(Q), abs(K), V, KernelState(S, z, 3), normalise=normalise, eps=0.5)
        assert state.length == 3 + Q.shape[-2]
        found[f"kernel, normalise={normalise}"] = Y, state.S, state.z
    return {f"{name}, {part}": array for name, arrays in found.items() for part, array in enumerate(arrays)}


@given(arrays=problems())
@pytest.mark.parametrize("tier", TIERS)
def test_the_tiers_agree(tier, arrays):
    *arrays, _ = arrays
    before = [a.copy() for a in arrays]
    with mt.backend(tier):
        have = everything(*arrays)
    with mt.backend("numpy"):
        assert_agree(have, everything(*arrays), arrays[0].dtype, TOLERANCE)
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("channels", [False, True])
def test_from_an_empty_memory_it_is_the_sweep(channels):
    Q, K, V, beta, log_decay, _ = random_inputs(1, (2, 3), 200, 24, 70, channels=channels)
    S, z = (0 * a for a in a_state(Q, V))
    (Q, K) = abs(Q), abs(K)
    for step, whole in (
        (delta_rule_step(Q, K, V, beta, S), delta_rule(Q, K, V, beta)),
        (gated_linear_step(Q, K, V, log_decay, S), gated_linear_attention(Q, K, V, log_decay)),
        (gated_delta_step(Q, K, V, beta, log_decay, S), gated_delta_rule(Q, K, V, beta, log_decay)),
        (kernel_attention_step(Q, K, V, KernelState(S, z, 0)), kernel_attention(Q, K, V, causal=True)),
    ):
        np.testing.assert_allclose(step[0], whole[0], rtol=0, atol=1e-12 * abs(whole[0]).max())


def test_any_decay_will_do():
    """A gate of −∞ forgets all that was before, whatever it was, and a query without weight gives zeros."""
    Q, K, V, beta, log_decay, _ = random_inputs(2, (2,), 9)
    log_decay[:, 5] = -np.inf
    S, z = a_state(Q, V)
    for step in (
        lambda t, S: gated_linear_step(Q[:, t:], K[:, t:], V[:, t:], log_decay[:, t:], S),
        lambda t, S: gated_delta_step(Q[:, t:], K[:, t:], V[:, t:], beta[:, t:], log_decay[:, t:], S),
    ):
        np.testing.assert_array_equal(step(0, S)[0][:, 5:], step(5, 0 * S)[0])
    assert not kernel_attention_step(0 * Q, K, V, KernelState(S, z, 0))[0].any()


def test_arrays_in_any_memory_order_and_read_only():
    assert_any_memory_order(everything, random_inputs(6, (2, 3), 12)[:-1])


def test_the_same_bits_with_any_number_of_threads():
    assert_any_number_of_threads(everything, random_inputs(8, (5,), 70, 66, 66)[:-1])


def test_the_old_state_is_as_it_was():
    Q, K, V, beta, log_decay, _ = random_inputs(9, (2,), 4)
    S, z = a_state(Q, V)
    before = S.copy(), z.copy()
    for _, after in (
        delta_rule_step(Q, K, V, beta, S),
        gated_linear_step(Q, K, V, log_decay, S),
        gated_delta_step(Q, K, V, beta, log_decay, S),
        kernel_attention_step(Q, K, V, KernelState(S, z, 0)),
    ):
        assert not np.shares_memory(after[0], S)
    np.testing.assert_array_equal(S, before[0])
    np.testing.assert_array_equal(z, before[1])
