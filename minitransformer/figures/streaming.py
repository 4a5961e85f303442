"""What a window with sinks still holds while a text goes by, and which position each key has there."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.figures.interaction_matrices import squares
from minitransformer.figures.style import figure
from minitransformer.typing import Array


class Streaming(NamedTuple):
    """(n, n): the place in the cache that token j has when token i is written; −1 if it is not there."""

    place: Array
    first: int
    last: int


def data(n: int = 14, first: int = 2, last: int = 5) -> Streaming:
    """Read off the state of decoding, from keys that hold their own number."""
    place, state = np.full((n, n), -1), None
    for t in range(n):
        key = np.full((1, 1, 1), float(t))
        before = np.zeros((1, 0, 1)) if state is None else state.keys
        seen = np.concatenate([before, key], -2)[0, :, 0].astype(int)
        place[t, seen] = np.arange(len(seen))
        state = Recent.of(key, key, Kept(first, last)) if state is None else state.extended(key, key)
    return Streaming(place, first, last)


def draw(data: Streaming) -> Figure:
    """A row for each token that is written; the number is a position in the cache."""
    n = len(data.place)
    fig, ax = figure(width=8, height=7.4)
    kinds = np.where(np.arange(n) < data.first, 3, 1) * np.ones((n, 1))
    squares(ax, data.place >= 0, "", kinds)
    for (i, j), place in np.ndenumerate(data.place):
        if place >= 0:
            ax.text(j + 1, i + 1, str(place), ha="center", va="center", color="black" if j < data.first else "white")
    ax.set(xticks=range(1, n + 1, 3), xticklabels=range(0, n, 3), yticks=range(1, n + 1, 3), yticklabels=range(0, n, 3))
    ax.set(xlabel="token of the text", ylabel="token that is written")
    return fig
