"""Can graph attention look something up? There are k keys with values, and each of k queries asks for the value of one key.

The graph is complete and bipartite: every query sees every key. In GAT all queries rank the keys in one order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.arrays import uniform
from minitransformer.functional import cross_entropy, linear, relu
from minitransformer.pullback import Tree
from minitransformer.related.graph import Edges, edges_of
from minitransformer.related.graph_attention import GAT, GATv2
from minitransformer.training.optimiser import AdamW
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3}
WIDTH, RATE, BATCH, JUDGED = 32, 0.01, 32, 400
KINDS: dict[str, tuple[Any, int]] = {"gat": (GAT, 1), "gat, 8 heads": (GAT, 8), "gatv2": (GATv2, 1)}


@dataclass(frozen=True)
class Trial:
    """One training with k keys."""

    kind: str
    k: int
    seed: int
    steps: int = 1000


def trials() -> list[Trial]:
    """Three layers, three sizes, three seeds."""
    return [Trial(kind, k, seed) for k in (4, 8, 16) for kind in KINDS for seed in range(3)]


def graph(k: int) -> Edges:
    """Node i < k is a query, node k + j a key; every query sees every key."""
    i, j = np.indices((k, k)).reshape(2, -1)
    return edges_of(np.stack([i, k + j], 1), 2 * k)


def dictionaries(k: int, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """X (count, 2k, 2k) and values (count, k): a node's word and, if it is a key, its value, both one-hot; query i has word i."""
    values = rng.integers(0, k, (count, k))
    X = np.zeros((count, 2 * k, 2 * k), np.float32)
    X[:, :k, :k] = X[:, k:, :k] = np.eye(k)
    X[:, k:, k:] = np.eye(k)[values]
    return X, values


def forward(layer: Any, params: Tree, X: Array, edges: Edges) -> tuple[Array, Any, Any]:
    """Logits of the queries: one layer on the graph, ReLU, a linear layer; and the way back."""
    k = X.shape[-2] // 2
    Y, attention = layer(params[0], X, edges)
    Z, bent = relu(Y[..., :k, :])
    out, last = linear(Z, *params[1:])

    def back(dlogits: Array) -> Tree:
        dZ, dW, db = last(dlogits)
        dY = np.zeros_like(Y)
        dY[..., :k, :] = bent(dZ)
        return attention(dY)[0], dW, db

    return out, back, attention


def run(trial: Trial) -> dict[str, Any]:
    """Share of right answers in new dictionaries; with k = 8, one head and the first seed also the weights in one of them."""
    k, rng = trial.k, np.random.default_rng(trial.seed)
    kind, heads = KINDS[trial.kind]
    layer, edges = kind(2 * k, WIDTH, heads), graph(k)
    params: Tree = (layer.init(rng), uniform(rng, (WIDTH, k), np.float32), np.zeros(k, np.float32))
    optimiser = AdamW()
    state = optimiser.init(params)
    for step in range(trial.steps):
        X, values = dictionaries(k, BATCH, rng)
        out, back, _ = forward(layer, params, X, edges)
        _, loss_back = cross_entropy(out, values)
        rate = RATE * min(1, 4 * (1 - step / trial.steps))
        params, state = optimiser.update(params, back(loss_back(np.float32(1))), state, rate)
    X, values = dictionaries(k, JUDGED, np.random.default_rng(10**6))
    out, _, attention = forward(layer, params, X, edges)
    result: dict[str, Any] = {"right": round(float((out.argmax(-1) == values).mean()), 4)}
    if k == 8 and trial.seed == 0 and heads == 1:
        result["weights"] = attention.A[0, 0].reshape(k, k).astype(np.float64).round(3).tolist()
    return result
