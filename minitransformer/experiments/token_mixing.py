"""Can one learned matrix, the same for every text, do what attention does? gMLP in both forms beside dense attention.

All models have three blocks and nearly as many parameters; a block of gMLP is the mixer alone. The last control mixes nothing:
each byte sees itself, and the rest of the model is as with attention.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.models import LanguageModel
from minitransformer.pullback import tree_size
from minitransformer.related.gmlp import GMLP
from minitransformer.training.objective import NextByte
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
CONTEXT, DEPTH = 64, 3
KINDS = ("paper", "source", "softmax", "itself")


@dataclass(frozen=True)
class Trial:
    """One training of one of KINDS."""

    kind: str
    seed: int
    steps: int = 1000


def trials() -> list[Trial]:
    """Three seeds for each kind."""
    return [Trial(kind, seed) for seed in range(3) for kind in KINDS]


def model_of(kind: str) -> LanguageModel:
    """Blocks of gMLP in this form; or of dense attention, or of attention to nothing but the byte itself."""
    sizes: dict[str, Any] = {"context": CONTEXT, "width": 64, "depth": DEPTH, "heads": 4}
    if kind in ("paper", "source"):
        mixer = GMLP(64, CONTEXT, kind, hidden=234)  # type: ignore[arg-type]
        return LanguageModel(**sizes, attention=mixer, positions="none", ffn="none")
    return LanguageModel(**sizes, attention={"itself": "window:radius=0"}.get(kind, kind), positions="rope")


def toeplitz(M: Array) -> Array:
    """The causal matrix that is nearest to M and has one number for each offset: the means of its diagonals."""
    n = len(M)
    return sum((np.diagonal(M, -o).mean() * np.eye(n, k=-o) for o in range(n)), np.zeros((n, n)))


def explained(M: Array) -> float:
    """How much of the squares of a causal M, below its main diagonal, the means of its diagonals explain."""
    L = np.tril(M, -1)
    return 1 - float(((L - np.tril(toeplitz(M), -1)) ** 2).sum() / max((L**2).sum(), 1e-30))


def run(trial: Trial) -> dict[str, Any]:
    """Held-out bits per byte; of gMLP how near each layer's M is to a convolution, and for one seed M itself, row by row."""
    model, objective = model_of(trial.kind), NextByte(python_docs(), CONTEXT)
    params = usually_trained(model, objective, trial.steps, 8, 6e-3, trial.seed)
    found: dict[str, Any] = {
        "parameters": tree_size(params),
        "bits": round(float(objective.bits(model, params).mean()), 4),
    }
    if trial.kind in ("paper", "source"):
        matrices = [block.attention.M.astype(np.float64) for block in params.stack.blocks]
        found["explained"] = [round(explained(M), 4) for M in matrices]
        if trial.seed == 0:
            found["M"] = [[[round(float(x), 3) for x in M[i, : i + 1]] for i in range(CONTEXT)] for M in matrices]
    return found
