"""Which encoding of positions? Each is trained on the same tasks, by the same recipe, and tried on longer sequences.

A trial is one training and what came of it: a row of a record. The recipes are small enough for a laptop; how far their
results carry, chapter 06 discusses.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from minitransformer.data import position_tasks
from minitransformer.data.text import Text, python_docs
from minitransformer.models import LanguageModel, Reader
from minitransformer.pullback import Tree
from minitransformer.training.loop import train
from minitransformer.training.objective import NextByte
from minitransformer.training.position_objectives import Drawn
from minitransformer.training.schedule import Cosine
from minitransformer.training.state import Training

LENGTHS = {"copy": (16, 32, 64), "induction": (32, 64, 128), "text": (64, 128, 256), "order": (24,), "span": (24,)}
STEPS = {"copy": 1500, "induction": 800, "text": 1000, "order": 200, "span": 200}
BATCH = {"copy": 32, "induction": 32, "text": 16, "order": 32, "span": 32}
RATE = {"copy": 3e-3, "induction": 3e-3, "text": 6e-3, "order": 3e-3, "span": 3e-3}
HELD_OUT = 8192  # bytes of the held-out text on which a language model is judged


class Trial(NamedTuple):
    """Task, encoding, seed; and the score at each length: the fraction right, or bits per byte. None: it can't read so far."""

    task: str
    positions: str
    seed: int
    scores: dict[int, float | None]


class Trained(NamedTuple):
    """What a trial leaves behind for a closer look."""

    model: Any
    params: Tree
    objective: Any


def text() -> Text:
    """The documentation inside Python, with less to judge on."""
    whole = python_docs()
    return whole._replace(held_out=whole.held_out[:HELD_OUT])


def prepare(task: str, positions: Any, *, longest: int | None = None) -> tuple[Any, Any]:
    """Model and objective of a task, with an encoding."""
    longest = LENGTHS[task][0] if longest is None else longest
    if task in ("order", "span"):
        return Reader(position_tasks.VOCABULARY, 2, longest, positions=positions), Drawn(task, longest)
    sizes: dict[str, Any] = {"width": 64, "depth": 2, "heads": 4, "positions": positions}
    if task == "text":
        return LanguageModel(context=longest, activation="relu", **sizes), NextByte(text(), longest)
    context = 2 * longest if task == "copy" else longest
    return LanguageModel(position_tasks.LETTERS + 1, context, **sizes), Drawn(task, longest)


def fit(task: str, positions: Any, seed: int, *, steps: int | None = None) -> Trained:
    """Train on the shortest length of the task."""
    steps = STEPS[task] if steps is None else steps
    model, objective = prepare(task, positions)
    schedule = Cosine(RATE[task], steps, warmup=steps // 10)
    training = Training(steps, BATCH[task], schedule, parts=1, seed=seed, look_every=steps)
    return Trained(model, train(model, objective, training, progress=False).params, objective)


def score(trained: Trained, task: str, length: int) -> float | None:
    """Fraction of right answers, or bits per byte; None where a table of positions has ended."""
    try:
        if task == "text":
            return float(NextByte(trained.objective.text, length).bits(trained.model, trained.params).mean())
        return trained.objective.right(trained.model, trained.params, length)
    except ValueError as error:
        if "beyond" in str(error):
            return None
        raise


def trial(
    task: str, positions: Any, seed: int, *, name: str | None = None, look: Callable[[Trained], None] | None = None
) -> Trial:
    """One training, judged at every length of its task."""
    trained = fit(task, positions, seed)
    if look is not None:
        look(trained)
    scores = {length: score(trained, task, length) for length in LENGTHS[task]}
    return Trial(task, name or str(positions), seed, scores)


def longer(trained: Trained, positions: Any) -> Trained:
    """The same parameters under another encoding: RoPE with frequencies for a longer context."""
    return trained._replace(model=replace(trained.model, positions=positions))


def mean_attention(trained: Trained, *, samples: int = 1024) -> np.ndarray:
    """The first block's attention, averaged over random contents, heads apart: (H, n, n). What is left is position."""
    length = trained.objective.longest
    batch = trained.objective.batch(samples, np.random.default_rng(0))
    _, pullback = trained.model(trained.params, batch.tokens[:, :length])
    return pullback.bert.blocks[0].attention.A.mean(0)
