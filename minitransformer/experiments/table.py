"""The table of chapter 20: every registered attention, what it is, what it costs, and what it has learned.

What it is comes from the registry, what it costs from the record of `which_cost`, what it learned from those of `which` and, with
other positions or none, `which_rope` and `which_without`. A kind that was registered after they were made has its row, which says
"not measured yet".
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from minitransformer.attention.core import Part
from minitransformer.attention.registry import ATTENTIONS, EXAMPLE, attention_of
from minitransformer.experiments import Record, load, which
from minitransformer.experiments.speed import crossing
from minitransformer.experiments.which_cost import LENGTHS, Cost

NOT_YET = "not measured yet"
FORWARDS, BOTH = 0, 1  # of what is measured: forwards, and with the way back


@dataclass(frozen=True)
class Row:
    """One attention. In its methods, and in those of a table, `what` is FORWARDS or BOTH.

    cost      by length, as far as it was run
    stopped   why no further: "time", "memory", or an empty string
    scores    by task, one for each seed: bits per byte for `text`, else the share of right answers
    """

    name: str
    part: Part
    cost: dict[int, Cost] = field(default_factory=dict)
    stopped: str = ""
    scores: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def causal(self) -> str:
        """Whether it can be causal, in a word."""
        return self.part.causal_in_words

    @property
    def state(self) -> str:
        """What it keeps while it writes."""
        if self.part.causal == "never":
            return "nothing: it can't write"
        return self.part.remembers or "nothing: reads all again"

    @property
    def cannot(self) -> str:
        """What it can't do, in a few words; empty if there is nothing."""
        said = []
        if self.part.causal == "never":
            said.append("be causal")
        elif self.part.causal == "always":
            said.append("look ahead")
        if self.part.looks_ahead:
            said.append("choose its keys without looking ahead")
        if self.part.causal != "never" and not self.part.decodes:
            said.append("decode from a state")
        if "longest" in self.part.needs or "context" in self.part.needs:
            said.append("read more than it was made for")
        return "; ".join(said)

    def slope(self, what: int) -> float | None:
        """By which power of n its time grows, fitted to all lengths but the first; None for fewer than two of them."""
        n = [length for length in self.cost if length > LENGTHS[0]]
        if len(n) < 2:
            return None
        return float(np.polyfit(np.log(n), np.log([self.cost[length].yardsticks[what] for length in n]), 1)[0])

    def at(self, n: float, what: int) -> float | None:
        """Its time over that of the yardstick, at any length: on straight lines in logarithms between those that were run.

        None outside of these lengths.
        """
        return self._between(n, [measured.yardsticks[what] for measured in self.cost.values()])

    def megabytes(self, n: float, what: int) -> float | None:
        """MiB at any length, found in the same way; None outside of the lengths that were run."""
        return self._between(n, [measured.MB[what] for measured in self.cost.values()])

    def _between(self, n: float, found: list[float]) -> float | None:
        """The value at n on straight lines in logarithms through what was found at the lengths that were run."""
        known = list(self.cost)
        if not known or not known[0] <= n <= known[-1]:
            return None
        return float(np.exp(np.interp(math.log(n), np.log(known), np.log(found))))

    def mean(self, task: str) -> float | None:
        """The mean of its seeds in a task; None if it was not run on it."""
        return float(np.mean(self.scores[task])) if task in self.scores else None

    def spread(self, task: str) -> float | None:
        """The largest score of its seeds less the smallest; None if it was not run on the task."""
        return float(np.ptp(self.scores[task])) if task in self.scores else None


