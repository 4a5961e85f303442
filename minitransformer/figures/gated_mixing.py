"""gMLP at work: one half of the channels is mixed over the places by a learned matrix, and then it multiplies the other half."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures import learned_mixing
from minitransformer.figures.style import figure
from minitransformer.related import spatial_gate
from minitransformer.typing import Array

TOKENS, UNITS, AT = 12, 16, (2, 8)


class GatedMixing(NamedTuple):
    """Z₂ (n, E), of which two rows are not zero; M (n, n); the gate M Z₂ + 1, and what it leaves of a Z₁ of ones."""

    Z_2: Array
    M: Array
    S: Array


def data(seed: int = 0) -> GatedMixing:
    """The corner of the first layer's M of the paper's form, as it was learned, and two tokens that say something."""
    M = learned_mixing.data().M["paper"][0][:TOKENS, :TOKENS]
    Z_2 = np.zeros((TOKENS, UNITS))
    Z_2[list(AT)] = np.random.default_rng(seed).standard_normal((2, UNITS))
    S, _ = spatial_gate(np.ones_like(Z_2), Z_2, M, np.ones(TOKENS), causal=True)
    return GatedMixing(Z_2, M, S)


def draw(data: GatedMixing) -> Figure:
    """Above, what two tokens say, and the matrix. Below, the gate: it is 1 where nobody has spoken, and follows after the two."""
    fig, axes = figure(2, 2, width=10, height=8.8)
    axes[1, 1].set_axis_off()
    ends = {"ticks": (0, UNITS - 1), "labels": (1, UNITS)}
    panels = (
        (axes[0, 0], "$Z_2$", data.Z_2, 2.5),
        (axes[0, 1], "$M$", data.M, 1),
        (axes[1, 0], "$M Z_2 + b$", data.S, 2.5),
    )
    for ax, title, Z, top in panels:
        image = ax.imshow(Z, vmin=-top, vmax=top, cmap="cividis", aspect="auto")
        ax.set_title(title)
        ax.set_yticks((0, TOKENS - 1), (1, TOKENS))
        ax.set_xticks(**(ends if title != "$M$" else {"ticks": (0, TOKENS - 1), "labels": (1, TOKENS)}))
        ax.set_xlabel("place $j$" if title == "$M$" else "unit")
        fig.colorbar(image, ax=ax, ticks=(-top, 0, top), aspect=14)
    axes[0, 0].set_ylabel("token")
    axes[1, 0].set_ylabel("token")
    return fig
