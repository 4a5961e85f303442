"""Pooled attention: what is near is seen token by token, and the rest in blocks, each of them pooled into one row.

    C    = RMS(X W_c) γ_c                                   a row for each token, (m, d)
    P_bt = softmax_t ((X W_z)_{bs+t} + β_t)                 for each channel by itself, over the s tokens of block b
    E_b  = RMS(Σ_t P_bt ⊙ (X W_e)_{bs+t}) γ_e               a row for each complete block, (⌊m/s⌋, d)
    Y_h  = softmax(Q_h [E; C]ᵀ/√d) [E; C] W_o,h             of the last w rows of C, of all complete blocks, and a sink

A row is key and value at once, and all heads share it. So positions have to be undone: where a key is turned by R_j, so is the
value, and what query i takes from it is turned back, R_{−i} Σ_j A_ij R_j c_j = Σ_j A_ij R_{j−i} c_j, which knows distances only.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.block_sparse import (
    TILE,
    BlockPattern,
    block_sparse_attention,
    complete_blocks,
    keys_of_both,
)
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import seen_tokens, where_seen
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.multi_head import HeadsPullback
from minitransformer.attention.pooled_layer import BlocksPullback, PooledLayer, PooledLayerPullback, turns
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear, softmax
from minitransformer.gather_scatter import merge_heads, unbroadcast
from minitransformer.marks import DecodingState
from minitransformer.positions.rope import RotatePullback
from minitransformer.pullback import Pullback
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Bool, Float, checked


class PoolPullback(Pullback):
    """E = Σ_t P_t ⊙ c_t, P = softmax(Z + β) for each channel:  dc_t = P_t ⊙ dE,  dz_t = P_t ⊙ (c_t − E) ⊙ dE,  dβ = Σ_b dz_b.

    What stands behind the last complete block has no part in it, and gets zeros.
    """

    P: Array  # (*batch, blocks, s, d)
    C: Array  # the same
    E: Array  # (*batch, blocks, d)
    m: int

    def __call__(self, dE: Array) -> tuple[Array, Array, Array]:
        dC = self.P * dE[..., None, :]
        dZ = dC * (self.C - self.E[..., None, :])
        return self._rows(dC), self._rows(dZ), unbroadcast(dZ, dZ.shape[-2:])

    def _rows(self, blocks: Array) -> Array:
        *batch, count, s, d = blocks.shape
        rows = np.zeros((*batch, self.m, d), blocks.dtype)
        rows[..., : count * s, :] = blocks.reshape(*batch, count * s, d)
        return rows


@checked
def pool_blocks(
    C: Float[Array, "*batch m d"],
    Z: Float[Array, "*batch m d"],
    beta: Float[Array, "s d"],
    *,
    mask: Bool[Array, "*batch m"] | None = None,
) -> tuple[Float[Array, "*batch blocks d"], PoolPullback]:
    """Each s rows become one, an average of its own for each channel, weighted as the tokens say.

        E_b = Σ_t P_bt ⊙ c_{bs+t},      P_bt = softmax_t (z_{bs+t} + β_t),   t = 0 … s − 1

    Z        the logits of the weights, a number for each channel
    beta     what is added to them for each place within a block; it has as many rows as a block
    mask     True where a token is there; a block without any gives zeros
    source   DeepSeek-AI 2026 (DeepSeek-V4), equations 20 to 23
    cost     O(m d). Rows behind the last complete block are not used
    returns  E, before any norm, with ⌊m/s⌋ rows and a pullback: dC, dZ, dbeta = pullback(dE)
    raises   TypeError for a wrong shape or dtype, ValueError for a beta without rows
    """
    one_dtype(C=C, Z=Z, beta=beta)
    s, (*batch, m, d) = len(beta), C.shape
    if s == 0:
        raise ValueError("beta: should have a row for each place in a block, at least one")
    count = m // s

    def in_blocks(X: Array) -> Array:
        return X[..., : count * s, :].reshape(*batch, count, s, d)

    seen = None if mask is None else in_blocks(np.broadcast_to(mask[..., None], C.shape))
    rows = where_seen(seen, in_blocks(C))
    P = softmax((in_blocks(Z) + beta).mT, mask=None if seen is None else seen.mT)[0].mT
    E = (P * rows).sum(-2)
    return E, PoolPullback(P, rows, E, m)


class PooledAttentionPullback(AroundAttention):
    """What attention sends to a row as key and as value is added up; all heads share the rows. A is (*batch, H, n, rows)."""

    attention: Pullback
    blocks: int
    m: int

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK, dV, *dsink = self.attention(dY)
        drows = (dK + dV)[..., 0, :, :]
        return dQ, drows[..., drows.shape[-2] - self.m :, :], drows[..., : self.blocks, :], *dsink


@checked
def pooled_attention(
    Q: Float[Array, "*batch heads n d"],
    C: Float[Array, "*batch m d"],
    E: Float[Array, "*batch blocks d"],
    sink: Float[Array, "*own"] | None = None,
    *,
    block: int,
    window: int,
    mask: Bool[Array, "*batch m"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads n d"], PooledAttentionPullback]:
    """One softmax over the last rows of C and over the rows of all complete blocks. A row is key and value, for all heads.

        y_i = Σ_j A_ij c_j + Σ_b A_ib e_b      of the rows j = i − w + 1 … i, and the blocks b with (b + 1) s ≤ i + 1

    E        a row for each complete block of the m tokens, as `pool_blocks` makes them
    sink     (H,), a score that takes weight and has no value; None for none
    block    s, tokens in a block
    window   w: a query sees itself and the w − 1 rows before it, whether or not their block is complete
    mask     True where a token is there; a block without any is not seen
    scale    1/√d by default
    source   DeepSeek-AI 2026 (DeepSeek-V4), its heavily compressed attention
    cost     O(n (w + m/s) d) time, O(n + m) memory, in the tier "numpy" O(n m d) and O(n m). Always causal
    returns  Y and a pullback: dQ, dC, dE = pullback(dY), and dsink if there is a sink
    raises   TypeError for a wrong shape or dtype; ValueError for more queries than rows, another number of blocks, or a sink that
             does not fit
    """
    one_dtype(Q=Q, C=C, E=E, sink=sink)
    n, m = Q.shape[-2], C.shape[-2]
    refuse_more_queries(n, m)
    if E.shape[-2] != m // block:
        raise ValueError(f"E: {so_many(E.shape[-2], 'row')} for {m // block} complete blocks of {block} in {m} tokens")
    return _attend(Q, C, E, sink, block, window, m, mask, scale)


def _attend(
    Q: Array, C: Array, E: Array, sink: Array | None, block: int, window: int, length: int,
    mask: Array | None = None, scale: float | None = None,
) -> tuple[Array, PooledAttentionPullback]:  # fmt: skip
    """The same, where C may have only the last rows of `length`. Keys are E, zeros up to a whole tile, and C."""
    n, m, count = Q.shape[-2], C.shape[-2], E.shape[-2]
    filled = np.zeros((*E.shape[:-2], -count % TILE, E.shape[-1]), E.dtype)
    rows = np.concatenate([E, filled, C], -2)[..., None, :, :]
    if mask is not None:
        blocks = mask[..., : count * block].reshape(*mask.shape[:-1], count, block).any(-1)
        mask = np.concatenate([blocks, np.zeros(filled.shape[:-1], bool), mask], -1)[..., None, None, :]
    pattern = _pattern(length - n, n, m, count, block, window)
    Y, attention = block_sparse_attention(Q, rows, rows, pattern, None, sink, mask=mask, scale=scale)
    return Y, PooledAttentionPullback(attention, count, m)


@functools.lru_cache(maxsize=16)
def _pattern(first: int, n: int, m: int, count: int, block: int, window: int) -> BlockPattern:
    """Complete blocks, and beside them the last of m rows, for queries at first … first + n − 1."""
    blocks = complete_blocks(first, n, count, block)
    whole = blocks._replace(m=-(-count // TILE) * TILE)  # nobody sees the rows that fill the last tile
    return keys_of_both(whole, Window(window - 1)(n, m, causal=True))


# --------------------------------------------------------------------------------------------- the layer


class PooledParams(NamedTuple):
    """For queries W_q (D, H·d) with the gain gamma_q (d,); for the rows of tokens W_c (D, d) and gamma_c (d,).

    For those of blocks W_e and gamma_e, for the logits of their weights W_z (D, d) and beta (s, d); a sink (H,), one for each
    head; for the output W_o (H·d, D).
    """

    W_q: Array
    gamma_q: Array
    W_c: Array
    gamma_c: Array
    W_e: Array
    W_z: Array
    beta: Array
    gamma_e: Array
    sink: Array
    W_o: Array


class PooledPullback(PooledLayerPullback):
    """To the rows of tokens and of blocks, and through them to X."""

    q: HeadsPullback
    c: HeadsPullback
    blocks: BlocksPullback
    attention: PooledAttentionPullback
    turn: RotatePullback
    o: LinearPullback
    heads: int

    def __call__(self, dY: Array) -> tuple[PooledParams, Array]:
        dparams, dX = self.to_rows(dY)
        return PooledParams(*dparams), dX


class PooledState(DecodingState):
    """What is left of `length` tokens: the last rows of C, and those of complete blocks; X W_e and X W_z of what follows them."""

    recent: Recent
    blocks: KeysValues
    E: Array
    Z: Array
    length: int

    many = ("E", "Z")


@frozen
class Pooled(PooledLayer):
    """The last tokens one by one, and all that came before in blocks, pooled into one row each; a row is key and value.

    block        s, tokens in a block; 128 in DeepSeek-V4
    window       w, how many of the last tokens are seen one by one, whether or not their block is complete; 128 there
    head_width   d, the width of a row and of each head; D/H by default, and 8 D/H in DeepSeek-V4-Flash
    rotary       how many channels are turned, the first ones; half of them if None, in whole pairs. A block stands where its
                 first token does
    base         of their angles, as in RoPE. So it knows where tokens stand, and needs no other encoding
    chosen, …    in a model, "pooled:chosen=16" lets queries choose among the blocks; small, narrow and weight are of its indexer,
                 as `PooledIndexer` says
    source       DeepSeek-AI 2026 (DeepSeek-V4), its heavily compressed attention. There gamma_q is fixed at one, queries come
                 from a latent, and W_o is a product of two
    cost         O(n (w + n/s) d) for each head, besides the projections. Keeps w + n/s rows for all heads, and two for each
                 token whose block is not complete. Always causal
    raises       ValueError for a width that is not divisible by the heads, and for an odd number of turned channels
    """

    cost = "O(n²/block + n window)"
    remembers = "the last rows, and one for each block"

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> PooledParams:
        """Projections uniform on ±√(3/rows); gains one; β and sinks zero."""
        return PooledParams(*self._drawn(rng, dtype))

    @checked
    def __call__(
        self, params: PooledParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = True,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], PooledPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). Raises ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)."""
        self.refuse(causal=causal)
        seen = seen_tokens(mask, X)
        Q, q = self._rows(X, params.W_q, params.gamma_q, self.heads)
        C, c = self._rows(X, params.W_c, params.gamma_c, 1)
        own = params.W_e, params.W_z, params.beta, params.gamma_e
        E, blocks = self._blocks(pool_blocks, X, *own, self.rotate, seen)
        Y, attention = pooled_attention(
            Q, C[..., 0, :, :], E, params.sink, block=self.block, window=self.window, mask=seen
        )
        back, turn = turns(self.rotate, slice(0, X.shape[-2]), X.dtype)
        Y, o = linear(merge_heads(back(Y)), params.W_o)
        return Y, PooledPullback(q, c, blocks, attention, turn, o, self.heads)

    def _go_on(self, params: PooledParams, arrays: list[Array], state: PooledState | None) -> tuple[Array, PooledState]:
        """O((w + m/s) d) for each head and one token after m others: a block is pooled once, when it is complete."""
        Q, C, rows, Z = arrays
        if state is None:
            nothing = C[..., :0, :]
            recent = Recent.of(nothing, nothing[..., :0], Kept(0, self.window))
            blocks = KeysValues.of(nothing, nothing[..., :0])
            state = PooledState(recent, blocks, rows[..., :0, :], Z[..., :0, :], 0)
        self._must_fit(state)
        n, first = Q.shape[-2], state.length
        rows, Z, blocks = np.concatenate([state.E, rows], -2), np.concatenate([state.Z, Z], -2), state.blocks
        if over := rows.shape[-2] // self.block * self.block:
            E, _ = pool_blocks(rows[..., :over, :], Z[..., :over, :], params.beta)
            E, _ = self._placed(E, params.gamma_e, self.rotate, blocks.length * self.block)
            blocks = blocks.extended(E[..., None, :, :], E[..., None, :, :0])
            rows, Z = rows[..., over:, :].copy(), Z[..., over:, :].copy()
        recent = state.recent.extended(C, C[..., :0])
        if n == 1:  # sees them all
            seen = np.concatenate([blocks.keys, recent.K[..., max(recent.end - self.window, 0) : recent.end, :]], -2)
            Y = attend_to_buffer(Q, seen, seen, seen.shape[-2], sink=params.sink)
        else:
            near = np.concatenate([state.recent.keys, C], -2)[..., 0, :, :]
            E = blocks.keys[..., 0, :, :]
            Y, _ = _attend(Q, near, E, params.sink, self.block, self.window, first + n)
        back, _ = turns(self.rotate, slice(first, first + n), Y.dtype)
        return back(Y), PooledState(recent, blocks, rows, Z, first + n)

    def _must_fit(self, state: PooledState) -> None:
        """Raise ValueError unless all parts of a state are of the same tokens."""
        there = state.blocks.length * self.block + state.E.shape[-2]
        if {there, state.recent.length} != {state.length} or state.Z.shape[-2] != state.E.shape[-2]:
            raise ValueError(
                f"state: blocks, last rows and what waits for its block should all be of {state.length} tokens"
            )
