"""Exercises of chapter 20, on choosing one."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy import ndarray as Array

from minitransformer.exercises.check import NotYet, array_of, close, exercise, expect, likely, unless
from minitransformer.experiments.table import BOTH, FORWARDS, Row, Table, can, table

WHERE = 16384  # tokens


@cache
def measured() -> Table:
    """The table of the chapter."""
    return table()


@exercise("20.1")
def where_lines_cross(answer):
    """Lengths, in 1k, from which on c xᵖ is less than x²."""
    expect(
        answer, [2.0, 20.0, 4.0], "With x = n/1k both times are powers of x. Where are they equal?",
        ([2, 20, 2], "The third grows faster than n, so it catches up later than the first does."),
        ([2**0.5, 20**0.5, 2**0.5], "Dense attention has its square already: divide both times by x."),
        ([2048, 20480, 4096], "Lengths in 1k are wanted."),
        ([2000, 20000, 4000], "Lengths in 1k are wanted."),
        tolerance=0.01,
    )  # fmt: skip


@exercise("20.2")
def two_qualities(answer):
    """(20.1) with the bag at 0.2 and 3.5, the best at 0.8 and 2.7."""
    recall, text = (0.5 - 0.2) / (0.8 - 0.2), (2.9 - 3.5) / (2.7 - 3.5)
    expect(
        answer, [(recall + text) / 2, recall], "Of each task: how far has it come from the bag to the best? Then the mean.",
        ([(recall + text) / 2, recall / 2], "A task that a kind was not run on is not a zero: the mean is over the others."),
        ([(recall - text) / 2, recall], "In the text less is better, above the line and below it."),
        ([(recall + 1 - text) / 2, recall], "In the text less is better: how far is it from the bag?"),
        ([(0.5 / 0.8 + 2.7 / 2.9) / 2, 0.5 / 0.8], "The bag of tokens counts as nothing learned: subtract it first."),
        tolerance=0.01,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- wishes


def timed(row: Row) -> bool:
    """Whether there is a time of a training step."""
    return measured().ratio(row, WHERE, BOTH) is not None


def fast(row: Row) -> bool:
    """Whether a training step takes less than a tenth of the time of dense attention."""
    ratio = measured().ratio(row, WHERE, BOTH)
    return ratio is not None and ratio < 0.1


def as_good_in_recall(row: Row) -> bool:
    """Not below dense attention by more than the noise."""
    found, mean = measured(), row.mean("recall")
    return mean is not None and mean > (found.rows["softmax"].mean("recall") or 0) - found.noise("recall")


def writes(row: Row) -> bool:
    """From a state."""
    return can(row, causal=True, decode=True)


def fixed(row: Row) -> bool:
    """Whether it writes from a matrix for each head."""
    return writes(row) and row.state.startswith("S")


Needs = tuple[tuple[Callable[[Row], bool], str], ...]
WISHES: tuple[tuple[Needs, Callable[[Row], float], str], ...] = (
    (
        (
            (timed, "was not run at this length"),
            (fast, "takes a tenth of the time of dense attention or more"),
        ),
        lambda row: -(row.mean("digits") or 0),
        "reads more of the digits",
    ),
    (
        ((writes, "does not write from a state"),),
        lambda row: row.mean("text") or math.inf,
        "needs fewer bits for the text",
    ),
    (
        (
            (writes, "does not write from a state"),
            (fixed, "does not write from a matrix S for each head"),
            (as_good_in_recall, "recalls less than dense attention, by more than the noise"),
        ),
        lambda row: row.megabytes(WHERE, BOTH) or math.inf,
        "takes less memory in a training step",
    ),
)


@exercise("20.3")
def three_wishes(answer):
    """A name for each wish."""
    found = measured()
    if not isinstance(answer, (list, tuple, Array)) or len(answer) != len(WISHES):
        raise NotYet("Three names are wanted, one for each wish.")
    for place, (name, (needs, least, better)) in enumerate(zip(answer, WISHES, strict=True)):
        which = ("first", "second", "third")[place]
        name = name.strip().lower() if isinstance(name, str) else name
        if not isinstance(name, str) or name not in found.rows:
            raise NotYet(f"{name!r:.40} is not a kind in the table.")
        for fits, otherwise in needs:
            if not fits(found.rows[name]):
                raise NotYet(f"The {which} wish: {name} {otherwise}.")
        known = {row.name: least(row) for row in found if all(fits(row) for fits, _ in needs)}
        if known[name] > min(known.values()):
            raise NotYet(f"The {which} wish: another kind that fits {better}.")


@exercise("20.4")
def moved_by_the_way_back(answer):
    """Of kinds that pay from somewhere on: how many earlier, how many later with the backward pass."""
    found = measured()
    pairs = [(found.pays_from(row, FORWARDS) or math.inf, found.pays_from(row, BOTH) or math.inf) for row in found]
    both = [pair for pair in pairs if math.inf not in pair]
    (earlier, later), of_all = ([sum(b < f for f, b in some), sum(b > f for f, b in some)] for some in (both, pairs))
    expect(
        answer, [earlier, later], "Compare found.pays_from(row, BOTH) with found.pays_from(row, FORWARDS), row by row.",
        ([later, earlier], "The other way round: to shorter lengths first."),
        ([earlier, len(both) - earlier], "Some begin at the same length both ways, the shortest one that was run."),
        (of_all, "A kind that never pays has no length that could be moved."),
    )  # fmt: skip


@exercise("20.5")
def ahead_by_chance(answer):
    """Forty kinds that are no better, and a threshold of two standard errors."""
    upper = math.erfc(2 / math.sqrt(2)) / 2
    expect(
        answer, 40 * upper, "How often is a normal number above twice its deviation? There are 40 of them.",
        (80 * upper, "That counts those that are behind by as much, too."),
        (upper, "That is the probability for one of them."),
        (20 * math.erfc(2), "The noise is twice the error of the difference, in which both errors are contained."),
        (20 * math.erfc(1), "The noise is twice the error of the difference, in which both errors are contained."),
        tolerance=0.05,
    )  # fmt: skip


@exercise("20.6")
def on_the_front(answer):
    """True where no other kind is at least as fast and as good, and one of both more so."""
    rng = np.random.default_rng(20)
    for time, quality in (
        (rng.random(12), rng.random(12)),
        (rng.integers(0, 5, 20), rng.integers(0, 5, 20)),
        (np.array([2.0, 1]), np.array([0.5, 0.5])),
        (np.ones(3), np.array([0.1, 0.3, 0.3])),
    ):
        quicker, better = time[:, None] <= time, quality[:, None] >= quality
        passes = quicker & better & ((time[:, None] < time) | (quality[:, None] > quality))
        strictly = (time[:, None] < time) & (quality[:, None] > quality)
        expect(
            answer(time, quality), ~passes.any(0),
            "A kind is passed if another is as fast and as good, and more so in one of the two. True for all that are not.",
            (~(quicker & better).any(0), "No kind is on your front: is each kind compared with itself?"),
            (passes.any(0), "These are the kinds that are passed, and the others form the front."),
            (~strictly.any(0), "Of two that are equally fast the better one passes the other, and so with equally good ones."),
        )  # fmt: skip


@exercise("20.7")
def noise_of_a_difference(answer):
    """Twice the standard error of a difference of two means, pooled."""
    for kinds, seeds in ((5, 3), (8, 4)):
        rng = np.random.default_rng(kinds)
        scores = rng.standard_normal((kinds, 1)) + rng.random((kinds, 1)) * rng.standard_normal((kinds, seeds))
        variance = scores.var(1, ddof=1).mean()
        expect(
            answer(scores), 2 * np.sqrt(2 * variance / seeds),
            "The variance of one score, of the mean of a few, of a difference of two such means; then twice the root.",
            (2 * np.sqrt(2 * scores.var(1).mean() / seeds), "From a few seeds a variance is a sum over seeds − 1."),
            (2 * np.sqrt(variance / seeds), "A difference of two means has the error of both."),
            (2 * np.sqrt(2 * variance), "That is for single scores. What is the error of a mean of them?"),
            (np.sqrt(2 * variance / seeds), "That is the standard error itself; noise is twice as much."),
            (2 * np.sqrt(2 * scores.var(ddof=1) / seeds), "That kinds differ is not noise: the variance is that within each."),
            (2 * np.sqrt(2 / seeds) * scores.std(1, ddof=1).mean(), "Pool variances, and take the root after that."),
        )  # fmt: skip


@exercise("20.8")
def pays_from(answer):
    """From which length on a ratio of times stays below one, on straight lines in logarithms."""
    n = np.array([1024.0, 4096, 16384, 65536])
    for ratio in ([2, 0.4, 0.2, 0.1], [0.5, 3, 0.25, 0.1], [0.8, 2, 0.9, 1.5], [0.9, 0.5, 0.2, 0.1], [4, 2, 1.5, 0.3]):
        given, logs = answer(n, np.array(ratio, float)), np.log(ratio)
        above = np.flatnonzero(logs >= 0)
        k = above[-1] if len(above) else -1
        wanted = math.inf if k == 3 else n[0]
        if 0 <= k < 3:
            part, half = logs[k] / (logs[k] - logs[k + 1]), (ratio[k] - 1) / (ratio[k] - ratio[k + 1])
            wanted = n[k] * (n[k + 1] / n[k]) ** part
            likely(
                given,
                (n[k] * (n[k + 1] / n[k]) ** half, "Which part of the way is it, if the logarithm of the ratio is straight?"),
                (n[k] + (n[k + 1] - n[k]) * half, "This line is straight in n and in the ratio, and both should be logarithms."),
                (n[k] + (n[k + 1] - n[k]) * part, "This line is straight in n, and should be straight in its logarithm."),
                (n[k + 1], "That is the first length that was run and where it pays; the lines cross before it."),
                (n[k], "That is the last length that was run and where it does not pay; the lines cross after it."),
                (n[k + 1] * (n[k] / n[k + 1]) ** part, "The part of the way is counted from the end where it does not pay."),
            )  # fmt: skip
        told = f"For ratios of {', '.join(map(str, ratio))}: "
        if math.isinf(wanted):
            if not math.isinf(array_of(given, ())):
                raise NotYet(f"{told}at the longest text it is slower, so from no length on does it pay.")
        elif math.isinf(array_of(given, ())):
            raise NotYet(f"{told}it is faster at the longest text, so there is such a length.")
        else:
            close(given, wanted, f"{told}begin at the longest text, and go back as long as it is faster.")


@exercise("20.9")
def layers_in_turns(answer):
    """Every k-th layer dense: times over a model of dense layers."""
    found = measured()
    r, c = (found.ratio(found.rows[name], 65536, BOTH) or 0 for name in ("delta", "lightweight-convolution"))
    first, second = (1 / (1 / 4 + 3 / 4 * each) for each in (r, c))
    given = array_of(answer, (3,), "Two factors, and a whole number of layers.")
    hint = "In the time of a dense layer, four layers take one, and three times the ratio."
    likely(
        given[:2],
        (1 / np.array([first, second]), "That is the time that is left; how many times faster is it?"),
        (1 / (3 / 4 + np.array([r, c]) / 4), "One of four is dense, and three are not."),
        (1 / 4 + 3 / 4 / np.array([r, c]), "Times add up, factors don't: what do four layers take?"),
        tolerance=0.01,
    )
    close(given[:2], [first, second], hint, 0.01)
    if (given[0] - given[1]) * (first - second) < 0:
        raise NotYet("Both are near enough, but in the other order. Which kind is faster, and which did you put first?")
    every = 1
    while 1 / (1 / every + (1 - 1 / every) * r) < 10:
        every += 1
    unless(given[2], 10, "With 10 the other layers would have to take no time at all, and they take a little.")
    close(given[2], every, "Try one k after another in 1 / (1/k + (1 − 1/k) r), until it is large enough.")
