"""What learned tables look like: cosines of all pairs of rows, and of neighbours, where a break shows as a dip."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.learned_tables import BERT, SHORT, cosines
from minitransformer.figures.style import SIGNED, figure, minuses
from minitransformer.typing import Array


class LearnedTables(NamedTuple):
    """By name: cosines of pairs of rows (of the real table, means over 4 × 4); of rows i and i + 1; lengths of rows.

    marked   how many rows the short passages of our training reach; of the real table, how many they may have reached
    """

    cosines: dict[str, Array]
    neighbours: dict[str, Array]
    lengths: dict[str, Array]
    marked: dict[str, int]


def data() -> LearnedTables:
    """The real table and the two of the first seed, from the record."""
    record = {(trial.table, trial.seed): result for trial, result in experiments.load("learned_tables")}
    real = {name: np.array(numbers) for name, numbers in record[BERT, 0].items()}
    C, neighbours, lengths = {BERT: real["percent"] / 100}, {BERT: real["neighbours"]}, {BERT: real["lengths"]}
    for name in ("two phases", "long from the start"):
        table = np.array(record[name, 0]["table"])
        C[name], lengths[name] = cosines(table), np.linalg.norm(table, axis=1)
        neighbours[name] = np.diagonal(C[name], 1)
    return LearnedTables(C, neighbours, lengths, {BERT: 128, "two phases": SHORT, "long from the start": SHORT})


def draw(data: LearnedTables) -> Figure:
    """A row for each table. Left: cosines of pairs of rows. Right: those of neighbours."""
    count = len(data.cosines)
    fig, axes = figure(count, 2, width=10, height=4.3 * count, width_ratios=(1, 1.15))
    for (left, right), (name, C) in zip(axes, data.cosines.items(), strict=True):
        n, row = len(data.lengths[name]), data.marked[name]
        image = left.imshow(C, cmap=SIGNED, vmin=-1, vmax=1)
        minuses(left, C, 1, side=8)
        ticks = np.array([0, row, n]) * len(C) / n - 0.5
        left.set(title=name, ylabel="position $i$")
        left.set(xticks=ticks, xticklabels=(0, row, n), yticks=ticks, yticklabels=(0, row, n))
        right.plot(data.neighbours[name], "-", color="#20639b")
        right.axvline(row - 1, color="#c8553d", linewidth=2, linestyle="--", zorder=0)
        right.set(title=r"$\cos(\pi_i, \pi_{i+1})$", xlim=(0, n - 1), ylim=(-0.55, 1.05), xticks=(0, row, n))
    axes[-1, 0].set_xlabel("position $j$")
    axes[-1, 1].set_xlabel("position $i$")
    bar = fig.colorbar(image, ax=axes[:, 0], location="bottom", shrink=0.9, aspect=25, pad=0.02, ticks=(-1, 0, 1))
    bar.set_label(r"$\cos(\pi_i, \pi_j)$")
    return fig
