"""An encoder and a decoder, drawn from a model: every box is a parameter tree, every plus a residual connection."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from minitransformer.figures.block_diagram import COLOURS, arrow, box, circle
from minitransformer.figures.style import figure
from minitransformer.models import EncoderDecoder
from minitransformer.pullback import tree_size
from minitransformer.typing import Array


class EncoderDecoderData(NamedTuple):
    """Parameters of each part of a block, of a last norm, of E and of the whole model; gradients that go to Z.

    sent_back   norm of what each block of the decoder sends back to the encoder
    sum         norm of the sum of that
    received    norm of the gradient that the encoder is called with
    """

    encoder: dict[str, int]
    decoder: dict[str, int]
    last_norm: int
    table: int
    whole: int
    depth: int
    sent_back: Array
    sum: float
    received: float


def data(depth: int = 3, seed: int = 0) -> EncoderDecoderData:
    """One backward pass of a fresh model."""
    rng = np.random.default_rng(seed)
    model = EncoderDecoder(vocabulary=40, width=64, heads=4, depth=depth)
    params = model.init(rng, np.float64)
    logits, pullback = model(params, rng.integers(0, 40, (4, 12)), rng.integers(0, 40, (4, 9)))
    decoder = pullback.decoder
    _, dX = decoder.norm(rng.standard_normal(logits.shape) @ params.E)
    _, _, received = decoder._replace(norm=None)(dX)
    sent = []
    for block in reversed(decoder.blocks):
        _, dX, dZ = block(dX)
        sent.append(dZ)
    sizes = [
        {name: tree_size(part) for name, part in block._asdict().items() if part is not None}
        for block in (params.encoder.blocks[0], params.decoder.blocks[0])
    ]
    counts = tree_size(params.decoder.norm), tree_size(params.E), tree_size(params)
    norms = np.array([np.linalg.norm(d) for d in reversed(sent)])
    both = (float(np.linalg.norm(d)) for d in (sum(sent), received))
    return EncoderDecoderData(*sizes, *counts, depth, norms, *both)


NAMES = {"attention": "attention", "cross": "cross-attention", "ffn": "feed-forward"}
RED = "#b03a20"
BRANCH = 2.35  # height of a norm, a layer, and the way back to the stream


def draw(data: EncoderDecoderData) -> Figure:
    """Two stacks, one block of each drawn in full; both have their boxes inside, so that Z has a short way."""
    fig, ax = figure(width=10.4, height=9.6)
    ax.set(xlim=(-0.5, 11.05), ylim=(-1.15, 9.35))
    ax.axis("off")
    top, _ = _stack(ax, 0.3, 1, data.encoder, data, "encoder", "source (m)")
    end, middle = _stack(ax, 9.9, -1, data.decoder, data, "decoder", "target (n)")
    ax.plot([0.3, 0.3, 5.1, 5.1], [top, top + 0.5, top + 0.5, middle], color=RED, linewidth=2.6, linestyle="-")
    arrow(ax, (5.1, middle), (5.73, middle), RED, 2.6)
    ax.text(0.3, top + 0.65, f"Z (m, D), the same\nfor all {data.depth} blocks", color=RED, va="bottom")
    arrow(ax, (9.9, end), (9.9, end + 0.4), "0.2")
    ax.text(11.0, end + 0.5, "logits = N Eᵀ", ha="right", va="bottom")
    return fig


def _stack(
    ax: Axes, x: float, side: int, sizes: dict[str, int], data: EncoderDecoderData, name: str, foot: str
) -> tuple[float, float]:
    """A stack with its stream at x and its boxes on one side; the height of its top, and of its cross-attention."""
    layers = [layer for layer in ("attention", "cross", "ffn") if layer in sizes]
    height, cross = BRANCH * len(layers) + 0.3, 0.0
    corner = (x - 0.55 if side == 1 else x - 4.3, -0.1)
    frame = {"boxstyle": "round,pad=0,rounding_size=0.2", "facecolor": "0.965", "edgecolor": "0.5", "zorder": 0}
    ax.add_patch(FancyBboxPatch(corner, 4.85, height, **frame))
    ax.plot([x, x], [-0.5, height + 0.15], color="0.2", linewidth=5, linestyle="-", solid_capstyle="butt", zorder=1)
    ax.text(corner[0] + 2.42, -0.62, f"{foot}: √D · E[tokens] + Π", ha="center", va="top")
    for k, layer in enumerate(layers):
        y, middle = BRANCH * k + 0.1, x + side * 2.35
        before = "causal " if layer == "attention" and "cross" in sizes else ""
        box(ax, (middle - 1.8, y + 0.25), (3.6, 0.55), f"norm  {sizes[layer + '_norm']:,}", COLOURS["norm"])
        box(ax, (middle - 1.8, y + 1.0), (3.6, 0.6), f"{before}{NAMES[layer]}  {sizes[layer]:,}", COLOURS[layer])
        line = {"color": "0.35", "linewidth": 2.2, "linestyle": "-", "zorder": 0.5}
        ax.plot([x, middle, middle, x + side * 0.5], [y, y, y + 1.9, y + 1.9], **line)
        arrow(ax, (x + side * 0.6, y + 1.9), (x + side * 0.2, y + 1.9), "0.35")
        circle(ax, x, y + 1.9)
        cross = y + 1.3 if layer == "cross" else cross
    left = x - 0.75 if side == 1 else x - 1.35
    box(ax, (left, height + 0.15), (2.1, 0.55), f"norm  {data.last_norm}", COLOURS["norm"])
    place = (corner[0] + 4.8, "right") if side == 1 else (corner[0], "left")
    ax.text(place[0], height + 0.4, f"{name}, × {data.depth}", ha=place[1], va="center", fontweight="bold")
    return height + 0.7, cross
