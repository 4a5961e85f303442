"""What does another attention cost and save in the same model, on the same text? Bits, tokens per second, bytes of state.

Dense attention, a window, kernel attention and the delta rule, with rotary positions and equally many steps.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minitransformer.attention import KeysValues
from minitransformer.attention.recent import Recent
from minitransformer.commands.recipes import language_model
from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.pullback import Tree, tree_bytes, tree_size
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte

ALONE = True
ATTENTIONS = ("softmax", "window:radius=32", "linear", "delta")
ROUNDS, WRITTEN = 5, 40  # of a timing, and tokens in each


@dataclass(frozen=True)
class Trial:
    """One training, and then `length` tokens read before the next are written one by one."""

    attention: str
    seed: int
    steps: int = 1200
    length: int = 4096


def trials() -> list[Trial]:
    """Three seeds each."""
    return [Trial(attention, seed) for attention in ATTENTIONS for seed in range(3)]


def small(trial: Trial) -> Trial:
    """Two steps."""
    return replace(trial, steps=2, length=100)


def run(trial: Trial) -> dict[str, Any]:
    """Held-out bits per byte; tokens per second in training, and in writing after few tokens and after many; the state."""
    sizes = {"width": 64, "depth": 2, "heads": 4, "context": 256, "batch": 4}
    model, training = language_model(attention=trial.attention, seed=trial.seed, steps=trial.steps, **sizes)
    objective = NextByte(python_docs(), model.context)
    began = time.perf_counter()
    state = train(model, objective, training, progress=False)
    seconds = time.perf_counter() - began
    few, _ = writing(model, state.params, 16)
    many, states = writing(model, state.params, trial.length)
    return {
        "parameters": tree_size(state.params),
        "bits": round(float(objective.bits(model, state.params).mean()), 4),
        "trained per second": round(trial.steps * training.batch * model.context / seconds),
        "written per second": [round(few), round(many)],
        "state": sum(size_of(state) for state in states),
    }


def writing(model: LanguageModel, params: Tree, length: int) -> tuple[float, Any]:
    """Tokens per second after so many have been read, the median of some rounds, and the states of the blocks there."""
    tokens = np.resize(python_docs().held_out, length).astype(np.int64)
    _, read = model.step(params, tokens)
    rates = []
    for _ in range(ROUNDS):
        state, began = read, time.perf_counter()
        for _ in range(WRITTEN):
            _, state = model.step(params, tokens[:1], state)
        rates.append(WRITTEN / (time.perf_counter() - began))
    return float(np.median(rates)), read.blocks


def size_of(state: Any) -> int:
    """Bytes of what counts; keys and values have room for more."""
    return state.keys.nbytes + state.values.nbytes if isinstance(state, (KeysValues, Recent)) else tree_bytes(state)
