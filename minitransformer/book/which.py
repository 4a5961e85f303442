"""`minitransformer which`: the rows of chapter 20's table that fit what a reader has to do, and what they cost right here."""

import math
import re
import textwrap
import time
from collections.abc import Iterator

from minitransformer.experiments import which, which_cost
from minitransformer.experiments.speed import on
from minitransformer.experiments.table import BOTH, FORWARDS, NOT_YET, Row, Table, can, table
from minitransformer.experiments.which_cost import LENGTHS
from minitransformer.machine import keep_freed_memory
from minitransformer.terminal import columns

MINUTE = 60.0  # seconds that may be spent on measuring
COLUMN = {  # what each says, a line below the table
    "of dense": "time on record, divided by that of dense attention; the table is sorted by it",
    "here": "time on this machine, now",
    "MiB": "peak memory of the pass",
    "slope": "the power of the length with which time grows: 1 in proportion to it, 2 with its square",
    "text": "bits per byte in predicting the next byte of the Python documentation; lower is better",
    "recall": "share of right answers: which value stood beside a key, somewhere before",
    "digits": "share of right answers: handwritten digits, read pixel by pixel",
    "listops": "share of right answers: nested minima and maxima of digits",
}


def length(text: str) -> int:
    """A number of tokens, such as 16384 or 16k.

    raises   ValueError for what is not a number, or outside the lengths of the record
    """
    written = re.fullmatch(r"(\d{1,30})([kKmM]?)", text.strip())
    if not written:
        raise ValueError(f"n: {text!r} is not a number of tokens; write it as 16384 or as 16k")
    n = int(written[1]) * {"": 1, "k": 1024, "m": 1024**2}[written[2].lower()]
    if not LENGTHS[0] <= n <= LENGTHS[-1]:
        raise ValueError(f"n: {n} is outside what was measured, {LENGTHS[0]} to {LENGTHS[-1]} tokens (1k to 64k)")
    return n


def answer(
    n: int,
    *,
    causal: bool = False,
    decode: bool = False,
    both_sides: bool = False,
    backward: bool = False,
    measure: bool = True,
) -> Iterator[str]:
    """The lines of the answer, each as soon as it is known: with `measure`, a row has to be timed before it is printed."""
    found, what = table().with_better_positions(), BOTH if backward else FORWARDS
    needs = {"causal": causal, "decode": decode, "both_sides": both_sides}
    rows = sorted(found.fitting(n, what, **needs), key=lambda row: found.ratio(row, n, what) or math.inf)
    asked = [f"{n:,} tokens", *["causal"] * (causal or decode), *["writing from a state"] * decode]
    asked += ["both sides seen (but timed causal, where a kind can be)"] * both_sides
    asked.append("forwards and backwards" if backward else "forwards")
    yield from _wrapped(f"{', '.join(asked)}: {len(rows)} of {len(found.rows)} kinds can do it. {_about()}")
    yield _cells(found, "", "of dense", "here", "MiB", "slope", *found.tasks)
    clock = Clock(n, what) if measure else None
    for row in rows:
        yield _line(found, row, n, what, clock.seconds(row) if clock else None)
    yield ""
    yield from (f"{name:8}  {COLUMN[name]}" for name in ("of dense", "here", "MiB", "slope", *found.tasks))
    yield ""
    yield from _states(rows) if decode else ()
    yield from _left_out(found, n, what, needs)
    yield from _wrapped(_noise(found))
    yield from _wrapped(f"The record was made on {found.made_on}.")


class Clock:
    """Times kinds on this machine, on one core, until its minute is over."""

    def __init__(self, n: int, what: int, minute: float = MINUTE) -> None:
        keep_freed_memory()
        self.n, self.what = n, what
        self.X = which_cost.tokens(n)
        self.ends = time.monotonic() + minute
        with on(1):
            self.yardstick = which_cost.layer("softmax", which_cost.YARDSTICK, self.X[:, : which_cost.YARDSTICK], True)
            self.unit = min(which_cost.spent(self.yardstick)[1] for _ in range(3))

    def seconds(self, row: Row) -> float | None:
        """Seconds of one pass; None if it might not end within the minute."""
        causal = row.part.causal != "never"
        with on(1):
            if (times := row.at(self.n, BOTH)) is None:  # not on record: as the square of the length, from a short text
                short = min(self.n, LENGTHS[0])
                first = which_cost.layer(row.name, short, self.X[:, :short], causal)
                which_cost.spent(first)
                times = which_cost.spent(first)[1] / self.unit * (self.n / short) ** 2
            if time.monotonic() + 2 * times * self.unit > self.ends:
                return None
            which_cost.layer(row.name, which_cost.FIRST, self.X[:, : which_cost.FIRST], causal)()()
            work = which_cost.layer(row.name, self.n, self.X, causal)
            return float(which_cost.in_rounds(work, self.yardstick, 2)[0][self.what])


def _about() -> str:
    return (
        f"One layer of width {which_cost.WIDTH} with {which_cost.HEADS} heads on one core; "
        "`of dense` is its time divided by that of dense attention, causal if the kind can be."
    )


def _line(found: Table, row: Row, n: int, what: int, here: float | None) -> str:
    if not row.cost and not row.scores:
        return f"{row.name:23}{NOT_YET:>17}" if here is None else f"{row.name:23}{'':9}{_time(here):>8}  {NOT_YET}"
    ratio, MB, slope = found.ratio(row, n, what), row.megabytes(n, what), row.slope(what)
    learned = ("—" if (mean := row.mean(task)) is None else f"{mean:.2f}" for task in found.tasks)
    return _cells(
        found,
        row.name,
        "—" if ratio is None else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}",
        "—" if here is None else _time(here),
        "—" if MB is None else f"{MB:.0f}",
        "—" if slope is None else f"{slope:.1f}",
        *learned,
    )


def _cells(found: Table, name: str, *cells: str) -> str:
    """A line of the table, which fits a terminal of 80 columns."""
    widths = (9, 8, 6, 6, *(max(len(task), 4) + 1 for task in found.tasks))
    return f"{name:23}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _states(rows: list[Row]) -> Iterator[str]:
    """What is kept while a text is written, and by whom."""
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row.state, []).append(row.name)
    for state, names in states.items():
        yield from _wrapped(f"Keeps {state}: {', '.join(names)}.")


def _left_out(found: Table, n: int, what: int, needs: dict[str, bool]) -> Iterator[str]:
    """The kinds that can do it but were not run at this length, by the reason."""
    for why, most in (("time", f"{which_cost.SECONDS:.0f} s"), ("memory", f"{which_cost.ROOM >> 30} GiB")):
        names = [row.name for row in found if row.stopped == why and row.at(n, what) is None and can(row, **needs)]
        if names:
            yield from _wrapped(
                f"Left out, as the next longer text of the record would have taken more than {most}: {', '.join(names)}."
            )


def _noise(found: Table) -> str:
    """How the columns of learning were measured, and how large a difference has to be to mean something."""
    said = ", ".join(f"{found.noise(task):.2f} for {task}" for task in found.tasks)
    return (
        f"What was learned is the mean of {which.SEEDS} small trainings on up to 64 tokens. Positions are sinusoids, or RoPE or "
        f"none where that was tried and is better for the kind and the task. A difference below {said} is noise."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, columns(), subsequent_indent="  ")
