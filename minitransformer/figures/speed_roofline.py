"""The roofline of chapter 17: the definition stands under the part that memory makes, and the tiles do not."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.experiments.speed import LONG
from minitransformer.figures.speed import Speed, data, stairs
from minitransformer.figures.style import figure

__all__ = ["SHOWN", "data", "draw"]

SHOWN = ("NumPy, the definition", "NumPy in tiles", "exp2 by a polynomial", "the micro-kernel")


def draw(data: Speed) -> Figure:
    """Rate against intensity, under the roofs of one core and of all; an arrow from the definition to its tiles."""
    fig, ax = figure(height=5.6)
    x, (one, many) = np.geomspace(1, 30_000, 400), data.cores
    points = {name: (stairs()[name].intensity(LONG), data.rate(name)) for name in SHOWN}
    for number, line, name in ((many, "-", f"roof of {many} cores"), (one, "--", "roof of one core")):
        ax.plot(x, data.roof(number, x), color="0.35", linestyle=line)
        ax.annotate(name, (60, data.peak[number]), (0, 4), textcoords="offset points", va="bottom")
    for name, (where, rate) in points.items():
        ax.plot(where, rate, "s" if stairs()[name].all_cores else "o", color="#20639b", markersize=12)
        offset = (14, 0) if name != SHOWN[0] else (6, -24)
        ax.annotate(name, (where, rate), offset, textcoords="offset points", va="center")
    style = {"color": "#c8553d", "linewidth": 2.6, "shrinkA": 12, "shrinkB": 10, "mutation_scale": 22}
    ax.annotate("", points[SHOWN[1]], points[SHOWN[0]], arrowprops={"arrowstyle": "-|>", **style})
    ax.set(xscale="log", yscale="log", xlim=(x[0], x[-1]), ylim=(points[SHOWN[0]][1] / 4, 1.6 * data.peak[many]))
    ax.set_xticks([1, 10, 100, 1000, 10_000], ["1", "10", "100", "1,000", "10,000"])
    ax.set_yticks([10, 100], ["10", "100"])
    ax.set(xlabel="operations for each byte of main memory", ylabel="GFLOP/s")
    return fig
