"""Memories as learners: where each rule goes in a memory of two numbers, over the loss of three pairs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import gated_delta_step, gated_linear_step
from minitransformer.figures.style import FAINT, figure
from minitransformer.typing import Array

KEYS = np.array([[1.0, 0.0], [0.8, 0.6], [0.28, 0.96]])
VALUES = np.array([[0.9], [1.4], [1.1]])
RULES = ("sum", "decay 0.8", "delta", "delta, β = 0.5")

TITLES = ("they add", "they correct, magnified")
COLOURS = ("C0", "C3", "C1", "C4")
LINES = ("-", ":", "--", "-.")
PLACES = ((3.2, 2.8), (1.2, 2.9), (1.3, 0.15), (0.0, 0.42))  # of the names of rules
NUMBERS = ((0.93, 1.48), (0.17, 1.48), (-0.09, 1.22))  # and of pairs


class MemoryPaths(NamedTuple):
    """Where each rule stands after every pair, (rules, steps + 1, 2), which pair it was, and the least squares of all pairs."""

    paths: Array
    pair: Array
    best: Array


def loss(S: Array) -> Array:
    """½ Σ_j (k_jᵀ S − v_j)² of memories (…, 2)."""
    read = S[..., :1] * KEYS[:, 0] + S[..., 1:] * KEYS[:, 1]  # S @ KEYS.T, with the same last digits on every processor
    return 0.5 * ((read - VALUES[:, 0]) ** 2).sum(-1)


def data(passes: int = 2) -> MemoryPaths:
    """All pairs in order, twice."""
    pair = np.tile(np.arange(len(KEYS)), passes)
    paths = np.zeros((len(RULES), len(pair) + 1, 2))
    for rule, name in enumerate(RULES):
        S = np.zeros((2, 1))
        for t, j in enumerate(pair):
            k, v, one = KEYS[j][None], VALUES[j][None], np.ones(1)
            if name.startswith("delta"):
                _, S = gated_delta_step(k, k, v, (0.5 if "0.5" in name else 1.0) * one, 0 * one, S)
            else:
                _, S = gated_linear_step(k, k, v, np.log(0.8 * one) if "0.8" in name else 0 * one, S)
            paths[rule, t + 1] = S[:, 0]
    return MemoryPaths(paths, pair, np.linalg.lstsq(KEYS, VALUES, rcond=None)[0][:, 0])


def draw(data: MemoryPaths) -> Figure:
    """Left: the rules that add. Right, magnified: the rules that correct. Rings are contours of the loss, on a straight line the
    pair of its number is right, and the star is least squares.
    """
    fig, axes = figure(1, 2, height=5.2)
    for ax, rules, top, title in zip(axes, ((0, 1), (2, 3)), (5.0, 1.8), TITLES, strict=True):
        x, y = np.meshgrid(np.linspace(-0.1 * top, top, 120), np.linspace(-0.1 * top, 0.9 * top, 120))
        rings = {"levels": [0.01, 0.1, 0.5, 1.5, 4, 8, 16], "colors": FAINT, "linewidths": 1.2}
        # The other algorithm computes the last point of a ring again: whether it closes depends on the processor.
        ax.contour(x, y, loss(np.stack([x, y], -1)), algorithm="serial", **rings)
        for k, v in zip(KEYS, VALUES[:, 0], strict=True):
            ax.axline(tuple(k * v), tuple(k * v + [-k[1], k[0]]), color="0.25", linewidth=1.2, linestyle="-")
        for rule in rules:
            name, path = RULES[rule], data.paths[rule]
            ax.plot(*path.T, marker="os^D"[rule], markersize=8, color=COLOURS[rule], linestyle=LINES[rule], zorder=3)
            ax.text(*PLACES[rule], name, color=COLOURS[rule])
        ax.plot(*data.best, "k*", markersize=20, zorder=4)
        ax.set(title=title, xlim=(-0.1 * top, top), ylim=(-0.1 * top, 0.9 * top), xlabel="$S_1$", aspect="equal")
    axes[0].set(ylabel="$S_2$")
    axes[1].set_yticks([0, 0.5, 1, 1.5])
    for place, number in zip(NUMBERS, "123", strict=True):
        axes[1].text(*place, f"pair {number}", color="0.4")
    return fig
