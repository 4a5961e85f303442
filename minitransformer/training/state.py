"""Where a run stands: the state that every step replaces."""

from typing import NamedTuple

from minitransformer.pullback import Tree
from minitransformer.training.optimiser import AdamWState
from minitransformer.typing import Array


class State(NamedTuple):
    """Where a run stands after `step` updates. Losses are in bits per token.

    carried   what the next step gets from this one besides the parameters: the memory of a model that reads on
    """

    step: int
    params: Tree
    optimiser: AdamWState
    losses: tuple[float, ...]  # of each step, on its own batch
    held_out: tuple[tuple[int, float], ...]  # (step, loss) at every look
    carried: tuple[Array, ...] = ()
