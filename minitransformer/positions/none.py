"""No position signal at all. A causal mask still tells early from late; without one, order is invisible."""

import numpy as np

from minitransformer.checks import frozen
from minitransformer.positions.encoding import NoParams
from minitransformer.pullback import Pullback
from minitransformer.ranges import Integer
from minitransformer.typing import Array, Float, checked


class FixedPositionsPullback(Pullback):
    """Y = X, or X + a constant, so dX = dY."""

    def __call__(self, dY: Array) -> tuple[NoParams, Array]:
        return NoParams(), dY


@frozen
class NoPositions:
    """No positions at the embeddings: for a model that has none, or has them in its attention."""

    width: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NoParams:
        """There is nothing to learn."""
        return NoParams()

    @checked
    def __call__(self, params: NoParams, X: Float[Array, "*batch n {self.width}"], *, first: Integer = 0):
        """The rows stay as they are: Y = X."""
        return X, FixedPositionsPullback()
