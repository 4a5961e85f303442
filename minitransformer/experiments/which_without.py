"""Who needs no positions? The kinds of attention of `which` whose formulas tell earlier from later themselves, without any.

The models, tasks and seeds of `which`. Only the sinusoids are left out. A memory takes tokens one after the other, gates count
what is in between, a convolution and gMLP have a weight for each distance or place.
"""

from typing import Any

from minitransformer.experiments import which
from minitransformer.experiments.which import IN_A_TEST, TASKS, Trial

__all__ = ["IN_A_TEST", "Trial", "run", "trials"]

IN_TURN = ("delta", "retnet", "gla", "ssd", "gated-delta", "forgetting")
BY_PLACE = ("gmlp", "lightweight-convolution", "dynamic-convolution")


def trials() -> list[Trial]:
    """Those of `which` that are of these kinds."""
    return [trial for trial in which.trials() if trial.name in IN_TURN + BY_PLACE]


def run(trial: Trial) -> dict[str, Any]:
    """What `which` keeps, of the same model without positions."""
    return which.trained(which.model_of(trial.attention, TASKS[trial.task], "none"), trial)
