"""What does a learned table of positions become if most of its training sees only its first rows, as BERT's did?

Small language models read passages of the documentation inside Python. Some read short passages for nine tenths of their
steps and long ones for the rest; others, equal in everything else, read long ones from the beginning. All read the same
number of bytes in every step. Beside them stands the table of a real BERT, which is measured and not trained.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import python_docs
from minitransformer.measurements.rows import unit
from minitransformer.models import LanguageModel, load_bert
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine
from minitransformer.typing import Array

IN_A_TEST = {"steps": 10}
SHORT, LONG = 32, 96  # bytes in a passage
BATCH = 4  # long passages in a step; of short ones there are more, for the same number of bytes
MODEL = LanguageModel(context=LONG, width=32, depth=1, heads=2, hidden=32, positions="learned", ffn="relu")
BERT = "all-MiniLM-L6-v2"
SQUARE = 4  # of the real table's cosines, means over 4 × 4 pairs of rows are kept


@dataclass(frozen=True)
class Trial:
    """How a table was trained: "two phases" or "long from the start"; or the name of the real one."""

    table: str
    seed: int = 0
    steps: int = 1500
    share: float = 0.9  # of the steps that read short passages, in two phases


def trials() -> list[Trial]:
    """Three seeds of ours, and the real one."""
    return [*(Trial(table, seed) for table in ("two phases", "long from the start") for seed in range(3)), Trial(BERT)]


def run(trial: Trial) -> dict[str, Any]:
    """Ours: the table, and bits per held-out byte at the end. The real one: what the chapter needs of it."""
    if trial.table != BERT:
        table, bits = train_table(trial)
        return {"table": table.astype(float).round(4).tolist(), "bits": round(bits, 3)}
    table = load_bert()[1].positions.table
    return {
        "lengths": np.linalg.norm(table.astype(float), axis=1).round(3).tolist(),
        "neighbours": np.diagonal(cosines(table), 1).round(3).tolist(),
        "percent": (100 * coarse(cosines(table))).round().astype(int).tolist(),
    }


def train_table(trial: Trial) -> tuple[Array, float]:
    """Π (96, 32) at the end of a training, and bits per held-out byte of long passages."""
    schedule = Cosine(2e-2, trial.steps, trial.steps // 10, floor=1e-3)  # phase two still learns
    more: dict[str, Any] = {"schedule": schedule, "parts": 1, "seed": trial.seed, "look_every": trial.steps}
    long = Training(trial.steps, BATCH, **more)
    state = start(MODEL, long)
    if trial.table == "two phases":
        short = Training(round(trial.share * trial.steps), BATCH * LONG // SHORT, **more)
        state = train(MODEL, NextByte(python_docs(), SHORT), short, state=state, progress=False)
    state = train(MODEL, NextByte(python_docs(), LONG), long, state=state, progress=False)  # goes on where that ended
    return state.params.positions.table, state.held_out[-1][1]


def cosines(table: Array) -> Array:
    """⟨π_i, π_j⟩ / (‖π_i‖ ‖π_j‖) for all pairs of rows."""
    rows = unit(table.astype(np.float64))
    return rows @ rows.T


def coarse(C: Array) -> Array:
    """The mean of each square of 4 × 4 entries: (n, n) becomes (n/4, n/4)."""
    n = len(C) // SQUARE
    return C.reshape(n, SQUARE, n, SQUARE).mean((1, 3))
