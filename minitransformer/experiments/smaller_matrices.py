"""What does a smaller attention matrix cost in quality? Linformer's k, and its sharing, on text.

Small models that see both sides guess the bytes that were taken out of a text, each trained by the same recipe on the same
bytes. What is near has to be seen sharply, so layers with a window take turns with layers of each kind. Controls are dense
attention, nothing but windows, and k = 1, one learned average for each head.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.data.text import Text, python_docs
from minitransformer.data.text import batch as draw
from minitransformer.models import SequenceModel
from minitransformer.pullback import Tree, tree_size
from minitransformer.training.objective import LossPullback, loss_of
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2, "n": 64}
TAKEN_OUT = 256  # the token that stands for a missing byte
PART = 0.15  # of the bytes are taken out
TOKENS = 2048  # of text in one step, whatever n is
JUDGED = 64  # passages of 256 bytes, or as many bytes in passages of another length
SEEDS = 3
NEAR = "window:radius=8"


@dataclass(frozen=True)
class Trial:
    """One training, with texts of n bytes; kinds of attention with a plus between them take turns along the depth."""

    attention: str
    n: int
    seed: int
    steps: int = 1000


def trials() -> list[Trial]:
    """Each with three seeds; and shorter and longer texts at a fixed k."""
    linformers = [f"linformer:k={k}" for k in (1, 8, 32, 128)]
    linformers += [f"linformer:k=32,sharing={sharing}" for sharing in ("none", "key-value", "layerwise")]
    kinds = [(kind, 256) for kind in (NEAR, "softmax", *linformers)]
    kinds += [(kind, n) for n in (64, 1024) for kind in (NEAR, "softmax", "linformer:k=32")]
    return [Trial(f"{NEAR} + {kind}", n, seed) for kind, n in kinds for seed in range(SEEDS)]


def run(trial: Trial) -> dict[str, Any]:
    """Bits for each missing byte of the held-out text, the mean of −log₂ P."""
    model, objective = prepare(trial.attention, trial.n)
    params = usually_trained(model, objective, trial.steps, max(TOKENS // trial.n, 1), 6e-3, trial.seed)
    return {"parameters": tree_size(params), "bits": round(objective.look(model, params), 4)}


def prepare(attention: str, n: int) -> tuple[SequenceModel, "Missing"]:
    """The model of a trial and the objective that it is trained on."""
    sizes: dict[str, Any] = {"width": 64, "depth": 4, "heads": 4, "ffn": "gelu_tanh", "positions": "rope"}
    return SequenceModel(TAKEN_OUT + 1, n, attention=tuple(attention.split(" + ")), **sizes), Missing(python_docs(), n)


@dataclass(frozen=True, eq=False)
class Missing:
    """Guess the bytes that were taken out of a text, 15 % drawn at random, from those on both sides."""

    text: Text
    context: int

    @property
    def data(self) -> dict[str, Any]:
        """Kind, name and hash."""
        return {"task": "missing", "name": self.text.name, "sha256": self.text.sha256}

    @property
    def length(self) -> int:
        """Bytes of one text."""
        return self.context

    def _taken_out(self, passages: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        missing = rng.random(passages.shape) < PART
        return np.where(missing, TAKEN_OUT, passages), passages, missing

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """What is read, what stood there, and where a byte is missing; (size, context) each."""
        passages, _ = draw(self.text.train, self.context, size, rng)
        return self._taken_out(passages, rng)

    def judged(self) -> tuple[Array, Array, Array]:
        """Passages of the held-out text, evenly spread; the same bytes are missing in every run."""
        count = JUDGED * 256 // self.context
        starts = np.linspace(0, len(self.text.held_out) - self.context, count).astype(int)
        passages = self.text.held_out[starts[:, None] + np.arange(self.context)].astype(np.int64)
        return self._taken_out(passages, np.random.default_rng(0))

    def loss(
        self, model: Any, params: Tree, batch: tuple[Array, ...], rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P of the missing bytes."""
        tokens, wanted, missing = batch
        return loss_of(model(params, tokens, rng=rng), wanted, missing)

    def look(self, model: Any, params: Tree) -> float:
        """Bits for each missing byte of the held-out passages."""
        tokens, wanted, missing = self.judged()
        total, count = 0.0, missing.sum()
        for rows in np.array_split(np.arange(len(tokens)), max(len(tokens) // 16, 1)):
            part = tokens[rows], wanted[rows], missing[rows]
            total += float(self.loss(model, params, part)[0]) * missing[rows].sum()
        return float(total / count / math.log(2))
