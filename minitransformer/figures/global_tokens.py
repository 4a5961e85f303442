"""Tokens that all see: Longformer's, ETC's outside of the square, BigBird's with what is drawn; and the parts."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import BigBird, Pattern, RandomKeys, Window
from minitransformer.figures.interaction_matrices import squares
from minitransformer.figures.style import figure, outer_labels
from minitransformer.typing import Array

NEAR, DRAWN, GLOBAL = 1, 2, 3
RADIUS = 2  # of the window, alone and in what it is a part of
GLOBALS = 2  # words that all see; of ETC rows in front of the text


def data(n: int = 20) -> dict[str, Array]:
    """By name: 0 where nobody looks, else the kind of the pair, of n tokens; ETC has its global rows in front of them."""

    def kinds(pattern: Pattern, near: Pattern, all_see: Array, rows: int = n) -> Array:
        """What of a pattern is near, what is global, and the rest, which was drawn."""
        mask, band = (p(rows, rows, causal=False).mask for p in (pattern, near))
        whole = np.isin(np.arange(rows), all_see)
        return np.where(mask, np.where(whole[:, None] | whole, GLOBAL, np.where(band, NEAR, DRAWN)), 0)

    none, ends = np.array([], int), np.array([0, 1, n - 2, n - 1])
    with_globals = kinds(Window(0, global_tokens=GLOBALS), Window(0), np.arange(GLOBALS))
    window, longformer = Window(RADIUS), Window(RADIUS, global_tokens=GLOBALS)
    return {
        "random": kinds(RandomKeys(2), RandomKeys(0), none),
        "window": kinds(window, window, none),
        "global": np.where(with_globals == GLOBAL, GLOBAL, 0),
        "Longformer": kinds(longformer, window, np.arange(GLOBALS)),
        "ETC": kinds(longformer, window, np.arange(GLOBALS), n + GLOBALS),
        "BigBird": kinds(BigBird(random=1, block=2), BigBird(1, 0, 0, block=2), ends),
    }


def draw(found: dict[str, Array]) -> Figure:
    """Left the parts, right three ways to put them together."""
    fig, axes = figure(3, 2, width=9, height=12.5)
    for ax, (name, kinds) in zip(axes.T.flat, found.items(), strict=True):
        squares(ax, kinds > 0, name, kinds)
        ax.set(xticks=(), yticks=())
        if name == "ETC":
            for line in (ax.axhline, ax.axvline):
                line(GLOBALS + 0.5, color="black", linewidth=2, linestyle="-")
    outer_labels(axes, "key $j$", "query $i$")
    return fig
