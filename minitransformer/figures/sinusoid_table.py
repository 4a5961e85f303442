"""The table of sinusoids: its rows are positions, its columns waves, each pair slower than the last."""

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.figures.style import figure
from minitransformer.positions import sinusoids
from minitransformer.positions.absolute import angular_frequencies
from minitransformer.typing import Array


class SinusoidTable(NamedTuple):
    """Π (n, D), the wavelengths 2π/ω_f (D/2,), and the pairs f whose two columns are drawn as lines."""

    table: Array
    wavelengths: Array
    pairs: tuple[int, ...]


def data(n: int = 100, width: int = 64, pairs: tuple[int, ...] = (2, 6, 12)) -> SinusoidTable:
    """The table of 100 positions, 64 channels wide."""
    return SinusoidTable(sinusoids(n, width), 2 * np.pi / angular_frequencies(width), pairs)


def draw(data: SinusoidTable) -> Figure:
    """Left: the whole table. Right: three pairs of its columns, sine and cosine."""
    fig, (whole, right) = figure(1, 2, height=7, width_ratios=(1.15, 1))
    image = whole.imshow(data.table, vmin=-1, vmax=1, aspect="auto")  # light is large; cells are too small for a minus
    whole.set(xlabel="channel", ylabel="position $i$", title=r"$\Pi_{i,c}$")
    fig.colorbar(image, ax=whole, ticks=(-1, 0, 1), pad=0.02, aspect=30)
    right.set_visible(False)
    lines = right.get_subplotspec().subgridspec(len(data.pairs), 1, hspace=0.08).subplots(sharex=True)
    for ax, f in zip(lines, data.pairs, strict=True):
        ax.plot(data.table[:, 2 * f], label="sine")
        ax.plot(data.table[:, 2 * f + 1], label="cosine")
        ax.set(ylim=(-1.15, 1.15), yticks=(-1, 0, 1), xlim=(0, len(data.table)))
        ax.set_title(f"channels {2 * f} and {2 * f + 1},\nwavelength {data.wavelengths[f]:.0f}")
    lines[-1].set_xlabel("position $i$")
    fig.legend(*lines[-1].get_legend_handles_labels(), loc="outside lower right", ncols=2)
    return fig
