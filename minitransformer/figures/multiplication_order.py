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
    """The product computed from the left, and from the right."""
    factors = (n, r), (r, n), (n, dv)
    left = Order(factors, 0, (n, n), (cost(n, r, n), cost(n, n, dv)))
    right = Order(factors, 1, (r, dv), (cost(r, n, dv), cost(n, r, dv)))
    return MultiplicationOrder(n, r, dv, (left, right))


NAMES = (r"$\Phi_Q$", r"$\Phi_K^\top$", "$V$")
GAP, NARROWEST = 10.0, 24.0  # between two matrices; and the room of one, whose size is written below it
END = 222.0  # where N begins


def _matrix(ax: Axes, x: float, shape: tuple[int, int], colour: str, name: str) -> float:
    """A matrix in proportion in the middle of its room, its name above and its size below; where the room ends."""
    rows, columns = shape
    room = max(columns, NARROWEST)
    middle = x + room / 2
    face = {"facecolor": colour, "edgecolor": "black", "linewidth": 1.5}
    ax.add_patch(Rectangle((middle - columns / 2, -rows / 2), columns, rows, **face))
    ax.text(middle, rows / 2 + 2, name, ha="center", va="bottom")
    ax.text(middle, -rows / 2 - 2, f"{rows} × {columns}", ha="center", va="top")
    return x + room


def draw(data: MultiplicationOrder) -> Figure:
    """Matrices in proportion, with their sizes: dashed, what is multiplied first; then the result; N at the right."""
    fig, axes = figure(2, 1, width=10.4, height=7.2)
    titles = "the matrix of pairs first", "the sums over keys first"
    formulas = (r"$n^2 r + n^2 d_v$", r"$n r d_v + n r d_v$")
    colours = ("#9fc1dd", "#e9b8a6", "#a9cfb4")
    for ax, order, title, formula in zip(axes, data.orders, titles, formulas, strict=True):
        x, rooms = 0.0, []
        for shape, name, colour in zip(order.factors, NAMES, colours, strict=True):
            end = _matrix(ax, x, shape, colour, name)
            rooms.append((x, end))
            x = end + GAP
        (left, _), (_, right) = rooms[order.first : order.first + 2]
        ax.add_patch(Rectangle((left - 4, -34), right - left + 8, 68, fill=False, linestyle=(0, (4, 3)), linewidth=2.5))
        ax.text(x + 3, 0, "=", ha="center", va="center", fontsize=26)
        x += 6 + GAP
        name = r"$\Phi_Q\Phi_K^\top$" if order.first == 0 else r"$\Phi_K^\top V$"
        between = (order.between, "#d8c9e3", name)
        last = 2 - 2 * order.first
        other = (order.factors[last], colours[last], NAMES[last])
        for shape, colour, name in (between, other) if order.first == 0 else (other, between):
            x = _matrix(ax, x, shape, colour, name) + GAP
        ax.text(END - 5, 0, "=", ha="center", va="center", fontsize=26)
        _matrix(ax, END, (data.n, data.dv), "0.85", "$N$")
        ax.set_title(f"{title}: {formula} = {sum(order.costs):,} products", loc="left", x=0.01)
        ax.set(xlim=(-7, END + NARROWEST + 3), ylim=(-36, 36), aspect="equal")
        ax.axis("off")
    return fig
