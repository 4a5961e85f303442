"""What an attention costs, and what it has learned: those that were run, at two lengths, and the front that no other passes."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.experiments.table import BOTH, table
from minitransformer.experiments.which_cost import LENGTHS
from minitransformer.figures.style import FAINT, figure, plain_ticks
from minitransformer.typing import Array

SHOWN = (LENGTHS[0], LENGTHS[-1])
TICKS = (0.001, 0.01, 0.1, 1, 10)


class Front(NamedTuple):
    """Kinds at one length, and the names of those on the front.

    times     over that of causal dense attention, with the way back
    quality   from 0, a bag of tokens, to 1, the best of all in every task
    """

    names: tuple[str, ...]
    causal: Array
    times: Array
    quality: Array
    front: tuple[str, ...]


class WhichFront(NamedTuple):
    """The front at each length, and the machines of the record."""

    at: dict[int, Front]
    made_on: str


def data() -> WhichFront:
    """What is on record, of the kinds for which there are both; each has the positions with which it learned most."""
    found = table().with_better_positions()
    at = {}
    for n in LENGTHS:
        rows = [row for row in found if found.ratio(row, n, BOTH) is not None and found.quality(row) is not None]
        unit = found.rows["softmax"].at(n, BOTH) or 1.0
        at[n] = Front(
            tuple(row.name for row in rows),
            np.array([row.part.causal != "never" for row in rows]),
            np.array([(row.at(n, BOTH) or 0.0) / unit for row in rows]),
            np.array([found.quality(row) for row in rows]),
            tuple(row.name for row in found.front(rows, n, BOTH)),
        )
    return WhichFront(at, found.made_on)


def draw(data: WhichFront) -> Figure:
    """A dot is a kind, an open one can't be causal. To the left is faster than dense attention, up has learned more; the stairs
    join the kinds that no other passes in both, which are named. Dense attention is the square.
    """
    fig, axes = figure(2, 1, height=11.5)
    for ax, n in zip(axes, SHOWN, strict=True):
        front = data.at[n]
        index = {name: k for k, name in enumerate(front.names)}
        for causal in (True, False):
            some = front.causal == causal
            ax.plot(
                front.times[some], front.quality[some], "o", color="#20639b", markersize=9, linestyle="",
                markerfacecolor="#20639b" if causal else "white", label="can be causal" if causal else "can't",
            )  # fmt: skip
        if "softmax" in index:
            k = index["softmax"]
            ax.plot(front.times[k], front.quality[k], "s", color="#c8553d", markersize=12, linestyle="", label="dense")
        steps = [index[name] for name in front.front]
        stairs = {"where": "post", "color": "0.35", "linewidth": 1.8, "linestyle": "-", "zorder": 0}
        ax.step(front.times[steps], front.quality[steps], **stairs)
        for k in steps:
            name, last = front.names[k].replace("-conv", "-\nconv"), k == steps[-1]
            above = last or front.names[k] == "linformer"  # it is hardly above the step before it
            place = {"xytext": (4 * above - 8, 7) if above else (-10, -4), "ha": "left" if last else "right"}
            place["va"] = "bottom" if above else "top"
            ax.annotate(name, (front.times[k], front.quality[k]), textcoords="offset points", linespacing=1.1, **place)
        ax.axvline(1, color=FAINT, linewidth=1.5, linestyle=":", zorder=0)
        left, right = 0.06 * front.times.min(), 1.6 * front.times.max()  # room for a name
        ax.set(
            xscale="log", title=f"$n$ = {n:,}", xlabel="time over that of causal dense attention", xlim=(left, right)
        )
        ax.set(ylabel="learned: 0 a bag, 1 the best", ylim=(0, 1), yticks=[0, 0.25, 0.5, 0.75, 1])
        plain_ticks(ax, x=[tick for tick in TICKS if left <= tick <= right])
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig
