"""The four terms of a score in a real BERT: what content and position of two words make of each other, layer by layer."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.figures.style import SIGNED, figure, minuses, outer_labels
from minitransformer.typing import Array

COLOURS = mpl.colormaps[SIGNED].resampled(61)  # few enough for the palette of a PNG; the middle one is for zero
NAMES = ("content–content", "content–position", "position–content", "position–position")


class FourTermsOfBert(NamedTuple):
    """What `experiments/bert_four_terms.py` has on record; blocks and heads count from 0 here, from 1 in the figure.

    The last two are of position–position in the longer texts.
    """

    tokens: list[str]
    matrices: Array
    exact: Array
    size: Array
    of_offset: Array
    share: Array
    long_size: Array
    long_of_offset: Array


def data() -> FourTermsOfBert:
    """The record: short texts first, then the longer ones."""
    short, long = experiments.load("bert_four_terms").results
    arrays = {name: np.array(short[name]) for name in ("matrices", "exact", "size", "of_offset", "share")}
    longer = {"long_size": np.array(long["size"])[:, 3], "long_of_offset": np.array(long["of_offset"])}
    return FourTermsOfBert(short["tokens"], **arrays, **longer)


def draw(data: FourTermsOfBert) -> Figure:
    """The terms of one head, each row without its mean, which is white, with a minus where they are clearly below it: only
    position–position has stripes along diagonals.
    """
    fig, axes = figure(2, 2, height=12, sharex=True, sharey=True)
    limit = np.abs(data.matrices).max()
    n = np.arange(len(data.tokens))
    for ax, name, T in zip(axes.flat, NAMES, data.matrices, strict=True):
        image = ax.imshow(T, vmin=-limit, vmax=limit, cmap=COLOURS)
        minuses(ax, T, limit)
        ax.set_title(name)
        ax.set_xticks(n, data.tokens, rotation=90)
        ax.set_yticks(n, data.tokens)
        ax.tick_params(left=ax in axes[:, 0], bottom=ax in axes[1])
        ax.spines[:].set(visible=True, color="0.7")
    outer_labels(axes, "key $j$", "query $i$")
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.6, aspect=30, label="score, less the mean of its row")
    return fig


def draw_sizes(data: FourTermsOfBert) -> Figure:
    """The size of each term in each layer; and how much of position–position is a function of j − i."""
    fig, (above, below) = figure(2, 1, width=10, height=11, sharex=True)
    blocks = np.arange(1, len(data.size) + 1)
    for k, (name, marker) in enumerate(zip(NAMES, "o^vs", strict=True)):
        above.plot(blocks, data.size[:, k].mean(-1), marker=marker, markersize=9, label=name)
    above.set(ylabel="standard deviation over $j$", ylim=(0, 2.3), title="size of each term, mean of 12 heads")
    above.legend(ncols=2, loc="upper center")
    for block, (size_, part) in enumerate(zip(data.size[:, 3], data.of_offset, strict=True), 1):
        places = block + np.linspace(-0.25, 0.25, len(part))
        large = size_ > 1
        below.scatter(places[~large], part[~large], s=20 + 50 * size_[~large], facecolors="none", edgecolors="C3")
        below.scatter(places[large], part[large], s=20 + 50 * size_[large], color="C3", alpha=0.6, linewidths=0)
    below.set(xlabel="layer", ylabel="part of its variance", ylim=(0, 1.05))
    below.set_title("position–position: how much is a function of $j − i$")
    return fig
