"""What nine heads look at in a picture of 8 × 8 pixels, seen from one pixel: learned freely, and the shifts of a convolution."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer import experiments
from minitransformer.experiments.heads_on_digits import SIDE
from minitransformer.figures.style import WEIGHTS, figure
from minitransformer.typing import Array

SHOWN = {"places": "learned, by place alone", "shifts": "a 3 × 3 convolution"}
MIDDLE = 4  # row and column of the pixel that looks


def data() -> dict[str, Array]:
    """By model, of the first seed, the weights of the first layer's heads, (H, 8, 8): each sums to one.

    The learned heads that look at the fewest pixels come first.
    """
    record, found = experiments.load("heads_on_digits"), {}
    for kind in SHOWN:
        (result,) = record.where(kind=kind, seed=0)
        A = np.array(result["A"][0])
        order = np.argsort(result["pixels"][0], kind="stable") if kind == "places" else range(len(A))
        found[kind] = A[list(order)]
    return found


def draw(data: dict[str, Array]) -> Figure:
    """Each small square is a head: dark is where the pixel at the cross looks; above it stands its largest weight.

    Left, first those with the fewest pixels.
    """
    fig, axes = figure(1, 2, width=10, height=6.2)
    for ax, (kind, title) in zip(axes, SHOWN.items(), strict=True):
        for h, A in enumerate(data[kind]):
            top, left = (place * step for place, step in zip(divmod(h, 3), (SIDE + 3, SIDE + 1), strict=True))
            ax.imshow(A / A.max(), cmap=WEIGHTS, vmin=0, vmax=1, extent=(left, left + SIDE, top + SIDE, top))
            ax.add_patch(Rectangle((left, top), SIDE, SIDE, fill=False, edgecolor="0.6"))
            ax.plot(left + MIDDLE + 0.5, top + MIDDLE + 0.5, "x", color="#c8553d", markersize=9, markeredgewidth=2.5)
            ax.text(left + SIDE / 2, top - 0.3, f"{A.max():.2f}", ha="center", va="bottom")
        ax.set(title=title, xticks=(), yticks=(), xlim=(-0.2, 3 * SIDE + 2.2), ylim=(3 * SIDE + 6.2, -2.4))
        ax.spines[:].set_visible(False)
    return fig
