"""Rotary positions in one pair of channels: query and key turn with their places, the angle between them does not."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import rotate
from minitransformer.typing import Array

SPEED = np.pi / 9  # ω, 20° a place
PLACES = ((1, 3), (4, 6))  # of query and key


class Rotation(NamedTuple):
    """Query and key as they are, (2, 2); and turned, (cases, 2, 2), with their scores (cases,)."""

    words: Array
    turned: Array
    scores: Array


def data() -> Rotation:
    """A query of length 1 and a key of length 1, 40° apart, twice at an offset of 2."""
    angles = np.array([0.0, 2 * SPEED])
    words = np.stack([np.cos(angles), np.sin(angles)], -1)
    turned = [rotate(words, angles=SPEED * np.array(places, float)[:, None])[0] for places in PLACES]
    return Rotation(words, np.array(turned), np.array([q @ k for q, k in turned]))


def draw(data: Rotation) -> Figure:
    """Dashed the words, solid the words at their places, and the angle between them."""
    fig, axes = figure(1, 2, height=4.2)
    circle = np.linspace(0, 2 * np.pi, 200)
    for ax, (i, j), turned, score in zip(axes, PLACES, data.turned, data.scores, strict=True):
        ax.plot(np.cos(circle), np.sin(circle), color="#cccccc", linewidth=1, linestyle="-")
        colours = ("#20639b", "#c8553d")
        for name, place, word, arrow, colour in zip("qk", (i, j), data.words, turned, colours, strict=True):
            ax.plot(*np.stack([0 * word, word], -1), color=colour, linestyle="--", linewidth=2)
            ax.text(*1.14 * word, f"${name}$", color=colour, ha="center", va="center")
            style = {"arrowstyle": "-|>", "color": colour, "lw": 4, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", arrow, (0, 0), arrowprops=style)
            ax.text(*1.2 * arrow, f"$R_{place}{name}$", color=colour, ha="center", va="center")
        first, last = np.arctan2(*turned.T[::-1])
        between = np.linspace(first, last, 50)
        ax.plot(0.35 * np.cos(between), 0.35 * np.sin(between), color="black", linestyle="-")
        middle = between.mean()
        degrees = round(np.degrees(last - first))
        ax.text(0.56 * np.cos(middle), 0.56 * np.sin(middle), f"{degrees}°", ha="center", va="center")
        ax.set_title(f"query at {i}, key at {j}: score {score:.2f}")
        ax.set(xlim=(-1.45, 1.45), ylim=(-0.45, 1.4), aspect="equal")
        ax.axis("off")
    return fig
