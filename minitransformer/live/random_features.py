"""Attention from random features: the weights of one query as R directions estimate them, and the error against R."""

import base64
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.linear import performer_attention
from minitransformer.backend import backend
from minitransformer.figures.style import FAINT, figure, plain_ticks
from minitransformer.typing import Array

KINDS = ("positive", "hyperbolic", "trigonometric")
TOKENS, WIDTH, DIRECTIONS = 64, 16, 512
FEWER = 2 ** np.arange(3, 10)  # numbers of directions: 8, 16, …, 512


def data() -> dict[str, Any]:
    """Normal Q, K and V (3, n, d) and directions (512, d), in 32nds: a byte for each number."""
    rng = np.random.default_rng(101)
    heads, W = rng.standard_normal((3, TOKENS, WIDTH)), rng.standard_normal((DIRECTIONS, WIDTH))
    return {"d": WIDTH, "heads": packed(heads), "W": packed(W)}


def packed(X: Array) -> str:
    """The numbers of X as bytes, in 32nds."""
    return base64.b64encode(np.clip(np.rint(32 * X), -128, 127).astype(np.int8).tobytes()).decode()


def unpacked(text: str, *shape: int) -> Array:
    """The numbers that `packed` has made bytes of, in this shape."""
    return np.frombuffer(base64.b64decode(text), np.int8).reshape(shape) / 32


def compute(data: dict[str, Any], kind: str, R: int, size: float) -> dict[str, Any]:
    """The weights of the first query from the first R directions, those of softmax, and by how much Y is off for all queries.

    And the median of that over all 512/R draws of R directions, for R = 8, 16, …, 512. The average of all values, given to
    every query, is off by `average`.
    """
    d = data["d"]
    Q, K, V = unpacked(data["heads"], 3, -1, d) * np.array([size, size, 1])[:, None, None]
    W = unpacked(data["W"], -1, d)
    with backend("numpy"):
        Y, softmax = dot_product_attention(Q, K, V)
        _, one = performer_attention(Q, K, V, W=W[:R], kind=kind)  # type: ignore[arg-type]
        medians = []
        for rows in FEWER:
            draws = W.reshape(-1, rows, d)
            each = [np.broadcast_to(X, (len(draws), *X.shape)) for X in (Q, K, V)]
            found, _ = performer_attention(*each, W=draws, kind=kind)  # type: ignore[arg-type]
            medians.append(float(np.median(np.linalg.norm(found - Y, axis=(1, 2))) / np.linalg.norm(Y)))
        return {
            "exact": softmax.A[0].tolist(),
            "weights": one.A[0].tolist(),
            "negative": float((one.A < 0).mean()),
            "off": float(np.linalg.norm(one.A @ V - Y) / np.linalg.norm(Y)),
            "medians": medians,
            "average": float(np.linalg.norm(V.mean(0) - Y) / np.linalg.norm(Y)),
        }


def still(data: dict[str, Any]) -> Figure:
    """The median error by the number of directions: left for short queries and keys, right for usual ones; two kinds.

    The thick grey line is the average of all values, which needs no query.
    """
    fig, axes = figure(1, 2, width=8.5, height=4.2, sharey=True)
    for ax, size in zip(axes, (0.5, 1.0), strict=True):
        for kind, look in (("positive", "C0o-"), ("trigonometric", "C3D:")):  # as in `feature_error`
            found = compute(data, kind, FEWER[0], size)
            ax.plot(FEWER, found["medians"], look, markersize=8, label=kind)
        ax.axhline(found["average"], color=FAINT, linewidth=5, linestyle="-", zorder=0, label="average of values")
        ax.set(xscale="log", yscale="log", xlabel="directions $R$", title=f"deviation {size:g}", ylim=(0.02, 20))
        plain_ticks(ax, x=FEWER[::2], y=[0.1, 1, 10])
    axes[0].set_ylabel("relative error of Y")
    axes[0].legend(loc="upper right")
    return fig
