"""A block, box by box: what is added to what, where the norm stands, and the shapes on the way."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from minitransformer.figures.style import figure
from minitransformer.models import Block
from minitransformer.pullback import Tree
from minitransformer.typing import Array

# Each step is what makes F from X: the boxes of the branch, then those that stand on the stream behind the sum.
STEPS = {
    "pre": ((("attention_norm", "attention"), ()), (("ffn_norm", "ffn"), ())),
    "post": ((("attention",), ("attention_norm",)), (("ffn",), ("ffn_norm",))),
}
NAMES = {"attention_norm": "layer norm", "attention": "attention", "ffn_norm": "layer norm", "ffn": "feed-forward"}
INSIDE = {"attention": "A", "ffn": "hidden"}
COLOURS = {"attention": "#cfe0ee", "cross": "#f3d6ce", "ffn": "#e4e4e4", "norm": "#fff3c4"}


class BlockDiagram(NamedTuple):
    """For each order: the shapes before, inside and after each box; and how far the boxes, run as drawn, are from `Block`."""

    shapes: dict[str, dict[str, tuple[str, str, str]]]
    error: dict[str, float]


def data(n: int = 5, width: int = 8) -> BlockDiagram:
    """Do what is drawn, box by box, with real parameters, and note the shapes."""
    rng = np.random.default_rng(0)
    symbols = {n: "n", width: "D", 4 * width: "4D", 2: "H"}
    shapes: dict[str, dict[str, tuple[str, str, str]]] = {}
    error = {}
    for order, steps in STEPS.items():
        block = Block.of(width, heads=2, hidden=4 * width, order=order)  # type: ignore[arg-type]
        params = block.init(rng, np.float64)
        X = rng.standard_normal((n, width))
        expected, _ = block(params, X)
        shapes[order] = {}
        for branch, behind in steps:
            F = X
            for name in branch:
                F, shapes[order][name] = _done(block, name, getattr(params, name), F, symbols)
            X = X + F
            for name in behind:
                X, shapes[order][name] = _done(block, name, getattr(params, name), X, symbols)
        error[order] = float(np.abs(X - expected).max())
    return BlockDiagram(shapes, error)


def _done(block: Block, name: str, params: Tree, X: Array, symbols: dict[int, str]) -> tuple[Array, Any]:
    """What a box makes of X, and the shapes before, inside and after it."""
    Y, pullback = {"attention": block.attention, "ffn": block.ffn}.get(name, block._norm)(params, X)
    inside = pullback.A if name == "attention" else pullback.linear_2.X if name == "ffn" else Y
    return Y, tuple(f"({', '.join(symbols[size] for size in Z.shape)})" for Z in (X, inside, Y))


def draw(data: BlockDiagram) -> Figure:
    """Pre-norm beside post-norm; the stream is the thick line on the left, and what is added to it comes from the right."""
    fig, axes = figure(1, 2, height=8.0)
    titles = {"pre": "pre-norm: X + F(LN(X))", "post": "post-norm: LN(X + F(X))"}
    for ax, (order, steps) in zip(axes, STEPS.items(), strict=True):
        ax.set(xlim=(-0.75, 4.75), ylim=(-0.6, 8.5))
        ax.axis("off")
        ax.set_title(titles[order], fontweight="bold")
        shapes = data.shapes[order]
        ax.plot([0, 0], [0, 8.1], color="0.2", linewidth=5, linestyle="-", solid_capstyle="butt", zorder=1)
        arrow(ax, (0, 8.0), (0, 8.5), "0.2")
        ax.text(0.25, 8.15, list(shapes.values())[-1][-1], va="center")
        ax.text(0, -0.1, f"X  {shapes[steps[0][0][0]][0]}", ha="center", va="top")
        y = 0.35
        for branch, behind in steps:
            y = _branch(ax, y, branch, shapes)
            for name in behind:
                box(ax, (-0.45, y + 0.2), (2.1, 0.62), NAMES[name], COLOURS["norm"])
                y += 1.1
            y += 0.15
    return fig


def _branch(ax: Axes, y: float, names: tuple[str, ...], shapes: dict[str, tuple[str, str, str]]) -> float:
    """A way out of the stream, through the boxes and back to a plus; returns the height behind it."""
    x, bottom = 2.9, y + 0.35
    for name in names:
        norm = name.endswith("norm")
        height, inside = (0.62, "") if norm else (1.05, f"\n{INSIDE[name]} {shapes[name][1]}")
        box(ax, (x - 1.4, bottom), (2.8, height), NAMES[name] + inside, COLOURS["norm" if norm else name])
        bottom += height + 0.33
    plus = bottom + 0.35
    ax.plot([0, x, x, 0.5], [y, y, plus, plus], color="0.35", linewidth=2.2, linestyle="-", zorder=0)
    arrow(ax, (0.6, plus), (0.2, plus), "0.35")
    ax.text(x + 0.12, plus - 0.33, f"F  {shapes[names[-1]][2]}", va="center")
    circle(ax, 0, plus)
    return plus + 0.25


def box(ax: Axes, corner: tuple[float, float], size: tuple[float, float], text: str, colour: str) -> None:
    """A rounded box, from its lower left corner, with its text in the middle."""
    style = {"boxstyle": "round,pad=0,rounding_size=0.1", "edgecolor": "0.3", "linewidth": 1.4, "zorder": 2}
    ax.add_patch(FancyBboxPatch(corner, *size, facecolor=colour, **style))
    x, y = corner[0] + size[0] / 2, corner[1] + size[1] / 2
    ax.text(x, y - 0.02, text, ha="center", va="center", zorder=3)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 2.2) -> None:
    """Draw a straight arrow."""
    style = {"arrowstyle": "-|>", "color": colour, "lw": width, "mutation_scale": 20, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style, zorder=2)


def circle(ax: Axes, x: float, y: float) -> None:
    """Where two arrays are added."""
    ax.plot(x, y, "o", markersize=27, color="white", markeredgecolor="0.2", markeredgewidth=2.2, zorder=3)
    ax.text(x, y - 0.02, "+", ha="center", va="center", fontsize=22, zorder=4)
