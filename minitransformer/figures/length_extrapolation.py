"""Trained on short sequences, tried on longer ones: thirteen encodings, and none, on three tasks, from a record of trainings."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.positions import LENGTHS, LONGER
from minitransformer.figures.style import figure
from minitransformer.typing import Array

TASKS = ("copy", "induction", "text")
NO_SCORE = np.nan  # a table of positions has ended
WORST = {"copy": -0.1, "induction": -0.1, "text": 5.9}  # beyond every score, at the bad end: where "no score" is drawn


class LengthExtrapolation(NamedTuple):
    """Names of the encodings; for each task its lengths, and the scores (names, seeds, lengths), NaN where none is."""

    names: tuple[str, ...]
    lengths: dict[str, tuple[int, ...]]
    scores: dict[str, Array]

    def of(self, task: str, name: str) -> Array:
        """The scores of one encoding, (seeds, lengths)."""
        return self.scores[task][self.names.index(name)]

    def mean(self, task: str, name: str) -> Array:
        """Mean over the seeds, at each length."""
        return self.of(task, name).mean(0)


def data() -> LengthExtrapolation:
    """The part of the record that has several lengths."""
    record = experiments.load("positions")

    def rows(task: str, name: str) -> list[list[float]]:
        return [
            [NO_SCORE if score is None else score for score in result["scores"]]
            for trial, result in record
            if (trial.task, trial.positions) == (task, name)
        ]

    scores = {task: np.array([rows(task, name) for name in LONGER]) for task in TASKS}
    return LengthExtrapolation(LONGER, {task: LENGTHS[task] for task in TASKS}, scores)


def draw(data: LengthExtrapolation) -> Figure:
    """A row for each encoding, the best on text first. Marks are means at a length, lines reach from worst to best seed."""
    fig, axes = figure(2, 2, width=12, height=15, sharey=True)
    order = np.argsort([data.mean("text", name)[0] for name in data.names])
    places = np.arange(len(order))
    looks = (
        ("#7fa8cb", "o", "as in training"),
        ("#20639b", "s", "twice as long"),
        ("#0b2740", "D", "four times as long"),
    )
    for ax, task in zip(axes.flat, TASKS, strict=False):
        for k, (colour, marker, label) in enumerate(looks):
            scores, y = data.scores[task][order, :, k], places + 0.25 * (k - 1)
            ax.plot(scores.mean(1), y, marker, color=colour, markersize=9, linestyle="none", label=label)
            ax.hlines(y, scores.min(1), scores.max(1), color=colour, linewidth=2.5)
            ended = y[np.isnan(scores.mean(1))]
            ax.plot(np.full(len(ended), WORST[task]), ended, "x", color=colour, markersize=9, markeredgewidth=2.5)
        for place in places[::2]:
            ax.axhspan(place - 0.5, place + 0.5, color="0.955", zorder=0)
        ax.set(title=f"{task}: {' / '.join(map(str, data.lengths[task]))}", ylim=(len(places) - 0.5, -0.5))
    axes[0, 0].set_yticks(places, [data.names[k] for k in order])
    for ax in axes[0]:
        ax.set(xlabel="fraction right", xlim=(-0.17, 1.04), xticks=(0, 0.5, 1))
    axes[1, 0].set(xlabel="bits per byte: left is better", xlim=(1.7, 6.15), xticks=(2, 3, 4, 5))
    handles, labels = axes[1, 0].get_legend_handles_labels()
    cross = axes[1, 0].plot([], [], "x", color="0.2", markersize=9, markeredgewidth=2.5, linestyle="none")
    axes[1, 1].axis("off")
    axes[1, 1].legend([*handles, *cross], [*labels, "no score: its table has ended"], loc="center", labelspacing=0.8)
    return fig
