"""The karate club as two matrices: the fixed weights of a graph convolution, and those of graph attention, which are learned.

Who did not meet has no weight, in both; white is no edge.
"""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.data.graphs import karate_club
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.related import edge_weights, edges_of
from minitransformer.typing import Array


class GraphMatrices(NamedTuple):
    """Both (34, 34), rows and columns sorted by club; NaN where there is no edge. `first` members are of the first club."""

    P: Array
    A: Array
    first: int


def data() -> GraphMatrices:
    """N^{−1/2} M N^{−1/2}, and the mean of four heads of the first layer of a GAT that the record has trained."""
    club = karate_club()
    edges = edges_of(club.links, len(club.labels), both_ways=True, loops=True)
    (result,) = experiments.load("node_classes").where(data="karate club", kind="gat", seed=0)
    order = np.argsort(club.labels, kind="stable")
    matrices = []
    for values in (edge_weights(edges, "symmetric"), np.array(result["weights"])):
        M = np.full((edges.nodes, edges.nodes), np.nan)
        M[edges.destinations, edges.sources] = values
        matrices.append(M[np.ix_(order, order)])
    return GraphMatrices(*matrices, int((club.labels == 0).sum()))


def draw(data: GraphMatrices) -> Figure:
    """Left the convolution, right the attention; row i sees column j. Lines divide the two clubs into which the club split."""
    fig, axes = figure(1, 2, height=7)
    titles = "graph convolution:\n$N^{-1/2} M N^{-1/2}$", "graph attention,\ntrained"
    for ax, M, title in zip(axes, (data.P, data.A), titles, strict=True):
        image = ax.imshow(M, cmap=WEIGHTS, vmin=0, vmax=0.5)
        ax.axhline(data.first - 0.5, color="#555555", linewidth=1.2)
        ax.axvline(data.first - 0.5, color="#555555", linewidth=1.2)
        ax.set(title=title, xlabel="is seen: $j$", xticks=[], yticks=[])
        ax.spines[["top", "right"]].set_visible(True)
    axes[0].set_ylabel("sees: $i$")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.5, aspect=30, label="weight", extend="max")
    return fig
