"""The original transformer, drawn from a model: every box is a parameter tree, every arrow into the decoder a gradient."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from minitransformer.figures.style import figure
from minitransformer.models import EncoderDecoder
from minitransformer.pullback import tree_size
from minitransformer.typing import Array


class EncoderDecoderData(NamedTuple):
    """Parameters in each part of a block; the norm of what each decoder block sends back to the encoder, and of the sum."""

    encoder: dict[str, int]
    decoder: dict[str, int]
    depth: int
    sent_back: Array
    sum: float
    received: float


def data(depth: int = 3, seed: int = 0) -> EncoderDecoderData:
    """One backward pass of a fresh model; `received` is the norm of the gradient that the encoder is called with."""
    rng = np.random.default_rng(seed)
    model = EncoderDecoder(vocabulary=40, width=64, heads=4, depth=depth)
    params = model.init(rng, np.float64)
    logits, pullback = model(params, rng.integers(0, 40, (4, 12)), rng.integers(0, 40, (4, 9)))
    decoder = pullback.decoder
    _, dX = decoder.norm(rng.standard_normal(logits.shape) @ params.E)
    memories = []
    top = dX
    for block in reversed(decoder.blocks):
        _, dX, dmemory = block(dX)
        memories.append(dmemory)
    _, _, received = decoder._replace(norm=None)(top)
    sizes = [
        {name: tree_size(part) for name, part in zip(block._fields, block, strict=True) if part is not None}
        for block in (params.encoder.blocks[0], params.decoder.blocks[0])
    ]
    norms = np.array([np.linalg.norm(d) for d in reversed(memories)])
    return EncoderDecoderData(
        *sizes, depth, norms, float(np.linalg.norm(sum(memories))), float(np.linalg.norm(received))
    )


PARTS = {"attention": "self-attention", "cross": "cross-attention", "ffn": "feed-forward"}
COLOURS = {"attention": "#cfe0ee", "cross": "#f3d6ce", "ffn": "#e4e4e4"}


def draw(data: EncoderDecoderData) -> Figure:
    """Two columns of blocks, input at the bottom."""
    fig, ax = figure(width=7.5, height=5.6)
    ax.set(xlim=(0, 10), ylim=(-0.9, 10.3))
    ax.axis("off")
    _column(ax, 2.2, ["attention", "ffn"], data.encoder, data.depth, "source tokens", "encoder")
    decoder = _column(ax, 7.2, ["attention", "cross", "ffn"], data.decoder, data.depth, "target tokens", "decoder")
    share = data.sent_back / data.sent_back.max()
    for block, (y, width) in enumerate(zip(decoder["cross"], share, strict=True)):
        arrow = FancyArrowPatch(
            (2.95, 9.35), (5.7, y), connectionstyle="angle3,angleA=0,angleB=-70", arrowstyle="-|>", mutation_scale=13,
            linewidth=0.8 + 2.2 * width, color="#c8553d", shrinkA=0, shrinkB=0,
        )  # fmt: skip
        ax.add_patch(arrow)
        ax.text(9.0, y, f"sends back\n{data.sent_back[block]:.1f}", va="center", fontsize=9, color="#c8553d")
    ax.text(2.2, 9.35, "memory", ha="center", va="center", fontsize=10, color="#c8553d")
    ax.text(7.2, 9.35, "logits = N Eᵀ", ha="center", va="center", fontsize=10)
    return fig


def _column(
    ax: Axes, x: float, parts: list[str], sizes: dict[str, int], depth: int, foot: str, title: str
) -> dict[str, list[float]]:
    places: dict = {name: [] for name in parts}
    step = 9.0 / depth
    height = 0.62
    ax.text(x, -0.7, f"{foot} → √D·E + Π", ha="center", fontsize=10)
    for block in range(depth):
        bottom = block * step
        frame = FancyBboxPatch(
            (x - 1.65, bottom), 3.3, step - 0.45, boxstyle="round,pad=0.02,rounding_size=0.12", facecolor="white",
            edgecolor="0.6", linewidth=0.9,
        )  # fmt: skip
        ax.add_patch(frame)
        gap = (step - 0.45 - height * len(parts)) / (len(parts) + 1)
        for k, name in enumerate(parts):
            y = bottom + gap * (k + 1) + height * k
            box = FancyBboxPatch(
                (x - 1.45, y), 2.9, height, boxstyle="round,pad=0.0,rounding_size=0.1", facecolor=COLOURS[name],
                edgecolor="0.35", linewidth=0.9,
            )  # fmt: skip
            ax.add_patch(box)
            ax.text(x, y + height / 2, f"{PARTS[name]}  {sizes[name]:,}", ha="center", va="center", fontsize=9)
            places[name].append(y + height / 2)
        ax.annotate(
            "", (x, bottom + step - 0.01), (x, bottom + step - 0.42), arrowprops={"arrowstyle": "-|>", "color": "0.3"}
        )
    ax.text(x, 9.95, f"{title}, {depth} blocks", ha="center", fontsize=11, weight="bold")
    return places
