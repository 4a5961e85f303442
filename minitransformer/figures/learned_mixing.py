"""What gMLP has learned to mix: its matrix over the places, in both forms, and the means of its diagonals."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer import experiments
from minitransformer.experiments.token_mixing import CONTEXT
from minitransformer.figures.style import SIGNED, figure
from minitransformer.typing import Array

FORMS = ("paper", "source")
OFFSETS = 9
SHOWN, PLACES = 1, slice(20, 40)  # the layer of which a part of M is drawn, and its places


class LearnedMixing(NamedTuple):
    """By form: M of each layer (layers, n, n), with zeros above the diagonal, of the first seed."""

    M: dict[str, Array]

    def kernels(self, form: str) -> Array:
        """The mean of M's diagonal at each offset back, (layers, offsets)."""
        return np.array([[np.diagonal(M, -o).mean() for o in range(OFFSETS)] for M in self.M[form]])


def data() -> LearnedMixing:
    """What is on record, row by row, as whole matrices."""
    record, found = experiments.load("token_mixing"), {}
    for form in FORMS:
        (result,) = record.where(kind=form, seed=0)
        found[form] = np.zeros((len(result["M"]), CONTEXT, CONTEXT))
        for M, rows in zip(found[form], result["M"], strict=True):
            M[np.tril_indices(CONTEXT)] = np.concatenate(rows)
    return LearnedMixing(found)


def draw(data: LearnedMixing) -> Figure:
    """Above, a part of M in the second layer: stripes along the diagonal. Below, the means of its diagonals, for all layers."""
    fig, axes = figure(2, 2, width=10, height=9.6, height_ratios=(1.25, 1))
    for column, form in zip(axes.T, FORMS, strict=True):
        M, ends = data.M[form][SHOWN][PLACES, PLACES], (PLACES.start + 1, PLACES.stop)
        image = column[0].imshow(M, vmin=-1, vmax=1, cmap=SIGNED)
        column[0].set(title=f"{form}'s form", xlabel="place $j$", xticks=(0, len(M) - 1), yticks=(0, len(M) - 1))
        column[0].set(xticklabels=ends, yticklabels=ends)
        for k, kernel in enumerate(data.kernels(form)):
            column[1].plot(range(OFFSETS), kernel, marker="osD"[k], markersize=8, label=f"layer {k + 1}")
        column[1].axhline(0, color="0.7", linewidth=1, linestyle="-", zorder=0)
        column[1].set(xlabel="offset $i - j$", ylim=(-1, 1.1), xticks=range(0, OFFSETS, 2))
    fig.colorbar(image, ax=axes[0, 1], ticks=(-1, 0, 1), aspect=14, shrink=0.9, label="entry of $M$")
    axes[0, 0].set_ylabel("place $i$")
    axes[1, 0].set_ylabel("mean of a diagonal of $M$")
    axes[1, 1].legend()
    return fig
