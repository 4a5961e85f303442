"""Softmax attention over the pairs of a pattern, in tiles of 64 × 64: the pattern says which pairs, tile by tile.

Replaces the stage "pattern (which pairs)". The definition is dense attention with the pattern as its mask; the fast form
(`kernels/block_sparse.py`) computes the tiles of the list and no others.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.backend import current
from minitransformer.functional import fitting
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked

TILE = 64  # queries and keys of a tile, the same as in the kernels


class BlockPattern(NamedTuple):
    """Which keys each query sees, as a list of key tiles for each tile of queries.

    The tiles that query tile t sees are `tiles[starts[t] : starts[t + 1]]`. Of such a tile every pair counts where `which`
    is −1; else `masks[which]`, (64, 64), says which pairs do. Equal masks are stored once: a window has a handful.
    """

    n: int
    m: int
    starts: Array
    tiles: Array
    which: Array
    masks: Array

    @property
    def mask(self) -> Array:
        """The same as a boolean matrix, (n, m): True where query i sees key j."""
        whole = np.zeros((len(self.starts) - 1, -(-self.m // TILE), TILE, TILE), bool)
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        whole[rows, self.tiles] = np.where((self.which < 0)[:, None, None], True, self.masks[self.which])
        return whole.swapaxes(1, 2).reshape(len(whole) * TILE, -1)[: self.n, : self.m]

    @property
    def pairs(self) -> int:
        """Number of pairs that are computed: all those of the tiles in the list."""
        return len(self.tiles) * TILE * TILE


def block_pattern(
    n: int, m: int, sees: Callable[[Array, Array], Any], blocks: Array | None = None, *, causal: bool = False
) -> BlockPattern:
    """The pattern in which query i sees key j where sees(i, j) is True.

    sees     takes i of shape (64, 1) and j of shape (1, 64)
    blocks   (⌈n/64⌉, ⌈m/64⌉), False where the whole tile is known to be empty; without it all n m pairs are asked for
    causal   and j ≤ i; with m ≠ n the queries are the last n of the m positions
    cost     O(tiles of the blocks · 64²), in NumPy; worth keeping
    raises   ValueError for blocks of another shape
    """
    shape = (-(-n // TILE), -(-m // TILE))
    blocks = np.ones(shape, bool) if blocks is None else np.asarray(blocks, bool)
    if blocks.shape != shape:
        raise ValueError(
            f"blocks: shape {blocks.shape} should be {shape}, tiles of {TILE} for {n} queries and {m} keys"
        )
    counts, tiles, which = np.zeros(shape[0], np.int64), [], []
    known: dict[bytes, int] = {}
    for t, k in np.argwhere(blocks):
        i, j = m - n + t * TILE + np.arange(TILE)[:, None], k * TILE + np.arange(TILE)
        seen = np.broadcast_to(sees(i, j[None]), (TILE, TILE)) & (i < m) & (j < m)
        if causal:
            seen = seen & (j <= i)
        if seen.any():
            counts[t] += 1
            tiles.append(k)
            which.append(-1 if seen.all() else known.setdefault(np.packbits(seen).tobytes(), len(known)))
    masks = [np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(TILE, TILE).astype(bool) for bits in known]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return BlockPattern(
        *(n, m, starts, np.array(tiles, np.int64), np.array(which, np.int64)),
        np.array(masks, bool).reshape(len(masks), TILE, TILE) if masks else np.zeros((1, TILE, TILE), bool),
    )


def _near(n: int, radius: int) -> Array:
    """The tiles that hold a pair with |i − j| ≤ radius."""
    tile = np.arange(-(-n // TILE))
    return np.maximum(np.abs(tile[:, None] - tile) * TILE - (TILE - 1), 0) <= radius


def window_pattern(n: int, radius: int, *, step: int = 1, globals_: int = 0, causal: bool = False) -> BlockPattern:
    """Query i sees j where |i − j| ≤ radius · step and step divides i − j; the first `globals_` tokens see and are seen by all.

    step = 1 is the sliding window, step > 1 the dilated one; with global tokens it is the pattern of Longformer.
    """
    if radius < 0 or step < 1 or globals_ < 0:
        raise ValueError(f"a window needs radius ≥ 0, step ≥ 1 and globals_ ≥ 0, got {radius}, {step} and {globals_}")
    blocks = _near(n, radius * step)
    first = -(-globals_ // TILE)
    blocks[:first] = blocks[:, :first] = True

    def sees(i: Array, j: Array) -> Array:
        near = (np.abs(i - j) <= radius * step) & ((i - j) % step == 0)
        return near | (i < globals_) | (j < globals_)

    return block_pattern(n, n, sees, blocks, causal=causal)


def strided_pattern(n: int, stride: int, *, causal: bool = True) -> BlockPattern:
    """The sparse transformer's: query i sees the `stride` positions around (or before) it, and every stride-th one."""
    if stride < 1:
        raise ValueError(f"stride: {stride} must be at least 1")
    return block_pattern(n, n, lambda i, j: (np.abs(i - j) < stride) | ((i - j) % stride == 0), causal=causal)


def bigbird_pattern(
    n: int, rng: np.random.Generator, *, window: int = 1, globals_: int = 1, random: int = 3
) -> BlockPattern:
    """BigBird's, in blocks of 64: the `window` neighbours at each side, the first and last `globals_`, `random` others.

    A random block that is seen already adds nothing; global blocks see, and are seen by, all.
    """
    number = -(-n // TILE)
    tile = np.arange(number)
    blocks = np.abs(tile[:, None] - tile) <= window
    for t in range(number):
        blocks[t, rng.choice(number, min(random, number), replace=False)] = True
    ends = np.r_[:globals_, max(number - globals_, 0) : number].clip(max=max(number - 1, 0))
    blocks[ends] = blocks[:, ends] = True
    return block_pattern(n, n, lambda i, j: np.True_, blocks)


@checked
def block_sparse_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    pattern: BlockPattern,
    bias: Float[Array, "*some o"] | None = None,
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Attention in which query i sees only the keys that the pattern allows.

        A_ij = exp S_ij / Σ_{k seen by i} exp S_ik  where j is seen by i, else 0;    Y = A V

    pattern  of n queries and m keys, the same for all samples and heads. A query that sees no key gives zeros.
    cost     O(pattern.pairs · d) time, O(n + m) memory; in the tier "numpy" O(n m d) and O(n m), for it is the definition
    returns  Y and a pullback: dQ, dK, dV = pullback(dY)
    raises   TypeError for a wrong shape or dtype, ValueError for a pattern of another length
    """
    if (pattern.n, pattern.m) != (Q.shape[-2], K.shape[-2]):
        raise ValueError(
            f"pattern: it is for {pattern.n} queries and {pattern.m} keys, not {Q.shape[-2]} and {K.shape[-2]}"
        )
    if current() == "numpy" or bias is not None or mask is not None or K.shape[:-2] != Q.shape[:-2]:
        seen = pattern.mask if mask is None else pattern.mask & fitting(mask, (*Q.shape[:-1], K.shape[-2]))
        return dot_product_attention(Q, K, V, bias, causal=causal, mask=seen, scale=scale)
    from minitransformer.kernels.block_sparse import tiles_attention

    return tiles_attention(Q, K, V, pattern, scale=scale)
