"""Random attention: every query sees a few keys that are drawn for it, once."""

import functools

import numpy as np

from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.ranges import NonNegative, Seed
from minitransformer.typing import Array


@frozen
class RandomKeys(Pattern):
    """Every query sees `number` keys that are drawn for it; if causal, from those up to its own.

    Not quick by itself, for nearly every tile of a short text holds a pair: BigBird draws blocks. With a window and a
    global token, RandomKeys(2) | Window(1) | Window(0, global_tokens=1), it is the picture that articles print.

    seed     what is drawn depends on it and on the row, and if not causal on the number of keys; training does not change it
    source   Lecture notes C.3, random attention; Aalto 3.1.3; Zaheer et al. 2020
    """

    number: NonNegative = 3
    seed: Seed = 0

    cost = "O(n number) pairs"

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether j was drawn for i. If causal, rows don't depend on m, so one table serves many lengths."""
        drawn = self._drawn(1 << (m - 1).bit_length() if causal else m, causal)[np.clip(i, 0, m - 1)]
        return (drawn == j[..., None]).any(-1)

    @functools.lru_cache(maxsize=16)  # noqa: B019  (patterns are few and small)
    def _drawn(self, m: int, causal: bool) -> Array:
        """The keys of each row, (m, number); −1 where there was nothing left to draw."""
        drawn = np.full((m, self.number), -1)
        for row in range(m):
            several = np.random.default_rng([self.seed, row]).permutation(row + 1 if causal else m)[: self.number]
            drawn[row, : len(several)] = several
        return drawn
