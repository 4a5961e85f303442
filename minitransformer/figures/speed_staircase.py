"""How fast each stair of chapter 17 is, under what its roof would allow."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.speed import Speed, data, stairs
from minitransformer.figures.style import FAINT, figure, plain_ticks

__all__ = ["data", "digits", "draw", "times"]


def draw(data: Speed) -> Figure:
    """A row for each stair: name, a dot on a scale of rates, a line for its roof, n, rate, and how many times the rate above."""
    fig, ax = figure(height=7)
    rates, most = np.array([data.rate(name) for name in data.rates]), max(data.peak.values())
    spread = np.abs([np.percentile(runs, (25, 75)) for runs in data.rates.values()] - rates[:, None]).T
    places, roofs = np.arange(len(rates)), [data.roof_of(name) for name in data.rates]
    least = rates.min() / 6
    ax.hlines(places, rates, roofs, color=FAINT, linewidth=2)
    ax.plot(roofs, places, "|", color="0.35", markersize=18, markeredgewidth=2.5, linestyle="none")
    ax.errorbar(rates, places, xerr=spread, fmt="o", color="#20639b", ecolor="0.1", markersize=12, linestyle="none")
    ax.text(0.8 * roofs[0], -0.2, "its roof", ha="right", va="bottom")
    lengths = [str(stairs()[name].n) for name in data.rates]
    columns = {20 * most: ["n", *lengths], 700 * most: ["GFLOP/s", *map(digits, rates)]}
    columns[14000 * most] = ["times", "", *(f"× {times(ratio)}" for ratio in rates[1:] / rates[:-1])]
    for x, column in columns.items():
        for place, text in enumerate(column):
            ax.text(x, place - 1, text, ha="right", va="center", weight="normal" if place else "bold")
    first, *others = data.rates
    ax.text(least, -0.2, first, va="bottom")  # its dot stands where other rows have their names
    for place, name in enumerate(others, 1):
        ax.text(least, place, name, va="center")
    ax.set(yticks=(), ylim=(len(rates) - 0.5, -1.4))
    ax.set(xscale="log", xlabel="GFLOP/s", xlim=(least, 14000 * most))
    plain_ticks(ax, x=[0.001, 0.01, 0.1, 1, 10, 100])
    ax.xaxis.set_label_coords(0.27, -0.08)
    ax.spines["left"].set_visible(False)
    ax.spines["bottom"].set_bounds(least, most)
    return fig


def digits(rate: float) -> str:
    """A rate with as many places as say something."""
    return f"{rate:.0f}" if rate >= 9.5 else f"{rate:.1g}"


def times(ratio: float) -> str:
    """A ratio, with one place where it is small."""
    return f"{ratio:.0f}" if ratio >= 9.95 else f"{ratio:.1f}"
