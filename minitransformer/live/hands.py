"""A query that looks at another place through the hands of the sinusoids, some of which the reader takes away."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import shift_matrix, sinusoids

PLACES, WIDTH = 80, 16


def data() -> dict[str, Any]:
    """Eight hands, for eighty places."""
    return {"places": PLACES, "omega": (10_000.0 ** (-2 * np.arange(WIDTH // 2) / WIDTH)).tolist()}


def compute(data: dict[str, Any], hands: list[bool], query: int, shift: int) -> dict[str, Any]:
    """Products ⟨M_o π_i, π_j⟩ over some hands; the place j of the largest, that of the next, and how much lower the next is."""
    table, used = sinusoids(PLACES, WIDTH), np.repeat(hands, 2)
    products = (table * used) @ shift_matrix(WIDTH, shift) @ table[query]
    peak = int(products.argmax())
    others = np.where(np.arange(PLACES) == peak, -np.inf, products)
    return {
        "products": products.tolist(),
        "peak": peak,
        "other": int(others.round(9).argmax()),  # of two that are alike but for rounding, the first
        "margin": float(products[peak] - others.max()),
    }


def still(data: dict[str, Any]) -> Figure:
    """A query at 70 that looks one back: its fastest hand alone hardly tells place 25 from 69, and the three fastest do."""
    fig, axes = figure(2, 1, width=7, height=4.4, sharex=True)
    for ax, count, title in zip(axes, (1, 3), ("the fastest hand", "the three fastest"), strict=True):
        found = compute(data, [f < count for f in range(WIDTH // 2)], 70, -1)
        ax.plot(found["products"], color="#20639b", linewidth=1.8)
        ax.plot(found["peak"], count, "o", color="#20639b", markersize=11)
        other = found["other"]
        ax.plot(other, found["products"][other], "s", color="#c8553d", markersize=12, fillstyle="none", mew=3)
        ax.set(title=title, ylabel="product", ylim=(-1.3 * count, 1.3 * count), yticks=(-count, 0, count))
    axes[1].set_xlabel("key $j$")
    return fig
