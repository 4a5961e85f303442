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
    """How far the boxes, run `steps` times in the order that is drawn, are from the stack."""

    steps: int
    error: float


def data(steps: int = 3, n: int = 5, width: int = 8) -> UniversalBlock:
    """Do what is drawn, `steps` times."""
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
    return UniversalBlock(steps, float(np.abs(H - stack(params, X)[0]).max()))


def draw(data: UniversalBlock) -> Figure:
    """From below: the state, its signal, attention and the transition, each added and normed; and the path back."""
    fig, ax = figure(width=9.5, height=6.6)
    ax.set(xlim=(-3.6, 4.6), ylim=(-0.2, 7.6))
    ax.axis("off")
    ax.plot([0, 0], [0, 6.4], color="0.2", linewidth=5, linestyle="-", solid_capstyle="butt", zorder=1)
    ax.text(0.2, 0.0, "$H^{t-1}$", va="bottom")
    circle(ax, 0, 1.0)
    box(ax, (1.3, 0.65), (3.2, 0.7), "where, how often: $P^t$", "#f3d6ce")
    arrow(ax, (1.3, 1.0), (0.22, 1.0), "0.35")
    for y, name, colour in ((1.75, "self-attention", "attention"), (4.15, "transition", "ffn")):
        ax.plot([0, 2.9, 2.9, 0.4], [y, y, y + 1.35, y + 1.35], color="0.35", linewidth=2.2, linestyle="-", zorder=0)
        box(ax, (1.3, y + 0.32), (3.2, 0.7), name, COLOURS[colour])
        arrow(ax, (0.7, y + 1.35), (0.22, y + 1.35), "0.35")
        circle(ax, 0, y + 1.35)
        box(ax, (-1.0, y + 1.62), (2.0, 0.5), "layer norm", COLOURS["norm"])
    ax.text(-0.2, 1.45, "$Z^t$", va="center", ha="right")
    ax.text(-0.2, 4.1, "$A^t$", va="center", ha="right")
    ax.text(0.2, 7.1, "$H^t$", va="center")
    arrow(ax, (0, 6.35), (0, 7.5), "0.2", 5)
    ax.plot([0, -2.1, -2.1, -0.3], [6.7, 6.7, 0.4, 0.4], color="#20639b", linewidth=5, linestyle="-", zorder=0)
    arrow(ax, (-0.7, 0.4), (-0.02, 0.4), "#20639b", 5)
    ax.text(-2.3, 3.55, "again:\n$t = 1 \\ldots T$\nthe same\nweights", ha="right", va="center", color="#20639b")
    return fig
