"""Absolute or relative positions, learned or made of waves: what small readers got right, from a record of many runs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.positions import GRID
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class WhichPosition(NamedTuple):
    """For each of the two tasks, kinds (absolute, relative) by forms: the fraction of right answers of every seed."""

    kinds: tuple[str, ...]
    forms: tuple[str, ...]
    right: dict[str, Array]  # (kinds, forms, seeds)


def data() -> WhichPosition:
    """The part of the record that compares absolute with relative positions."""
    record = experiments.load("positions")
    kinds, forms = (tuple(dict.fromkeys(key[k] for key in GRID)) for k in (0, 1))

    def right(task: str, name: str) -> list[float]:
        return [result["scores"][0] for result in record.where(task=task, positions=name)]

    found = {task: np.array([[right(task, GRID[k, f]) for f in forms] for k in kinds]) for task in ("order", "span")}
    return WhichPosition(kinds, forms, found)


def draw(data: WhichPosition) -> Figure:
    """Left: one answer for a sequence. Right: the ends of a span. A dot is a run, a bar the mean of its row."""
    fig, axes = figure(1, 2, height=6, sharey=True)
    titles = {"order": "which mark comes first?", "span": "where is the span?"}
    rows = [form.replace(" ", "\n") for _ in data.kinds for form in data.forms]
    places = np.arange(len(rows))
    for ax, (task, right) in zip(axes, data.right.items(), strict=True):
        for place, scores in zip(places, right.reshape(len(rows), -1), strict=True):
            beside = place + np.linspace(-0.18, 0.18, len(scores))
            ax.plot(scores, beside, "o", color="#20639b", markersize=9, alpha=0.75)
            ax.plot(scores.mean(), place, "|", color="0.1", markersize=34, markeredgewidth=3)
        ax.axhline(len(data.forms) - 0.5, color="0.75", linewidth=1.5)
        ax.set(title=titles[task], xlabel="fraction right", xlim=(-0.04, 1.04))
        ax.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
        ax.grid(axis="x", color="0.85")
        ax.set_axisbelow(True)
    axes[0].set(yticks=places, ylim=(len(rows) - 0.5, -0.5))
    axes[0].set_yticklabels(rows)
    for group, kind in enumerate(data.kinds):
        middle = (group + 0.5) * len(data.forms) - 0.5
        axes[0].text(-0.68, middle, kind, rotation=90, ha="center", va="center")
    return fig
