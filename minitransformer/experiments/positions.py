"""Which encoding of positions learns what, and what is left of it on sequences longer than in training?

Every encoding is trained on the same tasks by the same recipe: small models, small enough for a laptop. Chapter 06 says how
far their results carry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.data import position_tasks
from minitransformer.data.position_tasks import Samples
from minitransformer.data.text import Text, python_docs
from minitransformer.functional import CrossEntropyPullback, cross_entropy
from minitransformer.models import BERT, LanguageModel
from minitransformer.pullback import Pullback, Tree
from minitransformer.training.choices import Training
from minitransformer.training.loop import train
from minitransformer.training.objective import DrawnTask, LossPullback, NextByte
from minitransformer.training.recipes import usual_training
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2}
LENGTHS = {"copy": (16, 32, 64), "induction": (32, 64, 128), "text": (64, 128, 256), "order": (24,), "span": (24,)}
STEPS = {"copy": 1500, "induction": 800, "text": 1000, "order": 200, "span": 200}
BATCH = {"copy": 32, "induction": 32, "text": 16, "order": 32, "span": 32}
RATE = {"copy": 3e-3, "induction": 3e-3, "text": 6e-3, "order": 3e-3, "span": 3e-3}
SEEDS = {"copy": 3, "induction": 3, "text": 3, "order": 4, "span": 4}
LONGER = (
    "none", "sinusoidal", "learned", "shaw", "transformer-xl", "tener", "deberta", "tupe", "multiplicative", "t5",
    "alibi", "kerple", "fire", "rope",
)  # fmt: skip
TABLES = ("learned", "tupe")  # of positions: they end where the sequences of training do
GRID = {
    ("absolute", "learned"): "learned",
    ("absolute", "sinusoids"): "sinusoidal",
    ("absolute", "learned frequencies"): "learnable sinusoids",
    ("relative", "learned"): "relative keys",
    ("relative", "sinusoids"): "relative sinusoids",
    ("relative", "learned frequencies"): "learnable relative sinusoids",
}
JUDGED = 8192  # bytes of the held-out text on which a language model is judged
HELD_OUT = 2**32  # seeds of training steps are small numbers: no held-out sample is drawn with one of them


@dataclass(frozen=True)
class Trial:
    """One training: on the shortest length of its task."""

    task: str
    positions: str
    seed: int
    steps: int


def trials() -> list[Trial]:
    """The first three tasks compare all encodings at three lengths, the last two absolute with relative positions."""
    return [
        Trial(task, name, seed, STEPS[task])
        for task in LENGTHS
        for name in (GRID.values() if task in ("order", "span") else LONGER)
        for seed in range(SEEDS[task])
    ]


def run(trial: Trial) -> dict[str, Any]:
    """The score at each length of the task: the fraction right, or bits per byte. None: a table of positions has ended."""
    trained = fit(trial.task, trial.positions, trial.seed, steps=trial.steps)
    lengths = LENGTHS[trial.task]
    ended = [trial.positions in TABLES and length > lengths[0] for length in lengths]
    scores = [None if over else round(score(trained, trial.task, n), 4) for n, over in zip(lengths, ended, strict=True)]
    return {"scores": scores}


# ------------------------------------------------------------------------------------------ the recipe


class Trained(NamedTuple):
    """What a training leaves behind for a closer look."""

    model: Any
    params: Tree
    objective: Any


def prepare(task: str, positions: Any) -> tuple[Any, Any]:
    """Model and objective of a task, with an encoding: its name, or an object."""
    longest = LENGTHS[task][0]
    if task in ("order", "span"):
        small: dict[str, Any] = {"context": longest, "width": 32, "depth": 2, "heads": 4, "hidden": 64}
        model = BERT(position_tasks.VOCABULARY, **small, positions=positions, embedding="normed", outputs=2)
        return model, Drawn(task, longest)
    sizes: dict[str, Any] = {"width": 64, "depth": 2, "heads": 4, "positions": positions}
    if task == "text":
        return LanguageModel(context=longest, ffn="relu", **sizes), NextByte(text(), longest)
    context = 2 * longest if task == "copy" else longest
    return LanguageModel(position_tasks.LETTERS + 1, context, **sizes), Drawn(task, longest)


def text() -> Text:
    """The documentation inside Python, with less to judge on."""
    whole = python_docs()
    return whole._replace(held_out=whole.held_out[:JUDGED])


def recipe(task: str, seed: int, steps: int) -> Training:
    """The same for all encodings: batch and rate are those of the task."""
    return usual_training(steps, BATCH[task], RATE[task], seed)


def fit(task: str, positions: Any, seed: int, *, steps: int | None = None) -> Trained:
    """Train on the shortest length of the task."""
    model, objective = prepare(task, positions)
    training = recipe(task, seed, STEPS[task] if steps is None else steps)
    return Trained(model, train(model, objective, training, progress=False).params, objective)


def score(trained: Trained, task: str, length: int) -> float:
    """Fraction of right answers, or bits per byte."""
    if task == "text":
        return float(NextByte(trained.objective.text, length).bits(trained.model, trained.params).mean())
    return trained.objective.right(trained.model, trained.params, length)


# -------------------------------------------------------------------------------- drawn tasks as objectives


class TransposedPullback(Pullback):
    """From the gradient of the loss to that of the answers, and to that of the logits, which the answers are the transpose of."""

    cross_entropy: CrossEntropyPullback

    def __call__(self, dloss: Array) -> Array:
        return np.ascontiguousarray(self.cross_entropy(dloss).mT)


@dataclass(frozen=True)
class Drawn(DrawnTask):
    """A task whose samples are drawn at random: batches, the loss, and how many answers are right.

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
    def length(self) -> int:
        """Tokens of one sample."""
        return self.longest

    def batch(self, size: int, rng: np.random.Generator) -> Samples:
        """A batch of random samples to train on."""
        n = int(rng.integers(4, self.longest + 1)) if self.task == "copy" else self.longest
        return self.TASKS[self.task](size, n, rng)

    def _answers(self, logits: Array) -> Array:
        """For spans, one row for each output, over the places; else one for each place, over the outputs."""
        return np.ascontiguousarray(logits.mT) if self.task == "span" else logits

    def loss(
        self, model: Any, params: Tree, batch: Samples, rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(right answer) over the answers that count."""
        logits, pullback = model(params, batch.tokens, rng=rng)
        loss, back = cross_entropy(self._answers(logits), batch.targets, mask=batch.counts)
        return loss, LossPullback(pullback, TransposedPullback(back) if self.task == "span" else back)

    def right(self, model: Any, params: Tree, length: int, *, samples: int = 128) -> float:
        """The fraction of answers that are right, at any length."""
        total = right = 0
        for k in range(0, samples, 32):
            batch = self.TASKS[self.task](32, length, np.random.default_rng([HELD_OUT, 1, k]))
            best = self._answers(model(params, batch.tokens)[0]).argmax(-1)
            right += int((best == batch.targets)[batch.counts].sum())
            total += int(batch.counts.sum())
        return right / total
