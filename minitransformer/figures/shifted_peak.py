"""One rotation moves every position by the same offset, and with it the place where two positions agree most."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure, merged
from minitransformer.positions import sinusoids
from minitransformer.positions.absolute import shift_matrix
from minitransformer.typing import Array


class ShiftedPeak(NamedTuple):
    """⟨M_o π_i, π_j⟩ for each shift o, (shifts, n, n), and the row of one query i."""

    shifts: tuple[int, ...]
    products: Array
    query: int


def data(n: int = 65, width: int = 64, shifts: tuple[int, ...] = (0, 8, -20), query: int = 32) -> ShiftedPeak:
    """Sinusoids, 64 channels wide, with the queries shifted and the keys as they are."""
    table = sinusoids(n, width)
    products = np.array([table @ shift_matrix(width, o).T @ table.T for o in shifts])
    return ShiftedPeak(shifts, products, query)


def draw(data: ShiftedPeak) -> Figure:
    """Above: all pairs, as they are and with the queries shifted. Below: the row of one query, for each shift."""
    fig, axes = figure(2, 2, width=10, height=10.5, height_ratios=(1.45, 1))
    high = data.products.max()
    for ax, o, products in zip(axes[0], data.shifts, data.products, strict=False):
        ax.imshow(products, vmin=data.products.min(), vmax=high)
        ax.axhline(data.query, color="white", linewidth=2, linestyle=":")
        ax.set(xlabel="key at $j$", title=f"queries shifted by {o}" if o else "not shifted")
        ax.set(xticks=(0, 32, 64), yticks=(0, 32, 64))
    axes[0, 0].set_ylabel("query at $i$")
    row = merged(fig, axes[1])
    for o, products in zip(data.shifts, data.products, strict=True):
        row.plot(np.arange(len(products)) - data.query, products[data.query], label=f"$o = {o}$")
        row.plot(o, products[data.query, data.query + o], "o", color="0.2", markersize=9)
    row.set(xlabel="$j - i$", ylabel=r"$\langle M_o\pi_i, \pi_j\rangle$", title=f"the row of query $i = {data.query}$")
    row.set(ylim=(None, 1.06 * high), xlim=(-33, 33))
    row.legend(loc="upper right", borderaxespad=0, labelspacing=0.3)
    return fig
