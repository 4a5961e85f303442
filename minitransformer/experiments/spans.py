"""How far back does a head look if looking costs something? Adaptive spans, as the penalty grows.

The same small language model is trained with spans that cost nothing, little, and much; a model with dense attention is its
control. Every head begins with half of the context, so that spans can shrink as well as grow.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_set
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import usual_training

IN_A_TEST = {"steps": 2}
CONTEXT, RAMP, DEPTH, HEADS = 256, 16, 3, 4
PENALTIES = (0.0, 1e-5, 1e-4, 1e-3)
FIRST = 0.5  # of the context: spans before the first step


@dataclass(frozen=True)
class Trial:
    """One training; without a penalty (None), dense attention."""

    penalty: float | None
    seed: int
    steps: int = 1000


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(penalty, seed) for penalty in (None, *PENALTIES) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """Held-out bits per byte, and the spans z of each layer's heads (None for dense attention)."""
    spans = trial.penalty is not None
    attention = f"span:ramp={RAMP},penalty={trial.penalty}" if spans else "softmax"
    model = LanguageModel(context=CONTEXT, width=64, depth=DEPTH, heads=HEADS, attention=attention, positions="rope")
    objective = NextByte(python_docs(), CONTEXT)
    training = usual_training(trial.steps, 4, 6e-3, trial.seed)
    state = start(model, training)
    for k in range(DEPTH if spans else 0):
        half = np.full(HEADS, FIRST, np.float32)
        state = state._replace(params=tree_set(state.params, f"stack.blocks.{k}.attention.core.span", half))
    params = train(model, objective, training, state=state, progress=False).params
    parts = [block.attention.core.span for block in params.stack.blocks] if spans else []
    return {
        "bits": round(float(objective.bits(model, params).mean()), 4),
        "spans": [[round(float(CONTEXT * z), 1) for z in heads] for heads in parts] or None,
    }
