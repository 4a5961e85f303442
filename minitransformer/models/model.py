"""What a model says of its stacks: which parameters no gradient moves, what moves them, and which losses are added."""

from typing import ClassVar

import numpy as np

from minitransformer.models.stack import Stack
from minitransformer.pullback import Pullback, Tree
from minitransformer.registry import OldFieldsRefused


class Model(OldFieldsRefused):
    """A model made of stacks.

    stacks   for the name of each stack in the parameters and in the pullback, its name among the attributes of the model
    """

    stacks: ClassVar = {"stack": "body"}

    def _stacks(self) -> dict[str, Stack]:
        return {name: getattr(self, own) for name, own in self.stacks.items()}

    @property
    def untrained(self) -> tuple[str, ...]:
        """Paths of parameters that no gradient moves."""
        return tuple(f"{name}.{path}" for name, stack in self._stacks().items() for path in stack.untrained)

    @property
    def moves(self) -> bool:
        """Whether `after_step` does anything."""
        return any(stack.moves for stack in self._stacks().values())

    @property
    def adds_loss(self) -> bool:
        """Whether its pullback holds losses to be added to that of the task."""
        return any(stack.adds_loss for stack in self._stacks().values())

    def observe(self, pullback: Pullback) -> Tree:
        """What `after_step` needs to know of a forward pass; averaged over the parts of a batch, as gradients are."""
        return {name: stack.observe(getattr(pullback, name)) for name, stack in self._stacks().items()}

    def after_step(self, params: Tree, observed: Tree, rng: np.random.Generator) -> Tree:
        """The parameters after an optimiser's step: averages moved, features drawn again."""
        moved = {
            name: stack.after_step(getattr(params, name), observed[name], rng) for name, stack in self._stacks().items()
        }
        return params._replace(**moved)
