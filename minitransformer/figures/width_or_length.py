"""Two meanings of low rank: a latent bounds the width of keys and values, Linformer the length of the matrix of attention."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.functional import softmax
from minitransformer.typing import Array

TOKENS, WIDTH, HEADS, RANK = 64, 64, 4, 16
FLOOR = 3e-6  # what is below is rounding


class WidthOrLength(NamedTuple):
    """Singular values over the largest of them: of [K | V] of all heads (n, 2D), and of who gets what from whom (n, n)."""

    width: dict[str, Array]
    length: dict[str, Array]


def data() -> WidthOrLength:
    """64 normal rows and normal weights: multi-head attention, from latents of 16, and with 64 keys mixed down to 16 (head 1)."""
    rng = np.random.default_rng(18)
    d = WIDTH // HEADS
    X = rng.standard_normal((TOKENS, WIDTH))
    W_q, W_k, W_v = rng.standard_normal((3, WIDTH, WIDTH)) / np.sqrt(WIDTH)
    W_dc = rng.standard_normal((WIDTH, RANK)) / np.sqrt(WIDTH)
    W_uk, W_uv = rng.standard_normal((2, RANK, WIDTH)) / np.sqrt(RANK)
    E = rng.standard_normal((RANK, TOKENS)) / np.sqrt(TOKENS)
    C, Q = X @ W_dc, 2 * X @ W_q[:, :d]
    K, V, K_c, V_c = X @ W_k, X @ W_v, C @ W_uk, C @ W_uv

    def attention(keys: Array) -> Array:
        return softmax(Q @ keys.T / np.sqrt(d))[0]

    names = ("all heads", "latent", "Linformer")
    width = map(np.hstack, ([K, V], [K_c, V_c], [K, V]))
    length = (attention(K[:, :d]), attention(K_c[:, :d]), attention(E @ K[:, :d]) @ E)
    return WidthOrLength(*(dict(zip(names, map(_falls, each), strict=True)) for each in (width, length)))


def _falls(M: Array) -> Array:
    values = np.linalg.svd(M, compute_uv=False)
    return values / values[0]


def draw(data: WidthOrLength) -> Figure:
    """Above: keys and values of all heads; the latent's end at 16. Below: the matrices of attention; Linformer's ends at 16."""
    fig, axes = figure(2, 1, height=11)
    titles = ("width: keys and values", "length: who gets what from whom")
    for ax, found, title in zip(axes, data, titles, strict=True):
        for (name, values), look in zip(found.items(), ("C0o-", "C2^-.", "C1s--"), strict=True):
            seen = values[values > FLOOR]
            ax.semilogy(np.arange(1, len(seen) + 1), seen, look, markersize=6, markevery=3, label=name)
        ax.axvline(RANK, color="0.5", linewidth=1.2, linestyle=":")
        ax.set(title=title, ylim=(FLOOR, 1.5))
        ax.set(xlabel="singular value", xlim=(0, TOKENS + 1), xticks=[1, 16, 32, 48, 64])
        ax.set_ylabel("over the largest")
        ax.set_yticks([1, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5], ["1", "0.1", "0.01", "0.001", "0.0001", "0.00001"])
    colours = {line.get_label(): line.get_color() for line in axes[0].lines}
    for ax, x, y, name in (
        (axes[0], 53, 0.5, "all heads,"),
        (axes[0], 64, 0.5, "Linformer"),
        (axes[0], 14, 0.08, "latent"),
        (axes[1], 64, 0.25, "all heads"),
        (axes[1], 40, 0.015, "latent"),
        (axes[1], 22, 0.03, "Linformer"),
    ):
        ax.text(x, y, name, color=colours[name.rstrip(",")], ha="right")
    return fig
