"""Softmax attention over the pairs of a pattern, in tiles of 64 × 64: the pattern says which pairs, tile by tile.

Replaces the stage "pattern (which pairs)". The definition is dense attention with the pattern as its mask; the fast form
(`kernels/attention.py`) computes the tiles of the list and no others.

With n queries and m keys, i and j are positions, and the queries are the last n of them: j = 0 … m − 1, i = m − n … m − 1.
"""

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import scale_for
from minitransformer.attention.dot_product import dot_product_attention, refuse_what_does_not_fit
from minitransformer.functional import loops_in
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, PositiveNumber
from minitransformer.typing import Array, Bool, Float, checked

TILE = 64  # queries and keys of a tile, the same as in the kernels


class BlockPattern(NamedTuple):
    """Which keys each query sees, as a list of key tiles for each tile of queries: one for all heads, or one for each.

    Head p sees of query tile t the tiles `tiles[starts[p, t] : starts[p, t + 1]]`, which rise; p is 0 for all heads if
    `starts` has one row. In such a tile every pair counts if `which` is −1; else `masks[which]`, (64, 64), says which pairs do.
    `block_pattern` stores equal masks once: a window has a handful.
    """

    n: int
    m: int
    starts: Array
    tiles: Array
    which: Array
    masks: Array

    @property
    def mask(self) -> Array:
        """The same as a boolean matrix, (n, m), or (P, n, m) for P heads: True where query i sees key j."""
        P, T = self.starts.shape[0], self.starts.shape[1] - 1
        M = -(-self.m // TILE)
        whole = np.zeros((P * T, M, TILE, TILE), bool)
        rows = np.repeat(np.arange(P * T), np.diff(self.starts).ravel().astype(np.intp, copy=False))
        whole[rows, self.tiles] = np.where((self.which < 0)[:, None, None], True, self.masks[self.which])
        whole = whole.swapaxes(1, 2).reshape(P, T * TILE, M * TILE)[:, : self.n, : self.m]
        return whole[0] if P == 1 else whole

    @property
    def pairs(self) -> int:
        """Number of pairs that are computed, for all heads: those of the tiles in their lists, except quarters without any."""
        half = TILE // 2
        quarters = self.masks.reshape(len(self.masks), 2, half, 2, half).any((2, 4)).sum((1, 2))
        return int(np.append(quarters, 4)[self.which].sum()) * half * half


def pairs_seen(found: Any, n: int, m: int, heads: bool = False) -> Array:
    """What a rule says of n × m pairs, in full: (n, m), or (H, n, m) if heads may have rules of their own.

    raises   TypeError for anything but booleans that broadcast to that shape
    """
    seen = np.asarray(found)
    if seen.dtype == bool:
        with suppress(ValueError):
            return np.broadcast_to(seen, (*(seen.shape[:-2] if heads else ()), n, m))
    raise TypeError(f"sees: gave {seen.dtype} {seen.shape}, should give booleans for {n} × {m} pairs")


@checked
def block_pattern(
    n: NonNegative,
    m: NonNegative,
    sees: Callable[[Array, Array], Any],
    blocks: Array | None = None,
    *,
    causal: bool = False,
) -> BlockPattern:
    """The pattern in which the query at position i sees the key at position j where sees(i, j) is True.

    sees     takes i of shape (64, 1) and j of shape (1, 64); the last ones may lie beyond the last position
    blocks   (⌈n/64⌉, ⌈m/64⌉), False where a whole tile is known to be empty; without it `sees` is asked for all n m pairs
    causal   leaves only j ≤ i
    cost     O(tiles of the blocks · 64²), in NumPy; worth caching
    raises   ValueError for blocks of another shape, TypeError if `sees` gives anything but booleans for these pairs
    """
    shape = (-(-n // TILE), -(-m // TILE))
    blocks = np.ones(shape, bool) if blocks is None else np.asarray(blocks, bool)
    if blocks.shape != shape:
        raise ValueError(f"blocks: shape {blocks.shape} should be {shape}, tiles of {TILE} for {n} queries, {m} keys")
    counts, tiles, which = np.zeros(shape[0], np.int64), [], []
    known: dict[bytes, int] = {}
    for t, k in np.argwhere(blocks):
        i, j = m - n + t * TILE + np.arange(TILE)[:, None], k * TILE + np.arange(TILE)
        seen = pairs_seen(sees(i, j[None]), TILE, TILE) & (i < m) & (j < m)
        if causal:
            seen = seen & (j <= i)
        if seen.any():
            counts[t] += 1
            tiles.append(k)
            which.append(-1 if seen.all() else known.setdefault(np.packbits(seen).tobytes(), len(known)))
    masks = [np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(TILE, TILE).astype(bool) for bits in known]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)[None]
    return BlockPattern(
        *(n, m, starts, np.array(tiles, np.int64), np.array(which, np.int64)),
        np.array(masks, bool).reshape(len(masks), TILE, TILE) if masks else np.zeros((1, TILE, TILE), bool),
    )


@functools.lru_cache(maxsize=64)
def complete_blocks(first: int, n: int, count: int, step: int, front: int = 0) -> BlockPattern:
    """The pattern of queries i = first … first + n − 1 over keys each of which stands for a block of `step` positions.

    Query i sees key b if its block is complete: (b + 1) step ≤ i + 1.
    count    how many blocks there are; `front` more keys stand in front of them, and every query sees those
    cost     O(n · 64) to make the masks of the tiles at the edge, few of which differ
    """
    T = -(-n // TILE)
    seen = np.zeros((T, TILE), int)
    seen.reshape(-1)[:n] = front + np.minimum((first + np.arange(n) + 1) // step, count)
    counts = -(-seen.max(-1, initial=0) // TILE)
    t, k = np.repeat(np.arange(T), counts), np.concatenate([np.arange(0), *map(np.arange, counts)])
    edge = seen[t].min(-1, initial=front + count) < (k + 1) * TILE
    sees = k[edge, None, None] * TILE + np.arange(TILE) < seen[t[edge]][..., None]
    bits = np.packbits(sees.reshape(-1, TILE * TILE), axis=-1).view(f"V{TILE * TILE // 8}")[:, 0]  # a mask is one entry
    _, first_of, of_edges = np.unique(bits, return_index=True, return_inverse=True)
    masks, which = sees[first_of], np.full(len(t), -1)
    which[edge] = of_edges
    starts = np.concatenate([[0], np.cumsum(counts)])[None].astype(np.int64)
    masks = masks if len(masks) else np.zeros((1, TILE, TILE), bool)
    return settled(BlockPattern(n, front + count, starts, k, which, masks))


@checked
def one_pattern(patterns: Sequence[BlockPattern]) -> BlockPattern:
    """A pattern for each head, joined into one: head p has the p-th.

    raises   ValueError unless they are for the same n and m, and have one list each
    """
    patterns = [settled(pattern, "patterns") for pattern in patterns]
    if len({(p.n, p.m) for p in patterns}) != 1 or any(len(p.starts) != 1 for p in patterns):
        raise ValueError(
            f"patterns: should share n and m, and have one list each, got {[(p.n, p.m) for p in patterns]}"
        )
    tiles = np.cumsum([0, *(len(p.tiles) for p in patterns)])
    masks = np.cumsum([0, *(len(p.masks) for p in patterns)])
    return BlockPattern(
        *patterns[0][:2],
        np.concatenate([p.starts + before for p, before in zip(patterns, tiles, strict=False)]),
        np.concatenate([p.tiles for p in patterns]),
        np.concatenate(
            [np.where(p.which < 0, -1, p.which + before) for p, before in zip(patterns, masks, strict=False)]
        ),
        np.concatenate([p.masks for p in patterns]),
    )


def keys_of_both(left: BlockPattern, right: BlockPattern) -> BlockPattern:
    """The pattern in which the same queries see the keys of `left`, whole tiles of them, and behind these the keys of `right`.

    raises   ValueError if the keys of `left` end within a tile
    """
    if left.m % TILE:
        raise ValueError(f"left: {left.m} keys should fill whole tiles of {TILE}")
    T, before = left.starts.shape[1] - 1, left.m // TILE
    starts, starts_right = left.starts[0], right.starts[0]
    row = np.concatenate([np.repeat(np.arange(T), np.diff(edges)) for edges in (starts, starts_right)])
    order = np.argsort(row, kind="stable")  # of each row, first the tiles of the left one
    return settled(
        BlockPattern(
            *(left.n, left.m + right.m, (starts + starts_right)[None]),
            np.concatenate([left.tiles, right.tiles + before])[order],
            np.concatenate([left.which, np.where(right.which < 0, -1, right.which + len(left.masks))])[order],
            np.concatenate([left.masks, right.masks]),
        )
    )


def settled(pattern: BlockPattern, name: str = "pattern") -> BlockPattern:
    """The pattern in read-only arrays, so that the backward pass finds what the forward pass saw; copied if need be.

    raises   ValueError for indices that lead out of their arrays, which compiled code would follow anywhere
    """
    n, m, starts, tiles, which, masks = pattern
    arrays = starts, tiles, which, masks
    there = all(isinstance(a, np.ndarray) and a.ndim for a in arrays)
    if not there or [a.dtype.kind for a in arrays] != ["i", "i", "i", "b"] or masks.shape[1:] != (TILE, TILE):
        raise ValueError(f"{name}: starts, tiles and which should be arrays of integers, masks (…, 64, 64) of booleans")
    starts, tiles, which = (_read_only(a, np.dtype(np.int64)) for a in (starts, tiles, which))
    if starts.shape != (max(len(starts), 1), -(-n // TILE) + 1) or tiles.shape != which.shape or tiles.ndim != 1:
        shapes = f"starts {starts.shape}, tiles {tiles.shape}, which {which.shape}"
        raise ValueError(f"{name}: {shapes} should be (heads, {-(-n // TILE) + 1}), and two of one length")
    edges, number = starts.ravel(), len(tiles)
    gaps = (starts[1:, 0] != starts[:-1, -1]).any()
    if edges[0] != 0 or edges[-1] != number or (np.diff(edges) < 0).any() or gaps:
        raise ValueError(f"{name}: starts should rise from 0 to {number}, the number of tiles")
    same = np.ones(number + 1, bool)
    same[edges] = False  # a list begins here, and its tile may be lower than the one before
    if (tiles < 0).any() or (tiles >= -(-m // TILE)).any() or (np.diff(tiles) <= 0)[same[1:-1]].any():
        raise ValueError(f"{name}: the tiles of a list should rise, within 0 … {-(-m // TILE) - 1}")
    if (which < -1).any() or (which >= len(masks)).any():
        raise ValueError(f"{name}: which should be −1, or one of {len(masks)} masks")
    return BlockPattern(n, m, starts, tiles, which, _read_only(masks, masks.dtype))


def _read_only(X: Array, dtype: np.dtype) -> Array:
    """X as a read-only array of this dtype: X itself if it is that and owns its memory, else a copy."""
    if X.flags.writeable or X.dtype != dtype or X.base is not None:
        X = X.astype(dtype)
        X.flags.writeable = False
    return X


@checked
def block_sparse_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    pattern: BlockPattern,
    bias: Float[Array, "*some o"] | None = None,
    sink: Float[Array, "*own"] | None = None,
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    cap: PositiveNumber | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Attention in which query i sees only the keys that the pattern allows.

        A_ij = exp S_ij / Σ_{k seen by i} exp S_ik  where j is seen by i, else 0;    Y = A V

    pattern  of n queries and m keys, the same for all samples; for all heads, or one for each (the last batch axis)
    others   as in `dot_product_attention`: groups of heads that share keys, a bias for each offset, a sink, a cap, what
             hides more pairs than the pattern does. A query that sees no key gives zeros.
    cost     O(pattern.pairs · d) time, O(n + m) memory; in the tier "numpy" O(n m d) and O(n m), for it is the definition
    returns  Y and a pullback: dQ, dK, dV = pullback(dY), and dbias and dsink where these are given
    raises   as `dot_product_attention`; ValueError for a pattern of other lengths or heads, or with indices outside its arrays
    """
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    if (pattern.n, pattern.m) != (n, m):
        raise ValueError(f"pattern: it is for {pattern.n} queries and {pattern.m} keys, not {n} and {m}")
    pattern = settled(pattern)
    if len(pattern.starts) not in (1, *batch[-1:]):
        raise ValueError(f"pattern: lists for {len(pattern.starts)} heads do not fit queries of shape {Q.shape}")
    refuse_what_does_not_fit(Q, K, V, bias, mask, sink)
    if loops := loops_in("attention"):
        scale = Q.dtype.type(scale_for(Q.shape[-1], scale))
        options = {"causal": causal, "mask": mask, "scale": scale, "cap": cap}
        return loops.tiled_attention(Q, K, V, bias, sink, **options, pattern=pattern)
    mask = pattern.mask if mask is None else pattern.mask & mask
    return dot_product_attention(Q, K, V, bias, sink, causal=causal, mask=mask, scale=scale, cap=cap)
