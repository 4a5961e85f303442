"""What the record of the experiment `speed` says: rates, roofs, powers of n and crossovers. Three figures draw from it."""

from typing import Any, NamedTuple

import numpy as np

from minitransformer import experiments
from minitransformer.experiments.speed import LONG, RADIUS, STAIRS, crossing, operations
from minitransformer.typing import Array

FITTED = 2048  # powers of n are fitted from this length on
LABELS = {
    "definition": "NumPy, the definition",
    "dense": "dense, in tiles",
    "window": f"window ± {RADIUS}",
    "bigbird": "BigBird",
    "kernel": "kernel attention",
    "copy": "copy of V",
}


class Speed(NamedTuple):
    """One machine: GFLOP/s of each run of each stair, ceilings, times of each run at each length, bytes.

    rates     by stair, (runs,)
    cores     1, and all; and of so many cores: peak (GFLOP/s) and bandwidth (GB/s), each the median of the rounds
    peaks     of so many cores, GFLOP/s of each round
    rows      GFLOP/s in blocks of 4 and 6 rows, (runs,)
    numbers   seconds for 10,000 products, by the exponent of the numbers, and of the way back from two attentions, (rounds,)
    n         lengths; seconds by name, (lengths, rounds), each the median of a round; bytes by name
    """

    rates: dict[str, Array]
    cores: tuple[int, int]
    peak: dict[int, float]
    bandwidth: dict[int, float]
    peaks: dict[int, Array]
    rows: dict[int, Array]
    numbers: dict[str, Array]
    n: Array
    seconds: dict[str, Array]
    bytes: dict[str, Array]
    made_on: str

    def rate(self, name: str) -> float:
        """GFLOP/s of a stair: the median of all runs."""
        return float(np.median(self.rates[name]))

    def roof(self, number: int, intensity: Any) -> Any:
        """What this number of cores can reach at most: the peak, or what memory delivers times the intensity."""
        return np.minimum(self.peak[number], self.bandwidth[number] * np.asarray(intensity))

    def roof_of(self, name: str) -> float:
        """The roof over a stair."""
        stair = stairs()[name]
        return float(self.roof(self.cores[stair.all_cores], stair.intensity(LONG)))

    def power(self, name: str, what: str = "seconds") -> float:
        """p of the law n^p that fits best at the long end: from FITTED on, and through three lengths at least."""
        values = getattr(self, what)[name]
        values = np.median(values, 1) if values.ndim == 2 else values
        n = self.n[: len(values)]
        use = n >= min(FITTED, n[-3])
        return float(np.polyfit(np.log(n[use]), np.log(values[use]), 1)[0])

    def crossovers(self, name: str, other: str = "dense") -> Array:
        """For each round: the n from which on `name` takes a tenth less time than `other`; infinite if that never comes.

        A tenth, because a pattern that leaves out nothing takes the same time, and noise decides which is ahead.
        """
        both = min(len(self.seconds[name]), len(self.seconds[other]))
        ratios = self.seconds[name][:both] / (0.9 * self.seconds[other][:both])
        return np.array([crossing(self.n, each) or np.inf for each in ratios.T])


def stairs() -> dict[str, Any]:
    """The stairs by name, lowest first."""
    return {stair.name: stair for stair in STAIRS}


def data() -> Speed:
    """Read the committed record."""
    record, rounds = experiments.load("speed"), {}
    for trial, result in record:
        rounds.setdefault(trial.part, []).append(result)
    ceilings = {what: np.array([r[what] for r in rounds["ceilings"]]) for what in ("peak", "bandwidth")}
    cores, first = tuple(rounds["ceilings"][0]["cores"]), rounds["lengths"][0]
    times = {name: [[np.median(runs) for runs in r["seconds"][name]] for r in rounds["lengths"]] for name in LABELS}
    return Speed(
        {
            name: operations(stair.n) / np.concatenate([r[name] for r in rounds["staircase"]]) / 1e9
            for name, stair in stairs().items()
        },
        cores,
        *(dict(zip(cores, map(float, np.median(each, 0)), strict=True)) for each in ceilings.values()),
        dict(zip(cores, ceilings["peak"].T, strict=True)),
        {rows: np.concatenate([r[str(rows)] for r in rounds["rows"]]) for rows in (4, 6)},
        {name: np.array([r[name] for r in rounds["small numbers"]]) for name in rounds["small numbers"][0]},
        np.array(first["n"]),
        {name: np.array(table).T for name, table in times.items()},
        {name: np.array(first["bytes"][name], float) for name in LABELS},
        record.made_on,
    )
