"""What nine heads look at in a picture of 8 × 8 pixels, seen from one pixel: learned freely, and the shifts of a convolution."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.heads_on_digits import SIDE
from minitransformer.figures.style import figure
from minitransformer.typing import Array

SHOWN = {"places": "learned, by place alone", "shifts": "a 3 × 3 convolution"}
MIDDLE = 4  # row and column of the pixel that looks


class HeadsAndKernels(NamedTuple):
    """By model: the weights of the first layer's heads, (H, 8, 8), each summing to one."""

    A: dict[str, Array]


def data() -> HeadsAndKernels:
    """From the record, of the first seed; the heads that look at the fewest pixels come first."""
    record = {(trial.kind, trial.seed): result for trial, result in experiments.load("heads_on_digits")}
    found = HeadsAndKernels({})
    for kind in SHOWN:
        A = np.array(record[kind, 0]["A"][0])
        order = np.argsort(record[kind, 0]["pixels"][0], kind="stable") if kind == "places" else range(len(A))
        found.A[kind] = A[list(order)]
    return found


def mosaic(A: Array) -> Array:
    """Nine pictures in three rows, with a line between them, each divided by its brightest pixel."""
    bright = np.pad(A / A.max((-2, -1), keepdims=True), ((0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    return bright.reshape(3, 3, SIDE + 1, SIDE + 1).swapaxes(1, 2).reshape(3 * SIDE + 3, 3 * SIDE + 3)[:-1, :-1]


def draw(data: HeadsAndKernels) -> Figure:
    """Each small square is a head: bright is where the pixel at the cross looks; the number is its largest weight.

    Left, first those with the fewest pixels.
    """
    fig, axes = figure(1, 2, width=10, height=5.6)
    for ax, (kind, title) in zip(axes, SHOWN.items(), strict=True):
        ax.imshow(mosaic(data.A[kind]), vmin=0, vmax=1)
        at = [MIDDLE + k * (SIDE + 1) for k in range(3)]
        ax.plot(*np.meshgrid(at, at), "x", color="#c8553d", markersize=9, markeredgewidth=2.5)
        for h, most in enumerate(data.A[kind].max((-2, -1))):  # what the colours of each square are divided by
            row, column = (place * (SIDE + 1) for place in divmod(h, 3))
            box = {"facecolor": "white", "edgecolor": "none", "pad": 2}
            ax.text(column - 0.4, row - 0.4, f"{most:.2f}", ha="left", va="top", bbox=box)
        ax.set(title=title, xticks=(), yticks=())
        for side in ax.spines.values():
            side.set_visible(False)
    return fig
