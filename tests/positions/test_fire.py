"""FIRE: the relative distance, the network, and where its gradients go."""

import math

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import attend
from minitransformer.functional import softmax
from minitransformer.positions.fire import FIRE, FIREParams, fire_network, relative_distance
from minitransformer.positions.kerple import KerpleLog, KerpleParams
from minitransformer.pullback import tree_bytes

H, n, m, d, dv = 3, 5, 7, 4, 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("c", "L_mult"), [(0.1, 1.0), (-0.6, 3.5 / 512), (2.0, -0.5 / 512)])
def test_pair_by_pair(Q, K, V, causal, c, L_mult, rng):
    """Positions count from 0, query i of n stands at i + m − n; only the sizes of c and L count, and not their signs."""
    params = FIRE(H, hidden=6).init(rng, np.float64)
    params = params._replace(c=np.array([c]), L_mult=np.array([L_mult]))
    _, _, W_1, b_1, W_2, b_2 = params
    Y, pullback = attend(FIRE(H, hidden=6), params, Q, K, V, causal=causal)
    S = np.full((2, H, n, m), -np.inf)
    for b, h, i, j in np.ndindex(S.shape):
        position = i + m - n
        if j <= position or not causal:
            longest = max(position, abs(512 * L_mult))
            z = math.log(abs(c) * abs(position - j) + 1) / (math.log(abs(c) * longest + 1) + 1e-6)
            hidden = [max(z * W_1[0, u] + b_1[u], 0) for u in range(6)]
            f = sum(hidden[u] * W_2[u, h] for u in range(6)) + b_2[h]
            S[b, h, i, j] = Q[b, h, i] @ K[b, h, j] / math.sqrt(d) + f
    A, _ = softmax(S)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-13)


@pytest.mark.parametrize("c", [1e-3, 0.1, -30.0])
@pytest.mark.parametrize("L", [0.5, 8.0, 512.0])
def test_the_distance_stays_between_0_and_1(c, L):
    """For 0 ≤ j ≤ i, at any length; it is 0 for oneself, and grows with the distance."""
    z, _ = relative_distance(np.array([c]), np.array([L]), 40, 40)
    behind = np.tri(40, dtype=bool)
    assert z[behind].min() == 0
    assert z[behind].max() <= 1
    np.testing.assert_array_equal(np.diag(z), 0)
    assert (np.diff(z[-1]) < 0).all()
    if L < 39:
        assert z[behind].max() == pytest.approx(1, abs=1e-3)  # the first token, from a position beyond L
        assert z[0, -1] > 1  # a key ahead of position 0 may be further away than L


def test_position_0_has_the_threshold_to_divide_by():
    """Without L it would be 0/0, but for ε."""
    z, _ = relative_distance(np.array([0.1]), np.array([4.0]), 1, 1)
    np.testing.assert_array_equal(z, 0)


def test_before_the_threshold_only_the_offset_counts_and_beyond_it_does_not(rng):
    params = FIRE(H).init(rng, np.float64)
    z, _ = relative_distance(params.c, np.array([10.0]), 20, 20)
    B, _ = fire_network(params, z)
    for h in range(H):
        for offset in range(-9, 0):
            diagonal = np.diagonal(B[h], offset)  # rows −offset … 19
            start = 11 + offset  # of which those up to row 10 are alike
            np.testing.assert_allclose(diagonal[:start], diagonal[0], rtol=0, atol=1e-13)
            assert np.abs(diagonal[start:] - diagonal[0]).min() > 1e-9


def test_a_linear_network_is_kerple(rng):
    """f(z) = −p D z with D = ln(|c| L + 1) + ε, at positions before L: the bias −p ln(1 + |c| t) of KERPLE."""
    Q, K, V = rng.standard_normal((3, 2, H, m, d))
    p, c = np.array([0.3, 1.0, 2.2]), 0.4
    D = math.log(c * 512 + 1) + 1e-6
    one_unit = FIREParams(
        np.array([c]), np.ones(1), np.ones((1, 1)), np.zeros(1), -D * p[None], rng.standard_normal(H)
    )  # the ReLU lets z ≥ 0 pass; b_2 is not seen by softmax
    Y, _ = attend(FIRE(H, hidden=1), one_unit, Q, K, V)
    kerple, _ = attend(KerpleLog(H), KerpleParams(p, np.full(H, c)), Q, K, V)
    np.testing.assert_allclose(Y, kerple, rtol=0, atol=1e-12)


def test_the_network_is_the_product_without_its_memory(rng):
    """A row at a time gives what a hidden layer (n, m, U) gives, forward and back."""
    params = FIRE(H).init(rng, np.float64)
    z = rng.random((n, m))
    B, pullback = fire_network(params, z)
    hidden = np.maximum(z[..., None] * params.W_1[0] + params.b_1, 0)
    np.testing.assert_allclose(B, np.moveaxis(hidden @ params.W_2 + params.b_2, -1, 0), rtol=0, atol=1e-13)
    assert tree_bytes(pullback) == tree_bytes((z, params))  # nor is a hidden layer remembered

    def network(z, W_1, b_1, W_2, b_2):
        return fire_network(FIREParams(params.c, params.L_mult, W_1, b_1, W_2, b_2), z)

    check_pullback(network, z, *params[2:])


@pytest.mark.parametrize(("c", "L"), [(0.4, 3.5), (-0.4, -3.5), (1.7, 0.2)])
def test_gradients_of_the_distance(c, L):
    check_pullback(
        lambda c, L: relative_distance(c, L, n, m), np.array([c]), np.array([L]), zero=["L"] if abs(L) < 1 else []
    )


def test_the_threshold_learns_from_positions_before_it(rng):
    """dL is the sum over queries with i < |L|; none, and it gets nothing. At i = |L| it is on the edge: nothing either."""
    for L, some in ((2.5, True), (1.5, False), (2.0, False)):
        _, pullback = relative_distance(np.array([0.4]), np.array([L]), n, m)  # queries at positions 2 … 6
        _, dL = pullback(rng.standard_normal((n, m)))
        assert (dL != 0).all() == some


def test_initial_values(rng):
    params = FIRE(50, hidden=64).init(rng)
    np.testing.assert_array_equal(params.c, np.float32(0.1))
    np.testing.assert_array_equal(params.L_mult, 1)
    for x in (params.W_1, params.b_1):
        assert 0.9 < np.abs(x).max() <= 1
    for x in (params.W_2, params.b_2):
        assert 0.9 / 8 < np.abs(x).max() <= 1 / 8


def test_refusals():
    with pytest.raises(ValueError, match="heads: 0 should be at least 1"):
        FIRE(0)
    with pytest.raises(ValueError, match="hidden: 0 should be at least 1"):
        FIRE(3, hidden=0)
