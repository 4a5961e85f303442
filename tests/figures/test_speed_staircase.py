"""The claims of the caption of fig_speed_staircase about the record."""

import numpy as np
import pytest

from minitransformer.figures import speed_staircase


@pytest.fixture(scope="module")
def record():
    return speed_staircase.data()


def test_every_stair_but_one_goes_up(record):
    rates = np.array([record.rate(name) for name in record.rates])
    (down,) = np.flatnonzero(np.diff(rates) < 0)
    assert list(record.rates)[down + 1] == "compiled tiles, a query a row"
    # "lose to NumPy until the queries stand on lanes and exp is a polynomial"
    assert record.rate("a query a lane") < record.rate("NumPy in tiles") < record.rate("exp2 by a polynomial")


def test_the_first_two_steps_are_the_largest(record):
    rates = np.array([record.rate(name) for name in record.rates])
    assert set(np.argsort(rates[1:] / rates[:-1])[-2:]) == {0, 1}


def test_the_spread_is_small_beside_the_axis(record):
    for runs in record.rates.values():
        low, middle, high = np.percentile(runs, (25, 50, 75))
        assert high - low < 0.4 * middle  # of an axis of five decades


@pytest.mark.parametrize(("rate", "text"), [(0.0036, "0.004"), (0.61, "0.6"), (9.7, "10"), (175.2, "175")])
def test_digits(rate, text):
    assert speed_staircase.digits(rate) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.386, "0.4"), (9.94, "9.9"), (9.96, "10"), (169.7, "170")])
def test_times(ratio, text):
    assert speed_staircase.times(ratio) == text


def test_a_name_ends_before_the_dot_of_its_row(record):
    fig = speed_staircase.draw(record)
    fig.draw_without_rendering()
    (ax,) = fig.axes
    names = {text.get_text(): text.get_window_extent() for text in ax.texts}
    for place, (name, rate) in enumerate(zip(record.rates, map(record.rate, record.rates), strict=True)):
        x, y = ax.transData.transform((rate, place))
        assert names[name].x1 < x - 10 or names[name].y0 > y + 4, name
