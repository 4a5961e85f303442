"""How far off a layer is if it follows what is printed: each erratum that is computed both ways, on an example of its own.

A mark is ‖printed − meant‖/‖meant‖ of the layer's output. At 1 it is as far off as an answer of zeros.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import errata
from minitransformer.errata import Erratum
from minitransformer.figures.style import figure, plain_ticks
from minitransformer.typing import Array

MARKERS = {"Borealis II": "o", "Lecture notes": "s", "Aalto": "D", "From GRU to attention": "^", "CS224N": "v"}
COLOURS = ("#20639b", "#c8553d", "#3b8554", "#8a5a9e", "#b8860b")
SQUARE = {"E31", "E34", "E54"}  # run only where two lengths happen to be equal


class LiteralReadings(NamedTuple):
    """The errata for which both readings give something of one shape, and their errors, the largest first."""

    rows: tuple[Erratum, ...]
    errors: Array


def data(readings: dict[str, errata.Reading] | None = None) -> LiteralReadings:
    """From the readings that are given, or else measured now."""
    measured = readings or errata.measure()
    found = {name: reading.error for name, reading in measured.items() if reading.error is not None}
    rows = sorted((row for row in errata.load() if row.id in found), key=lambda row: -found[row.id])
    return LiteralReadings(tuple(rows), np.array([found[row.id] for row in rows]))


def draw(data: LiteralReadings) -> Figure:
    """A line for each erratum, the largest error above; the axis is logarithmic, and a mark tells the source.

    Marks are hollow where the printed equation runs only because two lengths are equal.
    """
    fig, ax = figure(width=10, height=13.5)
    places = np.arange(len(data.rows))
    ax.hlines(places, 0.1, 13, color="0.88", linewidth=1.5)  # to follow from a name to its mark: no lengths
    ax.axvline(1, color="0.3", linewidth=2, linestyle="--")
    ax.text(1, -0.8, "as far off as an answer of zeros", ha="center")
    rim = {"markersize": 11, "markeredgewidth": 2}
    for k, (source, marker) in enumerate(MARKERS.items()):
        ax.plot([], [], marker, color=COLOURS[k], markersize=11, label=source)
        for place, row in enumerate(data.rows):
            if row.source == source:
                face = "white" if row.id in SQUARE else COLOURS[k]
                ax.plot(data.errors[place], place, marker, color=COLOURS[k], markerfacecolor=face, **rim)
    ax.plot([], [], "o", color="0.3", markerfacecolor="white", label="two equal lengths", **rim)
    ax.set(xscale="log", xlim=(0.1, 13), ylim=(len(places) - 0.4, -0.6), xlabel="‖printed − meant‖ / ‖meant‖")
    plain_ticks(ax, x=[0.1, 0.3, 1, 3, 10])
    ax.set_yticks(places, [f"{row.id}  {row.name}" for row in data.rows])
    ax.tick_params(axis="y", length=0)
    fig.legend(loc="outside upper center", ncols=3, handlelength=0.8, handletextpad=0.3, columnspacing=1.5)
    return fig
