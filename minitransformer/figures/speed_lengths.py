"""Time and memory against the length: dense attention, two patterns, and kernel attention."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.speed import LABELS, Speed, data
from minitransformer.figures.style import figure

__all__ = ["LABELS", "data", "draw"]


def draw(data: Speed) -> Figure:
    """Left: time against n, with a circle where each begins to pay. Right: what the way back remembers."""
    fig, (time, memory) = figure(1, 2, width=13, height=7)
    markers = dict(zip(LABELS, "vosD^.", strict=True))
    for name, label in LABELS.items():
        style = {"marker": markers[name], "markersize": 7}
        if name == "copy":
            style |= {"linestyle": ":", "color": "0.35"}
        seconds = np.median(data.seconds[name], 1)
        time.plot(data.n[: len(seconds)], 1e3 * seconds, label=label, **style)
        if name == "dense":  # seen where others lie upon it
            style |= {"markersize": 15, "fillstyle": "none"}
        if name != "copy":  # which has no way back
            memory.plot(data.n[: len(data.bytes[name])], data.bytes[name] / 2**20, **style)
    dense = np.log(np.median(data.seconds["dense"], 1))
    for name in ("window", "bigbird", "kernel"):
        where = np.median(data.crossovers(name))
        if data.n[0] < where < data.n[-1]:
            height = 1e3 * np.exp(np.interp(np.log(where), np.log(data.n), dense))
            time.plot(where, height, "o", markersize=22, fillstyle="none", color="0.2", zorder=5)
    time.set(ylabel="ms for a forward pass")
    memory.set(ylabel="MiB for the way back")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="n")
        axes.set_xticks(data.n[::2], [f"{n}" if n < 1024 else f"{n // 1024}k" for n in data.n[::2]])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    fig.legend(loc="outside lower center", ncols=3)
    return fig
