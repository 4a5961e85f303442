"""Transformer-XL on 32 tokens: what one token depends on through its layers and memories, and how far its gradient goes."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.segments import data as segments
from minitransformer.figures.style import figure
from minitransformer.models.transformer_xl import reach
from minitransformer.ranges import so_many

N, LAYERS = 32, 3


def data() -> dict[str, Any]:
    """How many tokens there are, and how many layers at most."""
    return {"n": N, "layers": 4}


def compute(data: dict[str, Any], segment: int, memory: int, layers: int, token: int) -> dict[str, Any]:
    """The first row in each layer that counts, and the first that gets a gradient, from the embedding up.

    From there on all count, up to the token itself. The formula is for a text that is long enough.
    """
    found = segments(token + 1, segment, memory, layers)
    learns = [np.arange(token + 1) == token]
    for _ in range(layers):
        learns.insert(0, learns[0] @ found.learns > 0)
    return {
        "depends": found.depends.argmax(1).tolist(),
        "learns": np.argmax(learns, 1).tolist(),
        "before": token // segment * segment - int(found.depends[0].argmax()),
        "formula": reach(layers, segment, memory),
    }


def still(data: dict[str, Any]) -> Figure:
    """The last of 32 tokens, segments of eight, three layers: a memory of eight rows above, of a single row below."""
    fig, axes = figure(2, 1, height=6.4, sharex=True)
    for ax, memory in zip(axes, (8, 1), strict=True):
        found = compute(data, 8, memory, LAYERS, N - 1)
        for layer in range(LAYERS + 1):
            ax.plot(range(N), [layer] * N, "o", markersize=6, color="0.85")
            depends, learns = found["depends"][layer], found["learns"][layer]
            ax.plot(
                range(depends, learns), [layer] * (learns - depends), "o", mfc="white", mec="#c8553d", mew=2.5, ms=9
            )
            ax.plot(range(learns, N), [layer] * (N - learns), "o", color="#20639b", ms=10)
        for edge in range(8, N, 8):
            ax.axvline(edge - 0.5, color="0.5", linestyle="--", linewidth=1.5, zorder=0)
        ax.set(title=f"memory of {so_many(memory, 'row')}: {found['before']} tokens before the segment")
        ax.set(ylabel="layer", yticks=range(LAYERS + 1), xlim=(-0.8, N - 0.2), ylim=(-0.5, LAYERS + 0.5))
    axes[1].set_xlabel("token")
    return fig
