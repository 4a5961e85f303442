"""A graph whose edges the reader draws: what reaches a node in several layers, and how alike all rows become on the way."""

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from minitransformer.figures.over_smoothing import spread
from minitransformer.figures.style import figure, plain_ticks
from minitransformer.related import GAT, edges_of, propagate

LAYERS = 32
BRIDGE = (4, 5)


def data() -> dict[str, Any]:
    """Ten nodes in two groups, one edge between the groups, a row for each node, and what GAT makes of such rows."""
    rng = np.random.default_rng(14)
    turn = 2 * np.pi * np.array([3, 2, 4, 1, 0]) / 5  # nodes 0 … 4, with 4 beside the other group
    group = np.array([86, 120]) + 66 * np.stack([np.cos(turn), np.sin(turn)], 1)
    mirrored = np.array([350, 0]) + np.array([-1, 1]) * group[::-1]
    inside = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4)]
    return {
        "places": np.concatenate([group, mirrored]).round(1).tolist(),
        "links": [list(link) for link in (*inside, BRIDGE, *((9 - i, 9 - j) for i, j in inside))],
        "X": rng.standard_normal((10, 4)).round(3).tolist(),
        "a_1": rng.standard_normal(4).round(3).tolist(),
        "a_2": rng.standard_normal(4).round(3).tolist(),
    }


def compute(data: dict[str, Any], links: list[list[int]], node: int, layers: int, learned: bool) -> dict[str, Any]:
    """The share that each node has in the row of `node` after so many layers, and how many nodes have one; how much of what told
    rows apart is left after each layer; and the weights of the first layer.

    learned   weights of a GAT with W = I, or else plain averages N⁻¹ M
    """
    X, n = np.array(data["X"]), len(data["X"])
    edges = edges_of(np.array(links, dtype=int).reshape(-1, 2), n, both_ways=True, loops=True)
    layer = GAT(X.shape[1], X.shape[1])
    params = layer.init(np.random.default_rng(0), np.float64)._replace(
        W=np.eye(X.shape[1]), a_1=np.array([data["a_1"]]), a_2=np.array([data["a_2"]]), b=np.zeros(X.shape[1])
    )
    matrices, left = [], [spread(X)]
    for _ in range(LAYERS):
        if learned:
            X, pullback = layer(params, X, edges)
            P = np.zeros((n, n))
            P[edges.destinations, edges.sources] = pullback.A[0]
        else:
            X, P = (propagate(rows, edges, scaling="rows")[0] for rows in (X, np.eye(n)))
        matrices.append(P)
        left.append(spread(X))
    shares = np.eye(n)
    for P in matrices[:layers]:
        shares = P @ shares
    return {
        "shares": shares[node].tolist(),
        "heard": int((shares[node] > 0).sum()),
        "left": (np.array(left) / left[0]).tolist(),
        "weights": matrices[0].tolist(),
    }


def still(data: dict[str, Any]) -> Figure:
    """Left the graph, with a number beside each node: the darker its circle, the more of the row of node 0 comes from it after
    three layers. Right how much of what told the rows apart is left: with the edge between the groups it goes, without that edge
    a part of it stays.
    """
    fig, (left, right) = figure(1, 2, height=3.6)
    places, links = np.array(data["places"]), data["links"]
    shares = compute(data, links, 0, 3, False)["shares"]
    for i, j in links:
        left.plot(*places[[i, j]].T, color="0.5", linewidth=2, linestyle="-", zorder=0)
    blues = colormaps["Blues"](2 * np.array(shares))
    rims = ["#c8553d" if j == 0 else "#555555" for j in range(len(places))]
    left.scatter(*places.T, s=1200, c=blues, edgecolors=rims, linewidths=[4.0] + 9 * [1.0], zorder=1)
    for (x, y), share in zip(places, shares, strict=True):
        left.annotate(f"{100 * share:.0f}" if share else "", (x, y), ha="center", va="center_baseline")
    for j, place in enumerate(places):
        beside = [0, -32] if j in BRIDGE else 36 / 66 * (place - [86 if j < 5 else 264, 120])
        left.annotate(str(j), place + beside, ha="center", va="center_baseline", weight="bold")
    left.set(title="row 0 after 3 layers, in %", aspect="equal", xlim=(-22, 372), ylim=(232, 8))
    left.set_axis_off()
    apart = [link for link in links if tuple(link) != BRIDGE]
    for some, label, colour, style in ((apart, "groups apart", "#c8553d", "--"), (links, "as drawn", "#20639b", "-")):
        right.plot(compute(data, some, 0, 0, False)["left"], label=label, color=colour, linestyle=style)
    right.set(
        yscale="log", xlabel="layers", title="differences between rows", ylabel="share that is left", ylim=(0.02, 1.2)
    )
    plain_ticks(right, y=[0.1, 1])
    right.legend(loc="lower left")
    return fig
