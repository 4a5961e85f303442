"""Four patterns, and the weights that are left when they are applied."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import causal_mask, padding_mask, scores
from minitransformer.figures.style import figure, outer_labels, weights_and_hatches
from minitransformer.functional import softmax
from minitransformer.typing import Array


class Masks(NamedTuple):
    """Patterns by name, each with the attention matrix of the same random queries and keys under it."""

    masks: dict[str, Array]
    weights: dict[str, Array]


def data(n: int = 8, cached: int = 5, length: int = 6, seed: int = 0) -> Masks:
    """n tokens; `cached` of them already computed; `length` of them real; two sentences in one row."""
    sentence = np.array([0] * 3 + [1] * (n - 3))
    masks = {
        "causal": causal_mask(n),
        "the last three rows of it": causal_mask(n - cached, n),
        "two tokens of padding": np.broadcast_to(padding_mask(np.array(length), n), (n, n)),
        "causal, two sentences": (sentence[:, None] == sentence) & causal_mask(n),
    }
    rng = np.random.default_rng(seed)
    S, _ = scores(*rng.standard_normal((2, n, 16)))
    return Masks(masks, {name: softmax(S[n - len(mask) :], mask=mask)[0] for name, mask in masks.items()})


def draw(data: Masks) -> Figure:
    """One panel for each pattern: colour is weight, hatched is hidden."""
    fig, axes = figure(2, 2, width=10, height=10.5, sharex=True, sharey=True)
    for ax, (name, mask) in zip(axes.flat, data.masks.items(), strict=True):
        image = weights_and_hatches(ax, data.weights[name], ~mask)
        ax.set_title(name)
    m = mask.shape[-1]
    axes[0, 0].set(xticks=range(1, m + 1), yticks=range(1, m + 1), ylim=(m + 0.5, 0.5))
    outer_labels(axes, "key $j$", "query $i$")
    fig.colorbar(image, ax=axes, label="weight $A_{ij}$", location="bottom", shrink=0.6, aspect=30)
    return fig
