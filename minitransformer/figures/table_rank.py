"""How many directions the rows of a table of sinusoids span: far fewer than there are channels, or positions."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import FAINT, figure
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
    """Singular values on a logarithmic axis, down to a thousandth of what counts; below lies rounding."""
    fig, ax = figure(height=5.4)
    for name, sizes in data.sizes.items():
        real = sizes[sizes > SMALL / 1000]
        (line,) = ax.plot(np.arange(1, len(real) + 1), real, label=name)
        if (rank := data.rank[name]) < len(sizes):
            ax.plot(rank, sizes[rank - 1], "o", color=line.get_color(), markersize=9)
            ax.annotate(f"{rank}", (rank, sizes[rank - 1]), (9, 8), textcoords="offset points")
    ax.axhline(SMALL, color=FAINT, linewidth=1, linestyle="-", zorder=0)
    ax.set(yscale="log", ylim=(SMALL / 1000, 2e3), xlim=(0, data.width), xlabel="number $r$", ylabel=r"$\sigma_r$")
    ax.set_xticks([0, 200, 400, 600, data.width])
    ax.legend(loc="lower right", bbox_to_anchor=(1, 0.34))
    return fig
