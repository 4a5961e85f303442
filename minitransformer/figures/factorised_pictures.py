"""The sparse transformer's patterns twice: as matrices, and as what one pixel of a picture sees of it."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import Causal, Fixed, Strided
from minitransformer.figures.interaction_matrices import squares
from minitransformer.figures.style import figure
from minitransformer.typing import Array

NEAR, FAR, QUERY = 1, 3, 4


class FactorisedPictures(NamedTuple):
    """By name a matrix (n, n) and a picture (l, l): 0 unseen, 1 near, 3 far, 4 the query itself."""

    matrices: dict[str, Array]
    pictures: dict[str, Array]


def data(side: int = 6, row: int = 3, column: int = 2) -> FactorisedPictures:
    """A picture of side × side pixels, read line by line; the query is the pixel in this row and column."""
    n, query = side * side, row * side + column
    matrices = {"dense": np.where(Causal()(n, n, causal=True).mask, NEAR, 0)}
    for name, kind in (("strided", Strided), ("fixed", Fixed)):
        near, far = (kind(side, part=part)(n, n, causal=True).mask for part in ("near", "far"))
        matrices[name] = np.where(near, NEAR, np.where(far, FAR, 0))
    pictures = {}
    for name, kinds in matrices.items():
        seen = kinds[query].copy()
        seen[query] = QUERY
        pictures[name] = seen.reshape(side, side)
    return FactorisedPictures(matrices, pictures)


def draw(data: FactorisedPictures) -> Figure:
    """Above the pictures, below the matrices."""
    fig, axes = figure(2, 3, width=11, height=8.4)
    for column, name in enumerate(data.matrices):
        picture, matrix = data.pictures[name], data.matrices[name]
        squares(axes[0, column], picture > 0, name, picture)
        squares(axes[1, column], matrix > 0, "", matrix)
        axes[0, column].set(xticks=(), yticks=(), xlabel="column")
        axes[1, column].set(xticks=(1, len(matrix)), yticks=(1, len(matrix)), xlabel="key $j$")
    axes[0, 0].set_ylabel("line of the picture")
    axes[1, 0].set_ylabel("query $i$")
    return fig
