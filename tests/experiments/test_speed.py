"""What is timed computes what it should, and each part of the experiment runs in small."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import backend, experiments
from minitransformer.attention import dot_product_attention
from minitransformer.backend import available
from minitransformer.experiments import speed

needs_numba = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def test_every_stair_computes_the_definition():
    Q, K, V = np.random.default_rng(0).standard_normal((3, 64, 64), np.float32)
    with backend("numpy"):
        exact, _ = dot_product_attention(*(X.astype(np.float64) for X in (Q, K, V)))
    for stair in speed.climbable():
        assert np.abs(stair.attend(Q, K, V) - exact).max() < 2e-6


def test_stairs_without_numba(monkeypatch):
    monkeypatch.setattr(speed, "available", lambda: ("numpy",))
    assert [stair.name for stair in speed.climbable()] == [
        "three loops in Python",
        "NumPy, the definition",
        "NumPy in tiles",
    ]
    assert len(speed.climb(speed.climbable()[-1], 64, 2)) == 2


def test_the_record_has_every_part_in_every_round():
    trials = speed.trials()
    assert len(set(trials)) == len(trials) == speed.ROUNDS * len(speed.PARTS)
    assert list(experiments.load("speed").trials) == trials


@needs_numba
@pytest.mark.parametrize("trial", speed.trials()[: len(speed.PARTS)], ids=lambda trial: trial.part)
def test_each_part_in_small(trial):
    """It gives the same fields as the record has, and times above zero."""
    result = speed.run(replace(trial, **speed.IN_A_TEST))
    (kept,) = (kept for other, kept in experiments.load("speed") if other == trial)
    assert _shape(result) == {key: _shape(kept)[key] for key in _shape(result)}
    assert set(result) == set(kept) or (trial.part == "staircase" and "micro" not in available())
    assert all(0 < number < np.inf for number in _numbers(result))


def _shape(result):
    """The names in it; lists count for nothing but their being there."""
    return {key: _shape(value) if isinstance(value, dict) else type(value) for key, value in result.items()}


def _numbers(value):
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    else:
        yield value


@needs_numba
def test_the_number_of_threads_is_given_back():
    from minitransformer.kernels import threads

    before = threads.number
    with speed.on(1):
        assert threads.number == 1
    assert threads.number == before


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
def test_gigaflops_and_gigabytes_are_counted_by_hand(monkeypatch):
    """12 rows, times 500 // 12 = 41: of L × L products and sums each; a copy reads and writes four bytes a number."""
    from minitransformer.kernels.tiles import LANES

    monkeypatch.setattr(speed, "seconds", lambda work, runs: [0.75, 0.5, 0.75])
    assert speed.peak(1, 500) == pytest.approx(2 * 41 * 12 * LANES**2 / 0.5 / 1e9)
    assert speed.peak(3, 500, rows=4) == pytest.approx(3 * 2 * 125 * 4 * LANES**2 / 0.5 / 1e9)
    assert speed.bandwidth(1, 1000) == pytest.approx(8000 / 0.5 / 1e9)
    monkeypatch.setattr(speed, "peak", lambda number, times, rows: times + rows)
    assert speed.rows(1) == {"4": [68, 68, 68], "6": [76, 76, 76]}
