"""From which length on each attention takes less time than dense attention does, on one core, by the make of the processor."""

import textwrap
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.experiments.table import BOTH, FORWARDS, table
from minitransformer.experiments.which_cost import LENGTHS
from minitransformer.figures.style import figure
from minitransformer.typing import Array

OTHER = "zen-5"  # the make of processor that has the rings
RING = {"color": "0.1", "markerfacecolor": "none", "markersize": 13, "markeredgewidth": 2.2}
ABOUT = 1.1  # times the shortest text: what begins before is within the noise of it


class WhichPays(NamedTuple):
    """Kinds in the order of the second column: (kinds, 2) lengths, forwards and with the way back; NaN where it never pays.

    until   up to which length a kind was run
    other   (kinds,) lengths with the way back on the other make
    """

    names: tuple[str, ...]
    pays: Array
    until: Array
    other: Array


def data() -> WhichPays:
    """What is on record, but for dense attention itself."""
    found, elsewhere = table(), table(OTHER)
    rows = [row for row in found if row.cost and row.name != "softmax"]
    pays = np.array([[found.pays_from(row, what) or np.nan for what in (FORWARDS, BOTH)] for row in rows])
    until = np.array([max(row.cost) for row in rows])
    order = np.lexsort((np.nan_to_num(pays[:, 0], nan=np.inf), -until, np.nan_to_num(pays[:, 1], nan=np.inf)))
    names = tuple(rows[k].name for k in order)
    other = np.array([elsewhere.pays_from(elsewhere.rows[name], BOTH) or np.nan for name in names])
    return WhichPays(names, pays[order], until[order], other)


def draw(data: WhichPays) -> Figure:
    """Named above, in one row: the kinds that take less time than dense attention from about the shortest text on.

    A row for each of the others. A bar begins where a training step takes less time than that of dense attention, the
    stroke stands where a forward pass alone does; a grey cross, at the longest text that was run: in training it never did.
    A ring stands where a training step begins to take less time on another make of processor.
    """
    fig, ax = figure(width=10.4, height=10.2)
    at_once = (data.pays < ABOUT * LENGTHS[0]).all(1)  # never for NaN
    early, late = (np.flatnonzero(some) for some in (at_once, ~at_once))
    rows = [(data.pays[early].min(0), data.until[early].max())]
    rows += zip(data.pays[late], data.until[late], strict=True)
    for place, ((forwards, both), end) in enumerate(rows):
        if np.isnan(both):
            (never,) = ax.plot(end, place, "x", color="0.4", markersize=11, markeredgewidth=2.5)
        else:
            bar = {"color": "#20639b", "linewidth": 7, "markersize": 11, "markevery": [0], "solid_capstyle": "butt"}
            (pays,) = ax.plot([both, end], [place, place], "o-", **bar)
        if not np.isnan(forwards):
            (alone,) = ax.plot(forwards, place, "|", color="#c8553d", markersize=22, markeredgewidth=3.5)
    (ring,) = ax.plot(data.other[late], np.arange(1, len(rows)), "o", **RING)
    ax.set(xscale="log", xlabel="tokens $n$", xlim=(LENGTHS[0] / 1.2, LENGTHS[-1] * 1.2), ylim=(len(rows) + 0.6, -0.6))
    ax.set_xticks(LENGTHS, ["1k", "4k", "16k", "64k"])
    ax.set_yticks(range(len(rows)), [f"these {len(early)}", *(data.names[k] for k in late)])
    ax.legend(
        (pays, alone, never, ring),
        (
            "pays in training from here on",
            "forwards alone, from here on",
            "slower in training, up to here",
            f"pays in training, on {OTHER}",
        ),
        loc="lower right", frameon=True, facecolor="white", edgecolor="none", framealpha=1,
    )  # fmt: skip
    ax.grid(axis="x", color="0.85")
    ax.set_axisbelow(True)
    ax.minorticks_off()
    named = textwrap.fill(", ".join(data.names[k] for k in early), 74, break_on_hyphens=False)
    fig.suptitle(named, x=0.02, ha="left", fontsize=18, linespacing=1.3)
    return fig
