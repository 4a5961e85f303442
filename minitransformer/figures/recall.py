"""How wrong is what a memory answers, by the number of pairs in it? For keys at random, and for keys with a common part."""

from itertools import product
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from minitransformer.attention import delta_rule_step, kernel_state
from minitransformer.figures.style import figure
from minitransformer.measurements.rows import unit
from minitransformer.typing import Array

WIDTH, SEEDS = 32, 20
PAIRS = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48)
RULES = ("sum", "delta", "least squares")
COMMON = {"keys at random": 0.0, "keys with a common part": 0.7}


class Recall(NamedTuple):
    """Mean of ‖kᵀ S − v‖ / ‖v‖ over pairs and seeds, for each kind of keys (rules, numbers of pairs)."""

    pairs: tuple[int, ...]
    error: dict[str, Array]


def memories(K: Array, V: Array) -> dict[str, Array]:
    """What each rule has after one pass through the pairs, β = 1; least squares sees all of them at once."""
    n, empty = len(K), np.zeros((K.shape[1], V.shape[1]))
    return {
        "sum": kernel_state(K, V).S,
        "delta": delta_rule_step(K, K, V, np.ones(n), empty)[1],
        "least squares": np.linalg.lstsq(K, V, rcond=None)[0],
    }


def data() -> Recall:
    """Means of twenty draws for each kind of keys and each number of pairs."""
    error = {kind: np.zeros((len(RULES), len(PAIRS))) for kind in COMMON}
    for (kind, common), (place, m), seed in product(COMMON.items(), enumerate(PAIRS), range(SEEDS)):
        rng = np.random.default_rng([seed, m])
        mean = unit(rng.standard_normal(WIDTH))
        K = unit(rng.standard_normal((m, WIDTH)) / np.sqrt(WIDTH) + common * mean)
        V = unit(rng.standard_normal((m, WIDTH)))
        for rule, S in enumerate(memories(K, V).values()):
            error[kind][rule, place] += np.linalg.norm(K @ S - V, axis=-1).mean() / SEEDS
    return Recall(PAIRS, error)


def draw(data: Recall) -> Figure:
    """A panel for each kind of keys; the black line is √((m − 1)/d)."""
    fig, axes = figure(1, 2, height=5.0, sharey=True)
    m = np.arange(1, max(data.pairs) + 1)
    for ax, (kind, error) in zip(axes, data.error.items(), strict=True):
        for name, line, look in zip(RULES, error, ("C0o-", "C1s--", "C5^-."), strict=True):
            ax.plot(data.pairs, line, look, label=name)
        ax.plot(m, np.sqrt((m - 1) / WIDTH), color="black", linestyle="-", linewidth=1, label=r"$\sqrt{(m-1)/d}$")
        ax.set(title=kind, xlabel="pairs $m$", ylim=(0, 3))
    axes[0].set_ylabel("error of what a key reads")
    axes[0].legend()
    return fig
