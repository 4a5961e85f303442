"""A whole manual in one context: is a byte easier to guess if tens of thousands before it can be seen?

A model with a window and a few global tokens is trained on stretches of 16384 bytes of Python's documentation; so is one with
the window alone. Two others read as many bytes in texts of 512, with the same window and with dense attention, so that either the
length of the texts changes or the attention, one at a time. All see the same number of bytes in a step, and all are judged on the
same held-out ones.
"""

from dataclasses import dataclass
from typing import Any

from minitransformer.data.text import python_docs
from minitransformer.experiments.long_step import GLOBAL, model_of
from minitransformer.pullback import tree_size
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import usually_trained

IN_A_TEST = {"context": 128, "steps": 2}
LONG, SHORT = 16384, 512
WINDOW = "window:radius=127"
SEEDS = 3


@dataclass(frozen=True)
class Trial:
    """One training, on texts of `context` bytes."""

    attention: str
    context: int
    seed: int
    steps: int = 160


def trials() -> list[Trial]:
    """Each with three seeds."""
    kinds = ((GLOBAL, LONG), (WINDOW, LONG), (WINDOW, SHORT), ("softmax", SHORT))
    return [Trial(attention, context, seed) for attention, context in kinds for seed in range(SEEDS)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits per byte of the second half of the held-out text, each predicted from at least half a context."""
    model, objective = model_of(trial.attention, trial.context), NextByte(python_docs(), trial.context)
    params = usually_trained(model, objective, trial.steps, LONG // trial.context, 6e-3, trial.seed)
    bits = objective.bits(model, params)
    judged = bits[len(bits) // 2 :]
    return {"parameters": tree_size(params), "bits": round(float(judged.mean()), 4), "judged": len(judged)}
