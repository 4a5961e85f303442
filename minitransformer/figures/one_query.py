"""The key most like the query gets the largest weight, and the output is most like its value: one query, five words."""

import math
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer.attention import dot_product_attention, scores
from minitransformer.backend import backend
from minitransformer.figures.heads import WORDS
from minitransformer.figures.style import figure
from minitransformer.typing import Array

ATE = 2  # the row whose query is drawn
QUERY = (1.0, -1, 2, 1)
KEYS = {"the": (1.0, 1, -1, 2), "man": (1.5, -1.5, 1.5, 0.5), "ate": (-1.0, -1, -2, 1), "fish": (1.0, 1, 2, -1)}
VALUES = {"the": (1.0, 1, -1), "man": (-1.0, 2, 2), "ate": (1.0, -2, 1), "fish": (2.0, 1, -2)}


class OneQuery(NamedTuple):
    """The query q (d,) of *ate*, K (5, d) and V (5, d_v) of all words, the query's row of S and of A (5,), its y (d_v,)."""

    q: Array
    K: Array
    V: Array
    S: Array
    A: Array
    y: Array


def data() -> OneQuery:
    """The vectors are made up, all keys of the same length; the rest is what attention makes of them."""
    q, K, V = np.array([QUERY]), np.array([KEYS[word] for word in WORDS]), np.array([VALUES[word] for word in WORDS])
    with backend("numpy"):
        S, _ = scores(q, K)
        y, pullback = dot_product_attention(q, K, V)
    return OneQuery(q[0], K, V, S[0], pullback.A[0], y[0])


# The drawing, in inches
UNIT, STEP = 0.165, 0.4  # of a bar for a number of 1; from one channel to the next
QUERY_AT, FIRST, ROW = 6.12, 4.6, 0.88  # heights of the query and of the first word; from one word to the next
KEYS_AT, SCORES_AT, WEIGHTS_AT, VALUES_AT, WEIGHTED_AT = 1.18, 4.3, 5.45, 7.35, 8.95
SAME, OPPOSITE, VALUE, LENGTH, BEHIND = "#20639b", "#c8553d", "#3b8554", "0.35", "0.82"


def draw(data: OneQuery) -> Figure:
    """Left, keys before the query in grey: full bars add to the score, hollow ones take away. Then scores, weights, values."""
    fig, ax = figure(width=10.3, height=7.79)
    ax.set(xlim=(0, 10.3), ylim=(-0.77, 7.02), aspect="equal")
    ax.axis("off")
    ax.text(0.95, QUERY_AT, f"{ATE + 1}  {WORDS[ATE]}", ha="right", va="center")
    _behind(ax, data.q, KEYS_AT, QUERY_AT)
    _bars(ax, data.q, KEYS_AT, QUERY_AT, ())
    for j, (word, k, v) in enumerate(zip(WORDS, data.K, data.V, strict=True)):
        y = FIRST - ROW * j
        ax.text(0.95, y, f"{j + 1}  {word}", ha="right", va="center")
        _behind(ax, data.q, KEYS_AT, y)
        _bars(ax, k, KEYS_AT, y, [SAME if number > 0 else OPPOSITE for number in data.q * k])
        _length(ax, SCORES_AT, y, 0.25 * data.S[j])
        ax.text(SCORES_AT - 0.5, y, f"{data.S[j]:.2f}".replace("-", "−"), ha="right", va="center")
        _length(ax, WEIGHTS_AT, y, 1.2 * data.A[j])
        ax.text(WEIGHTS_AT + 1.2 * data.A[j] + 0.1, y, f"{data.A[j]:.2f}", va="center")
        _bars(ax, v, VALUES_AT, y, repeat(VALUE))
        _bars(ax, data.A[j] * v, WEIGHTED_AT, y, repeat(VALUE))
    below = y - 1.1
    ax.plot([WEIGHTED_AT - 0.05, WEIGHTED_AT + 1.25], [y - 0.5] * 2, color="0.2", linewidth=2, linestyle="-")
    _behind(ax, data.V[data.A.argmax()], WEIGHTED_AT, below)
    _bars(ax, data.y, WEIGHTED_AT, below, repeat(VALUE))
    _words(ax, data, below)
    return fig


def _words(ax: Axes, data: OneQuery, below: float) -> None:
    """Above the columns what they are, below them the sum, and what is full and what is hollow."""
    i, best = ATE + 1, int(data.A.argmax()) + 1
    middle = KEYS_AT + STEP * len(data.q) / 2
    ax.text(middle, QUERY_AT + 0.47, f"query $q_{i}$", ha="center", va="bottom")
    named = {
        middle: ("keys", "$k_j$"),
        SCORES_AT - 0.1: ("scores", rf"$S_{{{i}j}} = \langle q_{i}, k_j\rangle / \sqrt{{{len(data.q)}}}$"),
        WEIGHTS_AT + 0.5: ("weights", f"$A_{{{i}j}}$"),
        VALUES_AT + 0.6: ("values", "$v_j$"),
        WEIGHTED_AT + 0.6: ("weighted", rf"$A_{{{i}j}}\,v_j$"),
    }
    for x, (name, symbol) in named.items():
        ax.text(x, FIRST + 0.93, name, ha="center")
        ax.text(x, FIRST + 0.57, symbol, ha="center")
    ax.text(WEIGHTED_AT - 0.2, below, f"sum $y_{i}$, with $v_{best}$ in grey", ha="right", va="center")
    for drop, colour, text in ((0, SAME, "on the query’s side: adds"), (0.4, OPPOSITE, "on the other: takes away")):
        _block(ax, KEYS_AT + 0.08, below + 0.05 - drop, 0.24, 0.24, colour)
        ax.text(KEYS_AT + 0.5, below + 0.17 - drop, text, va="center")


def _bars(ax: Axes, vector: Array, x: float, y: float, colours: Iterable[str]) -> None:
    """A bar up or down for each channel, from a line."""
    ax.plot([x - 0.05, x + STEP * len(vector) + 0.05], [y, y], color="0.5", linewidth=1, linestyle="-")
    for a, (number, colour) in enumerate(zip(vector, colours, strict=False)):
        _block(ax, x + STEP * a + 0.07, y, STEP - 0.14, UNIT * number, colour)


def _block(ax: Axes, x: float, y: float, width: float, height: float, colour: str) -> None:
    """A bar, full; or hollow, if its colour says that it takes away."""
    ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, linewidth=0))
    if colour == OPPOSITE:
        edge, up = 0.03, math.copysign(0.03, height)
        inside = Rectangle((x + edge, y + up), width - 2 * edge, height - 2 * up, facecolor="white", linewidth=0)
        ax.add_patch(inside)


def _behind(ax: Axes, vector: Array, x: float, y: float) -> None:
    """A vector in grey behind the bars, each number as wide as its channel."""
    for a, number in enumerate(vector):
        ax.add_patch(Rectangle((x + STEP * a, y), STEP, UNIT * number, facecolor=BEHIND, linewidth=0, zorder=0))


def _length(ax: Axes, x: float, y: float, length: float) -> None:
    """A number as a bar from a line to the right, or to the left."""
    ax.add_patch(Rectangle((x, y - 0.14), length, 0.28, facecolor=LENGTH))
    ax.plot([x, x], [y - 0.3, y + 0.3], color="0.5", linewidth=1, linestyle="-")
