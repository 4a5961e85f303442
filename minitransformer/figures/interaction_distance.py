"""How much of the first token reaches the last row, against n: recurrence, stacked word windows and attention."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits

from minitransformer.figures.style import figure
from minitransformer.kin import GRU, RNN, Attend, WordWindow
from minitransformer.pullback import Layer, Tree, chain
from minitransformer.typing import Array

WIDTH, WINDOW = 16, 5
NETWORKS = ("RNN", "RNN, 3U", "GRU, $b_u$ = 3", "attention", "attention, $x_n = x_1$")
DEPTHS = (2, 8, 16)
LENGTHS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
SHORT = (2, 3, 4, 5, 6, 8, 12, 16, 17, 18, 24, 28, 32, 33, 34, 40)  # 2, 8 and 16 layers span 5, 17 and 33 tokens


def reach(layer: Layer, params: Tree, X: Array, i: int) -> Array:
    """‖∂y_i/∂x_j‖/√d for every j, (n,): the size of the change in row i of Y when row j of X changes.

    A pullback gives one row of a Jacobian for each cotangent, so X (n, D) is copied d times, and copy k asks for row k.
    """
    d = layer(params, X)[0].shape[-1]
    Y, pullback = layer(params, np.repeat(X[None], d, axis=0))
    dY = np.zeros_like(Y)
    dY[np.arange(d), i, np.arange(d)] = 1
    _, dX = pullback(dY)
    return np.sqrt((dX**2).sum((0, 2)) / d)


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
            if "x_n" in name:
                X[-1] = X[0]
            first[row, column] = reach(layer, params, X, -1)[0]
    through = [[reach(chain(*[window] * L), stack[:L], tokens[:n], -1)[0] for n in SHORT] for L in DEPTHS]
    middle = 2 * layers + 2
    field = [reach(chain(*[window] * L), stack[:L], tokens[: 2 * middle + 1], middle) for L in range(1, layers + 1)]
    return first, np.array(through), np.array(field)


def _networks(rng: np.random.Generator) -> list[tuple[str, Any, Tree]]:
    """As they are initialised; with 3U for U; with gates that start at σ(3) = 0.95; with keys that find their like."""
    rnn, gru, attend = RNN(WIDTH, WIDTH), GRU(WIDTH, WIDTH), Attend(WIDTH)
    r, g, a = (layer.init(rng, np.float64) for layer in (rnn, gru, attend))
    r = r._replace(W=r.W / 2)  # tanh far from its flat ends, so that U alone decides
    alike = a._replace(W_q=3 * np.eye(WIDTH), W_k=3 * np.eye(WIDTH))
    params = (r, r._replace(U=3 * r.U), g._replace(b_u=g.b_u + 3), a, alike)
    return list(zip(NETWORKS, (rnn, rnn, gru, attend, attend), params, strict=True))


def draw(data: Distances) -> Figure:
    """Left: networks against n. Middle: stacked windows against n. Right: the receptive field grows layer by layer."""
    fig, (left, middle, right) = figure(1, 3, width=10.5, height=3.7, width_ratios=(1.15, 1, 1))
    for line, name, marker in zip(data.networks, NETWORKS, "ov^sD", strict=True):
        left.plot(data.n, line, marker=marker, markersize=4, label=name)
    left.set(title="one layer", ylim=(1e-18, 1e13), ylabel="‖∂$y_n$/∂$x_1$‖ / √d")
    left.set_xticks(range(0, 129, 32))
    left.legend(fontsize=8.5, loc="lower left")
    floor = 1e-9
    for line, L, marker in zip(data.windows, DEPTHS, "ov^", strict=True):
        middle.plot(data.short, np.maximum(line, floor), marker=marker, markersize=4, label=f"L = {L}", clip_on=False)
    middle.set(xticks=range(0, 41, 8), title=f"L layers of word windows, w = {WINDOW}", ylim=(floor, 10))
    middle.legend(fontsize=8.5, loc="upper right")
    for ax in (left, middle):
        ax.set(xlabel="n", yscale="log")
        ax.minorticks_off()
    middle.set_yticks([floor, 1e-6, 1e-3, 1], ["0", *(f"$10^{{{k}}}$" for k in (-6, -3, 0))])
    _draw_field(right, data.field)
    return fig


def _draw_field(ax: Any, field: Array) -> None:
    layers, n = field.shape
    seen = np.log10(np.where(field > 0, field, np.nan))
    picture = ax.imshow(seen, aspect="auto", extent=(-(n / 2), n / 2, layers + 0.5, 0.5), cmap="viridis")
    ax.set(title="what the middle row sees", xlabel="j − i", ylabel="layers L", facecolor="white")
    ax.set_yticks(range(1, layers + 1))
    ax.figure.colorbar(picture, ax=ax, label="log₁₀ ‖∂$y_i$/∂$x_j$‖ / √d; white: 0")
