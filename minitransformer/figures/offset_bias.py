"""A number for each offset: a table that shares numbers (T5), and formulas that fall with the distance."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.measurements.position_scores import THRESHOLD
from minitransformer.positions import t5_buckets
from minitransformer.positions.fire import relative_distance
from minitransformer.typing import Array

FAR = 45
QUERIES = (24, 240)


class OffsetBias(NamedTuple):
    """Numbers by offset o = j − i.

    both       the offsets −45 … 45, and buckets, the number of T5's bucket of each
    behind     the offsets −45 … 0, and curves, what each formula adds to a score there
    """

    both: Array
    buckets: Array
    behind: Array
    curves: dict[str, Array]


def data() -> OffsetBias:
    """With λ = 1/16 for ALiBi, and numbers that make the curves easy to tell apart."""
    both, behind = np.arange(-FAR, FAR + 1), np.arange(-FAR, 1)
    t = -behind
    curves = {"ALiBi, $λ = 1/16$": -t / 16, "KERPLE, $−\\ln(1 + t)$": -np.log1p(t), "KERPLE, $−t^{1/4}$": -(t**0.25)}
    z, _ = relative_distance(np.ones(1), np.full(1, float(THRESHOLD)), max(QUERIES) + 1, max(QUERIES) + 1)
    for i in QUERIES:
        row = -4 * z[i, max(i - FAR, 0) : i + 1]
        curves[f"FIRE, query at {i}"] = np.concatenate([np.full(len(behind) - len(row), np.nan), row])
    return OffsetBias(both, t5_buckets(both, causal=False), behind, curves)


LOOKS = (
    {"color": "#20639b", "linestyle": "-"},
    {"color": "#c8553d", "linestyle": "--"},
    {"color": "#3b8554", "linestyle": "-."},
    {"color": "#8a5a9e", "linestyle": ":", "linewidth": 4},
    {"color": "#8a5a9e", "linestyle": "-", "linewidth": 4},
)
LABELS: tuple[tuple[float, float, dict[str, str]], ...] = (  # where the name of each curve stands
    (-21.5, -1.25, {"ha": "right", "va": "bottom"}),
    (-38, -3.75, {"va": "top"}),
    (-27, -2.02, {"va": "bottom"}),
    (-16, -3.72, {"va": "top"}),
    (-34, -2.7, {"va": "top"}),
)


def draw(data: OffsetBias) -> Figure:
    """Above T5's buckets, the broader the farther away, orange behind and blue ahead; below what formulas add."""
    fig, (above, below) = figure(2, 1, height=8, gridspec_kw={"height_ratios": (1, 4.5)})
    fig.get_layout_engine().set(h_pad=0.12)
    _strip(above, data)
    for (name, curve), look, (x, y, side) in zip(data.curves.items(), LOOKS, LABELS, strict=True):
        below.plot(data.behind, curve, label=name, **look)
        end = f"\n(token 0 is at −{QUERIES[0]})" if np.isnan(curve[0]) else ""
        below.text(x, y, name + end, color=look["color"], **side)
    lowest = min(np.nanmin(curve) for curve in data.curves.values())
    below.set(xlabel="offset $o = j − i$", ylabel="added to the score", title="formulas: what is added")
    below.set(xlim=(-FAR - 0.5, 0.5), ylim=(lowest - 0.4, 0.1))
    return fig


def _strip(ax: Axes, data: OffsetBias) -> None:
    """A cell for each offset, in the colour of its bucket; a number where there is room for it."""
    half = data.buckets[data.both > 0].min() - 1
    for number in np.unique(data.buckets):
        cells = data.both[data.buckets == number]
        shades = mpl.colormaps["Blues" if number > half else "Oranges"]
        edges = cells[0] - 0.5, cells[-1] + 0.5
        ax.axvspan(*edges, facecolor=shades(0.75 - 0.6 * (number % half) / half), edgecolor="white", linewidth=1.5)
        if len(cells) > 1:
            ax.text(np.mean(edges), 0.47, number, ha="center", va="center")
    near = [number for number in np.unique(data.buckets) if (data.buckets == number).sum() == 1]
    left, right = max(number for number in near if number < half), max(near)
    ends = -left - 0.4, left + 0.4
    ax.plot(np.repeat(ends, 2), (1.04, 1.14, 1.14, 1.04), color="0.3", linestyle="-", linewidth=1.5, clip_on=False)
    ax.text(0, 1.24, f"{left} … 1, 0, {half + 1} … {right}: one offset each", ha="center", va="bottom")
    ax.set(xlim=(-FAR - 0.5, FAR + 0.5), ylim=(0, 1), yticks=[], xlabel="offset $o = j − i$")
    ax.set_title("T5: the bucket of each offset", pad=46)
    ax.spines[:].set_visible(False)
