"""Seconds of a block against the length of the text, for attention with and without its matrix, on record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.linear_time import KINDS, ROOM
from minitransformer.figures.style import figure
from minitransformer.typing import Array

NAMES = {
    "every matrix": "dense, every matrix formed",
    "in tiles": "dense, in tiles",
    "performer": "Performer",
    "linear": "linear transformer",
    "values": "X (OPT): nothing but V",
}


class LinearTime(NamedTuple):
    """By kind: lengths, seconds and MB where the block fits; the length at which the matrices no longer do.

    made_on   the machine
    """

    n: dict[str, Array]
    seconds: dict[str, Array]
    MB: dict[str, Array]
    too_long: int
    room: float
    made_on: str


def data() -> LinearTime:
    """What is on record."""
    record = experiments.load("linear_time")
    n, seconds, MB = {}, {}, {}
    for kind in (*KINDS, "values"):
        found = [(trial.n, result) for trial, result in record if trial.kind == kind and result["seconds"] > 0]
        n[kind] = np.array([length for length, _ in found])
        seconds[kind], MB[kind] = (np.array([result[what] for _, result in found]) for what in ("seconds", "MB"))
    return LinearTime(n, seconds, MB, 2 * int(n["every matrix"][-1]), ROOM / 2**20, record.made_on)


def draw(data: LinearTime) -> Figure:
    """Both axes logarithmic; a cross where dense attention with its matrices no longer fits."""
    fig, ax = figure(height=7)
    for (kind, name), marker in zip(NAMES.items(), "os^Dv", strict=True):
        ax.plot(data.n[kind], data.seconds[kind], marker=marker, label=name, color="0.5" if kind == "values" else None)
    last = data.seconds["every matrix"][-1]
    ax.plot([data.too_long], [4 * last], "x", color="black", markersize=18, markeredgewidth=4)
    ax.annotate(
        f"does not fit\ninto {data.room / 1024:g} GB", (data.too_long, 4 * last), (0, -55),
        textcoords="offset points", ha="center",
    )  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="tokens $n$", ylabel="seconds, forwards and backwards")
    ax.set_xticks([256, 1024, 4096, 16384, 65536], ["256", "1024", "4096", "16,384", "65,536"])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return fig
