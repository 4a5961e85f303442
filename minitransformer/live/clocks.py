"""RoPE as clocks: each pair of channels of a query and of a key is a hand, turned by its position at a speed of its own."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions.rope import rotate

PAIRS, LONGEST = 4, 64


def data() -> dict[str, Any]:
    """A query and a key of eight channels whose score is largest when they stand at the same place."""
    angle, length = np.array([0.5, 1.2, 2.2, 4.0]), np.array([1.0, 1.1, 0.9, 1.0])
    q = (length * np.array([np.cos(angle), np.sin(angle)])).T.reshape(-1)
    return {"q": q.round(6).tolist(), "k": q.round(6).tolist(), "longest": LONGEST}


def compute(data: dict[str, Any], i: int, j: int, base: float) -> dict[str, Any]:
    """The score of a query at i and a key at j, and by how much each pair of hands is apart, in radians."""
    d, at = 2 * PAIRS, np.array([i, j])[:, None]
    X = np.array([data["q"], data["k"]])
    turned, _ = rotate(X, angles=at * base ** (-2 * np.arange(PAIRS) / d))
    q, k = turned.reshape(2, PAIRS, 2)
    apart = np.arctan2(k[:, 1] * q[:, 0] - k[:, 0] * q[:, 1], (q * k).sum(1))
    return {"score": float((q * k).sum() / np.sqrt(d)), "apart": apart.tolist()}


def still(data: dict[str, Any]) -> Figure:
    """The query, a solid line, stands at 12 and the key, dashed, at 7: each pair is apart by five times its own speed."""
    fig, axes = figure(1, PAIRS, width=10, height=3)
    apart, turn = compute(data, 12, 7, 10_000)["apart"], np.linspace(0, 2 * np.pi, 100)
    hands, _ = rotate(np.array([data["q"]]), angles=12 * 10_000.0 ** (-np.arange(PAIRS)[None] / PAIRS))
    for f, ax in enumerate(axes):
        of_query = np.arctan2(hands[0, 2 * f + 1], hands[0, 2 * f])
        ax.plot(np.cos(turn), np.sin(turn), color="0.6", linewidth=1.5, linestyle="-")
        for angle, colour, style in ((of_query, "#20639b", "-"), (of_query + apart[f], "#c8553d", "--")):
            ax.plot([0, 0.92 * np.cos(angle)], [0, 0.92 * np.sin(angle)], color=colour, linestyle=style, linewidth=4)
        ax.set(aspect="equal", title=f"{np.degrees(apart[f]).round() + 0.0:.0f}° apart".replace("-", "−"))
        ax.set_axis_off()
    return fig
