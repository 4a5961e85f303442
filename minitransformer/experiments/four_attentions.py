"""What does another attention cost and save in the same model, on the same text? Bits, tokens per second, bytes of state.

Dense attention, a window, kernel attention and the delta rule, with rotary positions and equally many steps.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.experiments.reading_and_writing import size_of, writing
from minitransformer.models.generate import read
from minitransformer.pullback import tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import language_model

ALONE = True
IN_A_TEST = {"steps": 2, "length": 100}
ATTENTIONS = ("softmax", "window:radius=32", "linear", "delta")


@dataclass(frozen=True)
class Trial:
    """One training, and then `length` tokens read before the next are written one by one."""

    attention: str
    seed: int
    steps: int = 1200
    length: int = 4096


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(attention, seed) for attention in ATTENTIONS for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Held-out bits per byte; tokens per second in training, and in writing after few tokens and after many; the state."""
    sizes = {"width": 64, "depth": 2, "heads": 4, "context": 256, "batch": 4}
    model, training = language_model(attention=trial.attention, seed=trial.seed, steps=trial.steps, ffn="relu", **sizes)
    objective = NextByte(python_docs(), model.context)
    began = time.perf_counter()
    state = train(model, objective, training, progress=False)
    seconds = time.perf_counter() - began
    written: list[int] = []
    for n in (16, trial.length):
        text = np.resize(objective.text.held_out, n).astype(np.int64)
        _, after = read(model, state.params, text)
        written.append(round(writing(model, state.params, text, after)))
    return {
        "parameters": tree_size(state.params),
        "bits": round(float(objective.bits(model, state.params).mean()), 4),
        "trained per second": round(trial.steps * training.batch * model.context / seconds),
        "written per second": written,
        "state": sum(size_of(block) for block in after.blocks),
    }
