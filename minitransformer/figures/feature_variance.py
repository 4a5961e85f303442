"""How far one random direction's estimate of exp ⟨a, b⟩ is from it, against the angle between a and b: derived, and drawn."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention.linear import gaussian_rows, positive_features, trigonometric_features
from minitransformer.figures.style import figure
from minitransformer.measurements import random_features as facts
from minitransformer.typing import Array

LOOKS = {  # as in `feature_error`
    "positive": ("C0", "-", "o"),
    "hyperbolic": ("C2", "-.", "^"),
    "trigonometric": ("C3", ":", "D"),
}


class FeatureVariance(NamedTuple):
    """Angles (a,) in degrees; standard deviation of one direction's estimate, relative to exp ⟨a, b⟩, by the kind of features.

    drawn     at a few of the angles, from simulations
    """

    angles: Array
    derived: dict[str, Array]
    at: Array
    drawn: dict[str, Array]


def pairs(angles: Array, length: float, d: int) -> tuple[Array, Array]:
    """a and b (angles, d) of this length, with these angles between them."""
    a, b = np.zeros((2, len(angles), d))
    a[:, 0] = length
    b[:, 0], b[:, 1] = length * np.cos(np.radians(angles)), length * np.sin(np.radians(angles))
    return a, b


def data(length: float = 0.8, d: int = 8, draws: int = 400_000, seed: int = 0) -> FeatureVariance:
    """At ‖a‖ = ‖b‖ = 0.8. For small angles a simulation would need many more draws: one in a million decides."""
    angles, at = np.linspace(0, 180, 181), np.arange(45, 180, 30)
    rows = pairs(angles, length, d)
    kernel = facts.softmax_kernel(*rows)
    kinds = {
        "trigonometric": (facts.variance_trigonometric, trigonometric_features),
        "positive": (facts.variance_positive, positive_features),
        "hyperbolic": (facts.variance_hyperbolic, partial(positive_features, both_signs=True)),
    }
    W = gaussian_rows(np.random.default_rng(seed), (draws, d))
    derived, drawn = {}, {}
    for name, (variance, features) in kinds.items():
        derived[name] = np.sqrt(variance(*rows, 1)) / kernel
        found = []
        for a, b in zip(*pairs(at, length, d), strict=True):
            products = features(a[None], W)[0] * features(b[None], W)[0]
            estimates = draws * products.reshape(-1, draws).sum(0)  # of one direction each
            found.append(estimates.std() / math.exp(a @ b))
        drawn[name] = np.array(found)
    return FeatureVariance(angles, derived, at, drawn)


def draw(data: FeatureVariance) -> Figure:
    """Lines as derived, marks as drawn."""
    fig, ax = figure(height=6)
    for name, (color, line, marker) in LOOKS.items():
        ax.plot(data.angles, data.derived[name], color=color, linestyle=line, label=name)
        ax.plot(data.at, data.drawn[name], marker, color=color, markersize=9, linestyle="none")
    ax.set(yscale="log", ylim=(0.02, 8), xlabel="angle between $a$ and $b$, degrees", ylabel="deviation / exp ⟨a, b⟩")
    ax.set_xticks(range(0, 181, 45))
    ax.set_yticks([0.1, 1], ["0.1", "1"])
    ax.legend(loc="lower center")
    return fig
