"""From which length on each attention takes less time than dense attention does, on one core of the machine of the record."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.experiments.table import BOTH, FORWARDS, table
from minitransformer.experiments.which_cost import LENGTHS
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class WhichPays(NamedTuple):
    """Kinds in the order of the second column: (kinds, 2) lengths, forwards and with the way back; NaN where it never pays.

    until   up to which length a kind was run
    """

    names: tuple[str, ...]
    pays: Array
    until: Array
    made_on: str


def data() -> WhichPays:
    """What is on record, but for dense attention itself."""
    found = table()
    rows = [row for row in found if row.cost and row.name != "softmax"]
    pays = np.array([[found.pays_from(row, what) or np.nan for what in (FORWARDS, BOTH)] for row in rows])
    until = np.array([max(row.cost) for row in rows])
    order = np.lexsort((np.nan_to_num(pays[:, 0], nan=np.inf), np.nan_to_num(pays[:, 1], nan=np.inf)))
    return WhichPays(tuple(rows[k].name for k in order), pays[order], until[order], found.made_on)


def draw(data: WhichPays) -> Figure:
    """Half of the kinds left, half right. A bar begins where a pass with its way back takes less time than that of dense
    attention, the stroke stands where a forward pass alone does; a grey cross, at the longest text that was run: with its way
    back it never did.
    """
    fig, axes = figure(1, 2, width=13, height=9.5)
    half = (len(data.names) + 1) // 2
    for ax, some in zip(axes, (slice(0, half), slice(half, None)), strict=True):
        names, pays, until = data.names[some], data.pays[some], data.until[some]
        for place, ((forwards, both), end) in enumerate(zip(pays, until, strict=True)):
            if np.isnan(both):
                ax.plot(end, place, "x", color="0.55", markersize=11, markeredgewidth=2.5)
            else:
                ax.plot([both, end], [place, place], "-", color="#20639b", linewidth=7, solid_capstyle="butt")
                ax.plot(both, place, "o", color="#20639b", markersize=11)
            if not np.isnan(forwards):
                ax.plot(forwards, place, "|", color="#c8553d", markersize=22, markeredgewidth=3.5)
        ax.set(xscale="log", xlabel="tokens $n$", xlim=(LENGTHS[0] / 1.5, LENGTHS[-1] * 1.5), ylim=(half - 0.4, -0.6))
        ax.set_xticks(LENGTHS, ["1k", "4k", "16k", "64k"])
        ax.set_yticks(range(len(names)), names)
        ax.grid(axis="x", color="0.85")
        ax.set_axisbelow(True)
        ax.minorticks_off()
    return fig
