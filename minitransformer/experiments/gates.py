"""What is a gate worth? The same small language model with seven second halves, nearly equal in parameters.

Two plain feed-forward networks are the controls. A gated one has three matrices in place of two, and so two thirds of the hidden
width. All see the same windows of the text in the same order.
"""

from dataclasses import dataclass
from typing import Any

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.models.gated_feed_forward import GATES
from minitransformer.pullback import tree_size
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import usually_trained

IN_A_TEST = {"steps": 2}
PLAIN = ("relu", "gelu")
HIDDEN, GATED = 256, 170  # 2 · 64 · 256 weights, and 3 · 64 · 170


@dataclass(frozen=True)
class Trial:
    """One training with one kind of feed-forward network."""

    kind: str
    seed: int
    steps: int = 1000


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(kind, seed) for seed in range(3) for kind in (*PLAIN, *GATES)]


def model_of(kind: str) -> LanguageModel:
    """Two blocks of width 64, with this second half."""
    sizes: dict[str, Any] = {"context": 64, "width": 64, "depth": 2, "heads": 4, "positions": "rope"}
    return LanguageModel(**sizes, hidden=GATED if kind in GATES else HIDDEN, ffn=kind)  # type: ignore[arg-type]


def run(trial: Trial) -> dict[str, Any]:
    """The number of parameters, and bits per byte of the held-out text."""
    model, objective = model_of(trial.kind), NextByte(python_docs(), 64)
    params = usually_trained(model, objective, trial.steps, 8, 6e-3, trial.seed)
    return {"parameters": tree_size(params), "bits": round(float(objective.bits(model, params).mean()), 4)}
