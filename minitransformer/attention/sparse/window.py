"""The sliding window: a token sees its neighbours, or every step-th of them, and perhaps a few tokens that all see.

    |i − j| ≤ radius · step,  step divides i − j          causal: and j ≤ i, so the last radius + 1 of them

Replaces the stage "pattern (which pairs)". Layers are stacked as those of a convolution are: L of them bring a token what
stands L · radius · step to either side.
"""

import numpy as np

from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.recent import Kept
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.door import frozen
from minitransformer.typing import Array


@frozen
class Window(Pattern):
    """|i − j| ≤ radius · step, where step divides i − j; and the first `globals_` positions see, and are seen by, all.

    step     1 for the sliding window, more for the dilated one; heads with several of them: EachHead((Window(8), Window(8, 2)))
    source   Borealis II, sliding window attention; Aalto 3.1.2. Its "w" is 2 radius where both sides are seen
    """

    radius: int = 32
    step: int = 1
    globals_: int = 0

    cost = "O(n radius)"

    @property
    def kept(self) -> Kept:
        """The globals, and as far back as the window goes."""
        return Kept(self.globals_, self.radius * self.step + 1)

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Near, or one of the two is global."""
        near = (np.abs(i - j) <= self.radius * self.step) & ((i - j) % self.step == 0)
        return near | ((0 <= i) & (i < self.globals_)) | (j < self.globals_)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that hold a pair within radius · step, or a global position."""
        first = -(-self.globals_ // TILE)
        return (np.abs(t - k) * TILE - (TILE - 1) <= self.radius * self.step) | (t < first) | (k < first)
