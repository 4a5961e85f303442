"""A sentence, features of its words, and two heads written by hand: what each word looks for, and where it finds it."""

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import MultiHeadAttention, MultiHeadParams, dot_product_attention, unweighted_attention
from minitransformer.backend import backend
from minitransformer.figures.style import WEIGHTS, figure, outer_labels
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

WORDS = ("the", "man", "ate", "the", "fish")
FEATURES = ("determiner", "noun", "verb", "person", "food", "word")
DETERMINER, NOUN, VERB, PERSON, FOOD, WORD = range(6)


def sentence() -> Array:
    """X, (5, 6): the words of the sentence, each a row of features."""
    X = np.zeros((len(WORDS), len(FEATURES)))
    X[:, WORD] = 1
    X[[0, 3], DETERMINER] = 1
    X[[1, 4], NOUN] = 1
    X[2, VERB] = X[1, PERSON] = X[4, FOOD] = 1
    return X


def two_heads() -> MultiHeadParams:
    """A line is a wish: in dimension a the query says who asks, the key who answers."""
    wishes = [
        (0, VERB, PERSON),  # head 1 has dimensions 0 to 2: a verb asks who does it
        (1, DETERMINER, NOUN),  # ... a determiner asks for its noun
        (2, NOUN, VERB),  # ... a noun asks what happens
        (3, VERB, FOOD),  # head 2 has dimensions 3 to 5: a verb asks what is eaten
        (4, NOUN, DETERMINER),  # ... a noun asks for its determiner
    ]
    W_q, W_k, W_v = np.zeros((3, 6, 6))
    for a, asking, answering in wishes:
        W_q[asking, a], W_k[answering, a] = 6, 1
    for first in (0, 3):  # both heads fetch the same three features
        W_v[[NOUN, PERSON, FOOD], [first, first + 1, first + 2]] = 1
    return MultiHeadParams(W_q, W_k, W_v, np.eye(6))


class Heads(Pullback):
    """Four attention matrices over the same sentence, (5, 5) each."""

    words: tuple[str, ...]
    unweighted: Array
    head_1: Array
    head_2: Array
    both: Array  # one head with the two wishes of the verb


def data() -> Heads:
    """Without weights; the two heads; and one head that has to serve two wishes with one softmax."""
    X, params = sentence(), two_heads()
    verb = [0, 3]  # the dimensions in which the verb asks
    with backend("numpy"):
        _, unweighted = unweighted_attention(X)
        _, heads = MultiHeadAttention(6, heads=2, bias=False)(params, X)
        _, both = dot_product_attention(X @ params.W_q[:, verb], X @ params.W_k[:, verb], X, scale=3**-0.5)
    return Heads(WORDS, unweighted.A, heads.A[0], heads.A[1], both.A)


def draw(data: Heads) -> Figure:
    """Rows look at columns; the number in a cell is the weight."""
    fig, axes = figure(2, 2, width=10, height=10, sharex=True, sharey=True)
    titles = ("without $W_q$, $W_k$", "head 1", "head 2", "one head, both wishes")
    places = range(len(data.words))
    for ax, title, A in zip(axes.flat, titles, data[1:], strict=True):
        ax.imshow(A, cmap=WEIGHTS, vmin=0, vmax=1)
        for (i, j), a in np.ndenumerate(A):
            ink = "white" if a > 0.6 else "black"
            ax.text(j, i, f"{a:.2f}".lstrip("0"), ha="center", va="center", color=ink)
        ax.set_title(title)
        ax.set_xticks(places, data.words, rotation=45)
        ax.set_yticks(places, data.words)
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    outer_labels(axes, "key: looked at", "query: looks")
    return fig
