"""The karate club, with the attention that a trained layer pays along its edges."""

from typing import NamedTuple

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.data.graphs import karate_club
from minitransformer.figures.style import figure
from minitransformer.related import edges_of
from minitransformer.typing import Array


class KarateClub(NamedTuple):
    """places (34, 2); links (78, 2), and the weight of each, the larger of its two directions; the club that each one joined."""

    places: Array
    links: Array
    weights: Array
    labels: Array


# Where to draw the 34 members, so that distances on the page are like those in the graph: found once, by moving each against its
# stress Σ_ij (|x_i − x_j| − d_ij)² / d_ij² with d_ij edges from i to j (Kamada and Kawai 1989), which makes much of last digits.
# fmt: off
PLACES = (
    (1.05, 0.27), (0.41, 1.01), (-0.14, 0.55), (0.85, 0.81), (1.8, -0.26), (2.15, -0.38),
    (1.74, -0.87), (0.39, 1.49), (-0.24, 0.16), (-1.07, 1.12), (2.21, 0.31), (2.01, 1.19),
    (1.89, 0.78), (0.18, 0.17), (-1.8, 0.93), (-2.05, 0.61), (2.89, -1.14), (1.09, 1.72),
    (-2.13, -0.62), (0.23, -0.19), (-2.23, -0.2), (1.42, 1.44), (-2.2, 0.22), (-1.15, -1.35),
    (0.42, -1.78), (-0.22, -2), (-1.78, -1.49), (-0.4, -0.99), (-0.6, -0.6), (-1.77, -0.93),
    (-0.75, 0.93), (0.1, -0.72), (-1.23, 0.05), (-1.1, -0.23),
)
# fmt: on


def data() -> KarateClub:
    """The weights are means of the four heads of the first layer of a GAT that the record has trained."""
    club = karate_club()
    edges = edges_of(club.links, len(club.labels), both_ways=True, loops=True)
    A = np.zeros((edges.nodes, edges.nodes))
    (result,) = experiments.load("node_classes").where(data="karate club", kind="gat", seed=0)
    A[edges.destinations, edges.sources] = result["weights"]
    i, j = club.links.T
    return KarateClub(np.array(PLACES), club.links, np.maximum(A[i, j], A[j, i]), club.labels)


def draw(data: KarateClub) -> Figure:
    """A thick, dark line means much attention. Circles and squares are the two clubs that came of it; 0 and 33 were known."""
    fig, ax = figure(height=7.2)
    strength = np.clip(data.weights / 0.5, 0.05, 1)
    lines = data.places[data.links]
    greys = [(0.2, 0.2, 0.2, 0.15 + 0.7 * s) for s in strength]
    ax.add_collection(LineCollection(list(lines), linewidths=0.6 + 6 * strength, colors=greys))
    for label, marker, colour, name in (
        (0, "o", "#20639b", "the instructor's club"),
        (1, "s", "#e8b04a", "the officers' club"),
    ):
        x, y = data.places[data.labels == label].T
        ax.scatter(x, y, s=760, marker=marker, color=colour, edgecolor="black", linewidth=1.2, zorder=3, label=name)
    for i, (x, y) in enumerate(data.places):
        ink = "white" if data.labels[i] == 0 else "black"
        weight = "bold" if i in (0, 33) else "normal"
        ax.text(x, y, str(i), ha="center", va="center", fontsize=18, color=ink, fontweight=weight, zorder=4)
    ax.set_axis_off()
    ax.margins(0.06)
    ax.legend(loc="lower right", markerscale=0.8)
    return fig
