"""Does a Universal Transformer think longer about what is harder?

Each place leads to another one, and some lead to themselves: where does a walk end that starts at i? How hard that is, the
number of moves tells. One block is trained with adaptive computation time, for two prices of a step. The controls take all steps:
one block that can't halt, and a stack of as many blocks as there are steps.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import orders
from minitransformer.models import SequenceModel
from minitransformer.pullback import tree_size
from minitransformer.training.objective import DrawnTask
from minitransformer.training.recipes import usually_trained
from minitransformer.typing import Array

IN_A_TEST = {"steps": 2, "width": 16}
PLACES, ENDS, STEPS = 10, 2, 8  # places; those that lead to themselves; steps at most
BATCH, JUDGED = 32, 2000


class Walks(NamedTuple):
    """leads (batch, n): where each place leads; ends (batch, n): where one ends; moves (batch, n): how many it takes."""

    leads: Array
    ends: Array
    moves: Array


def walks(size: int, rng: np.random.Generator) -> Walks:
    """Places in a random order; the first ones are ends, every other leads to the one before it, or to any earlier one."""
    order = orders(rng, size, PLACES)
    before = np.arange(PLACES) - 1
    back = np.where(
        rng.random((size, PLACES)) < 0.7, before, (rng.random((size, PLACES)) * np.arange(PLACES)).astype(int)
    )
    back[:, :ENDS] = np.arange(ENDS)
    leads = np.empty((size, PLACES), np.int64)
    np.put_along_axis(leads, order, np.take_along_axis(order, back, 1), 1)
    ends, moves = np.tile(np.arange(PLACES), (size, 1)), np.zeros((size, PLACES), np.int64)
    for _ in range(PLACES):
        onwards = np.take_along_axis(leads, ends, 1)
        moves += onwards != ends
        ends = onwards
    return Walks(leads, ends, moves)


@dataclass(frozen=True, eq=False)
class WhereOneEnds(DrawnTask):
    """For each place, the end of its walk."""

    length = PLACES

    def batch(self, size: int, rng: np.random.Generator) -> Walks:
        """A batch of new samples."""
        return walks(size, rng)


@dataclass(frozen=True)
class Trial:
    """One training. `ponder` is the price of a step; 0 stands for the block that can't halt, and −1 for the stack of blocks."""

    ponder: float
    seed: int
    steps: int = 2000
    width: int = 64


def trials() -> list[Trial]:
    """Two prices and two controls, three seeds each."""
    return [Trial(ponder, seed) for ponder in (0.001, 0.01, 0.0, -1.0) for seed in range(3)]


def run(trial: Trial) -> dict[str, Any]:
    """For each number of moves: how often it occurs, the share of right answers, and the steps that are taken."""
    if trial.ponder > 0:
        stack = f"universal:halting=accumulated,ponder={trial.ponder}"
    else:
        stack = "universal:halting=fixed" if trial.ponder == 0 else "plain"
    model = SequenceModel(PLACES, PLACES, trial.width, STEPS, 4, outputs=PLACES, stack=stack)
    params = usually_trained(model, WhereOneEnds(), trial.steps, BATCH, 3e-3, trial.seed)
    held_out = walks(JUDGED, np.random.default_rng(10**6 + trial.seed))
    logits, pullback = model(params, held_out.leads)
    right = logits.argmax(-1) == held_out.ends
    steps = pullback.stack.N if trial.ponder > 0 else np.full(right.shape, STEPS)
    of = [held_out.moves == moves for moves in range(PLACES)]
    return {
        "parameters": tree_size(params),
        "share": [round(float(which.mean()), 4) for which in of],
        "right": [round(float(right[which].mean()), 4) if which.any() else None for which in of],
        "steps": [round(float(steps[which].mean()), 3) if which.any() else None for which in of],
    }
