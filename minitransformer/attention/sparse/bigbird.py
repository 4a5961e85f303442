"""BigBird: neighbours, a few blocks that all see, and a few that are drawn.

    block t sees        t − 1, t, t + 1  |  the first and the last  |  r that are drawn
    first and last      see everything

A window alone needs n / w layers to bring a token to the other end; a few random edges make all paths short, and tokens that
all see make them two edges long. Everything happens in blocks of b tokens, because a product of matrices is quick where single
pairs are slow. What is drawn is drawn once, by a seed, for each head, and from the blocks that a row does not see anyway: a
block that came twice into one softmax would count twice. How the paper computes it is in rolled_keys.py.

Two forms of the global tokens: those of the text, as above (ITC), or `extra` rows of their own in front of it (ETC; etc.py has
that construction with its labels).
"""

import functools
from typing import Literal

import numpy as np

from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.ranges import NonNegative, Seed
from minitransformer.typing import Array


@frozen
class BigBird(Pattern):
    """Blocks of `block` tokens: `window` neighbours a side, the first and last `global_tokens`, and `random` others for each.

    All three count blocks. If causal, a block sees the `window` blocks before it, the first `global_tokens`, and `random` of
    those between. What a block draws depends on the seed, its number and the head; if not causal, on the number of blocks too.

    extra    rows that the model puts in front of the text, which see all and are seen by all; then it can't be causal
    heads    of the layer, each of which draws its own; the model fills it in
    source   Zaheer et al. 2020; Borealis II, figure 9c; Aalto 3.1.3, whose "fixed random tokens" are drawn for each row (E59);
             Lecture notes C.3, whose window is w = 2 window + 1 blocks in one place and w tokens in another (E40)
    """

    window: NonNegative = 1
    global_tokens: NonNegative = 1
    random: NonNegative = 3
    seed: Seed = 0
    block: int = 64
    extra: NonNegative = 0
    heads: int = 1

    @property
    def cost(self) -> str:  # type: ignore[override]
        """O(n block), with the size of the block as a number."""
        return f"O({self.block} n)"

    @property
    def causal(self) -> Literal["either", "always", "never"]:  # type: ignore[override]
        """Either way, but "never" with rows in front, which see the whole text."""
        return "never" if self.extra else "either"

    @property
    def prefix(self) -> int:  # type: ignore[override]
        """How many extra rows stand in front of the text."""
        return self.extra

    @property
    def rules(self) -> int:
        """How many rules there are: one for each head."""
        return self.heads

    @functools.cached_property
    def of_heads(self) -> tuple[Pattern, ...]:
        """The rule of each head; they differ in what they draw."""
        return (self,) if self.heads == 1 else tuple(_OfHead(self, head) for head in range(self.heads))

    def drawn(self, number: int) -> Array:
        """The blocks that each head draws for rows 1 … number − 2 of `number` blocks, not causal: (H, number − 2, random).

        raises   ValueError if there are fewer blocks to draw from
        """
        free = number - 2 * self.window - 1 - 2 * self.global_tokens
        if free < self.random:
            raise ValueError(f"number: {number} blocks leave {max(free, 0)} to draw {self.random} from")
        fixed = self._fixed(number, causal=False)
        rows = range(1, number - 1)
        return np.array([[self._draw(fixed, row, number, head) for row in rows] for head in range(self.heads)])

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether the block of i sees that of j, or one of the two is a row in front."""
        return super().sees(i, j, m, causal=causal) if self.heads > 1 else self._pairs(i, j, m, causal, 0)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that hold a pair of blocks of which one sees the other, for any head, or a row in front."""
        return np.any([self._tiles(t, k, m, causal, head) for head in range(self.heads)], axis=0)

    # ------------------------------------------------------------------------------------------- of one head

    def _pairs(self, i: Array, j: Array, m: int, causal: bool, head: int) -> Array:
        own = self._blocks(self._number(m), causal, head)
        t, k = (np.clip((x - self.extra) // self.block, 0, len(own) - 1) for x in (i, j))
        return own[t, k] | ((0 <= i) & (i < self.extra)) | (j < self.extra)

    def _tiles(self, t: Array, k: Array, m: int, causal: bool, head: int) -> Array:
        own = self._blocks(self._number(m), causal, head)
        # [t, k]: how many pairs of the first t blocks of queries and the first k of keys see each other
        before = np.pad(own.cumsum(0).cumsum(1), ((1, 0), (1, 0)))

        def blocks(tile: Array) -> tuple[Array, Array]:
            ends = tile * TILE - self.extra, tile * TILE - self.extra + TILE - 1
            low, high = (np.clip(end // self.block, 0, len(own) - 1) for end in ends)
            return low, high + 1

        (t_low, t_high), (k_low, k_high) = blocks(t), blocks(k)
        some = before[t_high, k_high] - before[t_low, k_high] - before[t_high, k_low] + before[t_low, k_low] > 0
        return some | (t * TILE < self.extra) | (k * TILE < self.extra)

    def _number(self, m: int) -> int:
        return max(-(-(m - self.extra) // self.block), 1)

    def _fixed(self, number: int, causal: bool) -> Array:
        t, k = np.arange(number)[:, None], np.arange(number)[None]
        fixed = (np.abs(t - k) <= self.window) | (k < self.global_tokens)
        if not causal:
            fixed |= (t < self.global_tokens) | (np.maximum(t, k) >= number - self.global_tokens)
        return fixed

    def _draw(self, fixed: Array, row: int, number: int, head: int) -> Array:
        others = np.flatnonzero(~fixed[row, :number])  # nobody draws what is seen anyway
        return others[np.random.default_rng([self.seed, row, head]).permutation(len(others))[: self.random]]

    @functools.lru_cache(maxsize=64)  # noqa: B019  (patterns are few and small)
    def _blocks(self, number: int, causal: bool, head: int) -> Array:
        fixed = self._fixed(number, causal)
        own = fixed.copy()
        for row in range(number):
            own[row, self._draw(fixed, row, row if causal else number, head)] = True
        return np.tril(own) if causal else own


@frozen
class _OfHead(Pattern):
    of: BigBird
    head: NonNegative

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """As BigBird, with what this head draws."""
        return self.of._pairs(i, j, m, causal, self.head)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """As BigBird, with what this head draws."""
        return self.of._tiles(t, k, m, causal, self.head)
