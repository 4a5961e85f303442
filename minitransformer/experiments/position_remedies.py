"""Relative keys often fail at order, and added sinusoids at span: a table too short, words too quiet, too few steps?"""

from dataclasses import dataclass, replace
from typing import Any

from minitransformer.experiments.positions import LENGTHS, Trained, prepare, recipe, score
from minitransformer.positions import Shaw
from minitransformer.training.loop import start, train

IN_A_TEST = {"steps": 2}


@dataclass(frozen=True)
class Trial:
    """A reader of chapter 06 with one choice changed.

    clip   of relative keys: offsets beyond it are all alike
    loud   factor on the embeddings of the words at the start, which have a standard deviation of 0.02
    """

    task: str
    positions: str
    seed: int
    steps: int = 200
    clip: int = 16
    loud: int = 1


CHANGED = (
    Trial("order", "relative keys", 0, clip=24),
    Trial("order", "relative keys", 0, steps=400),
    Trial("order", "sinusoidal", 0, loud=50),
    Trial("order", "sinusoidal", 0, steps=400),
    Trial("span", "sinusoidal", 0, loud=50),
    Trial("span", "sinusoidal", 0, steps=400),
)


def trials() -> list[Trial]:
    """Each change with the four seeds of the grid."""
    return [replace(trial, seed=seed) for trial in CHANGED for seed in range(4)]


def run(trial: Trial) -> dict[str, Any]:
    """The fraction of right answers."""
    positions = Shaw(8, trial.clip, values=False) if trial.positions == "relative keys" else trial.positions
    model, objective = prepare(trial.task, positions)
    training = recipe(trial.task, trial.seed, trial.steps)
    first = start(model, training)
    louder = first.params._replace(E=trial.loud * first.params.E)
    params = train(model, objective, training, state=first._replace(params=louder), progress=False).params
    return {"right": round(score(Trained(model, params, objective), trial.task, LENGTHS[trial.task][0]), 4)}
