"""Averages of averages: what a stack of attention layers does to its tokens, alone and with its usual company."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import MultiHeadAttention, unweighted_attention
from minitransformer.figures.style import figure
from minitransformer.models import Block, FeedForward
from minitransformer.pullback import Layer, residual
from minitransformer.typing import Array

FLOOR = 1e-10  # what is smaller is drawn here: it will soon be nothing but rounding


class RankCollapse(NamedTuple):
    """Points in the plane, (layers + 1, n, 2), and the spread of tokens in five stacks, (seeds, depth + 1) each."""

    points: Array
    spread: dict[str, Array]


def spread(X: Array) -> float:
    """‖X − 1 x̄‖ / ‖X‖, with x̄ the mean of the rows: 0 when all tokens are the same, at most 1."""
    return float(np.linalg.norm(X - X.mean(-2, keepdims=True)) / np.linalg.norm(X))


def data(depth: int = 24, width: int = 32, heads: int = 4, n: int = 16, seeds: int = 5) -> RankCollapse:
    """Fresh random parameters in every layer, float64."""
    attention, ffn = MultiHeadAttention(width, heads, bias=False), FeedForward(width, 4 * width)
    pre, post = (Block.of(width, heads, 4 * width, order=order) for order in ("pre", "post"))
    stacks: dict[str, list[tuple[Any, Layer]]] = {
        "attention": [(attention, attention)],
        "attention, FFN": [(attention, attention), (ffn, ffn)],
        "attention + residual": [(attention, residual(attention))],
        "block, norm after": [(post, post)],
        "block, norm first": [(pre, pre)],
    }
    spreads = {
        name: np.array([_spreads(stack, depth, n, width, np.random.default_rng(seed)) for seed in range(seeds)])
        for name, stack in stacks.items()
    }
    return RankCollapse(_points(8, 3), spreads)


def _spreads(stack: list[tuple[Any, Layer]], depth: int, n: int, width: int, rng: np.random.Generator) -> list[float]:
    X = rng.standard_normal((n, width))
    spreads = [spread(X)]
    for _ in range(depth):
        for parameters, layer in stack:
            X, _ = layer(parameters.init(rng, np.float64), X)
        spreads.append(max(spread(X), FLOOR))
    return spreads


def _points(n: int, layers: int) -> Array:
    """The input and what each layer of attention without weights makes of it."""
    points = [np.random.default_rng(4).standard_normal((n, 2))]
    for _ in range(layers):
        points.append(unweighted_attention(points[-1])[0])
    return np.array(points)


def hull(X: Array) -> Array:
    """The corners of the smallest convex polygon around points (n, 2), counterclockwise from the leftmost.

    Andrew's two chains: from left to right along the bottom, and back along the top, whatever turns right is left out.
    """
    points = X[np.lexsort(X.T[::-1])]
    chains = []
    for way in (points, points[::-1]):
        chain: list[Array] = []
        for point in way:
            while len(chain) > 1 and np.linalg.det([chain[-1] - chain[-2], point - chain[-2]]) <= 0:
                chain.pop()
            chain.append(point)
        chains += chain[:-1]
    return np.array(chains)


def draw(data: RankCollapse) -> Figure:
    """Above: tokens move to averages of each other. Below: how far from all the same, layer by layer."""
    fig, (above, below) = figure(2, 1, height=11, height_ratios=(1, 1.1))
    shades = ("0.8", "#7ad151", "#2a788e", "#440154")
    for layer, (X, shade, marker) in enumerate(zip(data.points, shades, "osD^", strict=True)):
        above.fill(*hull(X).T, facecolor=shade, edgecolor=shade, linestyle="-", linewidth=0.8, alpha=0.3)
        label = f"layer {layer}" if layer else "input"
        above.plot(*X.T, marker, color=shade, markersize=9, markeredgecolor="0.3", markeredgewidth=0.7, label=label)
    above.set(xlabel="channel 1", ylabel="channel 2", title="eight tokens, no weights")
    above.set_aspect("equal", adjustable="datalim")  # as wide as its neighbour

    for name, values in data.spread.items():
        (line,) = below.plot(np.median(values, 0), label=name)
        layers = np.arange(values.shape[1])
        below.fill_between(layers, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    below.set(yscale="log", ylim=(FLOOR / 2, 3))
    below.set(title="random weights, $D$ = 32", xlabel="layer", ylabel="spread of the tokens")
    below.text(layers[-1], 2 * FLOOR, "10⁻¹⁰ and below", ha="right", color="0.35")
    above.legend(loc="upper right", borderaxespad=0, handletextpad=0.2)
    lines = sorted(below.lines, key=lambda line: -line.get_ydata()[-1])  # in the legend as they end
    below.legend(handles=lines, loc="center right", bbox_to_anchor=(1.02, 0.36))
    return fig
