"""Time against what was learned, of every attention on record: at a length, for the tasks that count, causal or not."""

from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from minitransformer.experiments import which
from minitransformer.experiments.table import BOTH, Row, Table, can, table
from minitransformer.figures.style import figure, plain_ticks

ABOVE = (0, 8), "center", "bottom"
PLACES = {  # of the names beside their dots, in points; that of the dynamic convolution by the task
    "lightweight-convolution": ((-8, 0), "right", "center"),
    "recall": ((0, -8), "left", "top"),
    "text": ((-8, 24), "right", "bottom"),
    "span": ((6, 4), "left", "bottom"),
    "linear": ((-8, 0), "right", "center"),
    "delta": ((-2, 8), "right", "bottom"),
}


def data() -> dict[str, Any]:
    """Of each row whether it can be causal, times with the way back by length, why there is none at more, and scores with the
    positions with which it learned most.
    """
    found = table().with_better_positions()
    return {
        "tasks": list(found.tasks),
        "bag": {task: list(found.bag.scores[task]) for task in found.tasks},
        "rows": [
            {
                "name": row.name,
                "causal": row.part.causal != "never",
                "n": list(row.cost),
                "times": [measured.yardsticks[BOTH] for measured in row.cost.values()],
                "stopped": row.stopped,
                "scores": {task: list(row.scores[task]) for task in found.tasks if task in row.scores},
            }
            for row in found
        ],
    }


def compute(data: dict[str, Any], n: float, causal: bool, tasks: list[str]) -> dict[str, Any]:
    """Which rows are drawn, by number, with their times over that of dense attention, their quality, and that of the worst and
    the best of their seeds; those of the front, the fastest first; and those that have no time at this length, or no score.
    """
    found = _table(tasks)
    rows = list(found)
    able = [row for row in rows if can(row, causal=causal, decode=False)]
    drawn = [row for row in able if row.at(n, BOTH) is not None and found.quality(row) is not None]
    unit = found.rows["softmax"].at(n, BOTH) or 1.0
    by_seed = [[found.quality(_one_seed(row, k)) or 0.0 for k in range(which.SEEDS)] for row in drawn]
    return {
        "drawn": [rows.index(row) for row in drawn],
        "times": [(row.at(n, BOTH) or 0.0) / unit for row in drawn],
        "quality": [found.quality(row) for row in drawn],
        "worst": [min(each) for each in by_seed],
        "best": [max(each) for each in by_seed],
        "front": [rows.index(row) for row in found.front(drawn, n, BOTH)],
        "untimed": [rows.index(row) for row in able if row.at(n, BOTH) is None],
        "unscored": [rows.index(row) for row in able if row.at(n, BOTH) is not None and found.quality(row) is None],
    }


def _table(tasks: list[str]) -> Table:
    """The table of chapter 20, in which these tasks alone count."""
    found = table().with_better_positions()
    return replace(found, bag=replace(found.bag, scores={task: found.bag.scores[task] for task in tasks}))


def _one_seed(row: Row, k: int) -> Row:
    """The row of one training of each task."""
    return replace(row, scores={task: (seeds[k],) for task, seeds in row.scores.items()})


def still(data: dict[str, Any]) -> Figure:
    """At 16,384 tokens, left if recall is all that counts, right if the text is: a dot is a kind, the square dense attention,
    and the stairs join the kinds that no other passes in both, which are named.
    """
    fig, axes = figure(1, 2, width=10.4, height=4.7, sharey=True)
    names = [row["name"] for row in data["rows"]]
    for ax, task in zip(axes, ("recall", "text"), strict=True):
        found = compute(data, 16384, False, [task])
        where = {
            names[k]: (time, quality)
            for k, time, quality in zip(*map(found.get, ("drawn", "times", "quality")), strict=True)
        }
        front = [names[k] for k in found["front"]]
        ax.plot(*zip(*where.values(), strict=True), "o", color="#20639b", markersize=5, linestyle="")
        ax.step(*zip(*map(where.get, front), strict=True), where="post", color="0.35", linestyle="-", zorder=0)
        for name in front:
            beside, across, above = PLACES.get(task if name == "dynamic-convolution" else name, ABOVE)
            style = {"textcoords": "offset points", "ha": across, "va": above, "linespacing": 1.1}
            ax.annotate(name.replace("-", "\n"), where[name], beside, **style)
        ax.plot(*where["softmax"], "s", color="#c8553d", markersize=11)
        ax.text(2, where["softmax"][1], "dense", color="#c8553d", va="center")
        ax.set(xscale="log", title=f"{task} alone", xlim=(0.0003, 11), ylim=(-0.4, 1.35))
        plain_ticks(ax, x=[0.01, 0.1, 1])
        ax.set_yticks([0, 0.5, 1])
    axes[0].set_ylabel("learned")
    fig.supxlabel("time over that of causal dense attention", size=18)
    return fig
