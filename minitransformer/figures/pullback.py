"""A pullback, opened: what goes forward, what is remembered, what comes back. Every cell is a number of a real one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from minitransformer.figures.style import figure
from minitransformer.models import FeedForward, FeedForwardParams
from minitransformer.models.feed_forward import FeedForwardPullback
from minitransformer.pullback import random_like
from minitransformer.typing import Array


class PullbackData(NamedTuple):
    """Y = ReLU(X W₁ + b₁) W₂ + b₂ on four tokens: values on the way, the pullback, gradients on the way back."""

    forward: dict[str, Array]
    pullback: FeedForwardPullback
    backward: dict[str, Array]
    dparams: FeedForwardParams


def data(seed: int = 3) -> PullbackData:
    """The gradients between the steps come from calling the pullback's own fields, one after the other."""
    rng = np.random.default_rng(seed)
    network = FeedForward(width=3, hidden=5)
    params = random_like(network.init(rng, np.float64), rng)
    X, dY = rng.standard_normal((2, 4, 3))
    Y, pullback = network(params, X)
    dF, *_ = pullback.linear_2(dY)
    dU = pullback.activation(dF)
    dparams, dX = pullback(dY)
    forward = {"X": X, "U": X @ params.W_1 + params.b_1, "F": pullback.linear_2.X, "Y": Y}
    return PullbackData(forward, pullback, {"X": dX, "U": dU, "F": dF, "Y": dY}, dparams)


CENTRES = {"X": 3.0, "U": 13.0, "F": 23.0, "Y": 33.0}  # columns of the drawing, in cells
ROWS = {"forward": 0.0, "remembered": -8.3, "backward": -16.4}
STEPS = (  # from, to, the field of the pullback, what it remembers, the step forward, the step back
    ("X", "U", "linear_1", "XW", "$X W_1 + b_1$", "$dU\\,W_1^T$"),
    ("U", "F", "activation", ("slope",), "$\\max(0, U)$", "$\\mathrm{slope} \\odot dF$"),
    ("F", "Y", "linear_2", "XW", "$F W_2 + b_2$", "$dY\\,W_2^T$"),
)


def draw(d: PullbackData) -> Figure:
    """Columns are values, arrows are steps; between the two rows of arrows lies what the steps remember."""
    fig, ax = figure(width=7.5, height=4.9)
    ax.set(xlim=(-1.5, 35.5), ylim=(-18.9, 4))
    ax.axis("off")
    for name, y in ROWS.items():
        ax.text(-0.6, y, name, rotation=90, ha="center", va="center", color="0.35")
    for name, x in CENTRES.items():
        _matrix(ax, d.forward[name], x, ROWS["forward"], f"${name}$")
        _matrix(ax, d.backward[name], x, ROWS["backward"], f"$d{name}$")
    for left, right, step, fields, value, gradient in STEPS:
        _arrow(ax, d.forward, left, right, ROWS["forward"], value)
        _arrow(ax, d.backward, right, left, ROWS["backward"], gradient)
        _remembered(ax, d, (CENTRES[left] + CENTRES[right]) / 2, step, fields)
    entries = ax.images[0]
    bar = fig.colorbar(entries, ax=ax, orientation="horizontal", extend="both", shrink=0.35, aspect=30, pad=0.02)
    bar.set_label("value of an entry; white: exactly 0")
    return fig


def _remembered(ax: Axes, d: PullbackData, x: float, step: str, fields: Sequence[str]) -> None:
    """The box of a step: the fields of its pullback."""
    y, width = ROWS["remembered"], 9.4 if len(fields) == 2 else 6.4
    box = FancyBboxPatch((x - width / 2, y - 3.0), width, 7.2, boxstyle="round,pad=0,rounding_size=0.5")
    box.set(facecolor="0.93", edgecolor="none", zorder=0)
    ax.add_patch(box)
    ax.text(x, y - 3.3, step, ha="center", va="top", fontsize=9, family="monospace")
    pullback = getattr(d.pullback, step)
    arrays = [getattr(pullback, field) for field in fields]
    left = x - (sum(a.shape[1] for a in arrays) + len(arrays) - 1) / 2
    for field, array in zip(fields, arrays, strict=True):
        columns = array.shape[1]
        _matrix(ax, array, left + columns / 2, y, field, size=9, family="monospace")
        left += columns + 1


def _matrix(
    ax: Axes, array: Array, x: float, y: float, label: str, *, size: float = 11, family: str | None = None
) -> None:
    """An array centred at (x, y), one unit for each entry; entries that are exactly zero stay white."""
    rows, columns = array.shape
    left, right, bottom, top = x - columns / 2, x + columns / 2, y - rows / 2, y + rows / 2
    ax.add_patch(Rectangle((left, bottom), columns, rows, facecolor="white", zorder=1))
    shown = np.ma.masked_equal(array, 0)
    ax.imshow(shown, cmap="cividis", vmin=-2.5, vmax=2.5, extent=(left, right, bottom, top), aspect="equal", zorder=2)
    lines = [[(left + k, bottom), (left + k, top)] for k in range(columns + 1)]
    lines += [[(left, bottom + k), (right, bottom + k)] for k in range(rows + 1)]
    ax.add_collection(LineCollection(lines, colors="0.5", linewidths=0.5, zorder=3))
    ax.text(x, top + 0.3, label, ha="center", va="bottom", fontsize=size, family=family)


def _arrow(ax: Axes, arrays: dict[str, Array], start: str, end: str, y: float, label: str) -> None:
    direction = 1 if CENTRES[end] > CENTRES[start] else -1
    a = CENTRES[start] + direction * (arrays[start].shape[1] / 2 + 0.4)
    b = CENTRES[end] - direction * (arrays[end].shape[1] / 2 + 0.4)
    style = {"arrowstyle": "-|>", "color": "0.2", "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (b, y), (a, y), arrowprops=style)
    ax.text((a + b) / 2, y + 0.4, label, ha="center", va="bottom", fontsize=9)
