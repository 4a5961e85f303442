"""Sinkhorn: how fast rows come to sum to one, and what the order looks like when it is hot and when it is cold."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.selected import sinkhorn
from minitransformer.figures.style import WEIGHTS, figure, merged
from minitransformer.typing import Array

TEMPERATURES = (1.0, 0.5, 0.25)


class SinkhornOrder(NamedTuple):
    """By temperature: the largest |row sum − 1| after 1, 2, … iterations, and S at the end (N, N)."""

    off: dict[float, Array]
    orders: dict[float, Array]


def data(N: int = 8, iterations: int = 10, seed: int = 9) -> SinkhornOrder:
    """One matrix of normal logits, divided by each temperature."""
    R = np.random.default_rng(seed).standard_normal((N, N))
    off, orders = {}, {}
    for temperature in TEMPERATURES:
        found = [sinkhorn(R / temperature, iterations=k + 1)[0] for k in range(iterations)]
        off[temperature] = np.array([np.abs(S.sum(1) - 1).max() for S in found])
        orders[temperature] = found[-1]
    return SinkhornOrder(off, orders)


def draw(data: SinkhornOrder) -> Figure:
    """Above the error of the rows, logarithmic; below the matrix for the hottest and the coldest."""
    fig, grid = figure(2, 2, width=10, height=9.5, height_ratios=(1, 1.3))
    axes = (merged(fig, grid[0]), *grid[1])
    for (temperature, off), marker in zip(data.off.items(), "o^s", strict=True):
        axes[0].plot(np.arange(1, len(off) + 1), off, marker=marker, label=f"τ = {temperature:g}")
    axes[0].set(yscale="log", xlabel="iterations", ylabel="largest |row sum − 1|", xticks=(1, 4, 7, 10))
    axes[0].legend(loc="lower left")
    for ax, temperature in zip(axes[1:], (TEMPERATURES[0], TEMPERATURES[-1]), strict=True):
        S = data.orders[temperature]
        N = len(S)
        image = ax.imshow(S, cmap=WEIGHTS, vmin=0, vmax=1, extent=(0.5, N + 0.5, N + 0.5, 0.5))
        ax.set(title=f"$P$, τ = {temperature:g}", xticks=(1, N), yticks=(1, N))
        ax.set(xlabel="block $s$", ylabel="sorted block $u$")
        ax.spines[["top", "right"]].set_visible(True)
    fig.colorbar(image, ax=axes[1:], shrink=0.8, ticks=(0, 0.5, 1), label="entry of $P$")
    return fig
