"""What is left of attention when contents are averaged out: four small readers, on one scale."""

from typing import NamedTuple

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.position_readers import Properties
from minitransformer.figures.style import WEIGHTS, figure, outer_labels
from minitransformer.typing import Array


class PositionProperties(NamedTuple):
    """For each encoding: mean attention of one head, (n, n), of the first seed; and of all seeds what was measured."""

    A: dict[str, Array]
    properties: dict[str, list[Properties]]
    right: dict[str, list[float]]


def data() -> PositionProperties:
    """The record of the readers."""
    found = PositionProperties({}, {}, {})
    for trial, result in experiments.load("position_readers"):
        if trial.seed == 0:
            found.A[trial.positions] = np.array(result["attention"])
        measured = Properties(*(result[name] for name in Properties._fields))
        found.properties.setdefault(trial.positions, []).append(measured)
        found.right.setdefault(trial.positions, []).append(result["right"])
    return found


def draw(data: PositionProperties) -> Figure:
    """For each encoding, the head in which attention depends most on position; all in the same colours."""
    fig, axes = figure(2, 2, width=10, height=11, sharex=True, sharey=True)
    colours = LogNorm(2e-3, 0.4)
    for ax, (name, A) in zip(axes.flat, data.A.items(), strict=True):
        image = ax.imshow(A, cmap=WEIGHTS, norm=colours, extent=(0.5, len(A) + 0.5, len(A) + 0.5, 0.5))
        ax.set(title=name, xticks=(1, 12, 23), yticks=(1, 12, 23))
        ax.spines[["top", "right"]].set_visible(True)
    outer_labels(axes, "key $j$", "query $i$")
    bar = fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, pad=0.02, extend="min")
    bar.set_label("mean weight")
    bar.set_ticks([0.01, 0.1], labels=["0.01", "0.1"])
    return fig
