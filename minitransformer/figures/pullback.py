"""A pullback, opened: what goes forward, what is remembered, what comes back. In whole numbers, to be checked by hand."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from minitransformer.backend import backend
from minitransformer.figures.style import figure
from minitransformer.models import FeedForward, FeedForwardParams
from minitransformer.models.feed_forward import FeedForwardPullback
from minitransformer.typing import Array


class PullbackData(NamedTuple):
    """Y = ReLU(X W₁ + b₁) W₂ + b₂ on three tokens: values on the way, the pullback, gradients on the way back."""

    forward: dict[str, Array]
    pullback: FeedForwardPullback
    backward: dict[str, Array]
    dparams: FeedForwardParams


PARAMS = FeedForwardParams(
    W_1=np.array([[-2.0, 2, -1, -1], [-1, 1, -1, -1]]),
    b_1=np.array([-1.0, -1, 1, -1]),
    W_2=np.array([[1.0, -2], [-1, 2], [-2, 2], [2, -1]]),
    b_2=np.array([-1.0, 1]),
)
X = np.array([[-1.0, -1], [1, 1], [-2, 2]])
DY = np.array([[-1.0, 2], [-2, 1], [1, -2]])


def data() -> PullbackData:
    """The gradients between the steps come from calling the pullback's own fields, one after the other.

    In the tier "numpy": compiled loops remember other things.
    """
    with backend("numpy"):
        Y, pullback = FeedForward(width=2, hidden=4)(PARAMS, X)
        dF, *_ = pullback.linear_2(DY)
        dU = pullback.activation(dF)
        dparams, dX = pullback(DY)
    forward = {"X": X, "U": X @ PARAMS.W_1 + PARAMS.b_1, "F": pullback.linear_2.X, "Y": Y}
    return PullbackData(forward, pullback, {"X": dX, "U": dU, "F": dF, "Y": DY}, dparams)


CENTRES = {"X": 1.0, "U": 8.4, "F": 16.8, "Y": 24.2}  # columns of the drawing, in cells
ROWS = {"forward": 0.0, "remembered": -8.2, "backward": -16.2}
STEPS = (  # from, to, the field of the pullback, the step forward, the step back
    ("X", "U", "linear_1", "$X W_1 + b_1$", "$dU\\,W_1^T$"),
    ("U", "F", "activation", "$\\max(0, U)$", "$\\mathrm{slope} \\odot dF$"),
    ("F", "Y", "linear_2", "$F W_2 + b_2$", "$dY\\,W_2^T$"),
)


def draw(d: PullbackData) -> Figure:
    """Columns are values, arrows are steps; between the two rows of arrows lies what the steps remember."""
    fig, ax = figure(width=12, height=9.3)
    ax.set(xlim=(-1.9, 25.4), ylim=(-18, 2.9), aspect="equal")
    ax.axis("off")
    for name, y in ROWS.items():
        ax.text(-1.3, y, name, rotation=90, ha="center", va="center", color="0.35")
    for name, x in CENTRES.items():
        _matrix(ax, d.forward[name], x, ROWS["forward"], f"${name}$")
        _matrix(ax, d.backward[name], x, ROWS["backward"], f"$d{name}$")
    for left, right, step, value, gradient in STEPS:
        _arrow(ax, d.forward, left, right, ROWS["forward"], value)
        _arrow(ax, d.backward, right, left, ROWS["backward"], gradient)
        _remembered(ax, getattr(d.pullback, step), (CENTRES[left] + CENTRES[right]) / 2, step)
    return fig


def _remembered(ax: Axes, pullback: NamedTuple, x: float, step: str) -> None:
    """The box of a step: the fields of its pullback, b below W."""
    fields = dict(zip(pullback._fields, pullback, strict=True))
    b = fields.pop("b", None)
    width = sum(a.shape[1] for a in fields.values()) + len(fields)
    y = ROWS["remembered"]
    box = FancyBboxPatch((x - width / 2, y - 4.6), width, 9.2, boxstyle="round,pad=0,rounding_size=0.4")
    box.set(facecolor="0.92", edgecolor="none", zorder=0)
    ax.add_patch(box)
    ax.text(x, y + 3.4, step, ha="center", va="bottom", family="monospace", weight="bold")
    left = x - width / 2 + 0.5
    for field, array in fields.items():
        centre = left + array.shape[1] / 2
        _matrix(ax, array, centre, y + 2.2 - len(array) / 2, field)
        if field == "W":
            _matrix(ax, b[None], centre, y + 2.2 - len(array) - 1.9, "b")
        left += array.shape[1] + 1


def _matrix(ax: Axes, array: Array, x: float, y: float, label: str) -> None:
    """An array centred at (x, y), one unit for each entry; entries that are exactly zero stay white."""
    rows, columns = array.shape
    for (i, j), value in np.ndenumerate(array):
        left, bottom = x - columns / 2 + j, y + rows / 2 - i - 1
        colour = "#f2dfa0" if value else "white"
        ax.add_patch(Rectangle((left, bottom), 1, 1, facecolor=colour, edgecolor="0.5", linewidth=0.8))
        ax.text(left + 0.5, bottom + 0.45, f"{value + 0:.0f}".replace("-", "−"), ha="center", va="center")
    ax.text(x, y + rows / 2 + 0.15, label, ha="center", va="bottom", fontsize=20)


def _arrow(ax: Axes, arrays: dict[str, Array], start: str, end: str, y: float, label: str) -> None:
    direction = 1 if CENTRES[end] > CENTRES[start] else -1
    a = CENTRES[start] + direction * (arrays[start].shape[1] / 2 + 0.3)
    b = CENTRES[end] - direction * (arrays[end].shape[1] / 2 + 0.3)
    style = {"arrowstyle": "-|>", "color": "0.2", "linewidth": 2, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 20}
    ax.annotate("", (b, y), (a, y), arrowprops=style)
    ax.text((a + b) / 2, y + 0.4, label, ha="center", va="bottom")
