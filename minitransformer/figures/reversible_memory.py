"""What the backward pass has to remember, by depth: a plain stack and a reversible one."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import minitransformer as mt
from minitransformer.attention import MultiHeadAttention
from minitransformer.figures.style import figure
from minitransformer.models.block import Block
from minitransformer.models.feed_forward import FeedForward
from minitransformer.models.reversible import ReversibleStack
from minitransformer.models.stack import Stack
from minitransformer.typing import Array

DEPTHS = (1, 2, 4, 8, 12)


class ReversibleMemory(NamedTuple):
    """Bytes of the pullback besides the parameters, for each depth."""

    depths: tuple[int, ...]
    plain: Array
    reversible: Array


def remembered(kind: type[Stack], depth: int, n: int = 64, width: int = 32) -> int:
    """Bytes that the pullback of a stack holds besides the parameters, float64, n tokens."""
    block = Block(MultiHeadAttention(width, 4), FeedForward(width, 4 * width))
    stack = kind((block,) * depth)
    params = stack.init(np.random.default_rng(0), np.float64)
    with mt.backend("numpy"):
        _, pullback = stack(params, np.random.default_rng(1).standard_normal((n, width)))
    return mt.tree_bytes((params, pullback)) - mt.tree_bytes(params)


def data() -> ReversibleMemory:
    """The same blocks in a plain stack and in a reversible one."""
    plain, reversible = (np.array([remembered(kind, depth) for depth in DEPTHS]) for kind in (Stack, ReversibleStack))
    return ReversibleMemory(DEPTHS, plain, reversible)


def draw(data: ReversibleMemory) -> Figure:
    """KiB against the number of blocks."""
    fig, ax = figure(height=4.8)
    ax.plot(data.depths, data.plain / 1024, "o-", label="plain")
    ax.plot(data.depths, data.reversible / 1024, "s--", label="reversible")
    ax.set(xlabel="blocks", ylabel="remembered, KiB", xticks=data.depths, ylim=(0, None))
    ax.legend()
    return fig
