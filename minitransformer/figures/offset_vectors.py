"""Shaw's vectors: which product of query and offset each pair of words gets."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minitransformer.figures.style import SIGNED, figure
from minitransformer.positions.shaw import by_clipped_offset
from minitransformer.typing import Array


class OffsetVectors(NamedTuple):
    """The offset o of each product T_io, (n, 2c + 1), and of each pair (i, j) once they are handed out, (n, n)."""

    products: Array
    pairs: Array


def data(n: int = 7, clip: int = 2) -> OffsetVectors:
    """For n words and offsets from −c to c."""
    products = np.tile(np.arange(-clip, clip + 1), (n, 1))
    return OffsetVectors(products, by_clipped_offset(products, n))


def draw(data: OffsetVectors) -> Figure:
    """A shade for each vector: in columns where products are made, along diagonals where they are used."""
    n, columns = data.products.shape
    fig, (left, right) = figure(1, 2, height=5.2, width_ratios=[columns, n])
    _cells(left, data.products)
    _cells(right, data.pairs)
    left.set(title="multiply: $T = Q\\,a^{K⊤}$", xlabel="offset $o$", ylabel="query $i$")
    left.set_xticks(range(columns), [_number(o) for o in data.products[0]])
    right.set(title="hand out: $T_{i,o}$ to the pair $(i, j)$", xlabel="key $j$", xticks=range(n))
    return fig


def _number(o: int) -> str:
    return f"{o}".replace("-", "−")


def _cells(ax: Axes, offsets: Array) -> None:
    """The vector of each entry, as a shade and by its number."""
    c = np.abs(offsets).max()
    ax.imshow(offsets, cmap=SIGNED, vmin=-1.3 * c, vmax=1.3 * c)
    for (row, column), o in np.ndenumerate(offsets):
        ax.text(column, row, _number(o), ha="center", va="center", color="white" if abs(o) == c else "black")
    n, columns = offsets.shape
    ax.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
    ax.set_yticks(np.arange(n - 1) + 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=2)
    ax.tick_params(which="both", length=0)
    ax.set_yticks(range(n))
    ax.spines[:].set_visible(False)
