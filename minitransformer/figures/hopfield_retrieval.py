"""A digit under noise is retrieved by a modern Hopfield network: attention among thirty stored digits, over and over."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from minitransformer.data.digits import digits
from minitransformer.figures.style import FAINT, figure
from minitransformer.measurements.rows import unit
from minitransformer.related import hopfield_attention, hopfield_energy
from minitransformer.typing import Array

PATTERNS, NOISE, BETA = 30, 0.125, 12.0
SHOWN = 22  # the digit of the upper row


class Retrieval(NamedTuple):
    """Patterns K (30, 64) of length 1; states ξ₀ … ξ_T (T + 1, 30, 64), of each digit with noise; their energies (T + 1, 30);
    weights p₁ of the first step and p* of the last, (30, 30)."""

    K: Array
    states: Array
    energies: Array
    first: Array
    last: Array


def stored() -> Array:
    """The first digits of the file, three of each kind, less their mean, each of length 1: (30, 64) in float64."""
    return unit(_images() - _images().mean(0))


def _images() -> Array:
    return digits()[0].images[:PATTERNS].reshape(PATTERNS, 64).astype(np.float64)


def ink(xi: Array) -> Array:
    """A state as an image to look at: in the usual length of a digit, and with the mean of all again."""
    mean = _images().mean(0)
    return mean + np.linalg.norm(_images() - mean, axis=-1).mean() * xi


def noisy(K: Array, seed: int = 0) -> Array:
    """Each pattern with normal noise that is as long as the pattern itself, on average."""
    return K + NOISE * np.random.default_rng(seed).standard_normal(K.shape)


def data() -> Retrieval:
    """All thirty at once, until they have settled."""
    K = stored()
    _, pullback = hopfield_attention(noisy(K), K, K, BETA, steps=2000, tolerance=1e-6)
    states = np.stack(pullback.states)
    energies, _ = hopfield_energy(states, np.broadcast_to(K, (len(states), *K.shape)), BETA)
    first = hopfield_attention(states[0], K, K, BETA, steps=1)[1].A
    return Retrieval(K, states, energies, first, pullback.A)


def strip(images: list[Array], gap: int = 1) -> Array:
    """States as images side by side, with empty columns between them."""
    empty = np.full((8, gap), np.nan)
    columns = [part for image in images for part in (ink(image).reshape(8, 8), empty)]
    return np.concatenate(columns[:-1], 1)


def show_strip(ax: Axes, images: list[Array], names: Sequence[str], gap: int = 1) -> None:
    """Draw them, each with its name below."""
    ax.imshow(strip(images, gap), cmap="gray_r", vmin=0, vmax=1)
    ax.set_xticks(3.5 + (8 + gap) * np.arange(len(images)), names)
    ax.set_yticks([])
    ax.tick_params(length=0, pad=8)
    ax.spines[:].set_visible(False)


def draw(data: Retrieval) -> Figure:
    """Above: what is asked, the states after 1, 2, 3 and 6 updates and at the end, and the stored digit. Below: how far each of
    the thirty energies is above its end, on a logarithmic axis; the digit of the upper row is thick."""
    fig, (above, below) = figure(2, 1, height=8.5, height_ratios=(1, 2.3))
    times = [0, 1, 2, 3, 6, len(data.states) - 1]
    shown = [data.states[t, SHOWN] for t in times] + [data.K[SHOWN]]
    show_strip(above, shown, ["$\\xi_0$: asked", *(f"$\\xi_{{{t}}}$" for t in times[1:-1]), "at the end", "stored"])
    over = np.maximum(data.energies - data.energies[-1], 1e-16)
    for k, curve in enumerate(over.T):
        until = int((curve > 1e-11).sum()) + 1
        thick = k == SHOWN
        below.plot(
            curve[:until], color="#c8553d" if thick else FAINT, linestyle="-", linewidth=4 if thick else 1.3,
            zorder=3 if thick else 2,
        )  # fmt: skip
    below.set(yscale="log", xlim=(0, 45), ylim=(1e-9, 3), xlabel="updates $t$", ylabel="$E(\\xi_t) - E(\\xi^*)$")
    return fig