@dataclass(frozen=True)
class Table:
    """All rows, in the order of the registry; dense attention that sees both sides, for its times; and the bag of tokens."""

    rows: dict[str, Row]
    both_sides: Row
    bag: Row
    made_on: str

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows.values())

    def dense(self, row: Row) -> Row:
        """What the times of a row are compared with: dense attention that is causal if the row is."""
        return self.rows["softmax"] if row.part.causal != "never" else self.both_sides

    def ratio(self, row: Row, n: float, what: int) -> float | None:
        """Its time over that of dense attention at the same length; None where one of them was not run."""
        mine, dense = row.at(n, what), self.dense(row).at(n, what)
        return None if mine is None or dense is None else mine / dense

    def pays_from(self, row: Row, what: int) -> float | None:
        """The shortest length from which on, up to the longest that was run, it takes less time than dense attention; or None."""
        known = [(n, ratio) for n in LENGTHS if (ratio := self.ratio(row, n, what)) is not None]
        return crossing(*map(np.array, zip(*known, strict=True))) if known else None

    def paying(self, row: Row) -> str:
        """From which lengths on it is faster than dense attention, in words."""
        if not row.cost:
            return NOT_YET
        forwards, both = (self.pays_from(row, what) for what in (FORWARDS, BOTH))
        if forwards is both is None:
            return f"never, up to {max(row.cost):,} tokens"
        if forwards and both and math.isclose(forwards, both, rel_tol=0.1):
            return f"from {_two_digits(max(forwards, both))} tokens on"
        told = [
            f"from {_two_digits(n)} tokens on" if n else f"never, up to {max(row.cost):,}" for n in (forwards, both)
        ]
        return f"forwards {told[0]}; with the backward pass {told[1]}"

    def with_rope(self) -> "Table":
        """The same table, with what the kinds learned whose queries and keys were turned, in place of sinusoids; others stay."""
        return self._with("which_rope")

    def without_positions(self) -> "Table":
        """The same table, with what the kinds learned without positions that were run so; others stay."""
        return self._with("which_without")

    def _with(self, experiment: str) -> "Table":
        scores = _scores(load(experiment))
        rows = {name: replace(row, scores=row.scores | scores.get(name, {})) for name, row in self.rows.items()}
        return replace(self, rows=rows)

    def with_better_positions(self) -> "Table":
        """The same table, in which a kind has in each task those positions, or none, with which it learned most."""
        tables, rows = (self, self.with_rope(), self.without_positions()), {}
        for name, row in self.rows.items():
            tried = {task: [of.rows[name].scores[task] for of in tables] for task in row.scores}
            better = {task: (min if task == "text" else max)(scores, key=sum) for task, scores in tried.items()}
            rows[name] = replace(row, scores=better)
        return replace(self, rows=rows)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the bag of tokens has on record, with which all others are compared."""
        return tuple(task for task in which.TASKS if task in self.bag.scores)

    def share(self, row: Row, task: str) -> float | None:
        """How far it has come from the bag of tokens, 0, to the best of all kinds, 1."""
        mine, bag = row.mean(task), self.bag.mean(task)
        if mine is None or bag is None:
            return None
        return (mine - bag) / (self.best(task) - bag)

    def best(self, task: str) -> float:
        """The mean of the best of all kinds in a task."""
        return self._best[task]

    @cached_property
    def _best(self) -> dict[str, float]:
        means = {task: [mean for row in self if (mean := row.mean(task)) is not None] for task in which.TASKS}
        return {task: min(some) if task == "text" else max(some) for task, some in means.items() if some}

    def quality(self, row: Row) -> float | None:
        """The mean of these shares over the tasks that it was run on; None if there is none."""
        shares = [share for task in self.tasks if (share := self.share(row, task)) is not None]
        return float(np.mean(shares)) if shares else None

    def front(self, rows: list[Row], n: float, what: int) -> list[Row]:
        """The rows that no other row beats in both time and quality, the fastest first."""
        known = [(time, quality, row) for row in rows if (time := row.at(n, what)) is not None
                 and (quality := self.quality(row)) is not None]  # fmt: skip
        found: list[Row] = []
        best = -math.inf
        for _, quality, row in sorted(known, key=lambda one: (one[0], -one[1])):
            if quality > best:
                best = quality
                found.append(row)
        return found

    def noise(self, task: str) -> float:
        """A difference of two means of a task that is no larger than this is noise.

        Twice the standard error of a difference, from the variance of the seeds, pooled over all rows.
        """
        seeds = [row.scores[task] for row in (*self, self.bag) if task in row.scores]
        return 2 * math.sqrt(2 * float(np.mean([np.var(some, ddof=1) for some in seeds])) / which.SEEDS)

    def noise_of_quality(self) -> float:
        """A difference of two qualities over all tasks that is no larger than this is noise.

        A share has the noise of its task, divided by the way from the bag to the best.
        """
        shares = [self.noise(task) / (self.best(task) - np.mean(self.bag.scores[task])) for task in self.tasks]
        return float(np.linalg.norm(shares)) / len(shares)

    def fitting(self, n: float, what: int = FORWARDS, **needs: bool) -> list[Row]:
        """The rows that can do it (see `can`), the fastest first; those that were never measured come last.

        Rows that were measured, but not at n, are left out.
        """
        able = [row for row in self if can(row, **needs) and (not row.cost or row.at(n, what) is not None)]
        return sorted(able, key=lambda row: row.at(n, what) or math.inf)


def _two_digits(n: float) -> str:
    """A length between two that were measured, as exactly as that allows: 5261.0 as 5,300; nothing below the shortest."""
    return f"{max(LENGTHS[0], int(float(f'{n:.2g}'))):,}"


def can(row: Row, *, causal: bool = False, decode: bool = False, both_sides: bool = False) -> bool:
    """Whether it can be causal, go on writing from a state, and see what comes after a token, where it has to.

    raises   ValueError if it has to see both sides and not to
    """
    if both_sides and (causal or decode):
        raise ValueError(
            "both sides: what is causal, or writes, sees nothing that comes after a token; ask for one or the other"
        )
    if decode and not row.part.decodes:
        return False
    if both_sides:
        return row.part.causal != "always"
    return not (causal or decode) or row.part.causal != "never"


def table(make: str | None = None) -> Table:
    """All that is registered, with what the records have of it; the times are of this make of processor, if one is named."""
    found = {name: Row(name, attention_of(name, EXAMPLE)) for name in ATTENTIONS}
    costs, learned = load("which_cost", make), load("which")
    both_sides = Row("softmax", found["softmax"].part)
    for trial, result in costs:
        columns = (result[key] for key in ("n", *Cost._fields))
        cost = {n: Cost(*each) for n, *each in zip(*columns, strict=True)}
        row = Row(trial.attention, attention_of(trial.attention, EXAMPLE), cost, result["stopped"])
        if trial.causal or row.part.causal == "never":
            found[trial.attention] = row
        else:
            both_sides = row
    scores = _scores(learned)
    rows = {name: replace(row, scores=scores.get(name, {})) for name, row in found.items()}
    bag = Row(which.BAG, found["softmax"].part, scores=scores[which.BAG])
    return Table(rows, both_sides, bag, costs.made_on)


def _scores(record: Record[which.Trial]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Name, task, a score for each seed; without tasks that were not run with all seeds."""
    scores: dict[str, dict[str, list[float]]] = {}
    for trial, result in record:
        scores.setdefault(trial.name, {}).setdefault(trial.task, []).append(result["score"])
    return {
        name: {task: tuple(seeds) for task, seeds in tasks.items() if len(seeds) == which.SEEDS}
        for name, tasks in scores.items()
    }
