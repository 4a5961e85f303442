"""The claims of the captions of fig_speed_staircase, fig_speed_roofline and fig_speed_lengths about the record."""

import numpy as np
import pytest

from minitransformer.backend import available
from minitransformer.figures import speed


@pytest.fixture(scope="module")
def record():
    return speed.data()


def test_every_stair_but_one_goes_up(record):
    rate = dict(zip(record.names, record.gflops, strict=True))
    steps = np.diff(record.gflops)
    down = record.names.index("compiled tiles, a query a row")
    assert steps[down - 1] < 0
    assert np.all(np.delete(steps, down - 1) > 0)
    # "lose to NumPy until the queries stand on lanes and exp is a polynomial, and it takes both"
    assert rate["a query a lane"] < rate["NumPy in tiles"] < rate["exp2 by a polynomial"]


def test_the_first_two_steps_are_the_largest(record):
    ratios = record.gflops[1:] / record.gflops[:-1]
    assert set(np.argsort(ratios)[-2:]) == {0, 1}


def test_nothing_is_faster_than_its_roof(record):
    for number, rate, intensity in zip(record.cores, record.gflops, record.intensity, strict=True):
        assert rate < 1.05 * record.roof(number, intensity)  # 5 %: what two measurements of one thing may differ by


def test_the_definition_alone_stands_where_the_roof_slants(record):
    slants = record.bandwidth[1] * record.intensity < record.peak[1]
    assert [name for name, slant in zip(record.names, slants, strict=True) if slant] == ["NumPy, the definition"]
    assert record.gflops[-1] > 0.5 * record.peak[max(record.peak)]  # the last stair is near the top


def test_slopes(record):
    assert 1.8 < record.slope("dense") < 2.1
    for name in ("window", "bigbird", "kernel"):
        assert 0.85 < record.slope(name) < 1.25  # a little above 1, where the arrays outgrow the caches
    for name in ("dense", "window", "bigbird", "kernel", "copy"):
        assert 0.99 < record.slope(name, "bytes") < 1.01
    assert record.slope("definition", "bytes") > 1.8


def test_sparse_patterns_and_features_pay_from_some_length_on_and_nothing_beats_a_copy(record):
    for name in ("window", "bigbird", "kernel"):
        assert record.crossover(name, "definition") <= record.crossover(name) < 4096
        assert record.seconds[name][-1] < record.seconds["dense"][-1] / 4
        assert np.all(record.seconds[name] > record.seconds["copy"])


def test_a_crossover_lies_where_the_lines_cross(record):
    n = np.array([100, 200, 400, 800])
    seconds = {"dense": n**2.0 / 0.9, "window": 300.0 * n, "never": n**3.0, "always": n * 1.0}  # 0.9: a tenth less
    made = record._replace(n=n, seconds=seconds)
    assert made.crossover("window") == pytest.approx(300)
    assert made.crossover("never") == np.inf
    assert made.crossover("always") == 100


def test_whose_record_it_is(record):
    assert {"machine", "cores", "numpy", "numba", "blas"} <= set(record.circumstances)
    assert list(record.n) == list(speed.LENGTHS)


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_what_is_recorded_is_what_is_measured(record):
    """The stairs and jobs of the record are those of the module, and a small measurement of each runs."""
    stairs = speed.stairs()
    assert [stair.name for stair in stairs] == record.names[: len(stairs)]
    assert [speed.intensity(stair) for stair in stairs] == pytest.approx(record.intensity[: len(stairs)], rel=0.01)
    assert speed.gflops(stairs[-1], 64, 1) > 0
    assert set(speed.jobs(64, 1)) == set(record.seconds) == set(record.bytes) == set(speed.LABELS)
    small = speed.lengths((64,), 1)
    assert all(np.isfinite(row).all() for table in small.values() for row in table.values())


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_number_of_threads_is_given_back():
    import numba

    before = numba.get_num_threads()
    with speed.on(1):
        assert numba.get_num_threads() == 1
    assert numba.get_num_threads() == before
