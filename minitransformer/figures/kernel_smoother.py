"""Attention before there was attention: noisy measurements, averaged with a narrow, a middling and a wide kernel."""

from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.linear import gaussian, kernel_smoother
from minitransformer.figures.style import FAINT, figure
from minitransformer.typing import Array

WIDTHS = (0.02, 0.3, 3.0)


class KernelSmoothed(NamedTuple):
    """Keys k (m,) with values v (m,); queries q (n,), what was to be measured there, and the smoothed curves by width."""

    k: Array
    v: Array
    q: Array
    truth: Array
    smoothed: dict[float, Array]


def data(m: int = 40, noise: float = 0.4, seed: int = 1) -> KernelSmoothed:
    """A sine with normal noise; sim = exp(−(q − k)²/(2 width²))."""
    rng = np.random.default_rng(seed)
    k = np.sort(rng.uniform(0, 2 * np.pi, m))
    v = np.sin(k) + noise * rng.standard_normal(m)
    q = np.linspace(0, 2 * np.pi, 401)
    columns = q[:, None], k[:, None], v[:, None]
    smoothed = {width: kernel_smoother(*columns, partial(gaussian, scale=width**-2))[0][:, 0] for width in WIDTHS}
    return KernelSmoothed(k, v, q, np.sin(q), smoothed)


def draw(data: KernelSmoothed) -> Figure:
    """The measurements as dots, the sine in grey, a curve for each width."""
    fig, ax = figure(height=5)
    ax.plot(data.q, data.truth, color=FAINT, linewidth=3, linestyle="-", label="the sine")
    ax.plot(data.k, data.v, "o", color="0.3", markersize=7, linestyle="none", label="measured")
    for width, curve in data.smoothed.items():
        ax.plot(data.q, curve, label=f"width {width:g}")
    ax.set(xlabel="key $k$, query $q$", ylabel="value $v$")
    ax.legend(loc="lower left")
    return fig
