"""Time and memory of a training step against the length of a text: dense attention, with and without matrices, and a window."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.long_step import GLOBAL
from minitransformer.figures.style import figure
from minitransformer.typing import Array

LABELS = {
    ("softmax", True): "dense, every matrix formed",
    ("softmax", False): "dense, in tiles",
    (GLOBAL, False): "window and 16 global words",
}


class LongStep(NamedTuple):
    """For each label: lengths, seconds, bytes."""

    n: dict[str, Array]
    seconds: dict[str, Array]
    bytes: dict[str, Array]


def data() -> LongStep:
    """From the record, in the order of the lengths."""
    found: dict[str, list[tuple[int, float, int]]] = {label: [] for label in LABELS.values()}
    for trial, result in experiments.load("long_step"):
        found[LABELS[trial.attention, trial.matrices]].append((trial.n, result["seconds"], result["bytes"]))
    columns = {label: np.array(sorted(rows)).T for label, rows in found.items()}
    return LongStep(*({label: column[k] for label, column in columns.items()} for k in range(3)))


def draw(data: LongStep) -> Figure:
    """Above: seconds. Below: bytes."""
    fig, (time, memory) = figure(2, 1, height=9, sharex=True)
    for (label, n), marker in zip(data.n.items(), "^os", strict=True):
        time.plot(n, data.seconds[label], marker=marker, markersize=8, label=label)
        hollow = label == "dense, in tiles"  # so that it is seen where another line lies upon it
        seen = {"markersize": 15, "fillstyle": "none"} if hollow else {"markersize": 8}
        memory.plot(n, data.bytes[label] / 2**30, marker=marker, **seen)
    time.set(ylabel="seconds for a step")
    memory.set(xlabel="bytes of the text, $n$", ylabel="GiB held at once")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(ticks := [2**k for k in (10, 12, 14, 16)], [f"{n // 1024}k" for n in ticks])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    fig.legend(loc="outside lower center", ncols=2)
    return fig
