"""How many random patterns can a Hopfield network keep apart? The classical one, and dense ones, by the number of neurons.

Patterns of d neurons, each −1 or 1 with equal chance. In a few patterns some neurons are turned round, and they are recalled;
their overlap is the mean of x_a s_a, 1 if all neurons are right again.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.related import classical_recall, dense_recall, hebbian, hopfield_attention
from minitransformer.typing import Array

IN_A_TEST = {"neurons": 8, "asked": 2}
KEPT = 0.95  # the overlap from which on patterns count as kept
MOST = 2**14
SIZES = {"classical": (32, 64, 128, 256, 512), "power 3": (8, 16, 32, 64, 128), "exponential": (8, 12, 16, 20)}
LOADS = tuple(2 ** (k / 2) for k in range(-10, 11))  # patterns for each neuron, m/d
NEURONS, TURNED = 128, 8  # of the curves; capacities are looked for with one neuron that is turned
CURVES = ("classical", "power 3", "exponential", "continuous")


@dataclass(frozen=True)
class Trial:
    """A kind of memory, its neurons, and what is looked for: "curve", the overlap by load, or "capacity"."""

    look: str
    kind: str
    neurons: int
    seed: int
    asked: int = 16


def trials() -> list[Trial]:
    """Three seeds for each curve, five for each capacity."""
    curves = [Trial("curve", kind, NEURONS, seed) for kind in CURVES for seed in range(3)]
    sizes = [(kind, d) for kind, all_d in SIZES.items() for d in all_d]
    return curves + [Trial("capacity", kind, d, seed, 64) for kind, d in sizes for seed in range(5)]


def overlap(trial: Trial, m: int) -> float:
    """The mean overlap of recalled patterns with what they were, of m that are stored."""
    rng = np.random.default_rng([trial.seed, m])
    X = rng.choice(np.array([-1, 1], np.float32), (m, trial.neurons))
    x = X[: trial.asked]
    few = TURNED if trial.look == "curve" else 1
    turned = rng.permuted(np.broadcast_to(np.arange(trial.neurons) < few, x.shape), axis=1)
    return float((x * recalled(trial.kind, X, np.where(turned, -x, x))).mean())


def recalled(kind: str, X: Array, s: Array) -> Array:
    """Where states go in at most five sweeps, or five updates of the continuous network with β = 1, of which the signs count."""
    if kind == "continuous":
        return np.sign(hopfield_attention(s, X, X, 1.0, steps=5)[0])
    if kind == "classical":
        return classical_recall(hebbian(X), s, sweeps=5).states[-1]
    power = None if kind == "exponential" else int(kind[-1])
    return dense_recall(X, s, power=power, sweeps=5).states[-1]


def run(trial: Trial) -> dict[str, Any]:
    """Curves: the overlap for each load. Capacities: the largest m, in steps of a fifth, before the overlap is below KEPT.

    reached   whether it fell below KEPT within MOST patterns
    """
    if trial.look == "curve":
        counts = [max(1, round(load * trial.neurons)) for load in LOADS]
        return {"overlaps": [round(overlap(trial, m), 4) for m in counts]}
    m, kept = max(2, trial.neurons // 16), 0
    while m <= MOST and overlap(trial, m) >= KEPT:
        m, kept = max(m + 1, round(m * 1.2)), m
    return {"capacity": kept, "reached": m <= MOST}
