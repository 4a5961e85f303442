"""BigBird: neighbours, a few blocks that all see, and a few that are drawn."""

import functools

import numpy as np

from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.door import frozen
from minitransformer.typing import Array


@frozen
class BigBird(Pattern):
    """Blocks of 64: `window` neighbours at each side, the first and last `globals_`, and `random` others for each.

    If causal, a block sees the `window` blocks before it, the first `globals_`, and `random` of those between. What a
    block draws depends on the seed and on its number; both ways, on the number of blocks as well.

    source   Borealis II, BigBird
    """

    window: int = 1
    globals_: int = 1
    random: int = 3
    seed: int = 0

    cost = "O(64 n)"

    def __post_init__(self) -> None:
        if min(self.window, self.globals_, self.random) < 0:
            raise ValueError(
                f"window, globals_ and random must be at least 0, got {self.window}, {self.globals_} and {self.random}"
            )

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """The blocks that see each other."""
        number = -(-m // TILE)
        return self._blocks(number, causal)[np.clip(t, 0, number - 1), np.clip(k, 0, number - 1)]

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """All pairs of two blocks that see each other."""
        return self.near(i // TILE, j // TILE, m, causal=causal)

    @functools.lru_cache(maxsize=64)  # noqa: B019  (patterns are few and small)
    def _blocks(self, number: int, causal: bool) -> Array:
        t, k = np.arange(number)[:, None], np.arange(number)[None]
        own = (np.abs(t - k) <= self.window) | (k < self.globals_)
        if not causal:
            own |= (t < self.globals_) | (np.maximum(t, k) >= number - self.globals_)
        for row in range(number):
            others = np.flatnonzero(~own[row, : row if causal else number])  # nobody draws what is seen anyway
            drawn = np.random.default_rng([self.seed, row]).permutation(len(others))[: self.random]
            own[row, others[drawn]] = True
        return own & (t >= k) if causal else own
