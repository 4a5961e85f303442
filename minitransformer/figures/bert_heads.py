"""Six attention heads of a real BERT on one sentence, found by measuring, and what their pictures leave out."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.bert_heads import PATTERNS, PRONOUNS, SENTENCE
from minitransformer.figures.style import WEIGHTS, figure, outer_labels
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

__all__ = ["PATTERNS", "PRONOUNS", "SENTENCE", "Heads", "data", "draw"]


class Heads(Pullback):
    """What was measured; `experiments.bert_heads.run` says what each field is. Blocks and heads count from 0 here."""

    tokens: list[str]
    scores: Array
    best: Array
    A: Array
    antecedent: Array
    other: Array
    rest: Array
    effect: Array


def data() -> Heads:
    """What is on record."""
    kept = experiments.load("bert_heads").only()
    return Heads(kept["tokens"], *(np.array(kept[name]) for name in Heads._fields[1:]))


def draw(heads: Heads) -> Figure:
    """Six attention matrices: row i is the token that looks, column j the token looked at, dark is much weight."""
    fig, axes = figure(3, 2, height=16.8, sharex=True, sharey=True)
    n, marks = np.arange(len(heads.tokens)), {".": "full stop", "'": "apostrophe"}
    names = [marks.get(token, token) for token in heads.tokens]
    for ax, A, pattern, (block, head) in zip(axes.flat, heads.A, PATTERNS, heads.best, strict=True):
        image = ax.imshow(A, cmap=WEIGHTS, vmin=0, vmax=1)
        ax.set_title(f"{pattern}\nblock {block + 1}, head {head + 1}")
        ax.set_xticks(n, names, rotation=90, rotation_mode="anchor", ha="right", va="center")
        ax.set_yticks(n, names)
        ax.tick_params(length=0, pad=5)
        ax.spines[["top", "right"]].set_visible(True)
    outer_labels(axes, "… at token $j$", "token $i$ looks …")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, label="attention weight $A_{ij}$")
    return fig
