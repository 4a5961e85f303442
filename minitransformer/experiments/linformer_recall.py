"""How many rows does Linformer need to look up values under keys, if the pairs stand at fixed places?

A sequence is a list of pairs, a key and its value, and then some keys that are asked for; the model says the value of each.
One layer with a window can put a key and its value together. The second has to find the pair: it is dense attention, or
Linformer with k rows, or, as a control, another window.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.arrays import orders
from minitransformer.models import SequenceModel
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
KEYS, VALUES, ASKED = 64, 16, 8
NEAR = "window:radius=2"
JUDGED = 512  # sequences


@dataclass(frozen=True)
class Trial:
    """One training, with sequences of this many pairs."""

    attention: str
    pairs: int
    seed: int
    steps: int


def trials() -> list[Trial]:
    """Three seeds each; of twice as many pairs, twice as many steps."""
    rows = {8: (1, 2, 4, 8), 16: (4, 8, 16)}
    kinds = {pairs: (NEAR, *(f"linformer:k={k}" for k in some), "softmax") for pairs, some in rows.items()}
    return [Trial(kind, pairs, seed, 125 * pairs) for pairs in rows for kind in kinds[pairs] for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """The part of the values that are right."""
    n = 2 * trial.pairs + ASKED
    model = SequenceModel(
        2 * KEYS + VALUES, n, 64, 2, 4, attention=(NEAR, trial.attention), positions="learned", outputs=VALUES
    )
    objective = LookUp(trial.pairs)
    params = usually_trained(model, objective, trial.steps, 32, 3e-3, trial.seed)
    tokens, values = objective.batch(JUDGED, np.random.default_rng(2**32))
    said = model(params, tokens)[0][:, -ASKED:].argmax(-1)
    return {"right": round(float((said == values).mean()), 4)}


@dataclass(frozen=True)
class LookUp(DrawnTask):
    """Pairs of a key and a value, all keys different, and then keys that are asked for."""

    pairs: int

    @property
    def length(self) -> int:
        """Values to be said."""
        return ASKED

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tokens (size, 2 pairs + 8), and the values of the last eight."""
        keys = orders(rng, size, KEYS)[:, : self.pairs]
        values = rng.integers(0, VALUES, keys.shape)
        asked = rng.integers(0, self.pairs, (size, ASKED))
        pairs = np.stack([keys, KEYS + values], -1).reshape(size, -1)
        questions = KEYS + VALUES + np.take_along_axis(keys, asked, 1)
        return np.concatenate([pairs, questions], 1), np.take_along_axis(values, asked, 1)
