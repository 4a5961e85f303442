"""How small should the step of a difference quotient be? The error of the checker's quotient against its step h."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.models import FeedForward
from minitransformer.pullback import random_like, tree_map
from minitransformer.typing import Array


class DifferenceStep(NamedTuple):
    """Relative error (root mean square over directions) for each step, of three quotients."""

    h: Array
    one_sided: Array
    central: Array
    central_float32: Array


def data(seed: int = 0, directions: int = 200) -> DifferenceStep:
    """Derivatives of ⟨dY, f(X)⟩ along random unit directions, f a small feed-forward network with GELU.

    The pullback gives the exact ones; it is computed once, in float64.
    """
    rng = np.random.default_rng(seed)
    network = FeedForward(width=6, hidden=12, activation="gelu")
    params = random_like(network.init(rng, np.float64), rng)
    X, dY = rng.standard_normal((2, 5, 6))
    V = rng.standard_normal((directions, 5, 6))
    V /= np.sqrt((V**2).sum((1, 2), keepdims=True))

    _, dX = network(params, X)[1](dY)
    exact = (dX * V).sum((1, 2))
    size = np.sqrt((exact**2).mean())

    def error(h: float, dtype: Any, *, central: bool) -> float:
        p, x, g = (tree_map(lambda a: a.astype(dtype), t) for t in (params, X, dY))
        there = (g * network(p, x + (h * V).astype(dtype))[0]).sum((1, 2))
        back = (g * network(p, x - (h * V).astype(dtype) if central else x)[0]).sum((-2, -1))
        quotient = (there - back) / (2 * h if central else h)
        return float(np.sqrt(((quotient - exact) ** 2).mean()) / size)

    h = np.logspace(-12, 0, 49)
    curves = [(np.float64, False), (np.float64, True), (np.float32, True)]
    return DifferenceStep(h, *(np.array([error(s, t, central=c) for s in h]) for t, c in curves))


CHECKER = 1e-6  # the step of `check_pullback`


def draw(d: DifferenceStep) -> Figure:
    """Both axes logarithmic, so that a power of h is a straight line; grey lines have the slopes that theory gives."""
    fig, ax = figure(width=7.0, height=4.0)
    for start, end, power, label, shift in (
        (1e-11, 1e-7, -1, "∝ 1/h", (-4, -12)),
        (1e-6, 1e-4, 1, "∝ h", (-4, 10)),
        (1e-4, 1e-1, 2, "∝ h²", (10, -10)),
    ):
        curve, factor = (d.one_sided, 4) if power == 1 else (d.central, 0.25)
        middle = np.sqrt(start * end)
        level = factor * np.exp(np.interp(np.log(middle), np.log(d.h), np.log(curve)))
        ends = np.array([start, end])
        ax.plot(ends, level * (ends / middle) ** power, "-", color="0.65", linewidth=1)
        ax.annotate(label, (middle, level), shift, textcoords="offset points", ha="center", va="center", color="0.35")
    ax.plot(d.h, d.central_float32, "-.", color="#3b8554")
    ax.plot(d.h, d.one_sided, "--", color="#c8553d")
    ax.plot(d.h, d.central, "-", color="#20639b")
    ax.text(1e-5, 1.2, "central, float32", color="#3b8554")
    ax.text(3e-8, 1.5e-6, "one-sided,\nfloat64", color="#c8553d", ha="center")
    ax.text(5e-6, 4e-9, "central,\nfloat64", color="#20639b")
    k = int(np.argmin(np.abs(np.log(d.h / CHECKER))))
    dot = (d.h[k], d.central[k])
    ax.plot(*dot, "o", color="#20639b", markersize=7)
    ax.annotate("check_pullback", dot, (-8, -12), textcoords="offset points", ha="right", va="center")
    ax.set(xscale="log", yscale="log", xlim=(1e-12, 1), ylim=(1e-11, 30))
    ax.set(xlabel="step h", ylabel="relative error of the quotient")
    return fig
