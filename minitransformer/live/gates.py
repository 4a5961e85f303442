"""Gates that the reader sets, and the weight of every candidate in every state of a GRU."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.related import gru_coefficients


def data() -> dict[str, Any]:
    """Eight gates to begin with; the first three are those that the chapter does by hand."""
    return {"gates": [0.9, 0.5, 0.8, 0.9, 0.7, 0.3, 0.9, 0.8]}


def compute(data: dict[str, Any], gates: list[float], state: int) -> dict[str, Any]:
    """All weights; in one state the largest and whose it is, their sum, and how many steps old the state is on average."""
    C = gru_coefficients(np.array(gates)[:, None])[0][..., 0]
    row = C[state, : state + 1]
    return {
        "weights": C.tolist(),
        "candidate": int(row.argmax()),
        "largest": float(row.max()),
        "sum": float(row.sum()),
        "age": float(row @ np.arange(state, -1, -1)),
    }


def still(data: dict[str, Any]) -> Figure:
    """Above eight gates, below the weights that they make: the low gate of token 6 lets its candidate in and drops others."""
    fig, (above, below) = figure(2, 1, width=7, height=6.6, height_ratios=(1, 3), sharex=True)
    n, gates = len(data["gates"]), data["gates"]
    C = np.array(compute(data, gates, n)["weights"])[1:]
    above.bar(range(1, n + 1), gates, 0.6, color="#555555")
    above.set(ylabel="gate $u_j$", ylim=(0, 1), yticks=(0, 1))
    below.imshow(np.where(np.arange(n + 1) <= np.arange(1, n + 1)[:, None], C, np.nan), cmap="Blues", vmin=0, vmax=0.9)
    for (i, j), weight in np.ndenumerate(C):
        if weight >= 0.05:
            below.text(j, i, f"{weight:.1f}", ha="center", va="center", color="white" if weight > 0.65 else "black")
    names = ["$h_0$", *(f"$c_{j}$" for j in range(1, n + 1))]
    below.set(xticks=range(n + 1), xticklabels=names, yticks=range(n), yticklabels=[f"$h_{i + 1}$" for i in range(n)])
    below.set_aspect("auto")
    return fig
