"""How much the largest singular values of the attention matrices of a BERT hold."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.attention_rank import RANKS
from minitransformer.figures.style import FAINT, figure, plain_ticks
from minitransformer.typing import Array

NAMED_AT = {("trained", 4): 2, ("trained", 5): 4}  # the k at which a line carries its number; all others at 16


class AttentionRank(NamedTuple):
    """What `experiments/attention_rank.py` has on record; blocks and heads count from 0 here, from 1 in the figures.

    heads   mean of the passages
    """

    trained: Array
    fresh: Array
    random: Array
    heads: Array
    ranks: Array
    used: Array
    errors: dict[str, Array]


def data() -> AttentionRank:
    """What the record holds, by layer."""
    kept = experiments.load("attention_rank").only()
    arrays = {name: np.array(kept[name]) for name in ("trained", "fresh", "random", "ranks", "used")}
    errors = {name: np.array(found) for name, found in kept["errors"].items()}
    return AttentionRank(heads=np.mean(kept["heads"], axis=0), errors=errors, **arrays)


def draw(data: AttentionRank) -> Figure:
    """Above with its trained weights, below with fresh ones: a line for each layer, with its number; the dashed one is softmax
    of random queries and keys.
    """
    fig, axes = figure(2, 1, height=11, sharex=True)
    shades = np.linspace(0.75, 0.1, len(data.trained))
    for ax, curves, title in zip(axes, (data.trained, data.fresh), ("trained", "fresh weights"), strict=True):
        for layer, (curve, shade) in enumerate(zip(curves, shades, strict=True), 1):
            color = (shade * 0.6, shade * 0.8, shade)
            ax.plot(RANKS, curve, color=color, linestyle="-")
            place = RANKS.index(NAMED_AT.get((title, layer), 16))
            around = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": "none"}
            ax.text(RANKS[place], curve[place], f"{layer}", color=color, ha="center", va="center", bbox=around)
        ax.plot(RANKS, data.random, color="#c8553d", linestyle="--")
        ax.text(15, 0.13, "random $Q$, $K$", color="#c8553d", va="center")
        ax.axvline(RANKS[-1] / 4, color=FAINT, linewidth=1, zorder=0)
        ax.set(title=title, xscale="log", xlim=(1, RANKS[-1]), ylim=(0, 1.02), ylabel="part of their sum")
        plain_ticks(ax, x=[2, 8, 32, 128, 512])
    axes[-1].set_xlabel("number of singular values $k$")
    return fig


def draw_heads(data: AttentionRank) -> Figure:
    """Every head of the trained model: what its 128 largest of 512 singular values hold, in percent; dark is little."""
    fig, ax = figure(width=10, height=5.6)
    ax.imshow(data.heads, cmap="Blues_r", vmin=0.2, vmax=1, aspect="auto")
    for place in np.ndindex(data.heads.shape):
        value = data.heads[place]
        ink = "white" if value < 0.43 else "black"
        ax.text(*place[::-1], f"{100 * value:.0f}", ha="center", va="center", color=ink)
    layers, heads = (np.arange(1, size + 1) for size in data.heads.shape)
    ax.set_xticks(heads - 1, heads)
    ax.set_yticks(layers - 1, layers)
    ax.set(xlabel="head", ylabel="layer", title="% of the sum of singular values in the 128 largest of 512")
    return fig
