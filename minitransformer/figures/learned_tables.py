"""What learned tables look like: cosines of all pairs of rows, and of neighbours, where a break shows as a dip."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.typing import Array


class LearnedTables(NamedTuple):
    """By name: cosines of all pairs of rows (n, n), of rows i and i + 1 (n − 1,), and the row at which a phase began."""

    cosines: dict[str, Array]
    neighbours: dict[str, Array]
    breaks: dict[str, int | None]


def cosines(table: Array) -> Array:
    """⟨π_i, π_j⟩ / (‖π_i‖ ‖π_j‖) for all pairs of rows."""
    rows = table.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows @ rows.T


def data(tables: dict[str, Array], breaks: dict[str, int]) -> LearnedTables:
    """Of any tables; `breaks` names the row at which longer sequences were first used, for those where it is known."""
    all_pairs = {name: cosines(table) for name, table in tables.items()}
    neighbours = {name: np.diagonal(C, 1).copy() for name, C in all_pairs.items()}
    return LearnedTables(all_pairs, neighbours, {name: breaks.get(name) for name in tables})


def draw(data: LearnedTables) -> Figure:
    """One column for each table: above, the cosines of all pairs; below, those of neighbours."""
    count = len(data.cosines)
    fig, axes = figure(2, count, width=3.5 * count + 0.4, height=5.4, height_ratios=(3, 1.1), squeeze=False)
    for (above, below), (name, C) in zip(axes.T, data.cosines.items(), strict=True):
        image = above.imshow(C, vmin=-1, vmax=1)
        above.set(title=name, xlabel="position $j$")
        below.plot(data.neighbours[name], "-", color="#20639b", linewidth=1.2)
        below.set(xlabel="position $i$", xlim=(0, len(C) - 1), ylim=(-0.4, 1.05), yticks=(0, 0.5, 1))
        if (row := data.breaks[name]) is not None:
            below.axvline(row - 0.5, color="#c8553d", linewidth=1, linestyle="--", zorder=0)
            above.set_xticks([0, row, len(C)])
            above.set_yticks([0, row, len(C)])
    axes[0, 0].set_ylabel("position $i$")
    axes[1, 0].set_ylabel(r"$\cos(\pi_i, \pi_{i+1})$")
    bar = fig.colorbar(image, ax=axes[0], shrink=0.8, aspect=25, ticks=(-1, 0, 1))
    bar.set_label(r"$\cos(\pi_i, \pi_j)$")
    return fig
