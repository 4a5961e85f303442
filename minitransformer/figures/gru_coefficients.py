"""What a trained GRU keeps of the past, drawn as an attention map, beside the maps of trained causal attention."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.gru_maps import TEXT
from minitransformer.figures.style import WEIGHTS, figure, outer_labels
from minitransformer.typing import Array


class Maps(NamedTuple):
    """Maps are rows i, columns j. Those of the GRU begin with h_0, in column 0, and with the row of h_1."""

    text: str
    coefficients: Array  # (2, n, n + 1): C_ij of two coordinates
    ages: Array  # (2,): mean age of what they hold, in bytes of held-out text
    attention: Array  # (2, n, n): A_ij of two heads, the one that looks nearest and the one that looks farthest
    distances: Array  # (2,): their mean i − j


def data(seed: int = 0) -> Maps:
    """The maps of one seed of the record `gru_maps`."""
    found = {trial.model: result for trial, result in experiments.load("gru_maps") if trial.seed == seed}
    gru, heads = found["GRU"], np.array(found["attention"]["A"])
    i = np.arange(len(TEXT))
    distances = (heads * (i[:, None] - i)).sum((1, 2)) / len(i)
    ends = [distances.argmin(), distances.argmax()]
    return Maps(TEXT, np.array(gru["C"]), np.array(gru["ages"])[gru["drawn"]], heads[ends], distances[ends])


def draw(data: Maps) -> Figure:
    """Above two coordinates of the GRU, below two heads; on the left short memory, on the right long."""
    fig, axes = figure(2, 2, width=10, height=10.5)
    letters = [c if c != " " else "·" for c in data.text]
    for ax, C, age in zip(axes[0], data.coefficients, data.ages, strict=True):
        _map(ax, C, ["0", *letters], letters)
        ax.set_title(f"GRU, mean age {age:.0f} bytes")
    for ax, A, distance in zip(axes[1], data.attention, data.distances, strict=True):
        picture = _map(ax, A, letters, letters)
        ax.set_title(f"head, mean distance {distance:.1f}")
    outer_labels(axes, "column $j$", "row $i$")
    fig.colorbar(picture, ax=axes, label="weight", location="bottom", shrink=0.6, aspect=30, pad=0.02)
    return fig


def _map(ax: Any, weights: Array, columns: list[str], rows: list[str]) -> Any:
    """Darker by the root of a weight, so that small ones are seen."""
    picture = ax.imshow(weights, norm=PowerNorm(0.5, 0, 1), cmap=WEIGHTS, aspect="auto")
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    return picture
