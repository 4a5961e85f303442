"""The mask of linear attention with gates, with a block of rank one in it, and what three orders of computation cost."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer.attention import decay_mask
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array

SPLIT = 6  # positions before the block's rows
WIDTH, CHUNK = 64, 64
LENGTHS = tuple(2**k for k in range(4, 15))


class OneMask(NamedTuple):
    """L (n, n), singular values of its block below SPLIT, and multiplications of one head for each order and length."""

    L: Array
    block: Array
    lengths: tuple[int, ...]
    multiplications: dict[str, Array]


def multiplications(n: Array, d: int = WIDTH) -> dict[str, Array]:
    """Of one head: half of the matrix twice; every chunk's own half and the state twice; the state twice."""
    inside = np.minimum(n, CHUNK)
    return {
        "the matrix": n * n * d,
        f"chunks of {CHUNK}": n * inside * d + 2 * n * d * d * (n > CHUNK),
        "the recurrence": 2 * n * d * d,
    }


def data() -> OneMask:
    """Twelve gates, most of them open, one nearly closed."""
    alpha = np.array([1, 0.9, 0.95, 0.8, 0.9, 0.97, 0.9, 0.85, 0.95, 0.2, 0.9, 0.95])
    L = decay_mask(np.log(alpha))
    return OneMask(L, L[SPLIT:, :SPLIT], LENGTHS, multiplications(np.array(LENGTHS, float)))


def draw(data: OneMask) -> Figure:
    """Left L with its block outlined, right the costs."""
    fig, (left, right) = figure(1, 2, height=5.0, gridspec_kw={"width_ratios": (1.1, 1)})
    image = left.imshow(np.where(data.L > 0, data.L, np.nan), cmap=WEIGHTS, vmin=0, vmax=1)
    rows, columns = data.block.shape
    left.add_patch(Rectangle((-0.5, SPLIT - 0.5), columns, rows, fill=False, edgecolor="#c8553d", linewidth=4))
    left.set(xlabel="key $j$", ylabel="query $i$", title="$L_{ij}$", xticks=range(0, 12, 3), yticks=range(0, 12, 3))
    fig.colorbar(image, ax=left, shrink=0.8, label="what is left")
    for (name, count), marker in zip(data.multiplications.items(), "os^", strict=True):
        right.plot(data.lengths, count, marker=marker, label=name)
    right.set(xscale="log", yscale="log", xlabel="length $n$", ylabel="multiplications")
    for line, place in zip(right.lines, ((3000, 6e9), (16384, 1e6), (16384, 1.2e5)), strict=True):
        right.text(*place, str(line.get_label()), color=line.get_color(), ha="right")
    fig.get_layout_engine().set(wspace=0.06)  # or two labels look like one
    return fig
