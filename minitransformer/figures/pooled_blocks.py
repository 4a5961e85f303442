"""What a query of pooled attention sees one by one, and what in blocks: one softmax over both."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import pool_blocks, pooled_attention
from minitransformer.figures.style import figure, weights_and_hatches
from minitransformer.typing import Array

BLOCK, WINDOW = 8, 6
SHAPE: dict[str, Any] = {"width": 10, "height": 6.6, "sharex": True, "sharey": True}
MOST = 0.5  # heavier weights have the colour of this one


class PooledBlocks(NamedTuple):
    """Weights of the tokens (n, n) and of the blocks (n, blocks), which together sum to one in each row; tokens in a block."""

    tokens: Array
    blocks: Array
    block: int


def data(n: int = 36, d: int = 8, seed: int = 0) -> PooledBlocks:
    """Random queries and rows, and blocks that are means, made as long as rows; without a sink."""
    Q, C = np.random.default_rng(seed).standard_normal((2, n, d))
    means, _ = pool_blocks(C, np.zeros_like(C), np.zeros((BLOCK, d)))
    E = np.sqrt(BLOCK) * means  # as long as the rows of tokens
    _, pullback = pooled_attention(Q[None], C, E, block=BLOCK, window=WINDOW)
    A = pullback.A[0]
    return PooledBlocks(A[:, -n:], A[:, : len(E)], BLOCK)


def draw(data: PooledBlocks) -> Figure:
    """Left the tokens, right the blocks, each as wide as its tokens: colour is weight, hatched has none. Lines part blocks."""
    return panels(*figure(1, 2, **SHAPE), data)


def panels(fig: Figure, axes: Any, data: PooledBlocks) -> Figure:
    """Draw tokens and blocks into two panels of SHAPE."""
    n, block = len(data.tokens), data.block
    spread = np.zeros((n, n))
    spread[:, : block * data.blocks.shape[1]] = np.repeat(data.blocks, block, 1)
    for ax, weights, title in zip(
        axes, (data.tokens, spread), ("tokens, one by one", "blocks, a row each"), strict=True
    ):
        image = weights_and_hatches(ax, weights, weights == 0, most=MOST)
        for border in range(block, n, block):
            ax.axvline(border + 0.5, color="0.4", linewidth=0.8)
        ax.set(title=title, xlabel="token $j$")
    places = range(8, n + 1, 8)
    axes[0].set(xticks=places, yticks=places, ylim=(n + 0.5, 0.5), ylabel="query $i$")
    bar = {"location": "bottom", "shrink": 0.6, "aspect": 30, "extend": "max"}
    fig.colorbar(image, ax=axes, label="weight of a row", **bar)
    return fig
