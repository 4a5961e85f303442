"""A number for each offset: a table that shares numbers (T5), and formulas that fall with the distance."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import t5_buckets
from minitransformer.positions.fire import relative_distance
from minitransformer.typing import Array

FAR = 60
THRESHOLD = 24  # n₀ of FIRE
QUERIES = (24, 240)


class OffsetBias(NamedTuple):
    """Numbers by offset o = j − i.

    both       the offsets −60 … 60, and buckets, the number of T5's bucket of each
    behind     the offsets −60 … 0, and curves, what each formula adds to a score there
    """

    both: Array
    buckets: Array
    behind: Array
    curves: dict[str, Array]


def data() -> OffsetBias:
    """With λ = 1/16 for ALiBi, and numbers that make the curves easy to tell apart."""
    both, behind = np.arange(-FAR, FAR + 1), np.arange(-FAR, 1)
    t = -behind
    curves = {
        "ALiBi, $λ = 1/16$": -t / 16,
        "KERPLE, $−\\ln(1 + t)$": -np.log1p(t),
        "KERPLE, $−t^{1/4}$": -(t**0.25),
    }
    z, _ = relative_distance(np.ones(1), np.full(1, float(THRESHOLD)), max(QUERIES) + 1, max(QUERIES) + 1)
    for i in QUERIES:
        row = -4 * z[i, max(i - FAR, 0) : i + 1]
        curves[f"FIRE, query at {i}"] = np.concatenate([np.full(len(behind) - len(row), np.nan), row])
    return OffsetBias(both, t5_buckets(both, causal=False), behind, curves)


def draw(data: OffsetBias) -> Figure:
    """Above which number of its table T5 uses; below what formulas add."""
    fig, (above, below) = figure(2, 1, width=10, height=11)
    above.step(data.both, data.buckets, where="mid", color="#20639b", linestyle="-")
    above.set(xlabel="offset $o = j − i$", ylabel="number of the bucket", title="T5: which number of the table")
    for (name, curve), width in zip(data.curves.items(), (2.6, 2.6, 2.6, 4, 4), strict=True):
        below.plot(data.behind, curve, label=name, linewidth=width)
    below.set(
        xlabel="offset $o = j − i$", ylabel="added to the score", title="formulas: what is added", ylim=(-7.6, 0.2)
    )
    below.legend(loc="lower right")
    return fig
