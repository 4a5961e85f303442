"""gMLP at work: one half of the channels is mixed over the places by a learned matrix, and then it multiplies the other half."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures import learned_mixing
from minitransformer.figures.style import SIGNED, figure, minuses
from minitransformer.related import spatial_gate
from minitransformer.typing import Array

TOKENS, UNITS, AT = 12, 16, (2, 8)


class GatedMixing(NamedTuple):
    """Z₂ (n, E), of which two rows are not zero; M (n, n); the gate G = M Z₂ + 1; and Z₁ ⊙ G for a Z₁ of equal rows."""

    Z_2: Array
    M: Array
    G: Array
    S: Array


def data(seed: int = 0) -> GatedMixing:
    """The corner of the second layer's M of the paper's form, as it was learned, and two tokens that say something."""
    rng = np.random.default_rng(seed)
    M = learned_mixing.data().M["paper"][learned_mixing.SHOWN][:TOKENS, :TOKENS]
    Z_2 = np.zeros((TOKENS, UNITS))
    Z_2[list(AT)] = rng.standard_normal((2, UNITS))
    S, pullback = spatial_gate(np.tile(rng.standard_normal(UNITS), (TOKENS, 1)), Z_2, M, np.ones(TOKENS), causal=True)
    return GatedMixing(Z_2, M, pullback.G, S)


def draw(data: GatedMixing) -> Figure:
    """Above, what two tokens say in one half, and the matrix. Below, the gate, and the other half, all of whose rows were equal.

    The gate is one where nobody has spoken yet, and changes most one and two rows after each of the two.
    """
    fig, axes = figure(2, 2, width=10, height=8.8)
    panels = (("$Z_2$", data.Z_2, 2), ("$M$", data.M, 1), ("$G = M Z_2 + b$", data.G, 3), (r"$Z_1 \odot G$", data.S, 3))
    for ax, (title, Z, top) in zip(axes.flat, panels, strict=True):
        image = ax.imshow(Z, vmin=-top, vmax=top, cmap=SIGNED, aspect="auto")
        minuses(ax, Z, top)
        columns = Z.shape[1]
        ax.set(title=title, xlabel="place $j$" if title == "$M$" else "unit")
        ax.set_xticks((0, columns - 1), (1, columns))
        ax.set_yticks((0, TOKENS - 1), (1, TOKENS))
        fig.colorbar(image, ax=ax, ticks=(-top, 0, top), aspect=14)
    for ax in axes[:, 0]:
        ax.set_ylabel("token $i$")
    return fig
