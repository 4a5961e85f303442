"""Seven words in four sorts of attention: whose weights change if a word is replaced by another, or if two change places?"""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer.attention import dot_product_attention
from minitransformer.backend import backend
from minitransformer.figures.style import figure
from minitransformer.related import Synthesizer, SynthesizerParams
from minitransformer.related.synthesizer_logits import DenseParams, RandomParams
from minitransformer.typing import Array

VOCABULARY = ("the", "cat", "saw", "dog", "and", "bird")
SENTENCE = (0, 1, 2, 0, 3, 4, 5)
SOURCES = ("dot product", "dense", "random", "gated")
WIDTH = 4


def data() -> dict[str, Any]:
    """A row of q and one of k for each word of the vocabulary, and tables for seven places: W_2 (d, n) and R (n, n)."""
    rng, n = np.random.default_rng(16), len(SENTENCE)
    q, k = 1.2 * rng.standard_normal((2, len(VOCABULARY), WIDTH))
    tables = {"q": q, "k": k, "W_2": 0.7 * rng.standard_normal((WIDTH, n)), "R": rng.standard_normal((n, n))}
    return {"vocabulary": VOCABULARY, "sentence": SENTENCE} | {name: X.round(2).tolist() for name, X in tables.items()}


def weights(data: dict[str, Any], source: str, words: Any) -> Array:
    """A (n, n) of one head for these words."""
    Q, K = (np.array(data[name])[list(words)][None] for name in "qk")
    n, d = Q.shape[1:]
    with backend("numpy"):
        if source == "dot product":
            return dot_product_attention(Q, K, K)[1].A[0]
        logits: RandomParams | DenseParams
        if source == "random":
            core, logits = Synthesizer(1, d, n, kind="random"), RandomParams(np.array([data["R"]]))
        else:
            core = Synthesizer(1, d, n, mixture="gated" if source == "gated" else "none")
            logits = DenseParams(np.array([data["W_2"]]), np.zeros((1, n)))
        alpha = np.zeros(1) if source == "gated" else None
        _, pullback = core(SynthesizerParams(logits, alpha), Q, K, K)
    return np.broadcast_to(pullback.A, (1, n, n))[0]


def compute(data: dict[str, Any], source: str, words: list[int], came_from: list[int]) -> dict[str, Any]:
    """A as it was and as it is, and which words give another word another weight than before, wherever the two stand now.

    came_from   the place in the sentence as it was, of the word that is here now
    """
    before, now = weights(data, source, data["sentence"]), weights(data, source, words)
    changed = (np.abs(now - before[np.ix_(came_from, came_from)]) > 1e-9).any(1)
    return {"before": before.tolist(), "now": now.tolist(), "changed": changed.astype(int).tolist()}


def still(data: dict[str, Any]) -> Figure:
    """Rows that ask, columns that are asked: above "dog" has become "bird", below "cat" and "dog" have changed places.

    A row is framed if it gives some word a new weight.
    """
    fig, axes = figure(2, 2, width=8, height=7.6)
    words, swapped = np.array(data["vocabulary"]), [0, 4, 2, 3, 1, 5, 6]
    cases = ([0, 1, 2, 0, 5, 4, 5], list(range(7))), ([data["sentence"][i] for i in swapped], swapped)
    for row, (now, came_from) in zip(axes, cases, strict=True):
        for ax, source in zip(row, SOURCES[:2], strict=True):
            found = compute(data, source, now, came_from)
            ax.imshow(found["now"], cmap="Blues", vmin=0, vmax=0.6)
            for i in np.flatnonzero(found["changed"]):
                ax.add_patch(Rectangle((-0.46, i - 0.42), 6.92, 0.84, fill=False, edgecolor="#c8553d", linewidth=2.5))
            ax.set_title(f"{source}: {sum(found['changed'])} of 7")
            ax.set_xticks(range(7), words[now], rotation=90)
            ax.set_yticks(range(7), words[now])
            ax.tick_params(length=0)
    return fig
