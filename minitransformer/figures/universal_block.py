"""The recurrent block of the Universal Transformer: what happens in step t, and what comes back for step t + 1."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import MultiHeadAttention
from minitransformer.figures.block_diagram import COLOURS, arrow, box, circle
from minitransformer.figures.style import figure
from minitransformer.models import Block, FeedForward
from minitransformer.models.universal import UniversalStack


class UniversalBlock(NamedTuple):
    """So many steps, how far the boxes, done in the order that is drawn, are from the stack, and how many norms a step has."""

    steps: int
    error: float
    norms: int


def data(steps: int = 3, n: int = 5, width: int = 8) -> UniversalBlock:
    """Do what is drawn, so many times."""
    rng = np.random.default_rng(0)
    block = Block(MultiHeadAttention(width, 2), FeedForward(width, 16), order="post")
    stack = UniversalStack((block,) * steps, halting="fixed")
    params = stack.init(rng, np.float64)
    H = X = rng.standard_normal((n, width))
    own = params.block
    for t in range(1, steps + 1):
        Z = H + stack.signal(n, t)
        A, _ = block._norm(own.attention_norm, Z + block.attention(own.attention, Z)[0])
        H, _ = block._norm(own.ffn_norm, A + block.ffn(own.ffn, A)[0])
    return UniversalBlock(steps, float(np.abs(H - stack(params, X)[0]).max()), 2)


def draw(data: UniversalBlock) -> Figure:
    """From below: the state, its signal, attention and the transition, each added and normed; and the way back."""
    fig, ax = figure(width=8.5, height=8)
    ax.set(xlim=(-2.6, 5.2), ylim=(-0.4, 8.6))
    ax.axis("off")
    ax.plot([0, 0], [0.1, 7.6], color="0.2", linewidth=5, linestyle="-", solid_capstyle="butt", zorder=1)
    ax.text(0.3, 0.1, "$H^{t-1}$", va="center")
    circle(ax, 0, 1.0)
    box(ax, (1.6, 0.62), (2.6, 0.75), "$P^t$: where, how often", "#f3d6ce")
    arrow(ax, (1.6, 1.0), (0.25, 1.0), "0.35")
    for y, name, colour in ((1.9, "self-attention", "attention"), (4.9, "transition", "ffn")):
        ax.plot([0, 2.9, 2.9, 0.4], [y, y, y + 1.7, y + 1.7], color="0.35", linewidth=2.2, linestyle="-", zorder=0)
        box(ax, (1.6, y + 0.4), (2.6, 0.85), name, COLOURS[colour])
        arrow(ax, (0.6, y + 1.7), (0.25, y + 1.7), "0.35")
        circle(ax, 0, y + 1.7)
        box(ax, (-1.0, y + 2.1), (2.0, 0.6), "layer norm", COLOURS["norm"])
    ax.text(-0.75, 1.6, "$Z^t$", va="center")
    ax.text(-0.75, 4.85, "$A^t$", va="center")
    ax.text(0.3, 8.05, "$H^t$", va="center")
    arrow(ax, (0, 7.55), (0, 8.5), "0.2")
    ax.plot([0, -2.0, -2.0, 0], [7.85, 7.85, 0.35, 0.35], color="#20639b", linewidth=3, linestyle="-", zorder=0)
    arrow(ax, (-0.6, 0.35), (-0.02, 0.35), "#20639b", 3)
    ax.text(-2.15, 4.1, "$t = 1 \\ldots T$, the same weights", rotation=90, ha="center", va="center", color="#20639b")
    return fig
