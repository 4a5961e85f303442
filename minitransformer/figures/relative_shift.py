"""The relative shift: from one number for each query and offset to a matrix whose columns are keys, by cutting one line anew."""

from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer.figures.style import figure
from minitransformer.positions.relative_sinusoids import relative_shift
from minitransformer.typing import Array

SHADES = (0.2, 0.6, 0.78, 0.95)  # of cividis, one for each query


class RelativeShift(NamedTuple):
    """Each entry is its place in the long line: row i of T has n offsets −(n − 1) … n, and the last is padding.

    T      (n, 2n)
    cut    (n, 2n − 1), the same line without its first n − 1 entries and its last, cut into shorter rows
    S      (n, n), what `relative_shift` makes of T: the first n columns of `cut`
    """

    T: Array
    cut: Array
    S: Array

    def query_and_offset(self, entry: int) -> tuple[int, int]:
        """i and o of an entry of T."""
        n, columns = self.T.shape
        return int(entry) // columns, int(entry) % columns - (n - 1)


def data(n: int = 4) -> RelativeShift:
    """For n queries and n keys."""
    T = np.arange(2 * n * n).reshape(n, 2 * n)
    return RelativeShift(T, T.ravel()[n - 1 : -1].reshape(n, 2 * n - 1), relative_shift(T))


def draw(data: RelativeShift) -> Figure:
    """Above T, below the same line cut into rows that are one shorter, with S in a frame."""
    fig, (above, below) = figure(2, 1, height=9)
    n = len(data.T)
    line = data.T.ravel()
    _cells(above, data, data.T, set(line[: n - 1]) | {line[-1]})
    _cells(below, data, data.cut, set(data.cut[:, n:].ravel()))
    above.set_title("$T$, with the place of each product: query $i$, offset $o$\nwhite: will be dropped")
    above.set_xticks(range(2 * n), [f"{o}".replace("-", "−") for o in range(1 - n, n)] + ["padding"])
    above.set_xlabel("offset $o$")
    below.set_title("the same line, cut after every $2n − 1$ instead of $2n$")
    below.set_xticks(range(2 * n - 1), [*map(str, range(n)), *[""] * (n - 1)])
    below.set_xlabel("key $j$: in the frame, every offset is $j − i$", loc="left")
    below.add_patch(Rectangle((-0.5, -0.5), n, n, fill=False, linewidth=5, zorder=3, clip_on=False))
    return fig


def _cells(ax: Axes, data: RelativeShift, entries: Array, dropped: set[int]) -> None:
    """One box for each entry, in the shade of its query."""
    for (row, column), entry in np.ndenumerate(entries):
        i, o = data.query_and_offset(entry)
        shade, kept = SHADES[i % len(SHADES)], entry not in dropped
        face = colormaps["cividis"](shade) if kept else "white"
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, edgecolor="#888888", facecolor=face))
        colour = "#666666" if not kept else "white" if shade < 0.5 else "black"
        ax.text(column, row, f"{i}, {o}".replace("-", "−"), ha="center", va="center", color=colour)
    n = len(entries)
    ax.set(xlim=(-0.55, 2 * n - 0.45), ylim=(n - 0.45, -0.55), yticks=range(n), ylabel="row $i$")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
