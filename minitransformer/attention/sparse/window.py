"""The sliding window: a token sees its neighbours, or every so many of them, and perhaps a few tokens that all see.

    |i − j| ≤ radius · dilation,  dilation divides i − j          causal: and j ≤ i, so the last radius + 1 of them

Replaces the stage "pattern (which pairs)". Layers are stacked as those of a convolution are: L of them bring a token what
stands L · radius · dilation to either side.
"""

import numpy as np

from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.cache.recent import Kept
from minitransformer.attention.sparse.pattern import SHORT, Pattern
from minitransformer.checks import frozen
from minitransformer.ranges import NonNegative
from minitransformer.typing import Array


@frozen
class Window(Pattern):
    """Neighbours: |i − j| ≤ radius · dilation, where dilation divides i − j. The first `global_tokens` see, and are seen by, all.

    dilation   1 for the sliding window, more for the dilated one; heads with several: EachHead((Window(8), Window(8, 2)))
    source     Borealis II, sliding window attention; Aalto 3.1.2. Its "w" is 2 radius where both sides are seen
    cost       O(n (radius + global_tokens) d) time, O(n) memory; O(n² d) and O(n²) in the tier "numpy", and with an encoding
               whose scores are formed, as those of Shaw are. A number for each offset, as in ALiBi, is added in the tiles
    """

    radius: NonNegative = 32
    dilation: int = 1
    global_tokens: NonNegative = 0

    cost = "O(n radius)"

    @property
    def kept(self) -> Kept:  # type: ignore[override]
        """The global positions, and the last ones as far back as the window goes."""
        return Kept(self.global_tokens, self.radius * self.dilation + 1)

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Near, or one of the two is global."""
        near = np.abs(i - j) <= self.radius * self.dilation
        near &= (i - j) % self.dilation == 0
        return near | ((0 <= i) & (i < self.global_tokens)) | (j < self.global_tokens)

    def last_rows(self, n: int, m: int, length: int) -> Array | slice:
        """As of any pattern. But one query sees all that a window without gaps has kept; that takes no rule to find."""
        first, last = self.kept
        own_rule = type(self).sees is not Window.sees or type(self).kept is not Window.kept
        if n > 1 or self.dilation > 1 or last > SHORT or own_rule:
            return super().last_rows(n, m, length)
        if first == 0 or m <= first + last:
            return slice(max(m - first - last, 0), m)
        mask = np.zeros((1, m), bool)
        mask[0, :first] = mask[0, m - last :] = True
        return mask

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that hold a pair within radius · dilation, or a global position."""
        first = -(-self.global_tokens // TILE)
        return (np.abs(t - k) * TILE - (TILE - 1) <= self.radius * self.dilation) | (t < first) | (k < first)
