"""KERPLE: three curves, and what happens at their bounds."""

import math

import numpy as np
import pytest

from minitransformer.attention import attend
from minitransformer.functional import softmax
from minitransformer.positions import ALiBi, NoParams, alibi_slopes
from minitransformer.positions.kerple import KerpleLog, KerpleParams, KerplePower, KerpleWeighted, KerpleWeightedParams
from minitransformer.pullback import tree_items

H, n, m, d, dv = 3, 5, 7, 4, 2
P, A_, P_W, A_W = np.array([[0.5, 1.0, 1.9], [0.1, 0.7, 2.5], [0.3, 1.2, 2.0], [0.02, 0.4, 1.1]])


CURVES = {
    "log": (KerpleLog(H), KerpleParams(P, A_), lambda c, h, t: c - P[h] * math.log(1 + A_[h] * t)),
    "power": (KerplePower(H), KerpleParams(P, A_), lambda c, h, t: c - A_[h] * t ** P[h]),
    "weighted": (
        KerpleWeighted(H),
        KerpleWeightedParams(P, A_, P_W, A_W),
        lambda c, h, t: c * math.exp(-A_W[h] * t ** P_W[h]) - A_[h] * t ** P[h],
    ),
}


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("causal", [False, True])
def test_pair_by_pair(name, Q, K, V, causal):
    encoding, params, score = CURVES[name]
    Y, pullback = attend(encoding, params, Q, K, V, causal=causal)
    S = np.full((2, H, n, m), -np.inf)
    for b, h, i, j in np.ndindex(S.shape):
        offset = j - (i + m - n)
        if offset <= 0 or not causal:
            S[b, h, i, j] = score(Q[b, h, i] @ K[b, h, j] / math.sqrt(d), h, abs(offset))
    A, _ = softmax(S)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_power_1_with_fixed_slopes_is_alibi(rng, causal):
    """p = 1 and a = m_h, for heads whose slope is not below 0.01: of 4 heads the last has 1/256, and is clamped."""
    Q, K, V = rng.standard_normal((3, 2, 4, m, d))
    Y, _ = attend(KerplePower(4), KerpleParams(np.ones(4), alibi_slopes(4)), Q, K, V, causal=causal)
    alibi, _ = attend(ALiBi(4), NoParams(), Q, K, V, causal=causal)
    np.testing.assert_allclose(Y[:, :3], alibi[:, :3], rtol=0, atol=1e-13)
    assert np.abs(Y[:, 3] - alibi[:, 3]).max() > 1e-4


@pytest.mark.parametrize("name", CURVES)
def test_what_is_out_of_bounds_counts_as_the_bound_and_gets_no_gradient(name, Q, K, V, rng):
    encoding, params, _ = CURVES[name]
    top = np.inf if name == "log" else 2.0
    bounds = {field: (0.01, top if field.startswith("p") else np.inf) for field in params._fields}
    outside = type(params)(*(np.array([-1.0, 0.009, 2.5]) for _ in params))
    inside = type(params)(*(np.clip([-1.0, 0.009, 2.5], *bounds[field]) for field in params._fields))
    Y, pullback = attend(encoding, outside, Q, K, V)
    at_bound, bound_pullback = attend(encoding, inside, Q, K, V)
    np.testing.assert_array_equal(Y, at_bound)

    dY = rng.standard_normal(Y.shape)
    for (field, g), (_, b) in zip(tree_items(pullback(dY)[0]), tree_items(bound_pullback(dY)[0]), strict=True):
        clamped = np.array([True, True, 2.5 > bounds[field][1]])
        np.testing.assert_array_equal(g, np.where(clamped, 0, b))
        assert (b != 0).all()  # at a bound itself it can learn, which is where `clamped` takes it
    for field, x in tree_items(encoding.clamped(outside)):
        np.testing.assert_array_equal(x, getattr(inside, field))


def test_initial_values_are_within_bounds(rng):
    for encoding in (KerpleLog(500), KerplePower(500), KerpleWeighted(500)):
        params = encoding.init(rng)
        for (field, x), y in zip(tree_items(params), encoding.clamped(params), strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.min() < 0.05
            assert (1.9 < x.max() <= 2) if field.startswith("p") else (0.95 < x.max() <= 1)


def test_distance_0_costs_nothing(rng):
    """ln(1 + 0) = 0 and 0^p = 0, and the power has no say there: t^p ln t → 0."""
    Q = rng.standard_normal((H, 1, d))
    for encoding, params, _ in CURVES.values():
        _, pullback = attend(encoding, params, Q, Q, Q)
        dparams, *_ = pullback(np.ones_like(Q))
        assert all((x == 0).all() for x in dparams)


def test_the_kernels_are_conditionally_positive_definite(rng):
    """Σ c_i c_j b_ij ≥ 0 if Σ c_i = 0, up to p = 2 and not beyond: why powers are clamped."""
    t = np.abs(np.arange(12)[:, None] - np.arange(12))
    centre = np.eye(12) - 1 / 12  # projects on Σ c = 0

    def lowest(B):
        return np.linalg.eigvalsh(centre @ B @ centre).min()

    for p in (0.01, 0.5, 1.0, 2.0):
        assert lowest(-0.7 * t**p) > -1e-10
        assert lowest(-p * np.log(1 + 0.7 * t)) > -1e-10
    assert lowest(-0.7 * t**2.1) < -0.1


@pytest.mark.parametrize("encoding", [KerpleLog, KerplePower, KerpleWeighted])
def test_refusals(encoding):
    with pytest.raises(ValueError, match="heads: 0 should be at least 1"):
        encoding(0)
