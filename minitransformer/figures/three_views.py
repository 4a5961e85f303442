"""What the three branches of native sparse attention give to each key, and their sum."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.selected import nsa_attention
from minitransformer.figures.style import figure, outer_labels, weights_and_hatches
from minitransformer.typing import Array

BLOCK, CHOSEN, WINDOW = 4, 4, 5
BRANCHES = ("compressed", "selected", "window")
MOST = 0.5  # heavier weights have the colour of this one


def data(n: int = 32, d: int = 4, seed: int = 4) -> dict[str, Array]:
    """The weights (n, n) of each branch, and of all three with gates of 1/3, for random queries and keys.

    With the identity for V, row i of Y has what each key has given to query i.
    """
    Q, K = np.random.default_rng(seed).standard_normal((2, 1, n, d))
    V, found = np.eye(n)[None], {}
    for name, open_gates in zip((*BRANCHES, "all three, gates of 1/3"), (*np.eye(3), np.full(3, 1 / 3)), strict=True):
        gates = np.tile(open_gates, (1, n, 1))
        Y, _ = nsa_attention(2 * Q, K, V, gates, block=BLOCK, chosen=CHOSEN, window=WINDOW)
        found[name] = Y[0]
    return found


def draw(data: dict[str, Array]) -> Figure:
    """One panel for each branch and one for the sum: colour is weight, hatched has none. Lines part the blocks."""
    fig, axes = figure(2, 2, width=10, height=10.8, sharex=True, sharey=True)
    for ax, (name, weights) in zip(axes.flat, data.items(), strict=True):
        n = len(weights)
        image = weights_and_hatches(ax, weights, weights == 0, most=MOST)
        for border in range(BLOCK, n, BLOCK):
            ax.axvline(border + 0.5, color="0.4", linewidth=0.8)
        ax.set_title(name)
    places = range(2 * BLOCK, n + 1, 2 * BLOCK)
    axes[0, 0].set(xticks=places, yticks=places, ylim=(n + 0.5, 0.5))
    outer_labels(axes, "key $j$", "query $i$")
    bar = {"location": "bottom", "shrink": 0.6, "aspect": 30, "extend": "max"}
    fig.colorbar(image, ax=axes, label="weight of a key", **bar)
    return fig
