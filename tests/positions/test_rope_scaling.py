"""Frequencies for longer texts: the identities that define each of the six, and published numbers."""

import math

import numpy as np
import pytest

from minitransformer.attention import attend, dot_product_attention
from minitransformer.positions.encoding import NoParams
from minitransformer.positions.rope import RoPE, rotate
from minitransformer.positions.rope_scaling import (
    NTK,
    DynamicNTK,
    Llama3,
    LongRoPE,
    PositionInterpolation,
    YaRN,
    rope_frequencies,
)

SIZES = ((8, 1e4), (64, 1e4), (128, 5e5), (10, 100.0))


@pytest.mark.parametrize(("d", "base"), SIZES)
def test_frequencies_one_by_one(d, base):
    theta = rope_frequencies(d, base)
    assert theta.shape == (d // 2,)
    for f in range(d // 2):
        assert math.isclose(theta[f], 1 / base ** (2 * f / d), rel_tol=1e-13)


@pytest.mark.parametrize(("d", "base"), SIZES)
@pytest.mark.parametrize(
    "scaling", [PositionInterpolation(1.0), NTK(1.0), DynamicNTK(1.0, 500), YaRN(1.0, 500), Llama3(1.0, 500)]
)
def test_a_factor_of_one_changes_nothing(scaling, d, base):
    """Dynamic NTK takes what it needs beyond the trained length, so there only up to it."""
    frequencies, magnitude = scaling(d, base, 500)
    np.testing.assert_array_equal(frequencies, rope_frequencies(d, base))
    assert magnitude == 1


def test_a_factor_of_one_is_rope_in_attention():
    rng = np.random.default_rng(2)
    Q, K, V = rng.standard_normal((3, 2, 3, 9, 8))
    plain, _ = attend(RoPE(8), NoParams(), Q, K, V, causal=True)
    for scaling in (PositionInterpolation(1.0), NTK(1.0), DynamicNTK(1.0, 9), YaRN(1.0, 9), Llama3(1.0, 9)):
        Y, _ = attend(RoPE(8, scaling=scaling), NoParams(), Q, K, V, causal=True)
        np.testing.assert_array_equal(Y, plain)


@pytest.mark.parametrize(("d", "base"), SIZES)
@pytest.mark.parametrize("s", [1.5, 4.0, 32.0])
def test_interpolation_squeezes_positions(s, d, base):
    """Position s i is seen as position i."""
    theta, magnitude = PositionInterpolation(s)(d, base, 99)
    np.testing.assert_allclose(s * theta, rope_frequencies(d, base), rtol=1e-15)
    assert magnitude == 1


@pytest.mark.parametrize(("d", "base"), SIZES)
@pytest.mark.parametrize("s", [1.5, 4.0, 32.0])
def test_ntk_leaves_the_highest_and_divides_the_lowest(s, d, base):
    plain, (theta, magnitude) = rope_frequencies(d, base), NTK(s)(d, base, 99)
    assert theta[0] == plain[0] == 1
    assert math.isclose(plain[-1] / theta[-1], s, rel_tol=1e-13)
    steps = np.log(plain / theta)  # from 0 to ln s, in equal steps
    np.testing.assert_allclose(np.diff(steps), math.log(s) / (d // 2 - 1), rtol=0, atol=1e-13)
    assert magnitude == 1


@pytest.mark.parametrize("s", [1.0, 2.0, 4.0])
def test_dynamic_ntk_starts_at_the_trained_length(s):
    dynamic, plain = DynamicNTK(s, 100), rope_frequencies(16, 1e4)
    rounded = 5.6 * 3 / 3 - (5.6 - 1)
    assert rounded < 1, "a little less than what would be refused"
    np.testing.assert_array_equal(DynamicNTK(5.6, 3)(16, 1e4, 3)[0], plain)
    for length in (1, 50, 100):
        np.testing.assert_array_equal(dynamic(16, 1e4, length)[0], plain)
    for length in (101, 250, 1000):
        factor = s * length / 100 - (s - 1)
        theta, magnitude = dynamic(16, 1e4, length)
        assert math.isclose(plain[-1] / theta[-1], factor, rel_tol=1e-12)
        np.testing.assert_allclose(theta, NTK(factor)(16, 1e4, 1)[0], rtol=1e-12)
        assert magnitude == 1


def test_yarn_pair_by_pair():
    """Which pairs turn often enough to be left alone, which less than once, and what is in between."""
    d, base, trained, s = 64, 1e4, 2048, 4.0
    theta, (scaled, magnitude) = rope_frequencies(d, base), YaRN(s, trained)(d, base, 99)
    turns = trained * theta / (2 * math.pi)
    low = math.floor(d * math.log(trained / (2 * math.pi * 32)) / (2 * math.log(base)))
    high = math.ceil(d * math.log(trained / (2 * math.pi)) / (2 * math.log(base)))
    for f in range(d // 2):
        r = min(max((f - low) / (high - low), 0), 1)
        assert math.isclose(scaled[f], theta[f] * (1 - r) + theta[f] / s * r, rel_tol=1e-13)
    assert (scaled[turns >= 40] == theta[turns >= 40]).all()  # rounding down leaves a pair more, and so a little more
    assert np.allclose(scaled[turns <= 0.75], theta[turns <= 0.75] / s, rtol=1e-13, atol=0)
    assert (np.diff(scaled) < 0).all()
    assert magnitude == 0.1 * math.log(s) + 1


def test_yarn_at_its_ends():
    """A model whose slowest pair turned often is left as it is; one that saw hardly anything is interpolated throughout."""
    theta = rope_frequencies(16, 100.0)
    np.testing.assert_array_equal(YaRN(8.0, 10**9)(16, 100.0, 1)[0], theta)
    short = YaRN(8.0, 1)(16, 100.0, 1)[0]
    np.testing.assert_allclose(short[1:], theta[1:] / 8, rtol=1e-13)


def test_llama_3_pair_by_pair():
    """Wave lengths below L₀/4 stay, above L₀ they are s times as long; between, the rule of its authors in loops."""
    d, base, trained, s, low, high = 64, 5e5, 8192, 8.0, 1.0, 4.0
    scaled, magnitude = Llama3(s, trained)(d, base, 99)
    for f, theta in enumerate(rope_frequencies(d, base)):
        wave = 2 * math.pi / theta
        if wave < trained / high:
            expected = theta
        elif wave > trained / low:
            expected = theta / s
        else:
            smooth = (trained / wave - low) / (high - low)
            expected = (1 - smooth) * theta / s + smooth * theta
        assert math.isclose(scaled[f], expected, rel_tol=1e-13)
    assert magnitude == 1


SEARCHED = LongRoPE(4.0, 100, long=(1.0, 1.5, 4.0, 9.0), short=(1.0, 1.0, 1.25, 1.5))


def test_longrope_has_a_list_for_each_side_of_the_trained_length():
    """A list of equal numbers is position interpolation. Without one for short texts these turn as before, with the magnitude."""
    plain = rope_frequencies(8, 1e4)
    for s in (1.0, 1.3, 4.0):
        theta, magnitude = LongRoPE(s, 100, long=(s, s, s, s))(8, 1e4, 101)
        np.testing.assert_allclose(theta, PositionInterpolation(s)(8, 1e4, 101)[0], rtol=1e-14)
        assert magnitude == math.sqrt(1 + math.log(s) / math.log(100))
    theta, magnitude = LongRoPE(1.0, 100, long=(2.0, 2.0, 2.0, 2.0))(8, 1e4, 100)
    np.testing.assert_array_equal(theta, plain)
    assert magnitude == 1
    assert not RoPE(8, scaling=SEARCHED).fixed  # turned keys can't be kept: the angles change at L₀
    rng = np.random.default_rng(3)
    Q, K, V = rng.standard_normal((3, 2, 3, 9, 8))
    scaled = LongRoPE(4.0, 8, long=(1.0, 1.5, 4.0, 9.0))
    for n, factors in ((8, np.ones(4)), (9, np.array(scaled.long))):
        Y, _ = attend(RoPE(8, scaling=scaled), NoParams(), Q[..., :n, :], K[..., :n, :], V[..., :n, :], causal=True)
        angles = np.arange(n)[:, None] * plain / factors
        turned = [rotate(X[..., :n, :], angles=angles, magnitude=scaled(8, 1e4, n)[1])[0] for X in (Q, K)]
        want, _ = dot_product_attention(*turned, V[..., :n, :], causal=True)
        np.testing.assert_allclose(Y, want, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("scaling", "d", "base", "length", "frequencies", "magnitude"),
    [  # made with ROPE_INIT_FUNCTIONS of modeling_rope_utils in transformers 5.23, which computes in float32
        (PositionInterpolation(2.0), 8, 1e4, 300, (0.5, 0.05, 0.005, 0.0005), 1),
        (DynamicNTK(2.0, 100), 8, 1e4, 300, (1.0, 0.058480352, 0.003419952, 0.0002), 1),
        (YaRN(2.0, 100), 8, 1e4, 300, (1.0, 0.075, 0.005, 0.0005), 1.0693147),
        (
            *(YaRN(3.5, 512), 16, 100.0, 400),
            (1.0, 0.56234133, 0.28395963, 0.14153652, 0.069387749, 0.033281423, 0.015488707, 0.0068953699),
            1.1252763,
        ),
        (  # transformers 5.24
            *(Llama3(8.0, 8192), 16, 5e5, 9),
            (1.0, 0.19392274, 0.037606031, 0.0072926647, 0.00052484616, 3.4281022e-05, 6.6478699e-06, 1.2891732e-06),
            1,
        ),
        (SEARCHED, 8, 1e4, 100, (1.0, 0.1, 0.008, 0.00066666667), 1.1406270186454384),  # transformers 5.24
        (SEARCHED, 8, 1e4, 101, (1.0, 0.066666667, 0.0025, 0.00011111111), 1.1406270186454384),
    ],
)
def test_published_numbers(scaling, d, base, length, frequencies, magnitude):
    theta, times = scaling(d, base, length)
    np.testing.assert_allclose(theta, frequencies, rtol=3e-7)
    assert math.isclose(times, magnitude, rel_tol=1e-7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PositionInterpolation(0.5), "factor: 0.5 should be at least 1"),
        (lambda: NTK(0.0), "factor: 0.0 should be at least 1"),
        (lambda: NTK(math.nan), "factor: nan should be a number"),
        (lambda: NTK(2.0)(2, 1e4, 5), "d: 2 should be at least 4"),
        (
            lambda: RoPE(2, scaling=NTK(2.0)),
            "d: 2 should be at least 4",
        ),  # when it is made, not when it turns something
        (lambda: DynamicNTK(0.9, 10), "factor: 0.9 should be at least 1"),
        (lambda: DynamicNTK(2.0, 0), "trained: 0 should be at least 1"),
        (lambda: DynamicNTK(2.0, 10)(2, 1e4, 5), "d: 2 should be at least 4"),
        (lambda: YaRN(math.inf, 10), "factor: inf should be a number"),
        (lambda: YaRN(2.0, 0), "trained: 0"),
        (lambda: YaRN(2.0, 10, fast=1.0, slow=2.0), "slow and fast: 2.0 and 1.0 should be in rising order"),
        (lambda: Llama3(0.5, 10), "factor: 0.5 should be at least 1"),
        (lambda: Llama3(2.0, 0), "trained: 0"),
        (lambda: Llama3(2.0, 10, fast=1.0, slow=1.0), "slow and fast: 1.0 and 1.0 should be in rising order"),
        (lambda: YaRN(2.0, 10, slow=0.0), "slow: 0.0 should be above 0"),
        (lambda: LongRoPE(0.5, 10, (1.0,)), "factor: 0.5 should be at least 1"),
        (lambda: LongRoPE(2.0, 1, (1.0,)), "trained: 1 should be at least 2"),
        (lambda: LongRoPE(2.0, 10, (1.0, 0.0)), "long: 0.0 should be above 0"),
        (lambda: RoPE(8, scaling=LongRoPE(2.0, 10, (1.0, 2.0))), "long: 2 numbers for 4 pairs of channels"),
        (lambda: RoPE(4, scaling=LongRoPE(2.0, 10, (1.0, 2.0), (1.0,))), "short: 1 number for 2 pairs of channels"),
    ],
)
def test_what_they_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
