"""Attention on three tokens of four numbers as a network: the same values for each token, then a mixture of the tokens."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from minitransformer.attention import dot_product_attention
from minitransformer.backend import backend
from minitransformer.figures.style import SIGNED, figure, merged, minuses
from minitransformer.related import attention_weights
from minitransformer.typing import Array

TOKENS, WIDTH = 3, 4
EDGED = [withStroke(linewidth=3, foreground="0.75")]  # or else a line of a small weight is hardly seen
COLOURS = mpl.colormaps[SIGNED]


class Hypernetwork(NamedTuple):
    """A (3, 3), W_v (4, 4), and the weights of the two layers of the network, (12, 12) each; X and Y as they are, (3, 4)."""

    A: Array
    W: Array
    values: Array
    mixing: Array
    X: Array
    Y: Array


def data(seed: int = 4) -> Hypernetwork:
    """Random tokens, and random projections."""
    rng = np.random.default_rng(seed)
    X, W_q, W_k, W = rng.standard_normal((TOKENS, WIDTH)), *rng.standard_normal((3, WIDTH, WIDTH))
    W_q *= 0.3  # no weight is nearly one
    with backend("numpy"):
        Y, pullback = dot_product_attention(X @ W_q, X @ W_k, X @ W)
    values, _ = attention_weights(np.eye(TOKENS), W)
    mixing, _ = attention_weights(pullback.A, np.eye(WIDTH))
    return Hypernetwork(pullback.A, W, values, mixing, X, Y)


def draw(data: Hypernetwork) -> Figure:
    """Above the network, a line for each weight that is not zero; below the weights of its two layers as matrices.

    A line has the colour of its weight, and is dashed where that is negative.
    """
    fig, axes = figure(2, 2, width=10, height=10.2, height_ratios=[1.1, 1])
    net = merged(fig, axes[0])
    n = TOKENS * WIDTH
    place = np.arange(n) + 0.8 * (np.arange(n) // WIDTH)  # a gap between tokens
    largest = np.abs(data.W).max()
    layers = (data.values, largest), (data.mixing, largest)
    for layer, (M, most) in enumerate(layers):
        for out, into in zip(*np.nonzero(M), strict=True):
            colour = COLOURS(0.5 + 0.5 * M[out, into] / most)
            ends = [place[into], place[out]], [layer, layer + 1]
            line = "-" if M[out, into] > 0 else (0, (2, 1))
            net.plot(*ends, color=colour, linestyle=line, linewidth=2, zorder=1, path_effects=EDGED)
    for layer, name in enumerate(("vec(X)", "vec(V)", "vec(Y)")):
        net.scatter(place, np.full(n, layer), s=90, color="0.25", zorder=2)
        net.text(-1.2, layer, name, ha="right", va="center")
    for token in range(TOKENS):
        net.text(place[token * WIDTH : (token + 1) * WIDTH].mean(), -0.34, f"token {token + 1}", ha="center")
    net.set(xlim=(-4.3, place[-1] + 0.6), ylim=(-0.5, 2.15), title="a) the network")
    net.axis("off")
    titles = r"b) $I\otimes W_v^\top$, X to V", r"c) $A\otimes I$, V to Y"
    for ax, (M, most), title in zip(axes[1], layers, titles, strict=True):
        image = ax.imshow(np.ma.masked_equal(M, 0), cmap=COLOURS, vmin=-most, vmax=most)
        minuses(ax, M, most)
        for edge in np.arange(TOKENS + 1) * WIDTH - 0.5:
            ax.axhline(edge, color="0.6", linewidth=1, linestyle="-")
            ax.axvline(edge, color="0.6", linewidth=1, linestyle="-")
        middle = np.arange(TOKENS) * WIDTH + (WIDTH - 1) / 2
        ax.set_xticks(middle, ["1", "2", "3"])
        ax.set_yticks(middle, ["1", "2", "3"])
        ax.set(title=title, xlabel="from token")
        ax.tick_params(length=0)
    axes[1, 0].set_ylabel("to token")
    fig.colorbar(image, ax=axes[1], shrink=0.7, ticks=(-2, -1, 0, 1, 2), label="weight")
    return fig
