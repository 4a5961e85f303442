"""Two orders for one product: Φ_Q Φ_Kᵀ V with the n × n matrix made first, and with the sums over keys made first."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from minitransformer.figures.style import figure


class Order(NamedTuple):
    """The shapes of the three factors, which two are multiplied first, the shape of their product, and products of numbers."""

    factors: tuple[tuple[int, int], ...]
    first: int
    between: tuple[int, int]
    costs: tuple[int, int]


class MultiplicationOrder(NamedTuple):
    """n tokens, r features, values of width dv."""

    n: int
    r: int
    dv: int
    orders: tuple[Order, Order]


def cost(rows: int, inner: int, columns: int) -> int:
    """Products of numbers in a product of matrices."""
    return rows * inner * columns


def data(n: int = 40, r: int = 12, dv: int = 8) -> MultiplicationOrder:
    """From the left, and from the right."""
    factors = (n, r), (r, n), (n, dv)
    left = Order(factors, 0, (n, n), (cost(n, r, n), cost(n, n, dv)))
    right = Order(factors, 1, (r, dv), (cost(r, n, dv), cost(n, r, dv)))
    return MultiplicationOrder(n, r, dv, (left, right))


NAMES = (r"$\Phi_Q$", r"$\Phi_K^\top$", "$V$")


def _rectangle(ax: Axes, x: float, shape: tuple[int, int], colour: str, name: str) -> None:
    rows, columns = shape
    ax.add_patch(Rectangle((x, -rows / 2), columns, rows, facecolor=colour, edgecolor="black", linewidth=1.5))
    ax.text(x + columns / 2, -rows / 2 - 4, name, ha="center", va="top")


def draw(data: MultiplicationOrder) -> Figure:
    """Rectangles in proportion; dashed around what is multiplied first, and what comes of it at the right."""
    fig, axes = figure(2, 1, width=13, height=10)
    titles = "the matrix first", "the sums over keys first"
    formulas = (r"$n^2 r + n^2 d_v$", r"$n r d_v + n r d_v$")
    for ax, order, title, formula in zip(axes, data.orders, titles, formulas, strict=True):
        x, starts = 0.0, []
        for shape, name, colour in zip(order.factors, NAMES, ("#9fc1dd", "#e9b8a6", "#a9cfb4"), strict=True):
            starts.append(x)
            _rectangle(ax, x, shape, colour, name)
            x += shape[1] + 5
        a, b = order.first, order.first + 1
        left, right = starts[a] - 1.5, starts[b] + order.factors[b][1] + 1.5
        height = max(order.factors[a][0], order.factors[b][0]) + 3.5
        ax.add_patch(
            Rectangle((left, -height / 2), right - left, height, fill=False, linestyle=(0, (4, 3)), linewidth=2.5)
        )
        ax.annotate("", (x + 9, 0), (x, 0), arrowprops={"arrowstyle": "-|>", "linewidth": 2.5, "color": "black"})
        _rectangle(ax, x + 13, order.between, "#d8c9e3", f"{order.between[0]} × {order.between[1]}")
        total = sum(order.costs)
        ax.text(x + 13 + data.n + 6, 0, f"{title}:\n{formula}\n= {total:,}", va="center")
        ax.set(xlim=(-3, x + 13 + data.n + 52), ylim=(-data.n / 2 - 8, data.n / 2 + 3), aspect="equal")
        ax.axis("off")
    return fig
