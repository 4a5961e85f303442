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


def places(links: Array, n: int, steps: int = 3000) -> Array:
    """Where to draw n nodes: so that distances on the page are like those in the graph. The same in every run.

    It begins with the two slowest vectors of the graph's Laplacian, and then moves each node against its stress
    Σ_ij (|x_i − x_j| − d_ij)² / d_ij², where d_ij is the number of edges from i to j (Kamada and Kawai 1989).
    """
    from minitransformer.attention import Graph

    A = np.zeros((n, n), bool)
    A[links[:, 0], links[:, 1]] = A[links[:, 1], links[:, 0]] = True
    D = Graph(A).distances()
    _, vectors = np.linalg.eigh(np.diag(A.sum(1)) - A.astype(float))
    X = vectors[:, 1:3] * np.sign(vectors[0, 1:3]) * n / 4
    weight = 1 / np.maximum(D, 1) ** 2
    for _ in range(steps):
        offsets = X[:, None] - X
        far = np.linalg.norm(offsets, axis=-1) + np.eye(n)
        X = X - 0.1 * ((weight * (1 - D / far))[..., None] * offsets).sum(1)
    return X - X.mean(0)


def data() -> KarateClub:
    """The weights are means of the four heads of the first layer of a GAT that the record has trained."""
    club = karate_club()
    edges = edges_of(club.links, len(club.labels), both_ways=True, loops=True)
    A = np.zeros((edges.nodes, edges.nodes))
    A[edges.destinations, edges.sources] = next(
        result["weights"] for _, result in experiments.load("node_classes") if "weights" in result
    )
    i, j = club.links.T
    return KarateClub(places(club.links, edges.nodes), club.links, np.maximum(A[i, j], A[j, i]), club.labels)


def draw(data: KarateClub) -> Figure:
    """A thick, dark line is much attention. Circles and squares are the two clubs that came of it; 0 and 33 were known."""
    fig, ax = figure(1, 1, width=11, height=7.2)
    strength = np.clip(data.weights / 0.5, 0.05, 1)
    lines = data.places[data.links]
    ax.add_collection(
        LineCollection(
            list(lines), linewidths=0.6 + 6 * strength, colors=[(0.2, 0.2, 0.2, 0.15 + 0.7 * s) for s in strength]
        )
    )
    for label, marker, colour, name in (
        (0, "o", "#20639b", "the instructor's club"),
        (1, "s", "#e8b04a", "the officers' club"),
    ):
        x, y = data.places[data.labels == label].T
        ax.scatter(x, y, s=760, marker=marker, color=colour, edgecolor="black", linewidth=1.2, zorder=3, label=name)
    for i, (x, y) in enumerate(data.places):
        ax.text(
            x,
            y,
            str(i),
            ha="center",
            va="center",
            fontsize=18,
            color="white" if data.labels[i] == 0 else "black",
            zorder=4,
            fontweight="bold" if i in (0, 33) else "normal",
        )
    ax.set_axis_off()
    ax.margins(0.06)
    ax.legend(loc="lower left", markerscale=0.8)
    return fig
