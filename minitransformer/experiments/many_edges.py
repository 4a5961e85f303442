"""How much memory do the edges of a graph need, forward and backward, where a matrix of all pairs has no room?"""

import tracemalloc
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.related.edge_attention import additive_edge_attention
from minitransformer.related.graph import edges_of

IN_A_TEST = {"edges": 100}
HEADS, CHANNELS, SEEN = 8, 8, 10  # a node sees ten nodes on average


@dataclass(frozen=True)
class Trial:
    """The number of edges; scores as in GAT, or in GATv2."""

    edges: int
    dynamic: bool


def trials() -> list[Trial]:
    """Graphs of three sizes, with both kinds of scores."""
    return [Trial(10**power, dynamic) for dynamic in (False, True) for power in (4, 5, 6)]


def run(trial: Trial) -> dict[str, Any]:
    """How many nodes and edges there are, and bytes in float32; the last three do not count the lists and the inputs.

    lists      the edges
    inputs     Q, K and V
    kept       Y and what the pullback holds, after the forward pass
    peak       the most that was held at once, in the forward or the backward pass
    matrices   one matrix of all pairs for each head, which is never made
    """
    n, rng = trial.edges // SEEN, np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, n**2, trial.edges + trial.edges // 5))
    edges = edges_of(np.stack(np.divmod(rng.permutation(pairs)[: trial.edges], n), 1), n)
    r = CHANNELS if trial.dynamic else 1
    shapes = (HEADS, n, r), (HEADS, n, r), (HEADS, n, CHANNELS)
    Q, K, V = (rng.standard_normal((n, H, d), np.float32).swapaxes(0, 1) for H, n, d in shapes)
    a, dY = np.ones((HEADS, r), np.float32), V.copy()
    one = edges_of(np.zeros((1, 2), int), 1)
    additive_edge_attention(Q[:, :1], K[:, :1], V[:, :1], a, one)[1](dY[:, :1])  # the loops are loaded now
    tracemalloc.start()
    Y, pullback = additive_edge_attention(Q, K, V, a, edges)
    after = tracemalloc.get_traced_memory()[0]
    gradients = pullback(dY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(np.isfinite(gradient).all() for gradient in (Y, *gradients))
    lists = sum(array.nbytes for array in edges[1:])
    matrices = 4 * HEADS * n**2
    return {
        "nodes": n, "edges": edges.number, "lists": lists, "inputs": sum(X.nbytes for X in (Q, K, V)),
        "kept": after, "peak": peak, "matrices": matrices,
    }  # fmt: skip
