"""How much of the first token reaches the last row, against n: recurrence, stacked word windows and attention."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.figures.style import figure, merged
from minitransformer.pullback import Layer, Tree, chain
from minitransformer.related import GRU, RNN, Attend, WordWindow
from minitransformer.typing import Array

WIDTH, WINDOW = 16, 5
NETWORKS = ("RNN", "RNN, 3U", "GRU", "attention", "attention, first = last")
DEPTHS = (2, 8, 16)
LENGTHS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SHORT = (2, 3, 4, 5, 6, 8, 12, 16, 17, 18, 24, 28, 32, 33, 34, 40)  # 2, 8 and 16 layers span 5, 17 and 33 tokens


def reach(layer: Layer, params: Tree, X: Array, i: int) -> Array:
    """‖∂y_i/∂x_j‖/√D for every j, (n,): how much row i of Y changes with row j of X.

    D is the width of Y. A pullback gives one row of a Jacobian for each dY, so X is
    copied D times, and copy k asks for row k.
    """
    D = layer(params, X)[0].shape[-1]
    Y, pullback = layer(params, np.repeat(X[None], D, axis=0))
    dY = np.zeros_like(Y)
    dY[np.arange(D), i, np.arange(D)] = 1
    _, dX = pullback(dY)
    return np.sqrt((dX**2).sum((0, 2)) / D)


class Distances(NamedTuple):
    """Every number is the median over draws of parameters and tokens."""

    n: Array
    networks: Array  # (networks, len(n)): reach of y_n to x_1
    short: Array
    windows: Array  # (depths, len(short)): the same
    field: Array  # (layers, tokens): reach of the middle row after 1, 2, … layers of windows


@threadpool_limits.wrap(limits=1, user_api="blas")  # products this small are slower on two threads
def data(draws: int = 7, layers: int = 8) -> Distances:
    """Random networks of width 16 on random tokens."""
    drawn = [_draw(np.random.default_rng(seed), layers) for seed in range(draws)]
    networks, windows, field = (np.median(arrays, axis=0) for arrays in zip(*drawn, strict=True))
    return Distances(np.array(LENGTHS), networks, np.array(SHORT), windows, field)


def _draw(rng: np.random.Generator, layers: int) -> tuple[Array, Array, Array]:
    tokens = rng.standard_normal((LENGTHS[-1], WIDTH))
    networks = _networks(rng)
    window = WordWindow(WIDTH, WIDTH, WINDOW)
    stack = tuple(window.init(rng, np.float64) for _ in range(max(*DEPTHS, layers)))
    first = np.empty((len(networks), len(LENGTHS)))
    for row, (name, layer, params) in enumerate(networks):
        for column, length in enumerate(LENGTHS):
            X = tokens[:length].copy()
            if "first = last" in name:
                X[-1] = X[0]
            first[row, column] = reach(layer, params, X, -1)[0]
    through = [[reach(chain(*[window] * k), stack[:k], tokens[:n], -1)[0] for n in SHORT] for k in DEPTHS]
    middle = 2 * layers + 2
    field = [reach(chain(*[window] * k), stack[:k], tokens[: 2 * middle + 1], middle) for k in range(1, layers + 1)]
    return first, np.array(through), np.array(field)


def _networks(rng: np.random.Generator) -> list[tuple[str, Any, Tree]]:
    """An RNN, and with 3U for U; a GRU whose gates start at σ(3) = 0.95; attention, and with keys that find their like."""
    rnn, gru, attend = RNN(WIDTH, WIDTH), GRU(WIDTH, WIDTH), Attend(WIDTH)
    r, g, a = (layer.init(rng, np.float64) for layer in (rnn, gru, attend))
    alike = a._replace(W_q=3 * np.eye(WIDTH), W_k=3 * np.eye(WIDTH))
    params = (r, r._replace(U=3 * r.U), g._replace(b_u=g.b_u + 3), a, alike)
    return list(zip(NETWORKS, (rnn, rnn, gru, attend, attend), params, strict=True))


def draw(data: Distances) -> Figure:
    """Above, networks against n. Below, stacked windows against n, and the field that grows layer by layer."""
    fig, axes = figure(2, 2, height=11, height_ratios=(1, 0.9))
    _draw_networks(merged(fig, axes[0]), data)
    _draw_windows(axes[1, 0], data)
    _draw_field(axes[1, 1], data.field)
    return fig


def _draw_networks(ax: Any, data: Distances) -> None:
    for line, name, marker, up in zip(data.networks, NETWORKS, "ov^sD", (0, 0, -13, -2, 11), strict=True):
        (drawn,) = ax.plot(data.n, line, marker=marker, markersize=7)
        end = (data.n[-1], line[-1])
        ax.annotate(name, end, (14, up), textcoords="offset points", va="center", color=drawn.get_color())
    ax.set(title="one layer", xlabel="number of tokens $n$", ylabel="‖∂$y_n$/∂$x_1$‖ / √D")
    ax.set(yscale="log", ylim=(1e-30, 1e9), xlim=(-3, 190))
    ax.set_xticks(range(0, 129, 32))
    ax.set_yticks([1e-30, 1e-20, 1e-10, 1])
    ax.minorticks_off()


def _draw_windows(ax: Any, data: Distances) -> None:
    floor = 1e-8
    for line, layers, marker in zip(data.windows, DEPTHS, "ov^", strict=True):
        shown = np.maximum(line, floor)
        ax.plot(data.short, shown, marker=marker, markersize=7, label=f"{layers} layers", clip_on=False)
    ax.set(title="stacked word windows", xlabel="number of tokens $n$", ylabel="‖∂$y_n$/∂$x_1$‖ / √D")
    ax.set(yscale="log", ylim=(floor, 1e4), xticks=range(0, 41, 8))
    ax.minorticks_off()
    ax.set_yticks([floor, 1e-6, 1e-3, 1], ["0", *(f"$10^{{{k}}}$" for k in (-6, -3, 0))])
    ax.legend(loc="upper right")


def _draw_field(ax: Any, field: Array) -> None:
    layers, n = field.shape
    seen = np.ma.masked_equal(field, 0)
    shades = LogNorm(seen.min() / 3, seen.max())  # the smallest is no white yet
    picture = ax.imshow(seen, aspect="auto", extent=(-(n / 2), n / 2, layers + 0.5, 0.5), cmap="Blues", norm=shades)
    ax.set(title="seen by the middle row", xlabel="offset $j − i$", ylabel="layers of windows", facecolor="white")
    ax.set_yticks(range(1, layers + 1))
    bar = ax.figure.colorbar(picture, ax=ax, label="reach; white: 0", ticks=[1e-3, 1e-2, 1e-1])
    bar.ax.minorticks_off()
