"""How small should the step of a difference quotient be? The error of the checker's quotient against its step h."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import FAINT, figure
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

CHECKER = 1e-6  # the step of `check_pullback`


class RoundedPullback(Pullback):
    """y = u/√(1 + u²) has the slope 1/(1 + u²)^(3/2); then back through U = X W."""

    W: Array
    root: Array

    def __call__(self, dY: Array) -> Array:
        return (dY / (self.root * self.root * self.root)) @ self.W.T


def rounded(X: Array, W: Array) -> tuple[Array, RoundedPullback]:
    """Y = U/√(1 + U²), U = X W, rounded in the same way everywhere.

    Only +, ×, ÷ and √, one after the other: each has one right answer by the rules for floating-point numbers, while a
    matrix product adds up in an order of its own on every machine, and tanh differs in the last digit.
    """
    U = X[..., :1] * W[0]
    for k in range(1, len(W)):
        U = U + X[..., k : k + 1] * W[k]
    root = np.sqrt(1 + U * U)
    return U / root, RoundedPullback(W, root)


class DifferenceStep(NamedTuple):
    """Relative error (root mean square over directions) for each step, of three quotients."""

    h: Array
    one_sided: Array
    central: Array
    central_float32: Array


def data(seed: int = 0, directions: int = 500) -> DifferenceStep:
    """Derivatives of ⟨dY, f(X)⟩ along random unit directions. The pullback gives the exact ones, in float64."""
    rng = np.random.default_rng(seed)
    W, X, dY = rng.standard_normal((6, 6)), *rng.standard_normal((2, 5, 6))
    V = rng.standard_normal((directions, 5, 6))
    V /= np.sqrt((V**2).sum((1, 2), keepdims=True))
    exact = (rounded(X, W)[1](dY) * V).sum((1, 2))
    size = np.sqrt((exact**2).mean())

    def error(h: float, dtype: Any, *, central: bool) -> float:
        w, x, v, step = (np.asarray(a, dtype) for a in (W, X, V, h))
        there, back = rounded(x + step * v, w)[0], rounded(x - step * v if central else x, w)[0]
        quotient = (there - back) / (2 * step if central else step)
        return float(np.sqrt((((dY * quotient).sum((1, 2)) - exact) ** 2).mean()) / size)

    h = np.array([float(f"{first}e{power}") for power in range(-12, 0) for first in (1, 1.8, 3.2, 5.6)] + [1.0])
    curves = [(np.float64, False), (np.float64, True), (np.float32, True)]
    return DifferenceStep(h, *(np.array([error(s, t, central=c) for s in h]) for t, c in curves))


def draw(d: DifferenceStep) -> Figure:
    """Both axes logarithmic, so that a power of h is a straight line; grey lines have the slopes that theory gives."""
    fig, ax = figure(width=10, height=6)
    for start, end, power, label, shift in (
        (1e-11, 1e-8, -1, "∝ $1/h$", (-14, -18)),
        (1e-6, 1e-4, 1, "∝ $h$", (-10, 14)),
        (1e-3, 1e-1, 2, "∝ $h^2$", (22, -8)),
    ):
        curve, factor = (d.one_sided, 5) if power == 1 else (d.central, 0.2)
        middle = np.sqrt(start * end)
        level = factor * np.exp(np.interp(np.log(middle), np.log(d.h), np.log(curve)))
        ends = np.array([start, end])
        ax.plot(ends, level * (ends / middle) ** power, "-", color=FAINT, linewidth=1.5)
        ax.annotate(label, (middle, level), shift, textcoords="offset points", ha="center", va="center", color="0.35")
    ax.plot(d.h, d.central_float32, "-.", color="#3b8554")
    ax.plot(d.h, d.one_sided, "--", color="#c8553d")
    ax.plot(d.h, d.central, "-", color="#20639b")
    ax.text(2e-6, 2, "two-sided, float32", color="#3b8554")
    ax.text(2e-9, 3e-6, "one-sided,\nfloat64", color="#c8553d")
    ax.text(5e-5, 5e-11, "two-sided,\nfloat64", color="#20639b", va="center")
    k = int(np.argmin(np.abs(np.log(d.h / CHECKER))))
    dot = (d.h[k], d.central[k])
    ax.plot(*dot, "o", color="#20639b", markersize=11)
    ax.annotate("check_pullback", dot, (-10, -16), textcoords="offset points", ha="right", va="center")
    ax.set(xscale="log", yscale="log", xlim=(1e-12, 1), ylim=(2e-12, 30))
    ax.set(xlabel="step $h$", ylabel="relative error of the quotient")
    return fig
