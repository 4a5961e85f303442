"""What the record of speed says: powers and crossovers are found, and the claims that chapter 17 makes without a figure."""

import numpy as np
import pytest

from minitransformer.experiments.speed import HEADS, WIDTH
from minitransformer.figures import speed


@pytest.fixture(scope="module")
def record():
    return speed.data()


def test_powers(record):
    assert 1.7 < record.power("dense") < 2.2
    for name in ("window", "bigbird", "kernel"):
        assert 0.8 < record.power(name) < 1.3  # a little above 1, where the arrays outgrow the caches
    for name in ("dense", "window", "bigbird", "kernel", "copy"):
        assert 0.99 < record.power(name, "bytes") < 1.01
    assert record.power("definition", "bytes") > 1.8


def test_bytes_are_those_of_the_fields(record):
    n = record.n
    assert list(record.bytes["dense"]) == list(4 * HEADS * (4 * n * WIDTH + n))  # Q, K, V, Y and L
    short = n[: len(record.bytes["definition"])]
    assert list(record.bytes["definition"]) == list(4 * HEADS * (3 * short * WIDTH + short**2))  # Q, K, V and A


def test_sparse_patterns_and_features_pay_from_some_length_on(record):
    for name in ("window", "bigbird", "kernel"):
        here, there = (np.median(record.crossovers(name, other)) for other in ("dense", "definition"))
        assert there <= here < 4096
        assert np.median(record.seconds[name][-1]) < np.median(record.seconds["dense"][-1]) / 4
    # "a window seems to pay … where it leaves out no tile yet"; in most rounds it leaves out no pair there
    assert np.median(record.crossovers("window", "definition")) < 257


def test_a_crossover_lies_where_the_lines_cross(record):
    n = np.array([100, 200, 400, 800])
    seconds = {"dense": n**2.0 / 0.9, "window": 300.0 * n, "never": n**3.0, "always": n * 1.0}  # 0.9: a tenth less
    made = record._replace(n=n, seconds={name: row[:, None] for name, row in seconds.items()})
    assert made.crossovers("window") == pytest.approx([300])
    assert made.crossovers("never") == [np.inf]
    assert made.crossovers("always") == [100]


def test_a_power_is_found(record):
    n = np.array([512, 1024, 2048, 4096, 8192])
    seconds = {"long": n[:, None] ** 1.5, "short": n[:3, None] ** 2.0}  # the definition ends early
    made = record._replace(n=n, seconds=seconds)
    assert made.power("long") == pytest.approx(1.5)
    assert made.power("short") == pytest.approx(2)


def test_numbers_that_are_too_small(record):
    took = {name: np.median(seconds) for name, seconds in record.numbers.items()}
    assert took["-130"] > 5 * max(took["-100"], took["-160"])
    assert took["steep"] < 1.6 * took["flat"]
