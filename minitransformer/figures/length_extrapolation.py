"""Trained on short sequences, tried on longer ones: every encoding on three tasks, from the record of many trainings."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.figures.which_position import EXTRAPOLATION, SEEDS, load
from minitransformer.training.position_study import LENGTHS
from minitransformer.typing import Array

TASKS = ("copy", "induction", "text")
NO_SCORE = np.nan  # a table of positions has ended


class LengthExtrapolation(NamedTuple):
    """Names of the encodings; for each task its lengths, and the scores (names, seeds, lengths), NaN where none is."""

    names: tuple[str, ...]
    lengths: dict[str, tuple[int, ...]]
    scores: dict[str, Array]

    def mean(self, task: str, name: str) -> Array:
        """Mean over the seeds, at each length."""
        return self.scores[task][self.names.index(name)].mean(0)


def data() -> LengthExtrapolation:
    """The part of the record that has several lengths."""
    trials = load()["trials"]

    def rows(task: str, name: str) -> list[list[float]]:
        return [
            [NO_SCORE if score is None else score for score in t.scores.values()]
            for t in trials
            if t[:2] == (task, name) and t.seed in SEEDS[task]
        ]

    return LengthExtrapolation(
        EXTRAPOLATION,
        {task: LENGTHS[task] for task in TASKS},
        {task: np.array([rows(task, name) for name in EXTRAPOLATION]) for task in TASKS},
    )


def draw(data: LengthExtrapolation) -> Figure:
    """A row for each encoding; from left to right the trained length, twice and four times that. Dots are trainings."""
    fig, axes = figure(1, 3, width=9.5, height=5.4, sharey=True)
    places = np.arange(len(data.names))
    colours = ("#9fb8cf", "#20639b", "#0b2740")
    markers = ("o", "s", "D")
    titles = {"copy": "copy", "induction": "induction", "text": "text"}
    for ax, task in zip(axes, TASKS, strict=True):
        for k, (length, colour, marker) in enumerate(zip(data.lengths[task], colours, markers, strict=True)):
            scores = data.scores[task][..., k]
            y = places + 0.24 * (k - 1)
            mean = scores.mean(1)
            ax.plot(mean, y, marker, color=colour, markersize=5, linestyle="none", label=f"n = {length}")
            ax.hlines(y, scores.min(1), scores.max(1), color=colour, linewidth=1.4)
            for place in places[np.isnan(mean)]:
                ax.text(0.02, y[place], "×", color=colour, fontsize=9, va="center", transform=ax.get_yaxis_transform())
        for place in places[::2]:
            ax.axhspan(place - 0.5, place + 0.5, color="0.955", zorder=0)
        ax.set(title=titles[task], ylim=(len(places) - 0.5, -0.5))
        ax.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=3, handletextpad=0.1, columnspacing=0.8, fontsize=9
        )
    axes[0].set_yticks(places, data.names)
    for ax in axes[:2]:
        ax.set(xlabel="fraction of right answers", xlim=(-0.03, 1.03))
    axes[2].set(xlabel="bits per byte (less is better)")
    return fig
