"""What each kind of attention has learned with sinusoids at the embeddings, and with rotary positions, in four tasks."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.experiments.table import table
from minitransformer.figures.style import FAINT, figure
from minitransformer.typing import Array

RANGES = {"recall": (0, 1.05), "text": (2.3, 3.7), "digits": (0, 1), "listops": (0.45, 0.85)}
NAMED = {  # beside their dots, in points
    "recall": {"softmax": (12, -5), "linear": (10, -4), "routing": (10, -14), "differential": (-10, 8)},
    "text": {"softmax": (-10, 14), "span": (-10, 4), "delta": (8, -18), "linear": (10, -7), "hopfield": (10, -7)},
    "digits": {"softmax": (-6, -26), "linformer": (-10, 4), "performer": (0, 9), "delta": (9, -7)},
    "listops": {"softmax": (-12, 2)},
}


class WhichRope(NamedTuple):
    """By task: the kinds that were run with both, (kinds, 2) means, with sinusoids and with RoPE; and what is noise."""

    names: dict[str, tuple[str, ...]]
    means: dict[str, Array]
    noise: dict[str, float]


def data() -> WhichRope:
    """What is on record."""
    found = table()
    turned = found.with_rope()
    names, means = {}, {}
    for task in found.tasks:
        both = [name for name, row in found.rows.items() if turned.rows[name] != row and task in row.scores]
        names[task] = tuple(both)
        means[task] = np.array([[of.rows[name].mean(task) for of in (found, turned)] for name in both])
    return WhichRope(names, means, {task: found.noise(task) for task in found.tasks})


def draw(data: WhichRope) -> Figure:
    """A dot is a kind, the square dense attention. On the line both are equal; in the grey band the difference is noise. In the
    text less is better, and its axes run the other way, so that up and to the right is better everywhere.
    """
    fig, axes = figure(2, 2, height=11)
    for ax, (task, names) in zip(axes.flat, data.names.items(), strict=True):
        low, high = RANGES[task]
        ends, noise = np.array([low, high]), data.noise[task]
        ax.fill_between(ends, ends - noise, ends + noise, color="0.9", zorder=0)
        ax.plot(ends, ends, "-", color=FAINT, linewidth=1.5, zorder=1)
        places = dict(zip(names, data.means[task], strict=True))
        ax.plot(*data.means[task].T, "o", color="#20639b", markersize=8, linestyle="")
        ax.plot(*places["softmax"], "s", color="#c8553d", markersize=12)
        for name, (x, y) in NAMED[task].items():
            align = {"ha": "left" if x > 0 else "right", "color": "#c8553d" if name == "softmax" else "0.1"}
            said = "dense" if name == "softmax" else name
            ax.annotate(said, places[name], (x, y), textcoords="offset points", **align)
        ax.set(title=f"{task}, bits" if task == "text" else task, xlim=(low, high), ylim=(low, high))
        if task == "text":
            ax.invert_xaxis()
            ax.invert_yaxis()
    for ax in axes[1]:
        ax.set_xlabel("with sinusoids")
    for ax in axes[:, 0]:
        ax.set_ylabel("with RoPE")
    return fig
