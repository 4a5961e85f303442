"""Where the decoder looks while it writes an ISO date: cross-attention, drawn with the characters."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array


class DateAttention(NamedTuple):
    """Characters read, characters written, and the mean over all heads and blocks of the cross-attention, (n, m) each."""

    read: list[str]
    written: list[str]
    A: list[Array]


def data(seed: int = 0) -> DateAttention:
    """What is on record of one training."""
    (kept,) = experiments.load("dates").where(seed=seed)
    return DateAttention(kept["read"], kept["written"], [np.array(A) for A in kept["attention"]])


def draw(data: DateAttention) -> Figure:
    """One map for each date: the row of a character is where the model looked when it wrote it."""
    widths = [len(r) for r in data.read]
    fig, axes = figure(1, len(widths), height=5.2, width_ratios=widths, squeeze=False)
    for ax, read, written, A in zip(axes[0], data.read, data.written, data.A, strict=True):
        image = ax.pcolormesh(A, vmin=0, vmax=1, cmap=WEIGHTS, edgecolors="0.9", linewidth=0.5)
        ax.set_xticks(np.arange(len(read)) + 0.5, list(read), family="monospace")
        ax.set_yticks(np.arange(len(written)) + 0.5, list(written), family="monospace")
        ax.invert_yaxis()
        ax.set(xlabel="read: key $j$")
        ax.tick_params(length=0)
    axes[0, 0].set_ylabel("written: query $i$")
    fig.colorbar(image, ax=axes[0, -1], label="weight $A_{ij}$", fraction=0.09)
    return fig
