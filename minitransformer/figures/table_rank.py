"""How many directions the rows of a table of sinusoids span: far fewer than there are channels, or positions."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import sinusoids
from minitransformer.typing import Array

SMALL = 1e-6


class TableRank(NamedTuple):
    """Singular values of tables (n, D), by name, the largest first, and how many of them are above 10⁻⁶."""

    width: int
    sizes: dict[str, Array]
    rank: dict[str, int]


def data(lengths: tuple[int, ...] = (128, 512, 2048), width: int = 768, seed: int = 0) -> TableRank:
    """Sinusoids of three lengths, and 512 random rows of the same size."""
    tables = {f"sinusoids, n = {n}": sinusoids(n, width) for n in lengths}
    rows = np.random.default_rng(seed).standard_normal((512, width))
    tables["random rows, n = 512"] = rows * np.sqrt(0.5)  # a sine and a cosine have ½ as their mean square
    sizes = {name: np.linalg.svd(table, compute_uv=False) for name, table in tables.items()}
    return TableRank(width, sizes, {name: int((s > SMALL).sum()) for name, s in sizes.items()})


def draw(data: TableRank) -> Figure:
    """Singular values on a logarithmic axis, down to where they are nothing but rounding."""
    fig, ax = figure(width=7.2, height=3.6)
    for name, sizes in data.sizes.items():
        (line,) = ax.plot(np.arange(1, len(sizes) + 1), np.maximum(sizes, 1e-13), label=name)
        if (rank := data.rank[name]) < len(sizes):
            ax.plot(rank, sizes[rank - 1], "o", color=line.get_color(), markersize=6)
            ax.annotate(f"{rank}", (rank, sizes[rank - 1]), (6, 4), textcoords="offset points", fontsize=9)
    ax.axhline(SMALL, color="0.6", linewidth=0.8, linestyle="-", zorder=0)
    ax.axvline(data.width, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
    ax.text(data.width - 6, 3e-13, f"D = {data.width}", ha="right", fontsize=9, color="0.35")
    ax.set(
        yscale="log",
        ylim=(1e-13, 2e3),
        xlim=(0, data.width * 1.01),
        xlabel="number $r$",
        ylabel="singular value $\\sigma_r$",
    )
    ax.legend(fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.82))
    return fig
