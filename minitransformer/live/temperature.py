"""One query and twelve keys: what the division by √d and a temperature make of the same scores."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.functional import softmax
from minitransformer.measurements.rows import in_use

WIDTHS, KEYS = (4, 16, 64, 256), 12


def data() -> dict[str, Any]:
    """Products of a query and twelve keys with entries of variance one, for each width."""
    rng = np.random.default_rng(72)
    draws = {d: rng.standard_normal((KEYS + 1, d)) for d in WIDTHS}
    return {"scores": {str(d): (X[1:] @ X[0]).round(6).tolist() for d, X in draws.items()}}


def compute(data: dict[str, Any], width: int, divide: bool, temperature: float) -> dict[str, Any]:
    """Weights; the largest; by entropy, how many keys are seen; and 1 − Σ A², the sum of the diagonal of ∂A/∂S."""
    S = np.array(data["scores"][str(width)]) / (np.sqrt(width) if divide else 1.0) / temperature
    A, _ = softmax(S)
    return {
        "largest": float(A.max()),
        "seen": float(in_use(A)),
        "passes": float(1 - (A * A).sum()),
        "weights": A.tolist(),
    }


def still(data: dict[str, Any]) -> Figure:
    """Twelve weights for d = 64: left as the products come, one key has nearly all; right divided by √d, many share."""
    fig, axes = figure(1, 2, height=4, sharey=True)
    for ax, divide in zip(axes, (False, True), strict=True):
        weights = compute(data, 64, divide, 1.0)["weights"]
        ax.bar(range(1, KEYS + 1), weights, color="#20639b" if divide else "#c8553d")
        ax.axhline(1 / KEYS, color="0.4", linewidth=1.5, linestyle=":")
        ax.set(title="divided by √d" if divide else "as they come", xlabel="key", ylim=(0, 1))
    axes[0].set_ylabel("weight, d = 64")
    return fig
