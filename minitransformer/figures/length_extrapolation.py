"""Trained on short sequences, tried on longer ones: thirteen encodings, and none, on three tasks, from a record of runs."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.positions import LENGTHS, LONGER
from minitransformer.figures.style import figure, merged
from minitransformer.typing import Array

TASKS = ("text", "copy", "induction")
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
        found = [result["scores"] for result in record.where(task=task, positions=name)]
        return [[NO_SCORE if score is None else score for score in scores] for scores in found]

    scores = {task: np.array([rows(task, name) for name in LONGER]) for task in TASKS}
    return LengthExtrapolation(LONGER, {task: LENGTHS[task] for task in TASKS}, scores)


def draw(data: LengthExtrapolation) -> Figure:
    """A row for each encoding, the best on text first; above is text, below are copy and induction.

    Marks are means at a length, lines reach from worst to best seed.
    """
    fig, axes = figure(2, 2, height=13.8)
    panels = dict(zip(TASKS, (merged(fig, axes[0]), *axes[1]), strict=True))
    order = np.argsort([data.mean("text", name)[0] for name in data.names])
    names, places = [data.names[k] for k in order], np.arange(len(order))
    looks = (
        ("#7fa8cb", "o", "as in training"),
        ("#20639b", "s", "twice as long"),
        ("#0b2740", "D", "four times as long"),
    )
    for task, ax in panels.items():
        for k, (colour, marker, label) in enumerate(looks):
            scores, y = data.scores[task][order, :, k], places + 0.25 * (k - 1)
            ax.plot(scores.mean(1), y, marker, color=colour, markersize=9, linestyle="none", label=label)
            ax.hlines(y, scores.min(1), scores.max(1), color=colour, linewidth=2.5)
            ended = y[np.isnan(scores.mean(1))]
            ax.plot(np.full(len(ended), WORST[task]), ended, "x", color=colour, markersize=9, markeredgewidth=2.5)
        for place in places[::2]:
            ax.axhspan(place - 0.5, place + 0.5, color="0.955", zorder=0)
        ax.set(title=f"{task}, $n$ = {' / '.join(map(str, data.lengths[task]))}", ylim=(len(places) - 0.5, -0.5))
        ax.set_yticks(places, names)
    panels["induction"].tick_params(labelleft=False)  # the names of the panel beside it
    for task in ("copy", "induction"):
        panels[task].set(xlabel="fraction right:\nmore is better", xlim=(-0.17, 1.04), xticks=(0, 0.5, 1))
    text = panels["text"]
    text.set(xlabel="bits per byte: less is better", xlim=(1.7, 6.15), xticks=(2, 3, 4, 5))
    text.plot([], [], "x", color="0.2", markersize=9, markeredgewidth=2.5, label="no score: its table has ended")
    text.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
    return fig
