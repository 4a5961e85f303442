"""Transformer-XL with segments of four: who looks at whom in training, and all that one token depends on in the end."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minitransformer.attention import causal_mask
from minitransformer.figures.style import figure
from minitransformer.models.transformer_xl import remember
from minitransformer.typing import Array

SEGMENT = MEMORY = 4
LAYERS = 3


class Segments(NamedTuple):
    """Which rows depend on which others.

    looks      (n, n): whether the row of token i looks at that of token j, one layer below
    learns     (n, n): whether it also sends a gradient there, which it does within its segment alone
    depends    (layers + 1, n): whether the last token at the top depends on token j at this height
    """

    looks: Array
    learns: Array
    depends: Array


def data(n: int = 16, segment: int = SEGMENT, memory: int = MEMORY, layers: int = LAYERS) -> Segments:
    """Segment by segment, with rows that hold their own numbers: what is remembered is what is looked at."""
    looks, learns, kept = np.zeros((n, n), bool), np.zeros((n, n), bool), None
    for rows in np.split(np.arange(n)[:, None], range(segment, n, segment)):
        keys = rows if kept is None else np.concatenate([kept, rows])
        seen = causal_mask(len(rows), len(keys))
        looks[np.ix_(rows[:, 0], keys[:, 0])] = seen
        learns[np.ix_(rows[:, 0], rows[:, 0])] = seen[:, -len(rows) :]
        kept = remember(kept, rows, memory)
    depends = [np.arange(n) == n - 1]
    for _ in range(layers):
        depends.append(depends[-1] @ looks > 0)
    return Segments(looks, learns, np.stack(depends[::-1]))


def draw(data: Segments) -> Figure:
    """Dots are rows, tokens to the right and layers upwards. Above one step of training, below what the last token has seen."""
    layers, n = data.depends.shape
    fig, (left, right) = figure(2, 1, height=9)
    last = np.arange(n) // SEGMENT == n // SEGMENT - 1
    for layer in range(1, layers):
        for i, j in np.argwhere(data.looks & last[:, None]):
            inside = data.learns[i, j]
            _edge(left, layer, i, j, "#20639b" if inside else "#c8553d", "-" if inside else ":")
        for i, j in np.argwhere(data.looks & data.depends[layer][:, None]):
            _edge(right, layer, i, j, "#20639b", "-")
    for ax, seen in ((left, last * np.ones((layers, 1), bool)), (right, data.depends)):
        for layer in range(layers):
            for j in range(n):
                ax.plot(j, layer, "o", markersize=13, color="#20639b" if seen[layer, j] else "white", mec="0.4")
        for edge in range(SEGMENT, n, SEGMENT):
            ax.axvline(edge - 0.5, color="0.6", linestyle="--", linewidth=1.5, zorder=0)
        ax.set(xticks=range(n), yticks=range(layers), yticklabels=["embedding", *map(str, range(1, layers))])
        ax.set(ylabel="layer", xlim=(-0.7, n - 0.3), ylim=(-0.35, layers - 0.65))
    left.set_title("training: the last segment looks at itself, and at constants (dotted)", x=0.42)
    right.set_title(f"evaluation: token {n - 1} depends on {LAYERS} · {MEMORY} tokens before its segment", x=0.42)
    right.set_xlabel("token")
    return fig


def _edge(ax: Axes, layer: int, i: int, j: int, colour: str, style: str) -> None:
    ax.plot([j, i], [layer - 1, layer], color=colour, linestyle=style, linewidth=1.5, zorder=1)
