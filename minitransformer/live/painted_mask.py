"""A mask that the reader paints, and how far a token sees through it in several layers."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import Strided, Window
from minitransformer.attention.sparse.graph import Graph
from minitransformer.figures.style import figure

N = 16


def data() -> dict[str, Any]:
    """Masks to begin with, as rows of 0 and 1: query i sees key j."""
    patterns = {
        "window": Window(1).graph(N).A,
        "window, one global": Window(1, global_tokens=1).graph(N).A,
        "strided": Strided(4).graph(N, causal=True).A,
        "causal window": Window(2).graph(N, causal=True).A,
        "nothing": np.eye(N, dtype=bool),
    }
    return {"masks": {name: ["".join("01"[int(x)] for x in row) for row in A] for name, A in patterns.items()}}


def compute(data: dict[str, Any], rows: list[str], query: int, layers: int) -> dict[str, Any]:
    """How many pairs are seen; after so many layers, which keys reach the query; and layers until everyone reaches everyone."""
    A = np.array([[x == "1" for x in row] for row in rows])
    D = Graph(A).distances()
    reached = np.flatnonzero(D[query] <= layers)
    return {
        "pairs": int(A.sum()),
        "reached": reached.tolist(),
        "needed": int(D.max()) if np.isfinite(D).all() else None,
    }


def still(data: dict[str, Any]) -> Figure:
    """A window of three with one global token: dark is what one layer sees, pale what a second one adds, and that is all."""
    fig, axes = figure(1, 2, height=5.8)
    for ax, name in zip(axes, ("window", "window, one global"), strict=True):
        rows = data["masks"][name]
        A = np.array([[float(x) for x in row] for row in rows])
        D = Graph(A > 0).distances()
        ax.imshow(np.where(A > 0, 1.0, np.where(D <= 2, 0.45, 0.0)), cmap="Blues", vmin=0, vmax=1.2)
        ax.set(title=name, xlabel="key $j$", xticks=[0, 5, 10, 15], yticks=[0, 5, 10, 15])
    axes[0].set_ylabel("query $i$")
    return fig
