"""What does a graph tell of its nodes, when the classes of a few are known? Graph convolution, attention, and no graph.

Two layers, trained on all nodes at once with a loss on the few whose class is given; judged by the others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.graphs import LabelledGraph, karate_club, python_topics
from minitransformer.functional import cross_entropy, relu
from minitransformer.pullback import Tree
from minitransformer.related.graph import Edges, edges_of
from minitransformer.related.graph_attention import GAT, GATv2
from minitransformer.related.graph_convolution import GraphConvolution
from minitransformer.training.optimiser import AdamW
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3}
DATA = {"karate club": karate_club, "Python topics": python_topics}
KINDS = ("no graph", "gcn", "gat", "gatv2")
HIDDEN, HEADS, RATE, GIVEN = 16, 4, 0.01, 4  # the last: topics of each class whose class is given


@dataclass(frozen=True)
class Trial:
    """One training of one kind of layer on one of the graphs."""

    data: str
    kind: str
    seed: int
    steps: int = 200


def trials() -> list[Trial]:
    """Two graphs, four kinds, ten seeds."""
    return [Trial(data, kind, seed) for data in DATA for kind in KINDS for seed in range(10)]


def graph_of(trial: Trial) -> tuple[LabelledGraph, Edges]:
    """The data, and its edges both ways with loops; without a graph, the loops alone."""
    data = DATA[trial.data]()
    links = data.links[:0] if trial.kind == "no graph" else data.links
    return data, edges_of(links, len(data.labels), both_ways=True, loops=True)


def given(trial: Trial, data: LabelledGraph) -> Array:
    """Nodes whose class is known, (n,): instructor and president; of the topics GIVEN of each class, the same for all kinds."""
    known = np.zeros(len(data.labels), bool)
    if trial.data == "karate club":
        known[[0, -1]] = True
        return known
    rng = np.random.default_rng(trial.seed)
    for label in range(len(data.classes)):
        known[rng.choice(np.flatnonzero(data.labels == label), GIVEN, replace=False)] = True
    return known


def layers_of(kind: str, inputs: int, classes: int) -> tuple[Any, Any]:
    """The two layers of a kind, for nodes with this many inputs and classes."""
    if kind in ("no graph", "gcn"):
        return GraphConvolution(inputs, HIDDEN), GraphConvolution(HIDDEN, classes)
    layer = GAT if kind == "gat" else GATv2
    return layer(inputs, HIDDEN, HEADS), layer(HIDDEN, classes, HEADS, average=True)


def logits(layers: tuple[Any, Any], params: Tree, X: Array, edges: Edges) -> tuple[Array, Callable[[Array], Tree], Any]:
    """Layer, ReLU, layer: logits, their way back to the parameters, and the pullback of the first layer."""
    Y, first = layers[0](params[0], X, edges)
    Z, bent = relu(Y)
    out, second = layers[1](params[1], Z, edges)

    def back(dlogits: Array) -> Tree:
        dparams, dZ = second(dlogits)
        return first(bent(dZ))[0], dparams

    return out, back, first


def run(trial: Trial) -> dict[str, Any]:
    """Share of the other nodes whose class is found; of one training the weights of the first layer's edges, mean of heads."""
    data, edges = graph_of(trial)
    known, rng = given(trial, data), np.random.default_rng(trial.seed)
    layers = layers_of(trial.kind, data.X.shape[1], len(data.classes))
    params: Tree = tuple(layer.init(rng, np.float64) for layer in layers)
    optimiser = AdamW(weight_decay=0.05)
    state = optimiser.init(params)
    for _ in range(trial.steps):
        out, back, _ = logits(layers, params, data.X, edges)
        _, loss_back = cross_entropy(out, data.labels, mask=known)
        params, state = optimiser.update(params, back(loss_back(np.float64(1))), state, RATE)
    out, _, first = logits(layers, params, data.X, edges)
    right = out.argmax(-1) == data.labels
    result: dict[str, Any] = {"right": round(float(right[~known].mean()), 4)}
    if (trial.data, trial.kind, trial.seed) == ("karate club", "gat", 0):
        result["weights"] = first.A.mean(0).round(3).tolist()
    return result
