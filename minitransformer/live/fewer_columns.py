"""An attention matrix of 24 tokens, and what is left of it with fewer columns: the best that can be, and means of neighbours."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.compressed import memory_compressed_attention
from minitransformer.figures.style import figure
from minitransformer.measurements.low_rank import best_of_rank, held
from minitransformer.measurements.rows import in_use, unit
from minitransformer.typing import Array

N, WIDTH = 24, 8
COLUMNS = (1, 2, 3, 4, 6, 8, 12, 24)


def data() -> dict[str, Any]:
    """Queries and keys of three heads: nothing agrees, four neighbours agree, or each query looks for the token before it."""
    rng = np.random.default_rng(7)
    Q, K, noise = rng.standard_normal((3, N, WIDTH))
    slow = np.repeat(K[:6], 4, axis=0) + 0.2 * noise
    even = np.sqrt(WIDTH) * unit(K)  # no key is louder than another
    before = even[np.maximum(np.arange(N) - 1, 0)]
    heads = {"at random": (Q, K), "neighbours alike": (Q, slow), "the token before": (before, even)}
    return {
        "columns": list(COLUMNS),
        "heads": {name: {"Q": q.round(3).tolist(), "K": k.round(3).tolist()} for name, (q, k) in heads.items()},
    }


def matrices(data: dict[str, Any], head: str, sharpness: float, k: int) -> tuple[Array, Array, Array]:
    """A, the best matrix of rank k, and what A is where keys and values are means of n/k neighbours, (n, n) each."""
    Q, K = (np.array(data["heads"][head][name])[None] for name in "QK")
    every, s = np.eye(N)[None], N // k  # values that show the weights
    A = dot_product_attention(sharpness * Q, K, every)[0][0]
    means = np.full((1, s, WIDTH), 1 / s), np.full((1, s, N), 1 / s)
    merged = memory_compressed_attention(sharpness * Q, K, every, *means)[0][0]
    return A, best_of_rank(A, k), merged


def compute(data: dict[str, Any], head: str, sharpness: float, k: int) -> dict[str, Any]:
    """Keys in use by a row, part of the singular values in the first k, and the errors of both, over the length of A."""
    A, best, merged = matrices(data, head, sharpness, k)
    best_error, merged_error = (float(np.linalg.norm(A - fewer) / np.linalg.norm(A)) for fewer in (best, merged))
    return {
        "used": float(in_use(A).mean()),
        "held": float(held(A)[k - 1]),
        "best": best_error,
        "merged": merged_error,
        "sigma": np.linalg.svd(A, compute_uv=False).tolist(),
    }


def still(data: dict[str, Any]) -> Figure:
    """With six columns, a sharp head whose neighbours agree keeps its pattern; one that looks at the token before does not."""
    fig, axes = figure(2, 2, width=7, height=7.6, sharex=True, sharey=True)
    for row, head in zip(axes, ("neighbours alike", "the token before"), strict=True):
        for ax, matrix, title in zip(row, matrices(data, head, 4.0, 6)[:2], (head, "best of rank 6"), strict=True):
            ax.imshow(matrix, cmap="Blues", vmin=0, vmax=1)
            ax.set(title=title, xticks=(0, 10, 20), yticks=(0, 10, 20))
        row[0].set_ylabel("query $i$")
    for ax in axes[1]:
        ax.set_xlabel("key $j$")
    return fig
