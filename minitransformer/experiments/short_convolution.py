"""Can a memory tie a value to the key that stands beside it, in another token? With a short convolution, and without."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.arrays import orders
from minitransformer.experiments.many_pairs import KEYS, VALUES, Asked, ManyPairs, answered, trained
from minitransformer.pullback import tree_size

IN_A_TEST = {"steps": 3}
PAIRS = (4, 8, 16)
MODELS = {
    "gated-delta": ("gated-delta", 1),
    "one tap": ("gated-delta:taps=1", 1),
    "two taps": ("gated-delta:taps=2", 1),
    "four taps": ("gated-delta:taps=4", 1),
    "two blocks": ("gated-delta", 2),
    "softmax": ("softmax", 1),
    "softmax, two blocks": ("softmax", 2),
}


@dataclass(frozen=True)
class Trial:
    """A tagger with two heads of width 16, one of MODELS."""

    model: str
    seed: int
    steps: int = 2000
    width: int = 32


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(name, seed) for name in MODELS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Fractions right by the number of pairs, and the number of parameters."""
    task, (attention, depth) = InTwoTokens(16), MODELS[trial.model]
    model, params = trained(task, trial, attention, depth=depth)
    found: dict[str, Any] = {"parameters": tree_size(params)}
    for pairs in PAIRS:
        right, _ = answered(task, pairs, model, params)
        found[f"{pairs} pairs"] = round(float(right.mean()), 4)
    return found


@dataclass(frozen=True)
class InTwoTokens(ManyPairs):
    """As `ManyPairs`, but a pair is two tokens, its key and its value; none is written again, and to name a key is to ask.

    a 3 b 7 c 1   b a c          answers 7 3 1
    """

    @property
    def vocabulary(self) -> int:
        """How many tokens there are: keys and values."""
        return KEYS + VALUES

    @property
    def longest(self) -> int:
        """Tokens of a sequence with the most pairs."""
        return 3 * self.most

    def of(self, pairs: int, size: int, rng: np.random.Generator) -> Asked:
        """Sequences with this number of pairs."""
        keys = orders(rng, size, KEYS)[:, :pairs]
        values = rng.integers(0, VALUES, (size, pairs))
        written = np.stack([keys, KEYS + values], -1).reshape(size, 2 * pairs)
        order = orders(rng, size, pairs)
        tokens = np.concatenate([written, np.take_along_axis(keys, order, 1)], 1)
        return Asked(tokens, np.take_along_axis(values, order, 1), np.zeros((size, pairs), bool))
