"""Eight questions about eight pairs, by content and by place: which source of weights can answer them?"""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.synthesizers import KINDS, Trial
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class ContentOrPlace(NamedTuple):
    """By question and kind, the part of the values that each seed has right."""

    right: dict[str, dict[str, Array]]


def data() -> ContentOrPlace:
    """From the record, after 300 steps."""
    record = experiments.load("synthesizers")

    def of(**trial: str) -> Array:  # of those that were trained for longer, the chapter prints what they have right
        return np.array([result["right"] for result in record.where(steps=Trial.steps, **trial)])

    return ContentOrPlace({q: {kind: of(question=q, kind=kind) for kind in KINDS} for q in ("content", "place")})


def draw(data: ContentOrPlace) -> Figure:
    """A mark for each training, square where tokens are compared; the line is what a guess has right."""
    fig, axes = figure(1, 2, height=4.8, sharey=True)
    for ax, (question, kinds) in zip(axes, data.right.items(), strict=True):
        for row, (kind, parts) in enumerate(kinds.items()):
            marker, colour = ("s", "#c8553d") if "dot product" in kind else ("o", "#20639b")
            ax.scatter(parts, np.full(len(parts), row), s=130, marker=marker, color=colour, alpha=0.7, linewidth=0)
        ax.axvline(1 / 8, color="0.5", linewidth=1.5, linestyle="--")
        ax.set(title=f"asked by {question}", xlabel="fraction right", xlim=(0, 1.04))
        ax.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
        ax.set_yticks(range(len(kinds)), list(kinds))
        ax.grid(axis="y", color="0.9")
        ax.set_axisbelow(True)
    axes[0].invert_yaxis()
    return fig
