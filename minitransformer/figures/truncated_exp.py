"""exp and its Taylor polynomials; and how far attention with such weights is from softmax attention, degree by degree."""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import dot_product_attention
from minitransformer.attention.dot_product import scores
from minitransformer.attention.linear import kernel_smoother
from minitransformer.attention.linear.smoother import OfScoresPullback
from minitransformer.figures.style import FAINT, figure
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

SHOWN = (1, 2, 4)
SIZES = (0.5, 1.0, 1.5)
SHOWN_FROM = 1e-10  # errors below are rounding in part, and no two machines round alike


class TruncatedExp(NamedTuple):
    """t, exp t and polynomials of t by degree; degrees, and the relative error of attention by the size of q and k.

    errors   to three digits, NaN below 10⁻¹⁰
    """

    t: Array
    exp: Array
    polynomials: dict[int, Array]
    degrees: Array
    errors: dict[float, Array]


def polynomial(t: Array, degree: int) -> Array:
    """Σ_{p ≤ degree} t^p/p!"""
    return sum((t**p / math.factorial(p) for p in range(degree + 1)), np.zeros_like(t))


def similarity(Q: Array, K: Array, *, degree: int) -> tuple[Array, Pullback]:
    """The polynomial of ⟨q, k⟩/√d as a weight; the features of all degrees would be too many to form."""
    S, pullback = scores(Q, K)
    return polynomial(S, degree), OfScoresPullback(pullback, polynomial(S, degree - 1))


def data(n: int = 64, d: int = 16, seed: int = 0) -> TruncatedExp:
    """Normal q and k times a size, so that scores have the standard deviation size²."""
    t = np.linspace(-6, 3, 361)
    degrees, errors = np.arange(2, 21, 2), {}
    Q, K, V = np.random.default_rng(seed).standard_normal((3, n, d))
    for size in SIZES:
        want, _ = dot_product_attention(size * Q, size * K, V)
        found = []
        for degree in degrees:
            Y, _ = kernel_smoother(size * Q, size * K, V, lambda q, k, p=int(degree): similarity(q, k, degree=p))
            error = np.linalg.norm(Y - want) / np.linalg.norm(want)
            found.append(float(f"{error:.3g}") if error > SHOWN_FROM else np.nan)
        errors[size] = np.array(found)
    return TruncatedExp(t, np.exp(t), {p: polynomial(t, p) for p in SHOWN}, degrees, errors)


def draw(data: TruncatedExp) -> Figure:
    """Above the functions; below the errors, on a logarithmic axis, by the degree."""
    fig, (above, below) = figure(2, 1, height=9)
    above.plot(data.t, data.exp, color=FAINT, linewidth=3, linestyle="-", label="exp")
    for degree, curve in data.polynomials.items():
        above.plot(data.t, curve, label=f"degree {degree}")
    above.axhline(0, color="black", linewidth=1, linestyle="-")
    above.set(xlabel="$t$", ylabel="weight", ylim=(-6, 10), title="exp and three polynomials")
    above.legend(loc="upper center")
    for (size, errors), marker in zip(data.errors.items(), "o^s", strict=True):
        below.plot(data.degrees, errors, marker=marker)
        last = np.isfinite(errors).sum() - 1
        below.text(data.degrees[last] + 0.7, errors[last], f"{size**2:g}", va="center")
    below.set(yscale="log", ylim=(1e-10, 3), xlabel="degree", ylabel="relative error of $Y$", xticks=data.degrees[1::2])
    below.set(xlim=(1, 23), title="scores of deviation 0.25, 1 and 2.25")
    below.set_yticks([1, 1e-3, 1e-6, 1e-9])
    below.minorticks_off()
    return fig
