"""What thirty noisy digits come to, by the inverse temperature β: one mean of all, means of a few, or one stored digit each."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.hopfield_retrieval import noisy, show_strip, stored
from minitransformer.figures.style import figure, plain_ticks
from minitransformer.measurements.rows import in_use
from minitransformer.related import hopfield_attention
from minitransformer.typing import Array

EXPONENTS = np.union1d(np.arange(0, 7.25, 0.25), 2.375)  # one more where the queries part
BETAS = tuple(float(b) for b in np.round(2.0**EXPONENTS, 2))
SHOWN, PICTURES = 22, (1.0, 5.66, 8.0, 11.31, 32.0)


class Temperature(NamedTuple):
    """For each β: keys in use after one step and at the end, exp of the entropy, (β, 30) each; ends that differ (β,); the weight
    of the right pattern after one step and at the end (β, 30); and the ends themselves (β, 30, 64)."""

    betas: Array
    first_use: Array
    last_use: Array
    ends: Array
    first_right: Array
    last_right: Array
    states: Array


def turning_point() -> float:
    """1/λ with λ the largest eigenvalue of the patterns' covariance: above this β their mean is no minimum any more."""
    return float(1 / np.linalg.eigvalsh(np.cov(stored().T, bias=True))[-1])


def data() -> Temperature:
    """The thirty digits of fig_hopfield_retrieval with their noise, until they have settled."""
    K = stored()
    Q, rows = noisy(K), []
    for beta in BETAS:
        Y, pullback = hopfield_attention(Q, K, K, beta, steps=3000, tolerance=1e-5, gradient="implicit")
        first, last = hopfield_attention(Q, K, K, beta, steps=1)[1].A, pullback.A
        ends = len(np.unique(Y.round(2) + 0.0, axis=0))
        rows.append((beta, in_use(first), in_use(last), ends, first.diagonal(), last.diagonal(), Y))
    return Temperature(*map(np.array, zip(*rows, strict=True)))


def draw(data: Temperature) -> Figure:
    """Above: the end of one query at five values of β. Below: how many different ends thirty queries have, and how many patterns
    are averaged in one of them, on logarithmic axes; dotted: beyond it the mean of all is no minimum."""
    fig, (above, below) = figure(2, 1, height=8.5, height_ratios=(1, 2.3))
    shown = [data.states[BETAS.index(beta), SHOWN] for beta in PICTURES]
    show_strip(above, shown, [f"β = {beta:.3g}" for beta in PICTURES], gap=4)
    below.plot(data.betas, data.ends, "-", marker="o", label="different ends of 30 queries")
    below.plot(data.betas, data.last_use.mean(1), "--", marker="s", label="patterns in an end, mean")
    below.plot(data.betas, data.first_use.mean(1), "-.", label="patterns in use\nafter one step, mean")
    below.axvline(turning_point(), color="0.3", linestyle=":", linewidth=2)
    below.set(xscale="log", yscale="log", xlabel="inverse temperature $\\beta$", ylabel="ends, or patterns")
    plain_ticks(below, x=[1, 2, 4, 8, 16, 32, 64, 128], y=[1, 3, 10, 30])
    below.legend(loc="center right")
    return fig
