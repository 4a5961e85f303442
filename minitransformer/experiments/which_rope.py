"""How much of a lead is a matter of positions? The kinds of attention of `which` whose queries and keys can be turned, with RoPE.

The models, tasks and seeds of `which`. Only the positions are others: they turn queries and keys in every block, and nothing is
added to the embeddings. A kind that is not built around queries and keys has no trial.
"""

from typing import Any

from minitransformer.attention.core import Core
from minitransformer.attention.registry import EXAMPLE, attention_of
from minitransformer.experiments import which
from minitransformer.experiments.which import GROWS, IN_A_TEST, TASKS, Trial

__all__ = ["GROWS", "IN_A_TEST", "Trial", "run", "trials"]


def trials() -> list[Trial]:
    """Those of `which` that are of a core."""
    every = which.trials()
    names = {trial.attention for trial in every} - {which.BAG}
    cores = {name for name in names if isinstance(attention_of(name, EXAMPLE), Core)}
    return [trial for trial in every if trial.attention in cores]


def run(trial: Trial) -> dict[str, Any]:
    """What `which` keeps, of the same model with rotary positions."""
    return which.trained(which.model_of(trial.attention, TASKS[trial.task], "rope"), trial)
