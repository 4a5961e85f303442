"""The training loop: draw a batch, loss, gradient, clip, update; look at held-out data; save; again.

Everything random in step s comes from generators `default_rng([seed, s, …])`, so the state after a step is a function of the
choices, the data and the state before: a run that was killed and resumed gives the same numbers, bit for bit, as one that
was not.
"""

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from minitransformer.checks import choose
from minitransformer.machine import keep_freed_memory
from minitransformer.pullback import Tree, first_nonfinite, with_added
from minitransformer.training.checkpoint import Checkpoint, save
from minitransformer.training.choices import Training
from minitransformer.training.objective import LossPullback, Objective, Segments, in_parts
from minitransformer.training.optimiser import accumulate, clip
from minitransformer.training.state import State
from minitransformer.typing import Array

BAR: dict[str, Any] = {  # all of it in 80 columns
    "bar_format": "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}", "unit": "token", "unit_scale": True,
}  # fmt: skip
SELDOM = {"mininterval": 60, "maxinterval": 60}  # seconds, in a file or a pipe, where each look at the bar stays
RECENT = 20  # steps over which the bar averages the loss


class TrainingDiverged(ValueError):
    """A NaN or an infinity turned up: `step` says when, `path` in which array it was first seen."""

    def __init__(self, step: int, path: str) -> None:
        super().__init__(f"step {step}: a NaN or an infinity, first seen in {path}")
        self.step, self.path = step, path


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C. `state` is that of the last complete step."""

    def __init__(self, state: State, checkpoint: str | Path | None) -> None:
        saved = f"; the run so far is in {checkpoint}" if checkpoint is not None else ""
        super().__init__(f"interrupted after step {state.step}{saved}")
        self.state = state


def start(model: Any, training: Training, dtype: type = np.float32) -> State:
    """The state before the first step."""
    choose("training", training, Training)
    params = model.init(np.random.default_rng([training.seed, 0]), dtype)
    return State(0, params, training.optimiser.init(params), (), ())


def train(
    model: Any,
    objective: Objective,
    training: Training,
    *,
    state: State | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> State:
    """Train from the given state, or from the start, to step `training.steps`.

    checkpoint   file to write: at the start, every `save_every` steps, at the end, and at Ctrl-C. A new file is removed if
                 a step fails before any was saved
    progress     whether to show a bar with speed, time left, loss and held-out loss; in a file or a pipe once a minute
    raises       TrainingDiverged, which names the first array that is not finite; TrainingInterrupted at Ctrl-C, with
                 the last state; CheckpointError if the file can't be written (what it held before is still there)
    """
    choose("training", training, Training)
    if not isinstance(state, State | None):
        raise TypeError(f"state: {type(state).__name__} should be State, with the fields {', '.join(State._fields)}")
    for name, given, methods in (("model", model, ("init",)), ("objective", objective, ("batch", "loss", "look"))):
        if missing := [method for method in methods if not hasattr(given, method)]:
            raise TypeError(f"{name}: {type(given).__name__} has no {missing[0]}, which a training asks for")
    keep_freed_memory()
    now = start(model, training) if state is None else state
    new, saved = checkpoint is not None and not os.path.lexists(checkpoint), 0

    def keep() -> None:
        nonlocal saved
        if checkpoint is not None:
            save(checkpoint, Checkpoint(model, training, now, objective.data))
            saved = now.step

    tokens = training.batch * objective.length  # in one step
    watched = "ipykernel" in sys.modules or (sys.stderr and sys.stderr.isatty())
    form = BAR if watched else BAR | SELDOM
    try:
        with tqdm(total=training.steps * tokens, initial=now.step * tokens, disable=not progress, **form) as bar:
            keep()  # if it can't be written, better to know before the first step
            while now.step < training.steps:
                try:
                    now = advance(model, objective, training, now)
                except Exception:
                    if checkpoint is not None and new and not saved:
                        Path(checkpoint).unlink(missing_ok=True)
                    raise
                bar.set_postfix_str(_progress(now, training), refresh=False)
                bar.update(tokens)
                if now.step % training.save_every == 0 or now.step == training.steps:
                    keep()
    except KeyboardInterrupt:
        keep()
        raise TrainingInterrupted(now, checkpoint) from None
    return now


def advance(model: Any, objective: Objective, training: Training, state: State) -> State:
    """One step, and a look at held-out data when it is time for one.

    raises   TrainingDiverged, at the first number that is not finite
    """
    step = state.step + 1
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what they would warn of is caught, and named
        loss, (grads, observed), carried = _gradient(model, objective, training, state, step)
        grads, norm = clip(grads, training.clip)
        if not math.isfinite(norm):
            raise TrainingDiverged(step, _within("gradients", grads) or "the norm of the gradients")
        params, optimiser = training.optimiser.update(state.params, grads, state.optimiser, training.schedule(step))
        if observed is not None:
            params = model.after_step(params, observed, np.random.default_rng([training.seed, step, training.parts]))
        held_out = state.held_out
        if step % training.look_every == 0 or step == training.steps:
            held_out = (*held_out, (step, objective.look(model, params)))
            if not math.isfinite(held_out[-1][1]):
                raise TrainingDiverged(step, _within("params", params) or "the held-out loss")
    return State(step, params, optimiser, (*state.losses, loss / math.log(2)), held_out, carried)


def _gradient(
    model: Any, objective: Objective, training: Training, state: State, step: int
) -> tuple[float, tuple[Tree, Tree], tuple[Array, ...]]:
    """The mean loss over the batch of this step; its gradient, with what `after_step` has to know; what the next step gets.

    Losses that parts of the model add have a gradient, and are not counted in the loss, which is that of the task.
    """
    params, carried = state.params, {}
    if isinstance(objective, Segments):
        batch: Any = objective.segment(training.batch, step, state.carried)
    else:
        batch = objective.batch(training.batch, np.random.default_rng([training.seed, step]))

    def gradient(numbered: tuple[int, Any]) -> tuple[float, tuple[Tree, Tree]]:
        k, part = numbered
        loss, pullback = objective.loss(model, params, part, np.random.default_rng([training.seed, step, k]))
        if not np.isfinite(loss):
            raise TrainingDiverged(step, _origin(params, pullback))
        if isinstance(objective, Segments):
            carried[k] = objective.carry(pullback)
        observed = model.observe(pullback.model) if getattr(model, "moves", False) else None
        if getattr(model, "adds_loss", False):
            pullback = pullback._replace(model=with_added(pullback.model, loss.dtype.type(1)))
        return float(loss), (pullback(loss.dtype.type(1)), observed)

    loss, gradient_and_observed = accumulate(gradient, list(enumerate(in_parts(batch, training.parts))))
    samples = zip(*(carried[k] for k in sorted(carried)), strict=True)
    return loss, gradient_and_observed, tuple(np.concatenate(parts) for parts in samples)


def _origin(params: Tree, pullback: LossPullback) -> str:
    """The first array that is not finite: a parameter, else what the forward pass made of them, in its order."""
    inside = first_nonfinite(pullback.model) or _within("cross_entropy", pullback.cross_entropy)
    return _within("params", params) or inside or "the loss"


def _within(name: str, tree: Tree) -> str | None:
    path = first_nonfinite(tree)
    return path and f"{name}.{path}"


def _progress(state: State, training: Training) -> str:
    recent = state.losses[-RECENT:]
    held_out = f", held-out {state.held_out[-1][1]:.3f}" if state.held_out else ""
    return f"step {state.step}/{training.steps}, {sum(recent) / len(recent):.3f} bits{held_out}"
