"""Two memories of the same size, one that adds what it is told and one that corrects itself, as keys and values arrive."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import delta_rule
from minitransformer.figures.style import figure
from minitransformer.measurements.rows import unit

WIDTH, PAIRS = 6, 12


def data() -> dict[str, Any]:
    """Twelve keys of length one in six dimensions, more than can be told apart, and their values."""
    rng = np.random.default_rng(1)
    K, V = rng.standard_normal((PAIRS, WIDTH)), rng.standard_normal((PAIRS, WIDTH))
    return {"K": unit(K).round(6).tolist(), "V": V.round(6).tolist()}


def compute(data: dict[str, Any], written: int, beta: float) -> dict[str, Any]:
    """Both states, and for each key so far how far what is read lies from its value, ‖k_jᵀ S − v_j‖."""
    K, V = (np.array(data[name])[:written] for name in "KV")
    added = np.einsum("jr,jv->rv", K, V)
    _, corrected = delta_rule(K, K, V, np.full(written, beta), np.zeros((WIDTH, WIDTH)))[0]
    states = {"sums": added, "delta": corrected}
    wrong = {f"{rule}_wrong": np.linalg.norm(K @ S - V, axis=1).tolist() for rule, S in states.items()}
    return {rule: S.tolist() for rule, S in states.items()} | wrong


def still(data: dict[str, Any]) -> Figure:
    """How far what is read lies from what was written, key by key, after twelve: the last that the delta rule wrote is right."""
    fig, ax = figure(height=4)
    found, j = compute(data, PAIRS, 1.0), np.arange(1, PAIRS + 1)
    hatched = {"color": "#c8553d", "hatch": "//", "edgecolor": "white"}
    ax.bar(j - 0.2, found["sums_wrong"], 0.38, label="sums", color="#20639b")
    ax.bar(j + 0.2, found["delta_wrong"], 0.38, label="delta rule, β = 1", **hatched)
    ax.set(xlabel="pair that was written", ylabel="error of reading", xticks=j)
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.2), ncols=2)
    return fig
