"""Memories as learners: where each rule goes in a memory of two numbers, over the loss of three pairs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import gated_delta_step, gated_linear_step
from minitransformer.figures.style import figure
from minitransformer.typing import Array

KEYS = np.array([[1.0, 0.0], [0.8, 0.6], [0.28, 0.96]])
VALUES = np.array([[0.9], [1.4], [1.1]])
RULES = ("sum", "decay 0.8", "delta", "delta, β = 0.5")


class MemoryPaths(NamedTuple):
    """Where each rule stands after every pair, (rules, steps + 1, 2), which pair it was, and the least squares of all pairs."""

    paths: Array
    pair: Array
    best: Array


def loss(S: Array) -> Array:
    """½ Σ_j (k_jᵀ S − v_j)² of memories (…, 2)."""
    return 0.5 * ((S @ KEYS.T - VALUES[:, 0]) ** 2).sum(-1)


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
    """Contours of the loss, lines on which one pair is right, and the paths."""
    fig, ax = figure(width=8, height=8)
    x, y = np.meshgrid(np.linspace(-0.2, 3.4, 80), np.linspace(-0.2, 2.8, 80))
    ax.contour(x, y, loss(np.stack([x, y], -1)), levels=[0.01, 0.1, 0.5, 1.5, 4, 8], colors="0.7", linewidths=1.2)
    for k, v in zip(KEYS, VALUES[:, 0], strict=True):
        ax.axline(tuple(k * v), tuple(k * v + [-k[1], k[0]]), color="0.4", linewidth=1, linestyle="-")
    for name, path, marker in zip(RULES, data.paths, "os^D", strict=True):
        ax.plot(*path.T, marker=marker, markersize=8, label=name)
    ax.plot(*data.best, "k*", markersize=20, label="least squares")
    ax.set(xlim=(-0.2, 3.4), ylim=(-0.2, 2.8), xlabel="$S_1$", ylabel="$S_2$", aspect="equal")
    fig.legend(loc="outside lower center", ncols=3)
    return fig
