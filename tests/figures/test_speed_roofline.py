"""The claims of the caption of fig_speed_roofline about the record."""

import pytest

from minitransformer.figures import speed_roofline
from minitransformer.figures.speed import stairs


@pytest.fixture(scope="module")
def record():
    return speed_roofline.data()


def test_nothing_is_faster_than_its_roof(record):
    for name in record.rates:
        assert record.rate(name) < 1.15 * record.roof_of(name)  # two measurements, at two moments


def test_the_definition_alone_stands_where_the_roof_slopes(record):
    cores = {name: record.cores[stair.all_cores] for name, stair in stairs().items()}
    slopes = [name for name in record.rates if record.roof_of(name) < record.peak[cores[name]]]
    assert slopes == ["NumPy, the definition"]


def test_the_last_stair_is_near_the_top(record):
    assert record.rate("the micro-kernel") > 0.4 * record.roof_of("the micro-kernel")


def test_what_is_shown_is_on_record(record):
    assert set(speed_roofline.SHOWN) <= set(record.rates)
    assert record.rate("NumPy in tiles") > record.rate("NumPy, the definition")  # the arrow goes up
