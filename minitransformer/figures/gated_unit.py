"""A gated linear unit at work: two linear maps of the same rows, and a sigmoid of the one says how much of the other passes."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import SIGNED, WEIGHTS, figure, minuses, outer_labels
from minitransformer.functional import gated, linear
from minitransformer.typing import Array

TOKENS, WIDTH, UNITS = 12, 16, 16


class GatedUnit(NamedTuple):
    """X U₁, its sigmoid, X U₂ and their product, each (n, E)."""

    A: Array
    gate: Array
    B: Array
    Y: Array


def data(seed: int = 0) -> GatedUnit:
    """Rows that are normal, and weights as a model draws them, twice as large, so that gates open and close."""
    rng = np.random.default_rng(seed)
    X, U_1, U_2 = rng.standard_normal((TOKENS, WIDTH)), *rng.standard_normal((2, WIDTH, UNITS)) / np.sqrt(WIDTH)
    (A, _), (B, _) = linear(X, 2 * U_1), linear(X, U_2)
    return GatedUnit(A, gated(A, np.ones_like(B))[0], B, gated(A, B)[0])


def draw(data: GatedUnit) -> Figure:
    """Above, what opens: a map, and its sigmoid between 0 and 1. Below, what passes: the other map, and what is left of it."""
    fig, axes = figure(2, 2, width=10, height=8.6, sharex=True, sharey=True)
    titles = ("$X U_1$", r"$\sigma(X U_1)$", "$X U_2$", r"$\sigma(X U_1) \odot X U_2$")
    for ax, title, Z in zip(axes.flat, titles, data, strict=True):
        low, high, colours = (0, 1, WEIGHTS) if Z is data.gate else (-3, 3, SIGNED)
        image = ax.imshow(Z, vmin=low, vmax=high, cmap=colours, aspect="auto")
        minuses(ax, Z, high)
        ax.set(title=title, xticks=(0, UNITS - 1), xticklabels=(1, UNITS))
        ax.set(yticks=(0, TOKENS - 1), yticklabels=(1, TOKENS))
        fig.colorbar(image, ax=ax, ticks=(low, (low + high) / 2, high), aspect=14)
    outer_labels(axes, "unit", "token $i$")
    return fig
