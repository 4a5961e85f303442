"""Who decides on a weight: one head of a dynamic convolution, and one of attention in a window, in trained models on one text."""

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.convolutions_on_text import TAPS, TEXT
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array

HEAD = {"dynamic convolution": 2, "window": 0}
TITLES = {"dynamic convolution": "dynamic convolution", "window": "attention in a window"}


class Matrices(NamedTuple):
    """A (n, n) of one head of the first block, by model; the n letters of the text; and which pairs are within reach."""

    A: dict[str, Array]
    letters: str
    reach: Array

    def offsets(self, model: str, i: int) -> Array:
        """The weights of row i from the token itself backwards, as far as the text goes."""
        return self.A[model][i, max(0, i - TAPS + 1) : i + 1][::-1]


def data() -> Matrices:
    """Of the record `convolutions_on_text`: trained without positions, the first seed."""
    found = {
        trial.model: np.array(result["attention"])[HEAD[trial.model]]
        for trial, result in experiments.load("convolutions_on_text")
        if "attention" in result
    }
    n = len(TEXT)
    back = np.subtract.outer(np.arange(n), np.arange(n))
    return Matrices({name: found[name] for name in TITLES}, TEXT, (back >= 0) & (back < TAPS))


def draw(data: Matrices) -> Figure:
    """Rows are the tokens that look, columns those they look at; the darker, the larger the weight; what is out of reach is grey.
    On the left the rows of one letter are the same, apart from their place; on the right it is the columns that belong together.
    """
    fig, axes = figure(1, 2, height=6.7)
    colours = mpl.colormaps[WEIGHTS].with_extremes(bad="0.85")
    places = range(len(data.letters))
    letters = [letter.replace(" ", "·") for letter in data.letters]
    for ax, (name, A) in zip(axes, data.A.items(), strict=True):
        image = ax.imshow(np.ma.masked_where(~data.reach, A), cmap=colours, vmin=0, vmax=1)
        ax.set(title=TITLES[name], xlabel="looks at")
        ax.set_xticks(places, letters)
        ax.set_yticks(places, letters)
        ax.tick_params(length=0)
    axes[0].set_ylabel("token")
    axes[1].set_yticklabels([])
    fig.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=30, label="weight", ticks=(0, 0.5, 1))
    return fig
