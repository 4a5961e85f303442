"""From one token to the next without a return to Python: the part of one_token.py for what stands around all blocks.

    logits = LN(x) Wᵀ           of the row x that has left the last block
    v                           the first token at which the running sum of softmax(logits / T) passes a random number u
    x = s E_v + Π               the row of that token at its place, for the first block

Two threads share the products of the first line, as in any other product; the rest is done by both.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.few_rows import norm_rows
from minitransformer.kernels.one_token_addresses import matrix, vector
from minitransformer.kernels.one_token_halves import halves_of_next, room_for
from minitransformer.kernels.threads import LINE
from minitransformer.kernels.tiles import dot
from minitransformer.typing import Array

# A text is a row of numbers: the addresses of these five arrays, the rows of E, and then the tokens, as they are drawn.
# Beside it stands another: the scale s of the rows of E, the temperature T, and then a chance u for each token.
E, PLACES, GAMMA, BETA, W, VOCABULARY, DRAWN = range(7)
SCALE, TEMPERATURE, CHANCES = range(3)


@inlined
def steps_of(text):
    """How many tokens pass through the blocks: one, if nothing is drawn."""
    return max(len(text) - DRAWN, 1)


@compiled
def draw_one(logits, temperature, u):
    """The first token at which the running sum of softmax(logits / temperature) passes u; −1 if the largest is not finite.

    Temperature 0 is for the most probable token, the first of equals.
    """
    top, best = -np.inf, 0
    for v in range(len(logits)):
        if logits[v] > top or np.isnan(logits[v]):
            top, best = logits[v], v
    if not np.isfinite(top):
        return -1
    if temperature == 0:
        return best
    below, so_far = np.empty(len(logits), np.float64), 0.0
    for v in range(len(below)):
        so_far += math.exp((logits[v] - top) / temperature)
        below[v] = so_far
    for v in range(len(below)):
        if below[v] / so_far > u:
            return v
    return -1


@inside
def row_of_next(X, text, chances, t, eps, centre, shared):
    """Draw the token behind X (1, D), the t-th, and return its row; X itself if it can't be drawn, or is the last.

    Both threads do this. What is written is the same twice.
    """
    D, rows = X.shape[1], text[VOCABULARY]
    z = norm_rows(X, vector(text[GAMMA], D, X), vector(text[BETA], D, X), eps, centre)[0]
    table, logits = matrix(text[W], rows, D, X), room_for(shared, rows)
    for half in halves_of_next(shared):
        for v in range(half * rows // 2, (half + 1) * rows // 2):
            logits[v] = dot(z, table[v])
    token = draw_one(logits, chances[TEMPERATURE], chances[CHANCES + t])
    text[DRAWN + t] = token
    if token < 0 or DRAWN + t + 1 == len(text):
        return X
    e, place = matrix(text[E], rows, D, X)[token], matrix(text[PLACES], len(text) - DRAWN, D, X)[t + 1]
    row, scale = np.empty((1, D), X.dtype), X.dtype.type(chances[SCALE])
    for c in range(D):
        row[0, c] = scale * e[c] + place[c]
    return row


@compiled
def draw_next(X, text, chances, t, eps, centre):
    """`row_of_next`, by one thread."""
    shared = np.zeros(4 * LINE, np.int64), np.empty(text[VOCABULARY], X.dtype), np.zeros(3, np.int64)
    return row_of_next(X, text, chances, t, eps, centre, shared)


class Text(NamedTuple):
    """What the loops take of a text, `text` and `chances`; and the arrays whose addresses are in there."""

    text: Array
    chances: Array
    held: tuple[Any, ...] = ()

    @property
    def drawn(self) -> Array:
        """The tokens; −1 for one that can't be drawn."""
        return self.text[DRAWN:]

    @property
    def more(self) -> int:
        """How many tokens pass through the blocks after the first."""
        return max(len(self.text) - DRAWN - 1, 0)

    @property
    def rows(self) -> int:
        """The number of logits of a token, if one is drawn."""
        return int(self.text[VOCABULARY]) if len(self.text) else 0


NO_TEXT = Text(np.empty(0, np.int64), np.empty(0))


class Ends(NamedTuple):
    """The two ends of a model: E (vocabulary, D) and the scale of its rows; γ and β of the last norm, W (vocabulary, D)."""

    E: Array
    scale: float
    gamma: Array
    beta: Array
    W: Array

    def fit(self) -> bool:
        """Whether all arrays have one dtype and the shapes that the loops expect, and are contiguous."""
        (rows, D), arrays = self.E.shape, (self.E, self.gamma, self.beta, self.W)
        alike = [X.shape for X in arrays] == [(rows, D), (D,), (D,), (rows, D)]
        return alike and all(X.dtype == self.E.dtype and X.flags.carray for X in arrays)

    def text(self, places: Array, temperature: float, chances: list[float]) -> Text:
        """For as many tokens as there are chances, at these places, (tokens, D)."""
        numbers = np.full(DRAWN + len(chances), -1)
        held = self.E, places, self.gamma, self.beta, self.W
        numbers[:DRAWN] = *(X.ctypes.data for X in held), len(self.E)
        return Text(numbers, np.array([self.scale, temperature, *chances]), held)
