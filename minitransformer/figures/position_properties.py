"""What is left of attention when contents are averaged out: three properties of it, for small readers of every kind."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.typing import Array

NEAR = 8  # offsets within which the profile should fall


class Properties(NamedTuple):
    """Of the logarithms of weights, averaged over contents: each between 0 and 1 (symmetry: −1 and 1), mean over heads.

    invariance     share of the variance within rows that the offset j − i explains: 1 if only the offset matters
    monotonicity   share of the steps away from offset 0, up to NEAR, at which the profile falls
    symmetry       correlation of the profile with its mirror image: 1 if left and right are alike
    """

    invariance: float
    monotonicity: float
    symmetry: float


class PositionProperties(NamedTuple):
    """For each encoding the mean attention of the first block, (H, n, n), and its properties."""

    A: dict[str, Array]
    properties: dict[str, Properties]


def profile(A: Array) -> tuple[Array, float]:
    """f in ln A_ij ≈ r_i + f_{j−i}, for the offsets −(n − 1) … n − 1, and the share of variance within rows that it explains.

    r_i, which softmax does not see, and f are fitted in turns by least squares.
    """
    B, n = np.log(A), len(A)
    which = np.arange(n) - np.arange(n)[:, None] + n - 1
    count = np.bincount(which.ravel())
    f = np.zeros(2 * n - 1)
    for _ in range(200):
        r = (B - f[which]).mean(-1, keepdims=True)
        f = np.bincount(which.ravel(), (B - r).ravel()) / count
    within = B - B.mean(-1, keepdims=True)
    return f, float(1 - ((B - r - f[which]) ** 2).sum() / (within**2).sum())


def measure(A: Array) -> Properties:
    """The three properties of mean attention (H, n, n), averaged over the heads."""
    rows = []
    for head in A:
        f, invariance = profile(head)
        zero = len(f) // 2
        away = np.concatenate([np.diff(f[zero : zero + NEAR + 1]), np.diff(f[zero - NEAR : zero + 1][::-1])])
        rows.append((invariance, (away < 0).mean(), np.corrcoef(f, f[::-1])[0, 1]))
    return Properties(*map(float, np.mean(rows, axis=0)))


def data(A: Mapping[str, Array]) -> PositionProperties:
    """From mean attention by name; the first token, which always has the same content, is left out."""
    inner = {name: a[:, 1:, 1:] / a[:, 1:, 1:].sum(-1, keepdims=True) for name, a in A.items()}
    return PositionProperties(inner, {name: measure(a) for name, a in inner.items()})


def draw(data: PositionProperties) -> Figure:
    """For each encoding, the head in which attention depends most on position."""
    fig, axes = figure(1, len(data.A), width=9.5, height=3.1, squeeze=False)
    for ax, (name, A) in zip(axes[0], data.A.items(), strict=True):
        head = int(np.ptp(np.log(A), axis=(1, 2)).argmax())
        image = ax.imshow(A[head], vmin=0)
        p = data.properties[name]
        ax.set_title(f"{name}\ninvariance {p.invariance:.2f}", fontsize=10)
        ax.set(xlabel="key $j$", xticks=[], yticks=[])
        fig.colorbar(image, ax=ax, shrink=0.75)
    axes[0, 0].set_ylabel("query $i$")
    return fig
