"""Seven second halves of a block with as many parameters each: held-out bits per byte of the same small model."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.gates import PLAIN
from minitransformer.figures.style import figure

NAMES = {"relu": "ReLU", "gelu": "GELU", "glu": "GLU", "reglu": "ReGLU", "geglu": "GEGLU", "swiglu": "SwiGLU"}


class GateBits(NamedTuple):
    """By kind: bits per byte of each seed, from the best kind to the worst."""

    bits: dict[str, list[float]]


def data() -> GateBits:
    """What is on record, sorted by the means."""
    record = experiments.load("gates")
    found = {trial.kind: [result["bits"] for result in record.where(kind=trial.kind)] for trial in record.trials}
    return GateBits(dict(sorted(found.items(), key=lambda item: float(np.mean(item[1])))))


def draw(data: GateBits) -> Figure:
    """One point for each training, the line is their mean; the two plain networks are squares. Further left is better."""
    fig, ax = figure(width=10, height=5.4)
    for row, (kind, bits) in enumerate(data.bits.items()):
        plain = kind in PLAIN
        colour, marker = ("#c8553d", "s") if plain else ("#20639b", "o")
        ax.plot(bits, [row] * len(bits), marker, color=colour, markersize=9, alpha=0.8)
        ax.plot([np.mean(bits)] * 2, [row - 0.3, row + 0.3], "-", color="black", linewidth=2)
    ax.set_yticks(range(len(data.bits)), [NAMES.get(kind, kind) for kind in data.bits])
    ax.invert_yaxis()
    ax.set_xlabel("held-out bits per byte")
    return fig
