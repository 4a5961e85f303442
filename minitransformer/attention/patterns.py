"""Which pairs (i, j) softmax attention looks at, whatever the length: a rule, and from it the list of tiles for each length.

A pattern says for any two positions whether the one sees the other. If attention is causal, what is ahead is left out, and
row i must not depend on how many tokens follow: a token that is written sees what it saw in training.
"""

import functools
from typing import ClassVar

import numpy as np

from minitransformer.attention.block_sparse import TILE, BlockPattern, block_pattern, one_pattern
from minitransformer.door import frozen
from minitransformer.typing import Array


class Pattern:
    """A rule for pairs. Called with the number of queries and of keys, it gives the list of tiles, and keeps it.

    cost   of n tokens, for the table of `minitransformer attentions`
    """

    cost: ClassVar[str] = "O(n²)"

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether query i sees key j, of m positions; i (…, 1) and j (1, …). What is ahead need not be left out."""
        raise TypeError(f"{type(self).__name__} does not say who sees whom")

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Whether any query of tile t may see a key of tile k; t (…, 1) and k (1, …). Who does not know says yes."""
        return np.ones(np.broadcast_shapes(t.shape, k.shape), bool)

    def __call__(self, n: int, m: int, *, causal: bool) -> BlockPattern:
        """The tiles for n queries at the last n of m positions."""
        return _tiles(self, n, m, causal)


@functools.lru_cache(maxsize=64)
def _tiles(pattern: Pattern, n: int, m: int, causal: bool) -> BlockPattern:
    first = m - n  # of the queries; their tiles need not begin where those of the keys do
    t, k = np.arange(-(-n // TILE))[:, None], np.arange(-(-m // TILE))[None]
    upper = np.minimum(first + t * TILE + TILE - 1, m - 1) // TILE
    near = pattern.near((first + t * TILE) // TILE, k, m, causal=causal) | pattern.near(upper, k, m, causal=causal)
    return block_pattern(n, m, lambda i, j: pattern.sees(i, j, m, causal=causal), near, causal=causal)


@frozen
class Window(Pattern):
    """|i − j| ≤ radius · step, where step divides i − j; and the first `globals_` positions see, and are seen by, all.

    step     1 for the sliding window, more for the dilated one
    source   Borealis II, sliding window attention; with global positions it is the pattern of Longformer
    """

    radius: int = 32
    step: int = 1
    globals_: int = 0

    cost = "O(n radius)"

    def __post_init__(self) -> None:
        if self.radius < 0 or self.step < 1 or self.globals_ < 0:
            raise ValueError(
                f"a window needs radius ≥ 0, step ≥ 1 and globals_ ≥ 0, got {self.radius}, {self.step} and {self.globals_}"
            )

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Near, or one of the two is global."""
        near = (np.abs(i - j) <= self.radius * self.step) & ((i - j) % self.step == 0)
        return near | ((0 <= i) & (i < self.globals_)) | (j < self.globals_)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that hold a pair within radius · step, or a global position."""
        first = -(-self.globals_ // TILE)
        return (np.abs(t - k) * TILE - (TILE - 1) <= self.radius * self.step) | (t < first) | (k < first)


@frozen
class Strided(Pattern):
    """The sparse transformer's: the `stride` positions around (or before) a query, and every stride-th one.

    Up to a stride of 127 nearly every tile of 64 × 64 holds one of its pairs: it saves memory and time beyond that only.
    source   Borealis II, sparse transformer
    """

    stride: int = 16

    cost = "O(n (stride + n/stride)) pairs"

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride: {self.stride} must be at least 1")

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Near, or a multiple of the stride away."""
        return (np.abs(i - j) < self.stride) | ((i - j) % self.stride == 0)


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


@frozen
class EachHead(Pattern):
    """A pattern of its own for each head, as many as the layer has."""

    patterns: tuple[Pattern, ...]

    cost = "that of its heads"

    def __call__(self, n: int, m: int, *, causal: bool) -> BlockPattern:
        """The tiles of each head."""
        return _joined(self.patterns, n, m, causal)

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """(H, …): head by head."""
        shape = np.broadcast_shapes(i.shape, j.shape)
        return np.stack([np.broadcast_to(p.sees(i, j, m, causal=causal), shape) for p in self.patterns])


@functools.lru_cache(maxsize=64)
def _joined(patterns: tuple[Pattern, ...], n: int, m: int, causal: bool) -> BlockPattern:
    return one_pattern([pattern(n, m, causal=causal) for pattern in patterns])
