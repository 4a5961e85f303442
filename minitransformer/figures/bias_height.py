"""How high must a bias be for a head to be a shift? The error of a shift by one token, against the height β."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.functional import softmax
from minitransformer.typing import Array

LENGTHS = (16, 128, 1024)
HEIGHTS = np.arange(0.0, 46, 2)


class BiasHeight(NamedTuple):
    """Heights (b,), and by length of the text the largest error (b,) of any row but the first."""

    heights: Array
    errors: dict[int, Array]
    single: Array  # of the longest text, in float32


def data(seed: int = 0) -> BiasHeight:
    """Numbers between −1 and 1, in float64 and, of the longest text, in float32. The token before has the score β, others 0."""
    X = np.random.default_rng(seed).uniform(-1, 1, max(LENGTHS))

    def error(n: int, dtype: type) -> Array:
        text, before = X[:n].astype(dtype), np.eye(n, k=-1, dtype=dtype)
        # no matrix product: its sums are taken in another order on another processor, and here the last digits are drawn
        shifted = ((softmax(dtype(b) * before)[0] * text).sum(-1) for b in HEIGHTS)
        return np.array([np.abs(Y[1:] - text[:-1]).max() for Y in shifted])

    return BiasHeight(HEIGHTS, {n: error(n, np.float64) for n in LENGTHS}, error(max(LENGTHS), np.float32))


def draw(data: BiasHeight) -> Figure:
    """Thin lines: n times e to the power of −β. Below a tenth the curves lie along them, until the numbers run out of digits."""
    fig, ax = figure(width=10, height=5.6)
    for n, errors in data.errors.items():
        (line,) = ax.plot(data.heights, np.maximum(errors, 1e-18), label=f"$n = {n}$")
        ax.plot(data.heights, n * np.exp(-data.heights), "-", color=line.get_color(), linewidth=1, alpha=0.7)
    ax.plot(data.heights, np.maximum(data.single, 1e-18), label=f"$n = {max(data.errors)}$, float32")
    ax.set(yscale="log", ylim=(1e-17, 3), xlim=(0, 44), xlabel=r"height $\beta$ of the bias", ylabel="largest error")
    ax.set_yticks([1, 1e-4, 1e-8, 1e-12, 1e-16])
    ax.legend(loc="lower left")
    return fig
