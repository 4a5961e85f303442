"""One key that stands out, among thousands that do not: how often its block is chosen by the mean key."""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.selected.chosen import block_means, largest
from minitransformer.figures.style import figure, plain_ticks
from minitransformer.typing import Array

KEYS, READ, HEIGHT = 4096, 512, 8.0  # an eighth of the keys is read; the needle's score, the others' is normal
EIGHTH = 1.1503  # Φ(1.1503) = 7/8


class LostNeedle(NamedTuple):
    """How often the needle is among what is read, for each size of a block: predicted, and of some draws."""

    sizes: Array
    predicted: Array
    found: Array


def predicted(block: Array) -> Array:
    """Φ((m/B − t)/(√(B − 1)/B)): the needle's block has mean m/B, and the others reach t = 1.15/√B an eighth of the time."""
    spread = np.sqrt(np.maximum(block - 1, 1e-9)) / block
    z = (HEIGHT / block - EIGHTH / np.sqrt(block)) / spread
    return np.array([(1 + math.erf(x / math.sqrt(2))) / 2 for x in z])


def found(block: int, rng: np.random.Generator, draws: int = 3000) -> float:
    """The share of draws in which the block of the needle, anywhere, is chosen: with the functions of `moba_attention`."""
    scores = rng.standard_normal((draws, KEYS, 1))
    where = rng.integers(KEYS, size=draws)
    scores[np.arange(draws), where] = HEIGHT
    seen, its_block, is_found = np.ones(KEYS, bool), where // block, []
    for some in np.array_split(np.arange(draws), 10):  # in less memory
        means, _ = block_means(scores[some], seen, block)
        chosen = largest(means[..., 0], READ // block, np.array(True))
        is_found.append(chosen[np.arange(len(some)), its_block[some]])
    return float(np.concatenate(is_found).mean())


def data(seed: int = 4) -> LostNeedle:
    """Blocks of 1 to 256 keys; whatever the size, the same number of keys is read."""
    sizes = 4 ** np.arange(5)
    rng = np.random.default_rng(seed)
    return LostNeedle(sizes, predicted(sizes), np.array([found(int(block), rng) for block in sizes]))


def draw(data: LostNeedle) -> Figure:
    """The size of a block, logarithmic, and how often the needle is found; the grey line is reading an eighth blindly."""
    fig, ax = figure(height=5)
    fine = np.geomspace(1, 256, 100)
    ax.plot(fine, predicted(fine), "-", label="predicted")
    ax.plot(data.sizes, data.found, "ko", markersize=10, label="3000 draws each")
    ax.axhline(READ / KEYS, color="0.3", linewidth=1.5, linestyle=":", label="a blind choice")
    ax.set(xscale="log", xlabel="keys of a block, $B$", ylabel="needle found", ylim=(0, 1.05))
    plain_ticks(ax, x=data.sizes)
    ax.legend()
    return fig
