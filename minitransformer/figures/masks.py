"""Four patterns, made by the functions that the book uses, and the weights that are left when they are applied."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import causal_mask, padding_mask, scores
from minitransformer.figures.style import figure
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
        "causal, five keys cached": causal_mask(n - cached, n),
        "padding, six real tokens": np.broadcast_to(padding_mask(np.array(length), n), (n, n)),
        "two sentences, causal": (sentence[:, None] == sentence) & causal_mask(n),
    }
    rng = np.random.default_rng(seed)
    S, _ = scores(*rng.standard_normal((2, n, 16)))
    return Masks(masks, {name: softmax(S[n - len(mask) :], mask=mask)[0] for name, mask in masks.items()})


def draw(data: Masks) -> Figure:
    """One panel for each pattern: colour is weight, hatched is hidden."""
    fig, axes = figure(1, len(data.masks), width=10, height=2.7)
    for ax, (name, mask) in zip(axes, data.masks.items(), strict=True):
        n, m = mask.shape
        ax.patch.set(facecolor="white", edgecolor="0.75", hatch="////", linewidth=0)  # seen where nothing is drawn
        image = ax.imshow(np.ma.masked_where(~mask, data.weights[name]), vmin=0, vmax=1)
        ax.set(title=name, xlabel="key j", anchor="N")
        ax.set_xticks(range(m), range(1, m + 1))
        ax.set_yticks(range(n), range(m - n + 1, m + 1))
        ax.spines[:].set_visible(False)
    axes[0].set_ylabel("query i")
    fig.colorbar(image, ax=list(axes), label="weight A", shrink=0.7)
    return fig
