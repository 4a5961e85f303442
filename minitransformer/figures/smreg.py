"""The kernel of directions that all have the length √d, SMREG, beside exp: their ratio against the dimension."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure, plain_ticks
from minitransformer.measurements.random_features import smreg, softmax_kernel
from minitransformer.typing import Array

SQUARES = (1, 4, 9)


class Smreg(NamedTuple):
    """Dimensions d, and SMREG/exp by ‖a + b‖²."""

    d: Array
    ratios: dict[int, Array]


def data() -> Smreg:
    """d = 1 … 1024; apart from d the ratio depends on ‖a + b‖² alone, so a = b."""
    dimensions, ratios = 2 ** np.arange(11), {}
    for square in SQUARES:
        found = []
        for d in dimensions:
            a = np.zeros(d)
            a[0] = square**0.5 / 2
            found.append(smreg(a, a) / softmax_kernel(a, a))
        ratios[square] = np.array(found)
    return Smreg(dimensions, ratios)


def draw(data: Smreg) -> Figure:
    """One curve for each length of a + b."""
    fig, ax = figure(height=4.8)
    for (square, ratio), marker in zip(data.ratios.items(), "o^s", strict=True):
        ax.plot(data.d, ratio, marker=marker, label=f"$\\|a + b\\|^2 = {square}$")
    ax.set(xscale="log", ylim=(0, 1.05), xlabel="dimension $d$", ylabel="SMREG / exp ⟨a, b⟩")
    plain_ticks(ax, x=[1, 4, 16, 64, 256, 1024])
    ax.legend(loc="lower right")
    return fig
