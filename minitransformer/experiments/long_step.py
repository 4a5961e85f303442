"""What does a training step on a long document cost? Dense attention beside a window with a few global tokens.

The same model reads one text, forwards and backwards: three layers, the loss of every byte. Time and peak memory of a step,
for lengths that double; for dense attention also as the definition has it, with every matrix formed, as far as that goes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.backend import backend, current
from minitransformer.data.text import python_docs
from minitransformer.experiments.speed import seconds
from minitransformer.functional import cross_entropy
from minitransformer.machine import peak_memory
from minitransformer.models import LanguageModel

ALONE = True
IN_A_TEST = {"n": 64, "runs": 1}
GLOBAL = "window:radius=127,global_tokens=16"


@dataclass(frozen=True)
class Trial:
    """One length; `matrices` if every matrix is to be formed. The shortest of some runs is kept."""

    attention: str
    n: int
    matrices: bool = False
    runs: int = 3


def trials() -> list[Trial]:
    """From 1024 to 65536 bytes; with matrices, up to 4096."""
    lengths = [2**k for k in range(10, 17)]
    found = [Trial(attention, n, runs=1 if n > 2**14 else 3) for attention in (GLOBAL, "softmax") for n in lengths]
    return found + [Trial("softmax", n, matrices=True) for n in lengths[:3]]


def run(trial: Trial) -> dict[str, Any]:
    """Seconds of a step, and the most bytes of arrays that it held at once."""
    model = model_of(trial.attention, trial.n)
    params = model.init(np.random.default_rng(0))
    text = python_docs().train[: trial.n + 1].astype(np.int64)

    def step() -> None:
        logits, pullback = model(params, text[:-1])
        _, loss = cross_entropy(logits, text[1:])
        pullback(loss(np.float32(1)))

    with backend("numpy" if trial.matrices else current()):
        shortest = min(seconds(step, trial.runs))
        with peak_memory() as peak:
            step()
            return {"seconds": round(shortest, 4), "bytes": peak()}


def model_of(attention: str, context: int) -> LanguageModel:
    """Three layers of width 64, four heads, rotary positions."""
    return LanguageModel(context=context, width=64, depth=3, heads=4, attention=attention, positions="rope")
