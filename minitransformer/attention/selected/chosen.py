"""Attention where every query has chosen its own keys: the pairs as a boolean matrix of each head, computed in tiles."""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import TILE, BlockPattern, block_sparse_attention
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.functional import loops_in
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


def largest(S: Array, k: int, among: Array) -> Array:
    """True at the k largest of each row of S (…, n, m), among those that may be chosen; of equal ones the first."""
    among = np.broadcast_to(among, S.shape)
    order = np.argsort(np.where(among, -S, np.inf), -1, kind="stable")[..., :k]
    found = np.zeros(S.shape, bool)
    np.put_along_axis(found, order, True, -1)
    return found & among


class Choice(NamedTuple):
    """Which blocks of keys each of n queries has chosen, (P, n, ⌈m/block⌉), in P heads; the queries are the last of m positions.

    mask   what hides more pairs, (P, n, m) or with axes of 1, or None
    """

    blocks: Array
    block: int
    m: int
    causal: bool
    mask: Array | None

    @property
    def pairs(self) -> Array:
        """Who sees whom, (P, n, m)."""
        n = self.blocks.shape[1]
        sees = np.repeat(self.blocks, self.block, -1)[..., : self.m]
        if self.causal:
            sees &= np.arange(self.m) <= np.arange(self.m - n, self.m)[:, None]
        return sees if self.mask is None else sees & self.mask

    @property
    def tiles(self) -> BlockPattern:
        """The same as a list of the tiles of 64 × 64 that hold a pair: only these are looked at."""
        P, n, _ = self.blocks.shape
        first, edges = self.m - n, np.arange(0, n, TILE)
        chosen = np.logical_or.reduceat(self.blocks, edges, axis=1)  # by some query of the tile
        k = np.arange(-(-self.m // TILE))
        low = k * TILE // self.block  # the first and the last block of key tile k
        high = (np.minimum((k + 1) * TILE, self.m) - 1) // self.block
        before = np.concatenate([np.zeros((*chosen.shape[:2], 1), int), chosen.cumsum(-1)], -1)
        wanted = before[..., high + 1] > before[..., low]
        if self.causal:
            wanted &= k * TILE <= first + np.minimum(edges + TILE, n)[:, None] - 1
        p, t, k = np.nonzero(wanted)
        i, j = (tile[:, None] * TILE + np.arange(TILE) for tile in (t, k))
        sees = self._keys_of(p, np.minimum(i, n - 1), j, low[k])
        edge = (i[:, -1] >= n) | (j[:, -1] >= self.m) | (self.causal & (j[:, -1] > first + i[:, 0]))
        row, column = i[edge][..., None], j[edge][:, None]
        sees[edge] &= (row < n) & (column < self.m) & ((column <= first + row) | (not self.causal))
        if self.mask is not None:
            whole = np.broadcast_to(self.mask, (P, n, self.m))
            sees &= whole[p[:, None, None], np.minimum(i, n - 1)[..., None], np.minimum(j, self.m - 1)[:, None]]
        return _listed(n, self.m, wanted, sees)

    def _keys_of(self, p: Array, i: Array, j: Array, low: Array) -> Array:
        """Whether queries i (tiles, 64) of heads p have chosen the blocks of keys j (tiles, 64), of which `low` is the first."""
        whole = TILE % self.block == 0 or self.block % TILE == 0  # blocks and tiles share their edges
        width = max(1, TILE // self.block) if whole else (TILE - 2) // self.block + 2
        c = np.minimum(low[:, None] + np.arange(width), self.blocks.shape[-1] - 1)
        of_blocks = self.blocks[p[:, None, None], i[..., None], c[:, None]]
        if whole:
            return np.repeat(of_blocks, TILE // width, -1)
        return np.take_along_axis(of_blocks, np.minimum(j // self.block - low[:, None], width - 1)[:, None], -1)


def _listed(n: int, m: int, wanted: Array, sees: Array) -> BlockPattern:
    """The pattern of these tiles (P, tiles of queries, tiles of keys), each with its pairs; those without any are left out."""
    some: Any = sees.any((-2, -1))
    every: Any = sees.all((-2, -1))
    wanted[wanted] = some
    counts = wanted.sum(-1)
    starts = np.zeros((len(counts), counts.shape[1] + 1), np.int64)
    starts[:, 1:] = np.cumsum(counts).reshape(counts.shape)
    starts[1:, 0] = starts[:-1, -1]
    partly = ~every[some]
    which = np.where(partly, np.cumsum(partly) - 1, -1)
    masks = sees[some & ~every] if partly.any() else np.zeros((1, TILE, TILE), bool)
    return BlockPattern(n, m, starts, np.nonzero(wanted)[2], which, masks)


class ChosenPullback(NamedTuple):
    """Attention's own gradients; the choice is constant. In the tiles all samples and heads were one axis."""

    attention: Pullback
    shapes: tuple[tuple[int, ...], ...]  # of Q, K and V

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, n, m)."""
        A = self.attention.A
        return A.reshape(*self.shapes[0][:-1], A.shape[-1])

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        gradients = self.attention(dY.reshape(math.prod(dY.shape[:-2]), *dY.shape[-2:]))
        dQ, dK, dV = (dX.reshape(shape) for dX, shape in zip(gradients, self.shapes, strict=True))
        return dQ, dK, dV


def attend_to_chosen(
    Q: Array,
    K: Array,
    V: Array,
    blocks: Array,
    block: int,
    *,
    causal: bool,
    mask: Array | None = None,
    scale: float | None = None,
    encoding: Any = None,
    params: Any = None,
) -> tuple[Array, Any]:
    """Attention to the keys of the blocks that each query has chosen, (*batch, n, ⌈m/block⌉) or with axes of 1.

    In the tiers of loops only tiles that hold such a pair are computed; the definition is dense attention with a mask.
    K, V     (*batch, m, …), or one for each group of neighbouring heads
    mask     (*batch, n, m), or with axes of 1
    encoding of positions in the scores, with its params: then all pairs are formed, and dparams is the first of the gradients
    """
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    if mask is not None:
        mask = as_one_axis(np.broadcast_to(mask, (*batch, n, m)), 0, -2)
    blocks = as_one_axis(np.broadcast_to(blocks, (*batch, n, blocks.shape[-1])), 0, -2)
    choice = Choice(blocks, block, m, causal, mask)
    if encoding is not None:
        return attend(encoding, params, Q, K, V, causal=causal, mask=choice.pairs.reshape(*batch, n, m), scale=scale)
    q, k, v = (X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]) for X in (Q, K, V))
    if loops_in("attention") and len(q):  # a list of tiles is of one head at least
        Y, attention = block_sparse_attention(q, k, v, choice.tiles, scale=scale)
    else:
        Y, attention = dot_product_attention(q, k, v, mask=choice.pairs, scale=scale)
    return Y.reshape(*Q.shape[:-1], V.shape[-1]), ChosenPullback(attention, (Q.shape, K.shape, V.shape))


class BlockMeansPullback(NamedTuple):
    """The mean of a block gives each row that counts the same part."""

    share: Array
    block: int

    def __call__(self, dM: Array) -> Array:
        return np.repeat(dM, self.block, -2)[..., : self.share.shape[-2], :] * self.share


def block_means(X: Array, there: Array, block: int) -> tuple[Array, BlockMeansPullback]:
    """The mean of each block of rows that are there, (*batch, m, w) to (*batch, ⌈m/block⌉, w); 0 of nobody."""
    m = X.shape[-2]
    edges = np.arange(0, m, block)
    number = np.add.reduceat(there.astype(X.dtype), edges, -1)
    share = (there / np.maximum(np.repeat(number, block, -1)[..., :m], 1))[..., None].astype(X.dtype)
    return np.add.reduceat(share * X, edges, -2), BlockMeansPullback(share, block)
