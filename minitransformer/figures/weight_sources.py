"""Two sources of attention weights, and the weights that they give to one sentence: compare two tokens, or ask each by itself."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.backend import backend
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.related import Synthesizer, SynthesizerParams
from minitransformer.related.synthesizer_logits import DenseParams
from minitransformer.typing import Array

WORDS = ("the", "cat", "saw", "the", "dog", "and", "the", "cat")


class WeightSources(NamedTuple):
    """Attention of one head on the words, (8, 8) each, without positions."""

    words: tuple[str, ...]
    dot_product: Array
    dense: Array


def data(width: int = 16, d: int = 8, seed: int = 3) -> WeightSources:
    """Random embeddings and random layers, drawn so that logits have a deviation of about 1."""
    rng = np.random.default_rng(seed)
    table = {word: rng.standard_normal(width) for word in dict.fromkeys(WORDS)}
    X = np.stack([table[word] for word in WORDS])
    W_q, W_k = rng.standard_normal((2, width, d)) / np.sqrt(width)
    W_2, b_2 = rng.standard_normal((d, len(WORDS))) / np.sqrt(d / 2), np.zeros(len(WORDS))
    core = Synthesizer(heads=1, d=d, longest=len(WORDS))
    Q = (X @ W_q)[None]
    with backend("numpy"):
        _, compared = dot_product_attention(Q, (X @ W_k)[None], Q)
        _, asked = core(SynthesizerParams(DenseParams(W_2[None], b_2[None])), Q, Q, Q)
    return WeightSources(WORDS, compared.A[0], asked.A[0])


def draw(data: WeightSources) -> Figure:
    """Left what is computed, from below; right the weights of the eight words, queries downwards.

    Rows of a word that occurs twice are the same in both. Columns are the same only where tokens are compared.
    """
    fig, axes = figure(2, 2, width=10.4, height=10.4, width_ratios=[0.8, 1])
    graphs = (
        ("a) dot product", ["$x_i$, $x_j$", r"$W_q$, $W_k$", r"$q_i\cdot k_j/\sqrt{d}$", "softmax over $j$"]),
        ("b) dense synthesizer", ["$x_i$", r"$W_1$, ReLU", r"$W_2$: one number for each $j$", "softmax over $j$"]),
    )
    for (ax, picture), (title, steps), A in zip(axes, graphs, (data.dot_product, data.dense), strict=True):
        for k, step in enumerate(steps):
            box = {"boxstyle": "round,pad=0.4", "facecolor": "white" if k == 0 else "0.93", "edgecolor": "0.5"}
            ax.text(0.5, k, step, ha="center", va="center", bbox=box)
            if k:
                ax.annotate("", (0.5, k - 0.24), (0.5, k - 0.72), arrowprops={"arrowstyle": "->", "color": "0.3"})
        ax.set(xlim=(0, 1), ylim=(-0.5, 3.5), title=title)
        ax.axis("off")
        image = picture.imshow(A, cmap=WEIGHTS, vmin=0, vmax=0.6)
        picture.set_xticks(range(len(data.words)), data.words, rotation=90)
        picture.set_yticks(range(len(data.words)), data.words)
        picture.tick_params(length=0)
        picture.spines[["top", "right"]].set_visible(True)
    fig.colorbar(image, ax=axes[:, 1], shrink=0.5, label="weight $A_{ij}$")
    return fig
