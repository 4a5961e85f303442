"""One rotation moves every position by the same offset, and with it the place where two positions agree most."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import sinusoids
from minitransformer.positions.absolute import shift_matrix
from minitransformer.typing import Array


class ShiftedPeak(NamedTuple):
    """⟨M_j π_i, π_k⟩ for each shift j, (shifts, n, n), and the row of one query i."""

    shifts: tuple[int, ...]
    products: Array
    query: int


def data(n: int = 65, width: int = 64, shifts: tuple[int, ...] = (0, 8, -20), query: int = 32) -> ShiftedPeak:
    """Sinusoids, 64 channels wide, with the queries shifted and the keys as they are."""
    table = sinusoids(n, width)
    products = np.array([table @ shift_matrix(width, j).T @ table.T for j in shifts])
    return ShiftedPeak(shifts, products, query)


def draw(data: ShiftedPeak) -> Figure:
    """Left and middle: all pairs, as they are and with the queries shifted. Right: the row of one query, for each shift."""
    fig, (left, middle, right) = figure(1, 3, width=10.5, height=3.5, width_ratios=(1, 1, 1.35))
    high = data.products.max()
    for ax, j, products in zip((left, middle), data.shifts, data.products, strict=False):
        ax.imshow(products, vmin=data.products.min(), vmax=high)
        ax.axhline(data.query, color="white", linewidth=1, linestyle=":")
        ax.set(xlabel="key at $k$", title=f"queries shifted by {j}" if j else "not shifted")
    left.set_ylabel("query at $i$")
    for j, products in zip(data.shifts, data.products, strict=True):
        right.plot(np.arange(len(products)) - data.query, products[data.query], label=f"$j = {j}$")
        right.plot(j, products[data.query, data.query + j], "o", color="0.2", markersize=5)
    right.set(
        xlabel="$k - i$",
        ylabel=r"$\langle M_j\pi_i, \pi_k\rangle$",
        title=f"row $i = {data.query}$",
        ylim=(None, 1.2 * high),
    )
    right.legend(ncols=3, fontsize=9, loc="upper center", handlelength=1.5, columnspacing=1)
    return fig
