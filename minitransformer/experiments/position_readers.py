"""What has a trained reader made of its positions: offsets, places, distances?"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitransformer.backend import backend
from minitransformer.experiments.positions import STEPS, Trained, fit, score
from minitransformer.measurements.position_scores import fit_offsets
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
NEAR = 8  # offsets within which the profile should fall


@dataclass(frozen=True)
class Trial:
    """A reader of the task "span"."""

    positions: str
    seed: int
    steps: int = STEPS["span"]


def trials() -> list[Trial]:
    """Two that add positions to the tokens and two that act on offsets, three seeds each."""
    names = ("learned", "sinusoidal", "relative keys", "alibi")
    return [Trial(name, seed) for name in names for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Right answers, the three properties, and the mean attention of the head whose weights differ most."""
    trained = fit("span", trial.positions, trial.seed, steps=trial.steps)
    A = without_start(mean_attention(trained))
    head = int(np.ptp(np.log(A), axis=(1, 2)).argmax())
    return {
        "right": round(score(trained, "span", 24), 4),
        **{name: round(value, 4) for name, value in measure(A)._asdict().items()},
        "attention": A[head].round(4).tolist(),
    }


def mean_attention(trained: Trained, *, samples: int = 1024) -> Array:
    """The first block's attention, averaged over random contents, heads apart: (H, n, n). What is left is position."""
    batch = trained.objective.batch(samples, np.random.default_rng(0))
    with backend("numpy"):  # the tier that keeps A
        _, pullback = trained.model(trained.params, batch.tokens)
    return pullback.blocks[0].attention.A.mean(0, dtype=np.float64)


def without_start(A: Array) -> Array:
    """Without the first token, which always has the same content: (H, n − 1, n − 1), rows that sum to one."""
    return A[:, 1:, 1:] / A[:, 1:, 1:].sum(-1, keepdims=True)


class Properties(NamedTuple):
    """Of the logarithms of weights, averaged over contents: each between 0 and 1 (symmetry: −1 and 1), mean over heads.

    invariance     share of the variance within rows that the offset j − i explains: 1 if only the offset matters
    monotonicity   share of the steps away from offset 0, up to NEAR, at which the profile falls
    symmetry       correlation of the profile with its mirror image: 1 if left and right are alike
    """

    invariance: float
    monotonicity: float
    symmetry: float


def measure(A: Array) -> Properties:
    """The three properties of mean attention (H, n, n), averaged over the heads.

    What a row adds to its logarithms counts for nothing: its weights sum to one.
    """
    rows = []
    for head in A:
        p, invariance = fit_offsets(np.log(head))
        zero = len(p) // 2
        away = np.concatenate([np.diff(p[zero : zero + NEAR + 1]), np.diff(p[zero - NEAR : zero + 1][::-1])])
        rows.append((invariance, (away < 0).mean(), np.corrcoef(p, p[::-1])[0, 1]))
    return Properties(*map(float, np.mean(rows, axis=0)))
