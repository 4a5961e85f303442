"""Averaging over neighbours again and again: how much of what told the nodes apart is left after L layers."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import Graph
from minitransformer.data.graphs import karate_club
from minitransformer.figures.style import figure
from minitransformer.related import GAT, edges_of, propagate
from minitransformer.typing import Array

LAYERS = 64


class OverSmoothing(NamedTuple):
    """How far rows are from their mean, by layer from 0 on, as a part of what it is in the input; and |λ₂| of N⁻¹ M."""

    average: Array
    attention: Array
    kept: Array
    second: float


def spread(X: Array) -> float:
    """The root of the mean squared distance of the rows from their mean."""
    return float(np.sqrt(((X - X.mean(0)) ** 2).sum(-1).mean()))


def data() -> OverSmoothing:
    """N⁻¹ M alone; attention with drawn weights and W = I; and the average beside the row itself, half of each."""
    club = karate_club()
    n = len(club.labels)
    edges = edges_of(club.links, n, both_ways=True, loops=True)
    rng = np.random.default_rng(0)
    layer = GAT(n, n, 1)
    drawn = layer.init(rng, np.float64)._replace(W=np.eye(n))
    drawn = drawn._replace(a_1=10 * drawn.a_1, a_2=10 * drawn.a_2)  # so that weights differ
    curves = []
    for step in (
        lambda X: propagate(X, edges, scaling="rows")[0],
        lambda X: layer(drawn, X, edges)[0],
        lambda X: (X + propagate(X, edges, scaling="rows")[0]) / 2,
    ):
        X, found = club.X, []
        for _ in range(LAYERS + 1):
            found.append(spread(X))
            X = step(X)
        curves.append(np.array(found) / found[0])
    return OverSmoothing(*curves, 1 - Graph(edges.mask).spectral_gap())


def draw(data: OverSmoothing) -> Figure:
    """A straight line on a logarithmic scale shrinks by the same factor in each layer; the dotted one by |λ₂|."""
    fig, ax = figure(1, 1, width=10, height=5.2)
    L = np.arange(LAYERS + 1)
    ax.plot(L, data.kept, linestyle="-.", color="#3b8554", label="half average, half the row itself")
    ax.plot(L, data.attention, linestyle="--", color="#c8553d", label="graph attention, not trained")
    ax.plot(L, data.average, linestyle="-", color="#20639b", label="average $N^{-1} M$")
    slope = data.average[16] / 2 * data.second ** (L[16:] - 16.0)
    ax.plot(L[16:], slope, linestyle=":", color="#222222", label="slope $|\\lambda_2|^L$")
    ax.set(yscale="log", ylim=(8e-6, 1.5), xlabel="layers $L$", ylabel="what is left of it")
    ax.set_title("how far rows are from their mean")
    ax.legend(loc="lower left")
    return fig
