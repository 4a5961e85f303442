"""Does training a small model make its attention matrices flatter, or fuller?

The models of `smaller_matrices`, with dense attention in all layers, before their first step and after their last.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.backend import backend
from minitransformer.experiments.smaller_matrices import TOKENS, prepare
from minitransformer.measurements.low_rank import held
from minitransformer.measurements.rows import in_use
from minitransformer.models import SequenceModel
from minitransformer.pullback import Tree
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2, "n": 64}
PASSAGES = 4  # of the held-out text, whose attention matrices are measured


@dataclass(frozen=True)
class Trial:
    """One training, with texts of n bytes."""

    seed: int
    n: int = 256
    steps: int = 1000


def trials() -> list[Trial]:
    """Three trials that differ in their seed."""
    return [Trial(seed) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits for each missing byte; and by layer, before and after: the share of a quarter of the singular values, keys in use."""
    model, objective = prepare("softmax", trial.n)
    tokens = objective.judged()[0][:PASSAGES]
    fresh = model.init(np.random.default_rng(trial.seed))
    trained = usually_trained(model, objective, trial.steps, max(TOKENS // trial.n, 1), 6e-3, trial.seed)
    found = [_measure(model, params, tokens) for params in (fresh, trained)]
    quarter, used = (np.array(each).round(4).tolist() for each in zip(*found, strict=True))
    return {"bits": round(objective.look(model, trained), 4), "quarter": quarter, "used": used}


def _measure(model: SequenceModel, params: Tree, tokens: Array) -> tuple[list[float], list[float]]:
    """By layer, means of heads and passages: what the first quarter of σ holds; exp of the entropy of a row."""
    with backend("numpy"):  # the tier that keeps A
        _, pullback = model(params, tokens)
    quarter, used = [], []
    for block in pullback.stack.blocks:
        A = block.attention.A.astype(np.float64)
        quarter.append(held(A)[..., A.shape[-1] // 4 - 1].mean())
        used.append(in_use(A).mean())
    return quarter, used
