"""What becomes of softmax when a score is a sum of d products: without a scale, divided by √d, divided by d."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import scores
from minitransformer.figures.style import figure
from minitransformer.functional import softmax
from minitransformer.typing import Array

SCALES = ("no scale", "divided by √d", "divided by d")


class Scales(NamedTuple):
    """Rows are the three scales, columns the widths d. Every number is over `rows` queries with 64 keys each."""

    d: Array
    keys: int
    variance: Array  # of a score
    largest: Array  # weight of a row, mean
    passed: Array  # Frobenius norm of ∂A/∂S of a row, median


def data(widths: tuple[int, ...] = (4, 16, 64, 256, 1024), keys: int = 64, rows: int = 500, seed: int = 0) -> Scales:
    """Queries and keys with independent standard normal entries, at every width."""
    rng = np.random.default_rng(seed)
    measured = np.array([_measure(rng, d, keys, rows) for d in widths])  # (widths, scales, measures)
    return Scales(np.array(widths), keys, *measured.T)


def _measure(rng: np.random.Generator, d: int, keys: int, rows: int, batch: int = 100) -> Array:
    S = [
        scores(rng.standard_normal((batch, 1, d)), rng.standard_normal((batch, keys, d)), scale=1.0)[0][:, 0]
        for _ in range(rows // batch)
    ]
    return np.array([_of_rows(scale * np.concatenate(S)) for scale in (1, d**-0.5, 1 / d)])


def _of_rows(S: Array) -> tuple[float, float, float]:
    A, _ = softmax(S)
    jacobian = A[:, :, None] * (np.eye(A.shape[-1]) - A[:, None, :])  # ∂A_j/∂S_k = A_j (δ_jk − A_k)
    return S.var(), A.max(-1).mean(), np.median(np.linalg.norm(jacobian, axis=(1, 2)))


def draw(data: Scales) -> Figure:
    """Three panels against d: how large a score gets, how large the largest weight, how much gradient goes through."""
    fig, axes = figure(1, 3, width=9.5, height=3.1)
    titles = ("variance of a score", "largest weight of a row", "gradient through softmax")
    labels = ("Var[S]", "max A, mean", "‖∂A/∂S‖, median")
    measures = (data.variance, data.largest, data.passed)
    for ax, title, label, lines in zip(axes, titles, labels, measures, strict=True):
        for line, marker in zip(lines, "so^", strict=True):
            ax.plot(data.d, line, marker=marker, markersize=5)
        ax.set(title=title, xscale="log", yscale="log", xlabel="width d", ylabel=label)
        ax.set_xticks(data.d, data.d)
        ax.minorticks_off()
    axes[1].set_ylim(0.01, 1.3)
    axes[1].set_yticks([1 / data.keys, 0.1, 0.5, 1], [f"1/{data.keys}", "0.1", "0.5", "1"])
    fig.legend(axes[0].lines, SCALES, loc="outside lower center", ncols=3)
    return fig
