"""Which queries meet which keys: local blocks, windows, and a few columns that are seen by all that follows."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minitransformer.attention import Fixed, Local, Pattern, Window
from minitransformer.figures.style import figure, outer_labels
from minitransformer.typing import Array

BLOCK = 6
PATTERNS: dict[str, tuple[Pattern, bool]] = {
    "local, encoder": (Local(BLOCK), False),
    "local, decoder": (Local(BLOCK), True),
    "convolutional": (Window(3), True),
    "dilated, step 2": (Window(3, 2), True),
    "dilated, step 4": (Window(3, 4), True),
    "a few for all": (Fixed(BLOCK, 1, "far"), True),
}


def data(n: int = 24) -> dict[str, Array]:
    """By name: True where query i meets key j of n tokens, read off the list of tiles."""
    return {name: pattern(n, n, causal=causal).mask for name, (pattern, causal) in PATTERNS.items()}


def squares(ax: Axes, mask: Array, title: str, kinds: Array | None = None) -> None:
    """A mask as squares, in the colours of the kinds if there are several; what is not met stays white."""
    n, m = mask.shape
    shown = np.ma.masked_where(~mask, np.ones(mask.shape) if kinds is None else kinds)
    ax.imshow(shown, vmin=0, vmax=4, extent=(0.5, m + 0.5, n + 0.5, 0.5))
    ax.set_title(title)
    ax.tick_params(length=0)
    ax.spines[:].set(visible=True, color="0.6")


def draw(masks: dict[str, Array]) -> Figure:
    """One panel for each; what is dark is computed."""
    n = len(masks["convolutional"])
    fig, axes = figure(3, 2, width=9.5, height=12.5, sharex=True, sharey=True)
    for ax, (name, mask) in zip(axes.flat, masks.items(), strict=True):
        squares(ax, mask, name)
        ax.set(xticks=(1, n // 2, n), yticks=(1, n // 2, n))
    outer_labels(axes, "key $j$", "query $i$")
    return fig
