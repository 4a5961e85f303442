"""Who works when, in a ring of causal attention: pairs of each worker in each step, for three ways to give out positions."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.ring import contiguous, efficiency, striped, work, zigzag
from minitransformer.figures.style import figure
from minitransformer.typing import Array

SCHEDULES = {"contiguous": contiguous, "striped": striped, "zigzag": zigzag}


class RingWork(NamedTuple):
    """For each schedule the pairs in each step of each worker, (W, W), and the part of the time in which they work."""

    pairs: dict[str, Array]
    efficiency: dict[str, float]


def data(n: int = 32, workers: int = 4) -> RingWork:
    """Pairs are counted, from the positions that each worker owns."""
    pairs = {name: work(schedule(n, workers)) for name, schedule in SCHEDULES.items()}
    return RingWork(pairs, {name: efficiency(p) for name, p in pairs.items()})


def draw(data: RingWork) -> Figure:
    """A panel for each schedule; a row is a step, a column a worker, and dark is busy.

    Lower right, how long each schedule takes, in pairs: the part in which a worker works on average is dark, the rest pale.
    """
    fig, axes = figure(2, 2, width=8.5, height=8.5)
    most = max(int(pairs.max()) for pairs in data.pairs.values())
    for ax, (name, pairs) in zip(axes.flat, data.pairs.items(), strict=False):
        ax.imshow(pairs, cmap="Blues", vmin=0, vmax=1.2 * most)
        for (t, r), count in np.ndenumerate(pairs):
            ax.text(r, t, str(count), ha="center", va="center", color="white" if count > 0.7 * most else "black")
        ax.set(xlabel="worker $k$", title=f"{name}: {data.efficiency[name]:.0%}")
        ax.set(xticks=range(len(pairs)), yticks=range(len(pairs)))
        ax.spines[["top", "right"]].set_visible(True)
    for ax in axes[:, 0]:
        ax.set_ylabel("step $t$")

    last = axes[1, 1]
    for row, (name, pairs) in enumerate(data.pairs.items()):
        long = pairs.max(1).sum()  # a step takes as long as its slowest worker
        last.barh(row, long, height=0.7, color="#c6dbef")
        last.barh(row, pairs.mean(1).sum(), height=0.7, color="#20639b")
        last.text(6, row, name, va="center", color="white")
        last.text(long + 6, row, str(long), va="center")
    last.set(title="how long it takes", ylim=(2.6, -0.6), yticks=())
    last.set(xlabel="pairs, one after another", xlim=(0, 290), xticks=(0, 100, 200))
    return fig
