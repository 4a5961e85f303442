"""The tasks of chapter 06 as objectives: where batches come from, the loss, and how many answers are right."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.data import position_tasks
from minitransformer.data.position_tasks import Samples
from minitransformer.functional import cross_entropy
from minitransformer.pullback import Pullback, Tree
from minitransformer.training.objective import LossPullback
from minitransformer.typing import Array


class AnswersPullback(NamedTuple):
    """Transposing is its own inverse."""

    model: Pullback
    transposed: bool

    def __call__(self, danswers: Array) -> Tree:
        return self.model(np.ascontiguousarray(danswers.mT) if self.transposed else danswers)


HELD_OUT = 2**32  # seeds of training steps are small numbers: no held-out sample is drawn with one of them


@dataclass(frozen=True)
class Drawn:
    """A task whose samples are drawn at random.

    task      "copy", "induction", "order" or "span" (minitransformer/data/position_tasks.py)
    longest   length of its sequences while training; for "copy" each batch has a length of its own, from 4 up to this
    raises    ValueError for an unknown task
    """

    task: str
    longest: int

    TASKS: ClassVar[dict[str, Callable[[int, int, np.random.Generator], Samples]]] = {
        name: getattr(position_tasks, name) for name in ("copy", "induction", "order", "span")
    }

    def __post_init__(self) -> None:
        if self.task not in self.TASKS:
            raise ValueError(f"task: no {self.task!r}; there are {', '.join(self.TASKS)}")

    @property
    def data(self) -> dict[str, Any]:
        """Nothing is read: the name of the task says it all."""
        return {"task": self.task, "name": self.task, "sha256": ""}

    @property
    def length(self) -> int:
        """Tokens of one sample."""
        return self.longest

    def batch(self, size: int, rng: np.random.Generator) -> Samples:
        """Random training samples."""
        n = int(rng.integers(4, self.longest + 1)) if self.task == "copy" else self.longest
        return self.TASKS[self.task](size, n, rng)

    def parts(self, batch: Samples, count: int) -> list[Samples]:
        """The batch in `count` equal parts."""
        return [Samples(*arrays) for arrays in zip(*(np.split(array, count) for array in batch), strict=True)]

    def _answers(self, logits: Array) -> Array:
        """Spans: for each output a distribution over the places; else for each place one over the outputs."""
        return np.ascontiguousarray(logits.mT) if self.task == "span" else logits

    def loss(
        self, model: Any, params: Tree, batch: Samples, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(right answer) over the answers that count."""
        logits, model_pullback = model(params, batch.tokens, rng=rng)
        loss, loss_pullback = cross_entropy(self._answers(logits), batch.targets, mask=batch.counts)
        return loss, LossPullback(AnswersPullback(model_pullback, self.task == "span"), loss_pullback)

    def look(self, model: Any, params: Tree) -> float:
        """Bits per answer on 64 samples that training does not see."""
        samples = self.TASKS[self.task](64, self.longest, np.random.default_rng([HELD_OUT, 0]))
        return float(self.loss(model, params, samples)[0]) / math.log(2)

    def right(self, model: Any, params: Tree, length: int, *, samples: int = 128) -> float:
        """The fraction of answers that are right, at any length."""
        total = right = 0
        for k in range(0, samples, 32):
            batch = self.TASKS[self.task](32, length, np.random.default_rng([HELD_OUT, 1, k]))
            best = self._answers(model(params, batch.tokens)[0]).argmax(-1)
            right += int((best == batch.targets)[batch.counts].sum())
            total += int(batch.counts.sum())
        return right / total
