"""What becomes of softmax when a score is a sum of d products: without a scale, divided by √d, divided by d."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import scores
from minitransformer.figures.style import figure, plain_ticks
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
    """Against d: how large the largest weight of a row gets, and how much gradient goes through softmax."""
    fig, (left, right) = figure(1, 2, height=5.2)
    for ax, lines in ((left, data.largest), (right, data.passed)):
        for line, marker in zip(lines, "so^", strict=True):
            ax.plot(data.d, line, marker=marker, markersize=9)
        ax.set(xscale="log", yscale="log", xlabel="width $d$")
        plain_ticks(ax, x=data.d)
    left.set(title="largest weight of a row", ylabel="mean of 500 rows", ylim=(0.012, 1.3))
    left.set_yticks([1 / data.keys, 0.1, 0.5, 1], [f"1/{data.keys}", "0.1", "0.5", "1"])
    right.set(title="gradient through softmax", ylabel="‖∂A/∂S‖, median row")
    fig.legend(left.lines, SCALES, loc="outside lower center", ncols=3)
    return fig
