"""Seconds to read a text, and to write one more token after it, against its length, on record."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.reading_and_writing import ATTENTIONS
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class ReadingAndWriting(NamedTuple):
    """Lengths; for each attention and length: seconds to read, MiB at once, seconds of a token, bytes of the state.

    Times are the shortest of the rounds.
    """

    lengths: list[int]
    reading: dict[str, Array]
    MB: dict[str, Array]
    writing: dict[str, Array]
    state: dict[str, Array]
    made_on: str


def data() -> ReadingAndWriting:
    """What is on record."""
    record = experiments.load("reading_and_writing")
    lengths = sorted({trial.length for trial, _ in record})
    rounds = {name: [record.where(attention=name, length=n) for n in lengths] for name in ATTENTIONS}

    def best(what: str, of: Any = min) -> dict[str, Array]:
        return {name: np.array([of(r[what] for r in each) for each in some]) for name, some in rounds.items()}

    writing = {name: 1 / rates for name, rates in best("written per second", max).items()}
    return ReadingAndWriting(lengths, best("seconds"), best("MB"), writing, best("state"), record.made_on)


def draw(data: ReadingAndWriting) -> Figure:
    """Above: the whole text. Below: one more token."""
    fig, (read, write) = figure(2, 1, height=9, sharex=True)
    for name, look in zip(ATTENTIONS, ("ko-", "C0^--", "C2s-."), strict=True):
        read.plot(data.lengths, data.reading[name], look, markersize=8, label=name)
        write.plot(data.lengths, 1000 * data.writing[name], look, markersize=8)
    read.set(ylabel="seconds to read the text")
    write.set(xlabel="tokens read, $n$", ylabel="ms for one more token")
    for axes in (read, write):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(data.lengths, ["64", "256", "1k", "4k", "16k", "64k"])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    write.set_yticks([0.3, 1, 3, 10])
    fig.legend(loc="outside lower center", ncols=3)
    return fig
