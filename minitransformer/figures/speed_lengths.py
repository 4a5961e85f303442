"""Time and memory against the length: dense attention, two patterns, and kernel attention."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.speed import LABELS, Speed, data
from minitransformer.figures.style import figure

__all__ = ["LABELS", "data", "draw"]

APART = {"window": 0.68, "bigbird": 1.4}  # names of lines that end together, above and below their ends
SAME = ("window", "bigbird")  # whose memory is that of dense attention


def draw(data: Speed) -> Figure:
    """Above: time against n, with a circle where each begins to pay. Below: what the backward pass remembers; the line of dense
    attention is that of both patterns, too.
    """
    fig, (time, memory) = figure(2, 1, height=12.5)
    for (name, label), marker in zip(LABELS.items(), "vosD^.", strict=True):
        style = {"marker": marker, "markersize": 7}
        if name == "copy":
            style |= {"linestyle": ":", "color": "0.35"}
        ms = 1e3 * np.median(data.seconds[name], 1)
        (line,) = time.plot(data.n[: len(ms)], ms, **style)
        told = {"color": line.get_color(), "va": "center", "linespacing": 1.1}
        short, end = label.removesuffix(" attention").replace(", ", ",\n"), 1.3 * data.n[-1]
        middle = (data.n[0], 60) if name == "definition" else None  # where its lines end
        time.text(*(middle or (end, ms[-1] * APART.get(name, 1))), short, **told)
        if name in (*SAME, "copy"):  # a copy has no backward pass
            continue
        MiB = data.bytes[name] / 2**20
        memory.plot(data.n[: len(MiB)], MiB, linestyle=line.get_linestyle(), **style | {"color": line.get_color()})
        if name == "dense":
            memory.text(end, 1.15 * MiB[-1], "dense,\nwindow,\nBigBird", **told | {"va": "top"})
        else:
            memory.text(*(middle or (end, MiB[-1])), short, **told)
    dense = np.log(np.median(data.seconds["dense"], 1))
    for name in ("window", "bigbird", "kernel"):
        where = np.median(data.crossovers(name))
        if data.n[0] < where < data.n[-1]:
            height = 1e3 * np.exp(np.interp(np.log(where), np.log(data.n), dense))
            time.plot(where, height, "o", markersize=20, fillstyle="none", color="0.2", zorder=5)
    time.set_title("ms for a forward pass")
    memory.set_title("MiB for the backward pass")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="tokens $n$")
        axes.set_xticks(data.n[::2], [f"{n}" if n < 1024 else f"{n // 1024}k" for n in data.n[::2]])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    return fig
