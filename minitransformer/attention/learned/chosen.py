"""Attention where every query has chosen its own keys: the pairs as a boolean matrix of each head, computed in tiles."""

import math
from typing import NamedTuple

import numpy as np

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


def tiles_of(sees: Array) -> BlockPattern:
    """The tiles of 64 × 64 in which P heads (P, n, m) see anything."""
    P, n, m = sees.shape
    whole = np.zeros((P, -(-n // TILE) * TILE, -(-m // TILE) * TILE), bool)
    whole[:, :n, :m] = sees
    whole = whole.reshape(P, -(-n // TILE), TILE, -(-m // TILE), TILE).swapaxes(2, 3)
    any_: Array = np.any(whole, axis=(-1, -2))
    all_: Array = np.all(whole, axis=(-1, -2))
    counts = any_.sum(-1)
    starts = np.zeros((P, counts.shape[1] + 1), np.int64)
    starts[:, 1:] = np.cumsum(counts).reshape(counts.shape)
    starts[1:, 0] = starts[:-1, -1]
    tiles = np.nonzero(any_)[2]
    partly = ~all_[any_]
    which = np.where(partly, np.cumsum(partly) - 1, -1)
    masks = whole[any_ & ~all_] if partly.any() else np.zeros((1, TILE, TILE), bool)
    return BlockPattern(n, m, starts, tiles, which, masks)


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
    Q: Array, K: Array, V: Array, sees: Array, scale: float | None = None
) -> tuple[Array, ChosenPullback]:
    """Attention over the pairs where `sees` (broadcast to (*batch, n, m)) is True.

    In the tiers of loops only tiles that hold such a pair are computed; the definition is dense attention with a mask.
    K, V     (*batch, m, …), or one for each group of neighbouring heads
    """
    shapes = Q.shape, K.shape, V.shape
    sees = np.broadcast_to(sees, (*Q.shape[:-1], K.shape[-2]))
    q, k, v, pairs = (X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]) for X in (Q, K, V, sees))
    if loops_in("attention"):
        Y, attention = block_sparse_attention(q, k, v, tiles_of(pairs), scale=scale)
    else:
        Y, attention = dot_product_attention(q, k, v, mask=pairs, scale=scale)
    return Y.reshape(*Q.shape[:-1], V.shape[-1]), ChosenPullback(attention, shapes)


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
