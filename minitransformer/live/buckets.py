"""Reformer's hash in the plane: which keys fall into a query's bucket, round by round, and how much of its weight they hold."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.selected.reformer import hash_buckets
from minitransformer.backend import backend
from minitransformer.figures.style import FAINT, figure
from minitransformer.typing import Array

KEYS, ROUNDS = 48, 8  # how many keys, and rounds at most
LENGTH = 8.0  # of the query
LARGEST = 8  # weights of which those that are missed are counted


def data() -> dict[str, Any]:
    """Keys of length one, by their angle in degrees, and a matrix Ω for each round; b buckets take its first b/2 columns."""
    rng = np.random.default_rng(90)
    turns, rotations = rng.uniform(0, 360, KEYS), rng.standard_normal((ROUNDS, 2, 8))
    return {"keys": np.sort(turns).round(1).tolist(), "rotations": rotations.round(3).tolist(), "length": LENGTH}


def on_circle(degrees: Any) -> Array:
    """Vectors of length one."""
    turn = np.radians(degrees)
    return np.stack([np.cos(turn), np.sin(turn)], -1)


def look(data: dict[str, Any], buckets: int, degrees: Any) -> tuple[Array, Array]:
    """Weights (queries, keys), and which keys share the query's bucket (rounds, queries, keys), for queries at these angles."""
    q, K = on_circle(degrees), on_circle(data["keys"])
    rotations = np.array(data["rotations"])[:, :, : buckets // 2]
    with backend("numpy"):
        _, pullback = dot_product_attention(data["length"] * q, K, K)
    same = hash_buckets(q, rotations)[..., None] == hash_buckets(K, rotations)[:, None]
    return pullback.A, np.asarray(same)


def compute(data: dict[str, Any], buckets: int, rounds: int, degrees: float) -> dict[str, Any]:
    """Of one query: which keys it meets, and their weight; how many of the eight largest weights it misses.

    And for 1, 2, … rounds, averaged over queries at every fifth degree: the share of keys that are met, and of weight.
    """
    (A,), same = look(data, buckets, [degrees])
    met = np.asarray(same[:rounds, 0].any(0))
    largest = np.argsort(-A, kind="stable")[:LARGEST]
    all_A, all_same = look(data, buckets, np.arange(0, 360, 5))
    all_met = np.logical_or.accumulate(all_same)
    return {
        "met": met.astype(int).tolist(),
        "weights": A.tolist(),
        "found": float(A[met].sum()),
        "missed": int((~met[largest]).sum()),
        "keys_met": all_met.mean((1, 2)).tolist(),
        "weight_found": (all_met * all_A).sum(-1).mean(1).tolist(),
    }


def still(data: dict[str, Any]) -> Figure:
    """Left a query, and the keys that it meets in one round of eight buckets, filled; a dot's area is its weight.

    Right what is met and what is found with one to eight rounds: a line for each number of buckets, the grey one a blind choice.
    """
    fig, (left, right) = figure(1, 2, width=8.4, height=4.2)
    found = compute(data, 8, 1, 40.0)
    x, y = on_circle(data["keys"]).T
    area, met = 30 + 5000 * np.array(found["weights"]), np.array(found["met"], bool)
    left.scatter(x[met], y[met], area[met], color="#20639b", label="met")
    left.scatter(x[~met], y[~met], area[~met], facecolor="white", edgecolor="#c8553d", linewidth=2, label="missed")
    left.annotate("", 0.85 * on_circle(40.0), (0, 0), arrowprops={"arrowstyle": "->", "linewidth": 3})
    left.set(aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), title=f"it finds {found['found']:.2f} of its weight")
    left.text(-0.05, -0.25, "query", ha="center")
    left.axis("off")
    for buckets, marker in ((4, "o"), (8, "s"), (16, "^")):
        each = compute(data, buckets, 1, 40.0)
        right.plot(each["keys_met"], each["weight_found"], marker=marker, markersize=8, label=f"{buckets} buckets")
    right.plot([0, 1], [0, 1], color=FAINT, linestyle="--", linewidth=1.5)
    right.set(xlim=(0, 1), ylim=(0, 1.04), xlabel="share of the keys met", ylabel="share of weight found")
    right.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    right.legend(loc="lower right", handlelength=1.5, borderaxespad=0)
    return fig
