"""Which pairs of a query and a key count, and what is done to their scores, as the loops of attention.py are told.

A caller says it with a mask, `causal`, a bias for each offset, a sink, a cap and a pattern. The loops get one record of arrays
for all of that, `Pairs`: its arrays have one batch axis and no copies that broadcasting made, and where an option is not given
stands an array without numbers. So a loop is compiled once for each dtype, whatever the options.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.exp2 import LOG2E
from minitransformer.kernels.tiles import HALF, LANES
from minitransformer.typing import Array

NONE = np.empty(0, np.int64)
NOT_LISTED = np.empty((0, 0), np.int64), NONE, NONE, np.empty((0, 0, 0), bool), NONE

# Of a tile whose pairs do not all count, some quarters may be empty: on the diagonal of causal attention one, at the edge of a
# window up to three. Such a tile is computed in strips of half its rows, each in those columns where any pair counts. Bits 0 and
# 1 of a number say of the left and right half of the upper rows whether any does; bits 2 and 3, below.
ABOVE_RIGHT, BELOW_LEFT, ALL_QUARTERS = 2, 4, 15


class Pairs(NamedTuple):
    """Which pairs of a query and a key count, and what is done to their scores. "In base 2" means multiplied by log₂ e.

    of             (B, 4): for each of the B heads, its row in K and V, in `bias`, in `mask` and in `starts`
    causal         whether query i sees only keys j ≤ i + m − n
    bias           (biases, n + m − 1 + 128), in base 2, with room for a tile at both ends; (1, 0) if there is none
    mask           (masks, n or 1, m or 1), with 1 where it is broadcast; (1, 1, 0) if there is none
    sink           (B,): b of each head, in base 2; −∞ if there is none
    cap            c of S → c tanh(S/c), in base 2; it is applied after the bias and before anything is hidden; 0 if there is none
    starts, tiles  list p says which tiles tile t is paired with: tiles[starts[p, t] : starts[p, t + 1]]. No starts: all of them
    which, blocks  the pairs that count in tiles[s] are blocks[which[s]], 64 × 64; all of them if which[s] is −1
    quarters       in which quarters of tiles[s] any pair counts, as four bits
    """

    of: Array
    causal: bool
    bias: Array
    mask: Array
    sink: Array
    cap: float
    starts: Array
    tiles: Array
    which: Array
    blocks: Array
    quarters: Array


def _distinct(X: Array, batch: tuple[int, ...], keep: int) -> tuple[Array, Array]:
    """X without the copies that broadcasting made, (few, *last `keep` axes); and which of the few each of the batch has, (B,)."""
    X = X.reshape((1,) * (len(batch) + keep - X.ndim) + X.shape)
    if 0 in X.strides:  # undo np.broadcast_to
        X = X[tuple(slice(0, 1) if step == 0 else slice(None) for step in X.strides)]
    own = X.shape[: X.ndim - keep]
    which = np.arange(math.prod(own)).reshape(own)
    few = for_reading(X.reshape(which.size, *X.shape[X.ndim - keep :]))
    return few, (which if own == batch else np.broadcast_to(which, batch)).reshape(math.prod(batch))


@functools.lru_cache
def _groups(heads: int, of_keys: int) -> Array:
    """`Pairs.of` with its first column, for neighbouring heads that share keys and values; the other columns are zero."""
    of = np.zeros((heads, 4), np.int64)
    of[:, 0] = np.arange(heads) // max(1, heads // max(of_keys, 1))
    return of


@functools.lru_cache
def _nothing(dtype: str, heads: int) -> tuple[Array, Array, Array]:
    """What `Pairs` holds where there is no bias, no mask and no sink."""
    return np.empty((1, 0), dtype), np.empty((1, 1, 0), bool), np.full(heads, -np.inf, dtype)


def pairs_of(
    Q: Array, K: Array, m: int, bias: Array | None, mask: Array | None, causal: bool,
    sink: Array | None = None, cap: float | None = None,
) -> Pairs:  # fmt: skip
    """All pairs of the queries and the first m keys, less those that `mask` hides and, if causal, those in the future."""
    batch, n = Q.shape[:-2], Q.shape[-2]
    of = _groups(math.prod(batch), math.prod(K.shape[:-2]))
    biases, masks, sinks = _nothing(Q.dtype.char, len(of))
    if bias is not None or mask is not None:
        of = of.copy()
    if bias is not None:
        few, of[:, 1] = _distinct(bias, batch, 1)
        offsets = max(n + m - 1, 0)
        biases = np.zeros((len(few), offsets + 2 * LANES), Q.dtype)
        np.multiply(few, LOG2E, out=biases[:, LANES:-LANES], casting="same_kind")
    if mask is not None:
        masks, of[:, 2] = _distinct(mask, batch, 2)
    if sink is not None:
        sinks = np.multiply(np.broadcast_to(sink, batch), LOG2E, dtype=Q.dtype).reshape(len(of))
    return Pairs(of, causal, biases, masks, sinks, float(cap or 0) * LOG2E, *NOT_LISTED)


def forwards(pairs: Pairs, pattern: Any) -> Pairs:
    """These pairs as `forward` takes them: keys on the rows of masks, biases reversed, and the lists of the pattern."""
    turned = pairs._replace(bias=np.ascontiguousarray(pairs.bias[:, ::-1]), mask=np.ascontiguousarray(pairs.mask.mT))
    if pattern is None:
        return turned
    return _listed(turned, pattern, pattern.starts, pattern.tiles, pattern.which, pattern.masks.mT)


def backwards(pairs: Pairs, pattern: Any) -> Pairs:
    """These pairs as `backward` takes them: the lists of the pattern turned round, query tiles for each key tile."""
    if pattern is None:
        return pairs
    lists, tiles, columns = len(pattern.starts), pattern.starts.shape[1] - 1, -(-pattern.m // LANES)
    row = np.repeat(np.arange(lists * tiles), np.diff(pattern.starts).ravel())
    key = row // tiles * columns + pattern.tiles if tiles else row
    order = np.argsort(key, kind="stable")
    starts = np.searchsorted(key[order], np.arange(lists)[:, None] * columns + np.arange(columns + 1))
    return _listed(pairs, pattern, starts, row[order] % max(tiles, 1), pattern.which[order], pattern.masks)


def _listed(pairs: Pairs, pattern: Any, starts: Array, tiles: Array, which: Array, blocks: Array) -> Pairs:
    of = pairs.of.copy()
    # one list for all heads, or one for each of the last batch axis
    of[:, 3] = np.arange(len(of)) % len(pattern.starts)
    starts, tiles, which = (np.require(X, np.int64, ["C", "W"]) for X in (starts, tiles, which))
    blocks = np.require(blocks, bool, ["C", "W"])
    eight_pairs = blocks.view(np.int64).reshape(len(blocks), 2, HALF, 2, HALF // 8)
    of_blocks = eight_pairs.any((2, 4)).reshape(-1, 4) @ np.array([1, 2, 4, 8])
    quarters = np.append(of_blocks, ALL_QUARTERS)[which]  # which is −1 for a tile without a block
    return pairs._replace(of=of, starts=starts, tiles=tiles, which=which, blocks=blocks, quarters=quarters)
