"""The error of attention with random features against the number of directions, for four kinds: short and usual queries."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.linear import gaussian_rows, orthogonal_rows, performer_attention
from minitransformer.figures.style import FAINT, figure, plain_ticks
from minitransformer.typing import Array

KINDS = {  # kind of features, and whether directions are orthogonal
    "positive": ("positive", False),
    "positive, orthogonal": ("positive", True),
    "hyperbolic": ("hyperbolic", False),
    "trigonometric": ("trigonometric", False),
}
SIZES = (0.3, 1.0)  # standard deviations of the entries of q and k


class FeatureError(NamedTuple):
    """Relative errors ‖Y′ − Y‖/‖Y‖, (R, draws), by the size of q and k and by the kind, for so many directions R.

    average   that of the mean of all values, by the size
    """

    n: int
    d: int
    directions: Array
    errors: dict[float, dict[str, Array]]
    average: dict[float, float]

    def rms(self, size: float, kind: str) -> Array:
        """The root of the mean square over the draws, (R,)."""
        return np.sqrt((self.errors[size][kind] ** 2).mean(1))

    def slope(self, size: float, kind: str) -> float:
        """The slope of `rms` against R, both on logarithmic axes."""
        return float(np.polyfit(np.log(self.directions), np.log(self.rms(size, kind)), 1)[0])


def data(n: int = 64, d: int = 16, draws: int = 30, seed: int = 0) -> FeatureError:
    """Normal q and k times a size, and normal values."""
    rng = np.random.default_rng(seed)
    Q, K, V = rng.standard_normal((3, n, d))
    directions, errors, average = 2 ** np.arange(4, 11), {}, {}
    for size in SIZES:
        want, _ = dot_product_attention(size * Q, size * K, V)
        average[size] = float(np.linalg.norm(V.mean(0) - want) / np.linalg.norm(want))
        errors[size] = {}
        for name, (kind, orthogonal) in KINDS.items():
            found = []
            for R in directions:
                Ws = (orthogonal_rows if orthogonal else gaussian_rows)(rng, (draws, R, d))
                each = [np.broadcast_to(X, (draws, n, d)) for X in (size * Q, size * K, V)]
                Y, _ = performer_attention(*each, W=Ws, kind=kind)
                found.append(np.linalg.norm(Y - want, axis=(1, 2)) / np.linalg.norm(want))
            errors[size][name] = np.array(found)
    return FeatureError(n, d, directions, errors, average)


def draw(data: FeatureError) -> Figure:
    """A panel for each size; in grey the average of all values, which needs no query. Some marks are beyond the lower one."""
    fig, axes = figure(2, 1, height=10)
    ranges = ((0.005, 1), (0.01, 0.1, 1)), ((0.5, 5), (0.5, 1, 2, 5))
    for ax, (size, kinds), (limits, ticks) in zip(axes, data.errors.items(), ranges, strict=True):
        for name, marker in zip(kinds, "os^D", strict=True):
            ax.plot(data.directions, data.rms(size, name), marker=marker, label=name)
        ax.axhline(data.average[size], color=FAINT, linewidth=5, linestyle="-", zorder=0, label="average of all values")
        ax.set(xscale="log", yscale="log", ylim=limits, xlabel="directions $R$", ylabel="relative error of $Y$")
        plain_ticks(ax, x=data.directions[::2], y=ticks)
        ax.set_title(f"entries of deviation {size:g}")
    axes[0].legend(loc="upper right", labelspacing=0.3, borderaxespad=0)
    return fig
