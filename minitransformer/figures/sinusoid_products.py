"""Dot products of the rows of a table of sinusoids: what two positions have in common is a function of their distance."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import sinusoids
from minitransformer.positions.absolute import angular_frequencies
from minitransformer.typing import Array


class SinusoidProducts(NamedTuple):
    """Gram matrix Π Πᵀ (n, n) for one width; for each width the product at distances 0, 1, …, over D/2, (widths, distances)."""

    gram: Array
    width: int
    widths: tuple[int, ...]
    profiles: Array
    falls_until: tuple[int, ...]  # distance at which each profile first stops falling


def profile(width: int, distances: int) -> Array:
    """(2/D) Σ_f cos(ω_f t) at the distances t = 0 … distances − 1."""
    return np.cos(angular_frequencies(width) * np.arange(distances)[:, None]).mean(1)


def falls_until(profile: Array) -> int:
    """The distance before the first step that does not go down."""
    return int(np.flatnonzero(np.diff(profile) >= 0)[0])


def data(n: int = 128, width: int = 256, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> SinusoidProducts:
    """All pairs of 128 positions; profiles up to distance 127."""
    table = sinusoids(n, width)
    profiles = np.array([profile(w, n) for w in widths])
    return SinusoidProducts(table @ table.T, width, widths, profiles, tuple(falls_until(p) for p in profiles))


def draw(data: SinusoidProducts) -> Figure:
    """Above: the Gram matrix. Below: one of its rows for each width, with a dot where it stops falling."""
    fig, (above, below) = figure(2, 1, width=8, height=11.5, height_ratios=(1.2, 1))
    image = above.imshow(data.gram)
    above.set(title=rf"$\langle\pi_i, \pi_j\rangle$ for $D = {data.width}$")
    above.set(xlabel="position $j$", ylabel="position $i$", xticks=(0, 50, 100), yticks=(0, 50, 100))
    fig.colorbar(image, ax=above, shrink=0.8, pad=0.03, ticks=(0, 40, 80, 120))
    shades = ("#b9cfe2", "#7fa8cb", "#20639b", "#15466e", "#0a2238")
    for width, line, until, shade in zip(data.widths, data.profiles, data.falls_until, shades, strict=True):
        below.plot(line, "-", color=shade, label=f"{width}: until {until}")
        below.plot(until, line[until], "o", color="#c8553d", markersize=9)
    below.set(title=r"$\langle\pi_i, \pi_j\rangle\;/\;(D/2)$", ylim=(0, 1.02))
    below.set(xlabel="distance $|i - j|$", xlim=(0, 127), xticks=(0, 50, 100))
    below.legend(title="$D$ and where it falls", loc="lower left", ncols=2, labelspacing=0.3)
    return fig
