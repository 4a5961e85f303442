"""A pullback, opened: what goes forward, what is remembered, which step back reads it. In whole numbers, to check by hand."""

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
DY = np.array([[2.0, 3], [-1, 1], [-3, -2]])


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


PLACES = {  # centre and lower edge of each array, in cells
    "X": (1.0, 20.4),
    "U": (7.3, 20.4),
    "F": (15.0, 20.4),
    "Y": (21.9, 20.4),
    "linear_1.X": (7.3, 12.7),
    "linear_1.W": (3.7, 12.7),
    "linear_1.b": (3.7, 16.3),
    "activation.slope": (11.4, 12.7),
    "linear_2.X": (21.9, 12.7),
    "linear_2.W": (18.4, 12.7),
    "linear_2.b": (15.5, 12.7),
    "dX": (1.0, 1.9),
    "dU": (7.3, 1.9),
    "dF": (15.0, 1.9),
    "dY": (21.9, 1.9),
    "dW_1": (7.3, 7.0),
    "db_1": (7.3, 0.0),
    "dW_2": (21.9, 6.4),
    "db_2": (21.9, 0.0),
}
FORWARD = {("X", "U"): "$X W_1 + b_1$", ("U", "F"): "$\\max(0, U)$", ("F", "Y"): "$F W_2 + b_2$"}
BACKWARD = {
    ("dY", "dF"): "$dY\\,W_2^T$",
    ("dF", "dU"): "$\\mathrm{slope} \\odot dF$",
    ("dU", "dX"): "$dU\\,W_1^T$",
    ("dY", "dW_2"): "$dW_2 =$\n$F^T\\,dY$",
    ("dU", "dW_1"): "$dW_1 =$\n$X^T\\,dU$",
    ("dY", "db_2"): "$db_2$ = sum of rows",
    ("dU", "db_1"): "$db_1$ = sum of rows",
}
READS = {  # a field of the pullback, and the gradient whose step reads it; no step reads the numbers of a b
    "linear_2.W": "dF",
    "activation.slope": "dU",
    "linear_1.W": "dX",
    "linear_2.X": "dW_2",
    "linear_1.X": "dW_1",
}
FIELDS = {
    "linear_1.X": "X",
    "linear_1.W": "W = $W_1$",
    "linear_1.b": "b = $b_1$",
    "activation.slope": "slope",
    "linear_2.X": "X = $F$",
    "linear_2.W": "W = $W_2$",
    "linear_2.b": "b = $b_2$",
}
BOXES = {"linear_1": (1.3, 8.7), "activation": (9.05, 13.75), "linear_2": (14.1, 24.3)}  # left and right
DARK, REMEMBERED = "0.2", "#20639b"


def arrays(d: PullbackData) -> dict[str, Array]:
    """Every array that is drawn, as a matrix, under its name in PLACES."""
    fields = {f"{step}.{name}": a for step, p in d.pullback._asdict().items() for name, a in p._asdict().items()}
    gradients = {f"d{name}": a for name, a in (*d.backward.items(), *d.dparams._asdict().items())}
    return {name: np.atleast_2d(a) for name, a in (d.forward | fields | gradients).items()}


def draw(d: PullbackData) -> Figure:
    """Above, values go forward. In the middle, in boxes, what each step remembers; blue arrows go down from X, W and slope
    to the step back that reads them, none leaves b. Below, gradients come back, with those of weights and biases.
    """
    fig, ax = figure(width=10, height=9.75)
    fig.set_layout_engine("none")
    ax.set(position=(0, 0, 1, 1), xlim=(-1.25, 24.45), ylim=(-0.25, 24.8))
    ax.axis("off")
    for text, y in ("forward", 21.9), ("remembered", 15.9), ("backward", 5.1):
        ax.text(-0.75, y, text, rotation=90, ha="center", va="center", color="0.35")
    for step, (left, right) in BOXES.items():
        box = FancyBboxPatch((left, 12.3), right - left, 7.4, boxstyle="round,pad=0,rounding_size=0.4")
        box.set(facecolor="0.92", edgecolor="none", zorder=0)
        ax.add_patch(box)
        ax.text((left + right) / 2, 18.6, step, ha="center", va="bottom", family="monospace", weight="bold")
    drawn = arrays(d)
    for name, array in drawn.items():
        _matrix(ax, array, *PLACES[name])
    for name in (*d.forward, "dX", "dU", "dF", "dY"):
        _title(ax, drawn, name, f"${name}$")
    for name, label in FIELDS.items():
        _title(ax, drawn, name, label)
    for (start, end), label in (FORWARD | BACKWARD).items():
        _step(ax, drawn, start, end, label)
    for name, end in READS.items():
        _read(ax, drawn, name, end)
    return fig


def _matrix(ax: Axes, array: Array, x: float, y: float) -> None:
    """An array above y, in the middle of x, one unit for each entry; entries that are exactly zero stay white."""
    rows, columns = array.shape
    for (i, j), value in np.ndenumerate(array):
        left, bottom = x - columns / 2 + j, y + rows - i - 1
        colour = "#f2dfa0" if value else "white"
        ax.add_patch(Rectangle((left, bottom), 1, 1, facecolor=colour, edgecolor="0.5", linewidth=0.8))
        ax.text(left + 0.5, bottom + 0.45, f"{value + 0:.0f}".replace("-", "−"), ha="center", va="center")


def _title(ax: Axes, drawn: dict[str, Array], name: str, label: str) -> None:
    """A label above an array, in the middle; or to the left of the arrow that goes up from there."""
    x, y = PLACES[name]
    aside = any(start == name and PLACES[end][1] > y for start, end in BACKWARD)
    where = (x - 0.3, "right") if aside else (x, "center")
    ax.text(where[0], y + len(drawn[name]) + 0.2, label, ha=where[1], va="bottom", fontsize=20)


def _step(ax: Axes, drawn: dict[str, Array], start: str, end: str, label: str) -> None:
    """An arrow from array to array: along a row with the step above it, up to a gradient of weights, down to one of biases."""
    (x, y), (to, there) = PLACES[start], PLACES[end]
    if x != to:
        side = np.sign(to - x)
        a, b = x + side * (drawn[start].shape[1] / 2 + 0.3), to - side * (drawn[end].shape[1] / 2 + 0.3)
        _arrow(ax, (a, y + 1.5), (b, y + 1.5), DARK, 2)
        ax.text((a + b) / 2, y + 1.8, label, ha="center", va="bottom")
    elif there > y:
        _arrow(ax, (x, y + len(drawn[start]) + 0.1), (x, there - 0.1), DARK, 2)
        ax.text(x + 0.3, there + len(drawn[end]) + 0.2, label, ha="left", va="bottom")
    else:
        _arrow(ax, (x, y - 0.1), (x, there + 1.1), DARK, 2)
        ax.text(to - drawn[end].shape[1] / 2 - 0.25, there + 0.45, label, ha="right", va="center")


def _read(ax: Axes, drawn: dict[str, Array], field: str, gradient: str) -> None:
    """A thin arrow from a field down to the step that reads it: onto its formula, or into the gradient of the weights."""
    x, y = PLACES[field]
    to, there = PLACES[gradient]
    tip = there + len(drawn[gradient]) + 0.1 if x == to else there + 2.9
    _arrow(ax, (x, y - 0.1), (x, tip), REMEMBERED, 1.5)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, width: float) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 20}
    ax.annotate("", end, start, arrowprops=style)
