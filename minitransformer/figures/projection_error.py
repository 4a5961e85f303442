"""The error of P Rᵀ R w against the number of rows of R: for a w with a mean, and for one without."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import FAINT, figure, plain_ticks
from minitransformer.measurements.low_rank import predicted_error, projected_errors, random_attention, rows_needed
from minitransformer.typing import Array

EPS = 0.5


class ProjectionError(NamedTuple):
    """Relative errors (k, draws) and what is predicted (k,), by the kind of w; the k of Theorem 1 for ε = ½ and this n."""

    n: int
    ks: Array
    errors: dict[str, Array]
    predicted: dict[str, Array]
    needed: float


def data(n: int = 512, d: int = 32, seed: int = 0, draws: int = 10) -> ProjectionError:
    """P of random queries and keys; a random w, less its mean, and the same plus two."""
    rng = np.random.default_rng(seed)
    _, P = random_attention(n, d, rng)
    w = rng.standard_normal(n)
    w -= w.mean()
    ks = 2 ** np.arange(3, 12)
    kinds = {"mean 2": w + 2, "mean 0": w}
    errors = {name: np.array([projected_errors(P, u, k, rng, draws=draws) for k in ks]) for name, u in kinds.items()}
    predicted = {name: np.array([predicted_error(P, u, k) for k in ks]) for name, u in kinds.items()}
    return ProjectionError(n, ks, errors, predicted, rows_needed(n, EPS))


def draw(data: ProjectionError) -> Figure:
    """Both axes logarithmic; dots are single draws, lines ‖P‖_F ‖w‖ / (√k ‖P w‖)."""
    fig, ax = figure(height=6)
    for (name, errors), marker in zip(data.errors.items(), "o^", strict=True):
        (line,) = ax.plot(data.ks, data.predicted[name], label=f"$w$ with {name}")
        flat = np.repeat(data.ks, errors.shape[1])
        ax.plot(flat, errors.ravel(), marker, color=line.get_color(), markersize=6, alpha=0.5, linestyle="none")
    ax.axhline(EPS, color="0.4", linewidth=1.5, linestyle="-")
    ax.plot([data.needed], [EPS], "k*", markersize=20)
    says = {"xytext": (-6, 14), "textcoords": "offset points", "ha": "right"}
    ax.annotate("Theorem 1, for ε = ½", (data.needed, EPS), **says)
    ax.axvline(data.n, color=FAINT, linewidth=1, linestyle="-", zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="rows $k$ of $R$", ylabel="relative error")
    ax.set_xticks([8, 32, 128, 512, 2048], ["8", "32", "128", "512 = n", "2048"])
    plain_ticks(ax, y=[0.1, 1, 10])
    ax.legend(loc="lower left")
    return fig
