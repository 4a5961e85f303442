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
GAP = 19.0  # between factors


def _rectangle(ax: Axes, x: float, shape: tuple[int, int], colour: str, name: str) -> float:
    """A matrix in proportion, its name above and its size below; where the next one may begin."""
    rows, columns = shape
    ax.add_patch(Rectangle((x, -rows / 2), columns, rows, facecolor=colour, edgecolor="black", linewidth=1.5))
    ax.text(x + columns / 2, rows / 2 + 2.5, name, ha="center", va="bottom")
    ax.text(x + columns / 2, -rows / 2 - 2.5, f"{rows} × {columns}", ha="center", va="top")
    return x + columns + GAP


def _sign(ax: Axes, x: float, sign: str) -> float:
    ax.text(x, 0, sign, ha="center", va="center", fontsize=26)
    return x + 6


def draw(data: MultiplicationOrder) -> Figure:
    """Matrices in proportion, with their sizes: dashed what is multiplied first, then what comes of it, and N at the right."""
    fig, axes = figure(2, 1, width=13, height=7)
    titles = "the matrix of pairs first", "the sums over keys first"
    formulas = (r"$n^2 r + n^2 d_v$", r"$n r d_v + n r d_v$")
    colours = ("#9fc1dd", "#e9b8a6", "#a9cfb4")
    for ax, order, title, formula in zip(axes, data.orders, titles, formulas, strict=True):
        x, starts = 0.0, []
        for shape, name, colour in zip(order.factors, NAMES, colours, strict=True):
            starts.append(x)
            x = _rectangle(ax, x, shape, colour, name)
        a, b = order.first, order.first + 1
        left, right = starts[a] - 10, starts[b] + order.factors[b][1] + 10
        height = max(order.factors[a][0], order.factors[b][0]) + 28
        ax.add_patch(
            Rectangle((left, -height / 2), right - left, height, fill=False, linestyle=(0, (4, 3)), linewidth=2.5)
        )
        x = _sign(ax, x, "=")
        name = r"$\Phi_Q\Phi_K^\top$" if order.first == 0 else r"$\Phi_K^\top V$"
        between = (order.between, "#d8c9e3", name)
        last = 2 - 2 * order.first
        other = (order.factors[last], colours[last], NAMES[last])
        for shape, colour, name in (between, other) if order.first == 0 else (other, between):
            x = _rectangle(ax, x, shape, colour, name)
        x = _sign(ax, x, "=")
        x = _rectangle(ax, x, (data.n, data.dv), "0.85", "$N$")
        total = sum(order.costs)
        ax.text(x + 2, 0, f"{title}:\n{formula}\n= {total:,} products", va="center")
        ax.set(xlim=(-12, 292), ylim=(-data.n / 2 - 16, data.n / 2 + 16), aspect="equal")
        ax.axis("off")
    return fig
