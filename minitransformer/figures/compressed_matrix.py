"""Memory-compressed attention: n × n weights, n × n/s weights of blocks, and who sees what in the causal forms."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.compressed import compress, memory_compressed_attention
from minitransformer.backend import backend
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array


class CompressedMatrix(NamedTuple):
    """Weights (n, n), mixing (n/s, n), weights (n, n/s); causal weights (n, n), and with a null key in front (n, 1 + n/s)."""

    dense: Array
    mixing: Array
    compressed: Array
    dense_causal: Array
    causal: Array


def data(n: int = 24, s: int = 4, d: int = 8, seed: int = 5) -> CompressedMatrix:
    """One head with keys that change slowly along the text, and a kernel that averages."""
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((1, n, d))
    K = 0.8 * np.cumsum(steps, 1)
    K -= K.mean(1, keepdims=True)
    Q = K + rng.standard_normal((1, n, d))
    theta = np.full((1, s, d), 1 / s)
    null = np.zeros((1, d))
    with backend("numpy"):
        _, dense = dot_product_attention(Q, K, K)
        _, dense_causal = dot_product_attention(Q, K, K, causal=True)
        _, compressed = memory_compressed_attention(Q, K, K, theta, theta)
        _, causal = memory_compressed_attention(Q, K, K, theta, theta, null, null, causal=True)
        mixing, _ = compress(np.eye(n)[None], np.full((1, s, n), 1 / s))  # what it makes of the identity
    return CompressedMatrix(dense.A[0], mixing[0], compressed.A[0], dense_causal.A[0], causal.A[0])


def draw(data: CompressedMatrix) -> Figure:
    """Left every key, right its blocks, every weight a square of the same size; below what a causal query can't see is grey."""
    n, blocks = data.compressed.shape
    fig, axes = figure(2, 2, width=7.5, height=11.5, width_ratios=[n, blocks + 1])
    shown = data.dense, data.compressed, data.dense_causal, data.causal
    titles = f"{n} × {n}", f"{n} × {blocks}", f"causal, {n} × {n}", f"{n} × {blocks + 1}"
    colours = mpl.colormaps[WEIGHTS].with_extremes(bad="0.8")
    for ax, A, title in zip(axes.flat, shown, titles, strict=True):
        ax.imshow(np.ma.masked_equal(A, 0), cmap=colours, vmin=0, vmax=1, aspect="equal")
        ax.set(title=title, xticks=(0, A.shape[1] - 1), xticklabels=("1", f"{A.shape[1]}"))
        ax.set(yticks=(0, n - 1), yticklabels=("1", f"{n}") if ax in axes[:, 0] else ("", ""))
        ax.spines[["top", "right"]].set_visible(True)
    axes[1, 1].set_xticks([0, blocks], ["0", f"{blocks}"])
    for row, label in zip(axes, ("block $b$", "null, $b$"), strict=True):
        row[0].set(xlabel="key $j$", ylabel="query $i$")
        row[1].set_xlabel(label)
    return fig
