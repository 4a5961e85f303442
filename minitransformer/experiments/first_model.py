"""What do two later ideas do for the first model that a reader trains? The same text, steps and seeds, nearly as many parameters.

Queries and keys of length √d (chapter 18), a gated feed-forward network (chapter 15), both, and neither: what a model of the
original paper's parts, with rotary positions, learns in as many steps.
"""

from dataclasses import dataclass
from typing import Any

from minitransformer.data import text
from minitransformer.pullback import tree_size
from minitransformer.training.evaluation import bits_per_byte
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import language_model

IN_A_TEST = {"steps": 2}
MODELS = {
    "neither": ("softmax", "relu"),
    "normed": ("softmax:norm=rms", "relu"),
    "gated": ("softmax", "swiglu"),
    "both": ("softmax:norm=rms", "swiglu"),
}


@dataclass(frozen=True)
class Trial:
    """One training of one of MODELS."""

    model: str
    seed: int
    steps: int = 2400


def trials() -> list[Trial]:
    """Three seeds for each model."""
    return [Trial(model, seed) for seed in range(3) for model in MODELS]


def run(trial: Trial) -> dict[str, Any]:
    """Bits per held-out byte: of all, of copies, of new ones; and the number of parameters."""
    attention, ffn = MODELS[trial.model]
    model, training = language_model(attention=attention, ffn=ffn, seed=trial.seed, steps=trial.steps)
    objective = NextByte(text.python_docs(), model.context)
    state = train(model, objective, training, progress=False)
    bits = bits_per_byte(objective, model, state.params, order=1)[-1]
    return {"parameters": tree_size(state.params), "bits": [round(float(b), 4) for b in bits[1:]]}
