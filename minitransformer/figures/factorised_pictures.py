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
    """A row for each pattern: left the picture, right the matrix."""
    fig, axes = figure(3, 2, width=9.5, height=12)
    for (left, right), name in zip(axes, data.matrices, strict=True):
        picture, matrix = data.pictures[name], data.matrices[name]
        squares(left, picture > 0, name, picture)
        squares(right, matrix > 0, name, matrix)
        left.set(xticks=(), yticks=(), ylabel="line of the picture")
        right.set(xticks=(1, len(matrix)), yticks=(1, len(matrix)), ylabel="query $i$")
    axes[-1, 0].set_xlabel("column")
    axes[-1, 1].set_xlabel("key $j$")
    return fig
