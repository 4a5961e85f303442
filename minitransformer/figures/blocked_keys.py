"""BigBird's product, tile by tile: which blocks of keys each block of queries meets, and how they are put side by side."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import BigBird
from minitransformer.attention.sparse.rolled_keys import Looks
from minitransformer.figures.interaction_matrices import squares
from minitransformer.figures.style import figure
from minitransformer.typing import Array

GLOBAL, WINDOW, DRAWN = 3, 1, 2
KINDS = (GLOBAL, WINDOW, WINDOW, WINDOW, DRAWN, DRAWN, GLOBAL)  # of the columns of the rows between


class BlockedKeys(NamedTuple):
    """Of N blocks: which meet which (N, N), and for the rows 2 … N − 3 the blocks that stand side by side (N − 4, 7)."""

    meets: Array
    keys: Array


def data(blocks: int = 10, seed: int = 1) -> BlockedKeys:
    """Two drawn blocks. What stands side by side, says the function that rolls and gathers, of blocks that hold their number."""
    pattern = BigBird(random=2, block=1, seed=seed)
    drawn = pattern.drawn(blocks)
    numbers = np.arange(blocks, dtype=float)[None, :, None, None]  # one head, blocks of one row of width 1
    _, middle, _ = Looks(drawn).of(numbers)
    return BlockedKeys(pattern(blocks, blocks, causal=False).mask, middle[0, :, :, 0].astype(int))


def draw(data: BlockedKeys) -> Figure:
    """Left the tiles that are computed, right the keys of each row; the number is that of the block."""
    N, rows = len(data.meets), len(data.keys)
    fig, axes = figure(1, 2, height=5.2)
    kinds = np.where(data.meets, DRAWN, 0)
    t = np.arange(N)
    kinds[np.abs(t[:, None] - t) <= 1] = WINDOW
    kinds[[0, -1]] = kinds[:, [0, -1]] = GLOBAL
    squares(axes[0], data.meets, "blocks that meet", kinds)
    axes[0].set(xticks=t + 1, yticks=t + 1, xticklabels=t, yticklabels=t)
    axes[0].set(xlabel="block of keys", ylabel="block of queries")
    columns = np.broadcast_to(KINDS, data.keys.shape)
    squares(axes[1], np.ones(columns.shape, bool), "keys side by side", columns)
    for (row, column), number in np.ndenumerate(data.keys):
        ink = "black" if KINDS[column] == GLOBAL else "white"
        axes[1].text(column + 1, row + 1, str(number), ha="center", va="center", color=ink)
    axes[1].set(xticks=(1, 3, 5.5, 7), xticklabels=("first", "rolled", "gathered", "last"))
    axes[1].set(yticks=np.arange(rows) + 1, yticklabels=np.arange(rows) + 2, ylabel="block of queries", aspect="auto")
    return fig
