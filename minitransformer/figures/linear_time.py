"""Seconds of a block against the length of the text, for attention with and without its matrix, on record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.linear_time import HEADS, KINDS, MATRICES
from minitransformer.figures.style import figure
from minitransformer.typing import Array

NAMES = {
    "every matrix": "dense, every matrix formed",
    "in tiles": "dense, in tiles",
    "performer": "Performer",
    "linear": "linear transformer",
    "values": "V as it is",
}


class LinearTime(NamedTuple):
    """By kind: lengths, seconds and MiB where the block fits.

    too_long, matrices   the length at which the matrices no longer do, and the GiB that they would take there
    made_on              the machine
    """

    n: dict[str, Array]
    seconds: dict[str, Array]
    MB: dict[str, Array]
    too_long: int
    matrices: float
    made_on: str


def data() -> LinearTime:
    """What is on record."""
    record = experiments.load("linear_time")
    n, seconds, MB = {}, {}, {}
    for kind in (*KINDS, "values"):
        found = [(trial.n, result) for trial, result in record if trial.kind == kind and result["seconds"] > 0]
        n[kind] = np.array([length for length, _ in found])
        seconds[kind], MB[kind] = (np.array([result[what] for _, result in found]) for what in ("seconds", "MB"))
    too_long = 2 * int(n["every matrix"][-1])
    return LinearTime(n, seconds, MB, too_long, MATRICES * HEADS * 4 * too_long**2 / 2**30, record.made_on)


def draw(data: LinearTime) -> Figure:
    """Both axes logarithmic; the line of dense attention with its matrices ends where they no longer fit."""
    fig, ax = figure(height=7)
    for (kind, name), marker in zip(NAMES.items(), "os^Dv", strict=True):
        ax.plot(data.n[kind], data.seconds[kind], marker=marker, label=name, color="0.5" if kind == "values" else None)
    end = data.n["every matrix"][-1], data.seconds["every matrix"][-1]
    told = f"at {data.too_long:,} tokens\nits matrices would\ntake {data.matrices:g} GiB"
    ax.annotate(told, end, (0, 14), textcoords="offset points", ha="center", va="bottom", color="#20639b")
    top = 2 * max(seconds.max() for seconds in data.seconds.values())
    ax.set(xscale="log", yscale="log", xlabel="tokens $n$", ylabel="seconds, forwards and backwards", ylim=(None, top))
    ax.set_xticks([256, 1024, 4096, 16384, 65536], ["256", "1,024", "4,096", "16,384", "65,536"])
    ax.minorticks_off()
    ax.legend(loc="lower right")
    return fig
