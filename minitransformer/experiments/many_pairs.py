"""How many pairs does each kind of attention recall, if queries, keys and gates are trained for it, and half of them change?"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import orders
from minitransformer.models import SequenceModel
from minitransformer.pullback import Tree, tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usual_training
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3}
KEYS, VALUES = 32, 32
PAIRS = (4, 8, 16, 24, 32)
ATTENTIONS = ("softmax", "window:radius=8", "linear", "retnet", "gla", "delta", "gated-delta")
POSITIONS = ("sinusoidal", "rope", "none")


@dataclass(frozen=True)
class Trial:
    """A tagger of one block with two heads of width 16."""

    attention: str
    seed: int
    steps: int = 3000
    width: int = 32
    positions: str = "sinusoidal"


def trials() -> list[Trial]:
    """Three seeds for each kind, with each sort of positions."""
    return [Trial(name, seed, positions=at) for at in POSITIONS for name in ATTENTIONS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Fractions right by the number of pairs: of all, of those written once, and of those rewritten."""
    task = ManyPairs()
    model, params = trained(task, trial, trial.attention, depth=1, positions=trial.positions)
    found: dict[str, Any] = {"parameters": tree_size(params)}
    for pairs in PAIRS:
        right, batch = answered(task, pairs, model, params)
        found[f"{pairs} pairs"] = round(float(right.mean()), 4)
        found[f"{pairs} pairs, once"] = round(float(right[~batch.rewritten].mean()), 4)
        found[f"{pairs} pairs, rewritten"] = round(float(right[batch.rewritten].mean()), 4)
    return found


def trained(task: "ManyPairs", trial: Any, attention: str, *, depth: int, **more: Any) -> tuple[SequenceModel, Tree]:
    """A tagger of `depth` blocks with two heads, and what it has learned in the steps of the trial."""
    sizes: dict[str, Any] = {"width": trial.width, "depth": depth, "heads": 2, "hidden": 2 * trial.width}
    model = SequenceModel(
        task.vocabulary, context=task.longest, **sizes, outputs=VALUES, attention=attention, causal=True, **more
    )
    training = usual_training(trial.steps, 64, 1e-2, trial.seed, warmup=trial.steps // 20)
    return model, train(model, task, training, progress=False).params


def answered(task: "ManyPairs", pairs: int, model: SequenceModel, params: Tree) -> tuple[Array, "Asked"]:
    """Which answers are right on 200 sequences with this number of pairs, (200, pairs), always the same; and the sequences."""
    batch = task.of(pairs, 200, np.random.default_rng(1))
    return model(params, batch.tokens)[0][:, -pairs:].argmax(-1) == batch.targets, batch


class Asked(NamedTuple):
    """Tokens (size, n); the last of them ask, and the targets are their answers (size, pairs); whether they were rewritten."""

    tokens: Array
    targets: Array
    rewritten: Array


@dataclass(frozen=True)
class ManyPairs(DrawnTask):
    """A sequence writes some pairs, then half of the keys again with another value, in random order, and asks for all keys.

        a3 b7 c1 d1  c6 a2   b? a? d? c?          answers 7 2 1 6

    A pair is one token, so no layer is needed to put a key and its value together, and one block is enough.
    """

    most: int = 32

    @property
    def vocabulary(self) -> int:
        """A token for each pair, and one for each question."""
        return KEYS * VALUES + KEYS

    @property
    def longest(self) -> int:
        """Tokens of a sequence with the most pairs."""
        return 2 * self.most + self.most // 2

    @property
    def length(self) -> int:
        """Answers of the longest sequence."""
        return self.most

    def of(self, pairs: int, size: int, rng: np.random.Generator) -> Asked:
        """Sequences with this number of pairs."""
        keys = orders(rng, size, KEYS)[:, :pairs]
        values = rng.integers(0, VALUES, (size, pairs))
        half = pairs // 2
        other = (values[:, :half] + rng.integers(1, VALUES, (size, half))) % VALUES
        writes = np.concatenate([keys * VALUES + values, keys[:, :half] * VALUES + other], 1)
        first = rng.permuted(writes[:, :pairs], axis=1)
        second = rng.permuted(writes[:, pairs:], axis=1)
        newest = np.concatenate([other, values[:, half:]], 1)
        order = orders(rng, size, pairs)
        asks = KEYS * VALUES + np.take_along_axis(keys, order, 1)
        tokens = np.concatenate([first, second, asks], 1)
        return Asked(tokens, np.take_along_axis(newest, order, 1), order < half)

    def batch(self, size: int, rng: np.random.Generator) -> Asked:
        """Sequences to train on, with a number of pairs that is drawn."""
        return self.of(int(rng.integers(2, self.most + 1)), size, rng)
