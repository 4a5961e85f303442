"""Can attention name the token before, without positions and with them, and how do its weights do it?"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.arrays import orders
from minitransformer.backend import backend
from minitransformer.models import SequenceModel
from minitransformer.positions import LearnableSinusoids, NoPositions, SinusoidalPositions
from minitransformer.pullback import Tree
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 20}
START, WIDTH = 0, 32
POSITIONS = {"none": NoPositions, "sinusoidal": SinusoidalPositions, "learnable sinusoids": LearnableSinusoids}


@dataclass(frozen=True)
class Trial:
    """A tagger of one block with one head, on sequences of 16 tokens."""

    positions: str
    seed: int
    steps: int = 400


def trials() -> list[Trial]:
    """Six seeds each: not every training finds the way."""
    return [Trial(name, seed) for name in POSITIONS for seed in range(6)]


def run(trial: Trial) -> dict[str, Any]:
    """Fractions right, on 16 tokens and on each half of 32; with sinusoids mean attention and W_q W_kᵀ, or frequencies."""
    task = TokenBefore()
    model, params = fit(trial.positions, trial.seed, steps=trial.steps)
    found: dict[str, Any] = {"right": round(task.right(model, params), 4)}
    tokens, targets = TokenBefore(length=32).batch(200, np.random.default_rng(1))
    right = model(params, tokens)[0].argmax(-1) == targets
    found |= {"32, first half": round(right[:, 1:16].mean(), 4), "32, second half": round(right[:, 16:].mean(), 4)}
    if trial.positions == "learnable sinusoids":
        found["omega"] = np.exp(params.positions.log_omega, dtype=float).round(5).tolist()
    if trial.positions == "sinusoidal":
        with backend("numpy"):  # the tier that keeps A
            _, pullback = model(params, task.batch(100, np.random.default_rng(5))[0])
        head = params.stack.blocks[0].attention
        found["attention"] = pullback.blocks[0].attention.A[:, 0].mean(0, dtype=float).round(3).tolist()
        found["form"] = (head.W_q @ head.W_k.T).astype(float).round(3).tolist()
    return found


def fit(positions: str, seed: int = 0, *, steps: int = 400) -> tuple[SequenceModel, Tree]:
    """Model and parameters after this many steps of 32 sequences."""
    sizes: dict[str, Any] = {"width": WIDTH, "depth": 1, "heads": 1, "hidden": 32}
    model = SequenceModel(TokenBefore.vocabulary, **sizes, positions=POSITIONS[positions](WIDTH))
    return model, usually_trained(model, TokenBefore(), steps, 32, 1e-2, seed)


@dataclass(frozen=True)
class TokenBefore(DrawnTask):
    """A sequence is the start token and then `length` − 1 different others, in random order.

        tokens    0  7  2  9  4
        targets   0  0  7  2  9

    No token says anything about another, so a model that is blind to order can only guess.
    """

    vocabulary: int = 33
    length: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.vocabulary:
            raise ValueError(f"length: {self.length} is not within 2 … {self.vocabulary}, the vocabulary")

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tokens and targets, (size, length) each."""
        others = 1 + orders(rng, size, self.vocabulary - 1)[:, : self.length - 1]  # START is 0
        start = np.full((size, 1), START)
        tokens = np.concatenate([start, others], axis=1)
        return tokens, np.concatenate([start, tokens[:, :-1]], axis=1)

    def right(self, model: Any, params: Tree, size: int = 200) -> float:
        """Fraction of the tokens after the start that name the one before them."""
        tokens, targets = self.batch(size, np.random.default_rng(1))
        named = model(params, tokens)[0].argmax(-1)
        return float((named == targets)[:, 1:].mean())
