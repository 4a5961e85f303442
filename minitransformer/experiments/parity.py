"""Is the number of ones so far even or odd? Which memories learn it, and for how long a text is it then right?"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.models import SequenceModel
from minitransformer.pullback import tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usual_training
from minitransformer.typing import Array

IN_A_TEST = {"steps": 3}
LONGEST = 24  # bits of a text in training
PLACES = ((1, 24), (25, 64), (65, 256))  # where a model is judged, first and last bit
ATTENTIONS = ("softmax", "linear", "delta", "gated-delta", "delta:reach=2", "gated-delta:reach=2")


@dataclass(frozen=True)
class Trial:
    """One block with two heads of width 8, which is not told the positions."""

    attention: str
    seed: int
    steps: int = 1000
    width: int = 16


def trials() -> list[Trial]:
    """Three seeds for each kind of memory."""
    return [Trial(name, seed) for name in ATTENTIONS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Fractions right in three stretches of texts that are longer than those of the training."""
    task, last = Parity(), PLACES[-1][-1]
    sizes: dict[str, Any] = {"width": trial.width, "depth": 1, "heads": 2, "hidden": 2 * trial.width, "outputs": 2}
    model = SequenceModel(2, context=last, **sizes, attention=trial.attention, positions="none", causal=True)
    training = usual_training(trial.steps, 32, 1e-2, trial.seed, warmup=trial.steps // 20)
    params = train(model, task, training, progress=False).params
    bits, parities = task.of(last, 200, np.random.default_rng(1))
    right = model(params, bits)[0].argmax(-1) == parities
    found: dict[str, Any] = {"parameters": tree_size(params)}
    return found | {f"bits {a} to {b}": round(float(right[:, a - 1 : b].mean()), 4) for a, b in PLACES}


@dataclass(frozen=True)
class Parity(DrawnTask):
    """A text of random bits; at every bit the answer is whether the ones up to it are odd in number.

    bits    0 1 1 0 1
    answer  0 1 0 0 1
    """

    @property
    def length(self) -> int:
        """Answers of the longest text in training."""
        return LONGEST

    def of(self, n: int, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Texts of n bits (size, n), and at each place the parity of the ones so far."""
        bits = rng.integers(0, 2, (size, n))
        return bits, bits.cumsum(-1) % 2

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Texts to train on, of a length that is drawn."""
        return self.of(int(rng.integers(2, LONGEST + 1)), size, rng)
