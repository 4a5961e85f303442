import math

import pytest

from minitransformer.training.schedule import Cosine, Noam


def test_noam_is_the_equation():
    rate = Noam(width=512, warmup=4000)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        assert math.isclose(rate(step), 512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_noam_rises_in_a_line_and_falls_with_the_root():
    rate = Noam(width=64, warmup=100, factor=2.0)
    assert math.isclose(rate(50), 50 * rate(1))
    assert math.isclose(rate(400), rate(100) / 2)
    assert max(range(1, 1000), key=rate) == 100
    assert math.isclose(rate(100), 2 * (64 * 100) ** -0.5)


def test_cosine_rises_in_a_line_then_falls_to_the_floor():
    rate = Cosine(peak=1.0, steps=110, warmup=10, floor=0.2)
    assert math.isclose(rate(1), 0.1)
    assert math.isclose(rate(4), 0.4)
    assert math.isclose(rate(10), 1.0)
    assert math.isclose(rate(35), 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert math.isclose(rate(60), 0.6)
    assert math.isclose(rate(110), 0.2)
    assert math.isclose(rate(500), 0.2)
    after = [rate(step) for step in range(10, 111)]
    assert after == sorted(after, reverse=True)


def test_cosine_without_warmup_starts_near_the_peak():
    assert 0.99 < Cosine(1.0, 100)(1) < 1.0


def test_cosine_of_nothing_but_warmup_ends_at_the_peak():
    assert [Cosine(1.0, 4, 4)(step) for step in (1, 4, 5)] == [0.25, 1.0, 0.0]


@pytest.mark.parametrize("warmup", [-1, 11])
def test_a_warmup_longer_than_the_run_is_refused(warmup):
    with pytest.raises(ValueError, match=f"warmup: {warmup} (is not within 0 … 10|should be at least 0)"):
        Cosine(1.0, 10, warmup)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"width": 8, "warmup": 0}])
def test_a_senseless_noam_is_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        Noam(**wrong)


@pytest.mark.parametrize("peak", [0.0, -1.0, math.nan, math.inf])
def test_a_senseless_rate_is_refused(peak):
    with pytest.raises(ValueError, match=r"peak: .* should be (above 0|a number)"):
        Cosine(peak, 10)


@pytest.mark.parametrize("schedule", [Noam(8), Cosine(1.0, 10), Cosine(1.0, 10, 2)])
def test_the_first_step_is_one(schedule):
    """Before it Noam's root has no real value, and half a step there is not."""
    for step in (0, -1):
        with pytest.raises(ValueError, match=f"step: {step} should be at least 1"):
            schedule(step)
    for other in (1.5, "1", None, True):
        with pytest.raises(TypeError, match=r"step: .* should be int"):
            schedule(other)
