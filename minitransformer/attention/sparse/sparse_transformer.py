"""The sparse transformer: one pattern taken apart into two, each with about √n pairs in a row.

    strided, stride l             near  i − l < j ≤ i              far  l divides i − j
    fixed, block l, columns c     near  ⌊j/l⌋ = ⌊i/l⌋              far  j mod l ≥ l − c          all with j ≤ i

From i one step leads to the near ones, and one more to what is far from them: with l ≈ √n every query sees some 2 √n keys, and
yet two layers, or two heads and a layer, connect everything. Strided suits what has rows of l, such as an image; in a text,
where nothing repeats after l, the last c columns of a block are its summary.

How the two are put together is a choice of its own (`part`): merged in one head, in different heads, or in layers that take
turns: LanguageModel(attention=("strided:part=near", "strided:part=far")).
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from minitransformer.arrays import finite
from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.sparse.columns import column_attention
from minitransformer.attention.sparse.local import share_a_block
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked

PAYS = 1536  # columns are used where a query meets more keys than that in the tiles that hold its pairs
Part = Literal["both", "near", "far", "heads"]


class Factorised(Pattern):
    """A pattern of a near and a far part, which are put together as `part` says."""

    part: Part
    heads: int

    def __post_init__(self) -> None:
        if self.part == "heads" and self.heads < 2:
            raise ValueError(f"part: two parts need two heads at least, got {self.heads}")

    @property
    def rules(self) -> int:
        """How many rules there are: one, or one for each head if these take turns."""
        return self.heads if self.part == "heads" else 1

    @property
    def of_heads(self) -> tuple[Pattern, ...]:
        """The rule of each head: near, far, near, far … if they take turns; else one for all."""
        if self.part != "heads":
            return (self,)
        own: Any = self
        turns = [replace(own, part=part, heads=1) for part in ("near", "far")]
        return tuple(turns[h % 2] for h in range(self.heads))

    def _either(self, near: Array, far: Array) -> Array:
        if self.part == "near":
            return near
        return far if self.part == "far" else near | far


@frozen
class Strided(Factorised):
    """The `stride` positions around (or up to) a query, and every stride-th one.

    Up to a stride of 127 nearly every tile of 64 × 64 holds one of its pairs. So in a long text the compiled loops do not go by
    tiles: causal attention without a mask is done in columns (columns.py), in a time that is that of its pairs.

    part     "both" in every head, "near" or "far" alone, or "heads" that take turns
    heads    of the layer; the model fills it in
    source   Borealis II, sparse transformer; Aalto (5) has its far part. The paper's near part is l + 1 keys, that of its code l
    """

    stride: int = 16
    part: Part = "both"
    heads: int = 1

    cost = "O(n (stride + n/stride)) pairs"

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether j is near i, or a multiple of the stride away; or one of the two, as `part` says."""
        if self.part == "heads":
            return super().sees(i, j, m, causal=causal)
        return self._either(np.abs(i - j) < self.stride, (i - j) % self.stride == 0)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles with an offset less than a stride, or a multiple of it; offsets differ from (t − k) · 64 by 63 at most."""
        low, high = (t - k) * TILE - (TILE - 1), (t - k) * TILE + TILE - 1
        return self._either((low < self.stride) & (high > -self.stride), high // self.stride >= -(-low // self.stride))

    @checked
    def attend(
        self,
        Q: Float[Array, "*batch n d"],
        K: Float[Array, "*shared m d"],
        V: Float[Array, "*shared m dv"],
        *,
        causal: bool,
        mask: Bool[Array, "..."] | None,
        **options: Any,
    ) -> tuple[Float[Array, "*batch n dv"], Pullback]:
        """In columns, for a long causal text without a mask, sink or cap; else, and where numbers are not finite, in tiles."""
        n = Q.shape[-2]
        met = n * min(1, (2 * TILE - 1) / self.stride)  # keys of the tiles that hold a pair
        plain = (
            causal and mask is None and not options and K.shape[-2] == n > self.stride and self.part in ("both", "far")
        )
        if not (plain and met > PAYS and loops_in("attention") and all(map(finite, (Q, K, V)))):
            return super().attend(Q, K, V, causal=causal, mask=mask, **options)
        near = replace(self, part="near")(n, n, causal=True) if self.part == "both" else None
        return column_attention(Q, K, V, self.stride, near, self)


@frozen
class Fixed(Factorised):
    """The block of a query, and the last `columns` positions of every block.

    block    l; columns: c, the summary of a block
    part     "both" in every head, "near" or "far" alone, or "heads" that take turns
    heads    of the layer; the model fills it in
    source   Borealis II, sparse transformer; Aalto (4) has its near part, and pairs it with the far part of the other (E48)
    """

    block: int = 16
    columns: int = 1
    part: Part = "both"
    heads: int = 1

    cost = "O(n (block + n columns/block)) pairs"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns > self.block:
            raise ValueError(f"columns: {self.columns} should be at most the block, {self.block}")

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether j is in the block of i, or in the summary of a block; or one of the two, as `part` says."""
        if self.part == "heads":
            return super().sees(i, j, m, causal=causal)
        return self._either(i // self.block == j // self.block, j % self.block >= self.block - self.columns)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles with a block in common, or whose keys hold a position of a summary."""
        summary = (k * TILE) % self.block + TILE - 1 >= self.block - self.columns
        near = share_a_block(t, k, self.block)
        return self._either(near, np.broadcast_to(summary, near.shape))
