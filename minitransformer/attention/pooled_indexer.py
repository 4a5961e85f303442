"""Pooled attention whose blocks are many and short: two neighbours are pooled together, and an indexer chooses among them.

    E_b  = RMS(Σ_t P_bt ⊙ a_{b−1,t} + Σ_t P_b,s+t ⊙ e_{b,t}) γ_e    a row for each complete block, of 2s tokens
    I_ib = Σ_h w_ih relu(⟨q^I_ih, k^I_b⟩) / √(H_I d_I)               k^I_b is pooled as E_b is, narrow, by matrices of its own
    Y_h  = softmax(Q_h [E; C]ᵀ/√d) [E; C] W_o,h                      of the last w rows of C, of the k complete blocks that
                                                                     query i wants most, the same for all heads, and a sink

A token has a row a for the block behind its own and a row e for its own, [a | e] = X W_e, and so two rows of logits, X W_z. P is
one softmax over all 2s tokens, for each channel by itself, of these logits and of a β for each place; the first block has none
before it. No gradient goes through the choice: the indexer learns from a loss of its own, as in selected/indexer.py, which sends
nothing back to the tokens.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries, uniform, zero_if_minus_infinite
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import seen_tokens
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.multi_head import HeadsPullback
from minitransformer.attention.pool_pairs import pool_pairs
from minitransformer.attention.pooled import Pooled
from minitransformer.attention.pooled_layer import BlocksPullback, PooledLayer, PooledLayerPullback, turns
from minitransformer.attention.projected import Projection
from minitransformer.attention.selected.chosen import ChosenPullback, attend_to_chosen
from minitransformer.attention.selected.gathered import rows_at
from minitransformer.attention.selected.indexer import LessonPullback, lesson, most_wanted
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.gather_scatter import merge_heads, split_heads, unbroadcast
from minitransformer.marks import DecodingState
from minitransformer.positions.rope import RoPE, RotatePullback
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Bool, Float, Int, checked

# ----------------------------------------------------------------------------------------------- attention


class ChosenRowsPullback(AroundAttention):
    """That of attention to chosen keys, whose Y and L know of the sink, L⁺ = ln(e^b + Σ_j e^{S_ij}).

    A = exp(S − L⁺),  dS = A ⊙ (dA − D),  db = −Σ_i e^{b−L⁺} D_i. What attention sends to a row as key and as value is added
    up; all heads share the rows.
    """

    attention: ChosenPullback
    sink: Array
    blocks: int

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        L, D = self.attention.L, np.vecdot(dY, self.attention.Y)
        db = -(np.exp(self.sink[:, None] - zero_if_minus_infinite(L)) * D).sum(-1)
        drows = (dK + dV)[..., 0, :, :]
        return dQ, drows[..., self.blocks :, :], drows[..., : self.blocks, :], unbroadcast(db, self.sink.shape)


@checked
def chosen_rows_attention(
    Q: Float[Array, "*batch heads n d"],
    C: Float[Array, "*batch m d"],
    E: Float[Array, "*batch blocks d"],
    sink: Float[Array, "heads"],
    chosen: Int[Array, "*batch n k"],
    *,
    window: int,
    mask: Bool[Array, "*batch m"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads n d"], ChosenRowsPullback]:
    """One softmax over the last w rows of C and over those rows of E that each query has chosen. A row is key and value.

    chosen   (*batch, n, k), the rows of E that each query sees, −1 for none; all heads see the same ones
    window   w: a query sees itself and the w − 1 rows before it
    mask     True where a token is there
    scale    1/√d by default
    cost     O(n (w + k) d) time, O(n (w + k) + m d) memory. Always causal, if the choice is
    returns  Y and a pullback: dQ, dC, dE, dsink = pullback(dY)
    raises   TypeError for a wrong shape or dtype; ValueError for more queries than rows, or a choice that does not fit
    """
    one_dtype(Q=Q, C=C, E=E, sink=sink)
    (n, m), count = (Q.shape[-2], C.shape[-2]), E.shape[-2]
    refuse_more_queries(n, m)
    ordered = np.sort(chosen, -1)
    twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
    if (ordered < -1).any() or (ordered >= count).any() or twice.any():
        raise ValueError(f"chosen: should be rows of E, from 0 to {count - 1} and each at most once, or −1 for none")
    near = np.arange(m - n, m)[:, None] + np.arange(1 - min(window, m), 1)  # rows of C
    if mask is not None:
        near = np.where(np.take(mask, np.maximum(near, 0), -1), near, -1)
    near = np.where(near < 0, -1, near + count)
    lists = np.concatenate([chosen, np.broadcast_to(near, (*chosen.shape[:-1], near.shape[-1]))], -1)
    rows = np.concatenate([E, C], -2)[..., None, :, :]
    _, attention = attend_to_chosen(Q, rows, rows, lists, 1, causal=False, weigh=True, scale=scale)
    L = np.logaddexp(attention.L, sink[:, None])
    share = np.exp(attention.L - zero_if_minus_infinite(L))  # of the keys; the sink has the rest
    Y = share[..., None] * attention.Y
    return Y, ChosenRowsPullback(attention._replace(Y=Y, L=L), sink, count)


# ----------------------------------------------------------------------------------------------- the layer


class PooledIndexerParams(NamedTuple):
    """As `PooledParams`, but W_e and W_z are (D, 2 d), [for the block behind | for its own], and beta is (2 s, d).

    For the indexer, queries by U_q (D, H_I d_I) and weights by U_w (D, H_I); its keys by U_e and U_z (D, 2 d_I), beta_i
    (2 s, d_I) and gamma_i (d_I,), as E is made.
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
    U_q: Array
    U_w: Array
    U_e: Array
    U_z: Array
    beta_i: Array
    gamma_i: Array


class PooledIndexerPullback(PooledLayerPullback):
    """Two ways back that never meet: dY to the rows and to X, and the added loss to the indexer alone."""

    q: HeadsPullback
    c: HeadsPullback
    blocks: BlocksPullback
    attention: ChosenRowsPullback
    turn: RotatePullback
    o: LinearPullback
    heads: int
    lesson: LessonPullback
    asks: HeadsPullback
    w: LinearPullback
    small: BlocksPullback
    weight: float
    added: float
    dadded: float = 0.0

    def __call__(self, dY: Array) -> tuple[PooledIndexerParams, Array]:
        dparams, dX = self.to_rows(dY)
        dQ_i, dK_i, dw = self.lesson(self.weight * self.dadded)
        _, dU_q, _, _ = self.asks(dQ_i)
        _, dU_w = self.w(dw)
        _, *dsmall = self.small(dK_i)
        return PooledIndexerParams(*dparams, dU_q, dU_w, *dsmall), dX  # type: ignore[call-arg]


class PooledIndexerState(DecodingState):
    """What is left of `length` tokens: the last rows of C, those of complete blocks, and the keys of the indexer for these.

    And of the last complete block and what follows it X W_e and X W_z, X U_e and X U_z: a block is pooled with the one before.
    """

    recent: Recent
    blocks: KeysValues
    small: KeysValues
    E: Array
    Z: Array
    E_i: Array
    Z_i: Array
    length: int

    many = ("E", "Z", "E_i", "Z_i")


@frozen
class PooledIndexer(PooledLayer):
    """Short blocks, each pooled with the one before it, of which an indexer chooses those that a query sees; and the last tokens.

    chosen       k blocks for each query, the same ones for all heads; 512 in DeepSeek-V4-Flash, where a block has 4 tokens
    small        H_I, heads of the indexer, 2 by default
    narrow       d_I, their width, 8 by default, of which as many channels are turned as of a row
    weight       what the indexer's loss is multiplied by, 1 by default
    block, window, head_width, rotary, base    as in `Pooled`

    The loss is KL(p_i ‖ softmax I_i) over the chosen blocks, with p_i what the heads give to them, sinks left out, as in
    `Indexer`; the report prints none, and the code in huggingface/transformers has none. Equal blocks have equal scores but for
    rounding: which of them is chosen may then differ between a text and its steps.

    source       DeepSeek-AI 2026 (DeepSeek-V4), its compressed sparse attention, equations 9 to 17. There queries, the indexer's
                 too, come from a latent
    cost         O(n (w + k) d) for each head, O(n² H_I d_I / s) to score the blocks. To learn it remembers the keys that each
                 query has chosen, O(n k d_I) numbers. A state has w + n/s rows for all heads, and n/s of the indexer. Always
                 causal
    raises       ValueError as `Pooled`, and for an indexer of fewer than two channels
    """

    chosen: int = 16
    small: int = 2
    narrow: int = 8
    weight: NonNegativeNumber = 1.0

    cost = "O(n² small narrow/block + n (window + chosen))"
    remembers = "the last rows, and two for each block"
    adds_loss = True
    apart = ("U_q", "U_w", "U_e", "U_z", "beta_i", "gamma_i")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.narrow < 2:
            raise ValueError(f"narrow: {self.narrow} should be at least 2, for channels are turned in pairs")

    @cached_property
    def rotate_small(self) -> RoPE:
        """What turns the indexer's queries and keys."""
        return RoPE(self.narrow, self.base, part=min(self._rotary, self.narrow // 2 * 2))

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> PooledIndexerParams:
        """Projections uniform on ±√(3/rows); gains one; β and sinks zero."""
        own, narrow = self._drawn(rng, dtype, blocks=2), self.narrow
        widths = self.small * narrow, self.small, 2 * narrow, 2 * narrow
        indexer = [uniform(rng, (self.width, columns), dtype) for columns in widths]
        indexer += [np.zeros((2 * self.block, narrow), dtype), np.ones(narrow, dtype)]
        return PooledIndexerParams(*own, *indexer)

    @checked
    def __call__(
        self, params: PooledIndexerParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = True,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], PooledIndexerPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). Raises ValueError for a mask that is not of keys alone, (*batch, 1, 1, n)."""
        self.refuse(causal=causal)
        seen, n = seen_tokens(mask, X), X.shape[-2]
        Q, q = self._rows(X, params.W_q, params.gamma_q, self.heads)
        C, c = self._rows(X, params.W_c, params.gamma_c, 1)
        own = params.W_e, params.W_z, params.beta, params.gamma_e
        E, blocks = self._blocks(pool_pairs, X, *own, self.rotate, seen)
        own = params.U_e, params.U_z, params.beta_i, params.gamma_i
        K_i, small = self._blocks(pool_pairs, X, *own, self.rotate_small, seen)
        Q_i, asks = linear(X, params.U_q)
        Q_i, turn_i = self.rotate_small.turn(split_heads(Q_i, self.small), length=n)
        w, of_w = linear(X, params.U_w)
        among = None if seen is None else self._there(seen)
        chosen = self._choose(Q_i, w, K_i, 0, among)
        Y, attention = chosen_rows_attention(Q, C[..., 0, :, :], E, params.sink, chosen, window=self.window, mask=seen)
        given = attention.attention.weights[..., : chosen.shape[-1]]
        loss, back = lesson(Q_i, K_i, w, chosen, given, seen)
        turned_back, turn = turns(self.rotate, slice(0, n), X.dtype)
        Y, o = linear(merge_heads(turned_back(Y)), params.W_o)
        rows = q, c, blocks, attention, turn, o, self.heads
        indexer = back, HeadsPullback(asks, self.small, turn_i), of_w, small, self.weight, float(self.weight * loss)
        return Y, PooledIndexerPullback(*rows, *indexer)

    def _there(self, seen: Array) -> Array:
        """Whether any token of a block, or of the one before it, is there, (*batch, 1, blocks)."""
        count = seen.shape[-1] // self.block
        own = np.any(seen[..., : count * self.block].reshape(*seen.shape[:-1], count, self.block), axis=-1)
        before = np.concatenate([np.zeros_like(own[..., :1]), own[..., :-1]], -1)
        return (own | before)[..., None, :]

    def _choose(self, Q: Array, w: Array, K: Array, first: int, among: Array | None = None) -> Array:
        """The blocks that queries at the positions first, first + 1, … see, (*batch, n, k): complete ones."""
        ends = np.arange(first + 1, first + 1 + Q.shape[-2]) // self.block
        return most_wanted(Q, w, K, min(self.chosen, K.shape[-2]), ends, among)

    def projections(self, params: PooledIndexerParams) -> list[Projection]:
        """As in `Pooled`, and for the indexer its queries, not yet turned, and weights; and what its keys are pooled from."""
        asks = Projection(params.U_q, None, self.small, self.narrow)
        rows = (Projection(W, None, None, W.shape[1]) for W in (params.U_w, params.U_e, params.U_z))
        return [*super().projections(params), asks, *rows]

    def _go_on(
        self, params: PooledIndexerParams, arrays: list[Array], state: PooledIndexerState | None
    ) -> tuple[Array, PooledIndexerState]:
        """O((w + k) d) for each head and one token, and O(m H_I d_I/s) to score. A block is pooled once, when it is complete."""
        Q, C, rows, Z, Q_i, w, rows_i, Z_i = arrays
        if state is None:
            state = self._nothing(C, rows, rows_i)
        self._must_fit(state)
        n, first, before = Q.shape[-2], state.length, state.recent
        state = self._longer(params, C, [rows, Z, rows_i, Z_i], state)
        E = state.blocks.keys[..., 0, :, :]
        Q_i, _ = self.rotate_small.turn(Q_i, first=first, length=first + n)
        chosen = self._choose(Q_i, w, state.small.keys, first)
        if n == 1:  # as many as it may choose are there
            recent = state.recent
            near = recent.K[..., max(recent.end - self.window, 0) : recent.end, :]
            seen = np.concatenate([rows_at(E, chosen), near], -2) if chosen.size else near
            Y = attend_to_buffer(Q, seen, seen, seen.shape[-2], sink=params.sink)
        else:
            near = np.concatenate([before.keys, C], -2)[..., 0, :, :]
            Y, _ = chosen_rows_attention(Q, near, E, params.sink, chosen, window=self.window)
        turned_back, _ = turns(self.rotate, slice(first, first + n), Y.dtype)
        return turned_back(Y), state

    def _nothing(self, C: Array, rows: Array, rows_i: Array) -> PooledIndexerState:
        """The state before the first token."""
        none, none_i = C[..., :0, :], rows_i[..., :0, : self.narrow]
        recent = Recent.of(none, none[..., :0], Kept(0, self.window))
        blocks, small = (KeysValues.of(X, X[..., :0]) for X in (none, none_i))
        E, E_i = rows[..., :0, :], rows_i[..., :0, :]
        return PooledIndexerState(recent, blocks, small, E, E, E_i, E_i, 0)

    def _longer(
        self, params: PooledIndexerParams, C: Array, new: list[Array], state: PooledIndexerState
    ) -> PooledIndexerState:
        """The state after new tokens, whose rows and logits are these."""
        s, known = self.block, state.blocks.length
        rows, Z, rows_i, Z_i = (
            np.concatenate(pair, -2) for pair in zip((state.E, state.Z, state.E_i, state.Z_i), new, strict=True)
        )
        blocks, small, old = state.blocks, state.small, min(known, 1)  # old: how many blocks of these rows are known
        if (complete := rows.shape[-2] // s) > old:
            first, upto = (known - old) * s, slice(0, complete * s)
            E, _ = pool_pairs(rows[..., upto, :], Z[..., upto, :], params.beta)
            E, _ = self._placed(E, params.gamma_e, self.rotate, first)
            K_i, _ = pool_pairs(rows_i[..., upto, :], Z_i[..., upto, :], params.beta_i)
            K_i, _ = self._placed(K_i, params.gamma_i, self.rotate_small, first)
            E, K_i = E[..., None, old:, :], K_i[..., old:, :]
            blocks, small = blocks.extended(E, E[..., :0]), small.extended(K_i, K_i[..., :0])
            rows, Z, rows_i, Z_i = (X[..., (complete - 1) * s :, :].copy() for X in (rows, Z, rows_i, Z_i))
        recent = state.recent.extended(C, C[..., :0])
        return PooledIndexerState(recent, blocks, small, rows, Z, rows_i, Z_i, state.length + C.shape[-2])

    def _must_fit(self, state: PooledIndexerState) -> None:
        """Raise ValueError unless all parts of a state are of the same tokens."""
        known, waiting = state.blocks.length, state.E.shape[-2]
        there = max(known - 1, 0) * self.block + waiting
        alike = {X.shape[-2] for X in (state.Z, state.E_i, state.Z_i)} == {waiting} and state.small.length == known
        if {there, state.recent.length} != {state.length} or not alike:
            raise ValueError(
                f"state: blocks, last rows and what waits for its block should all be of {state.length} tokens"
            )


def pooled(
    width: int, heads: int, block: int = 16, window: int = 32, head_width: int | None = None, rotary: int | None = None,
    base: float = 10000.0, chosen: int | None = None, small: int | None = None, narrow: int | None = None,
    weight: float | None = None,
) -> Pooled | PooledIndexer:  # fmt: skip
    """The layer that "pooled" names in a model, or "pooled:block=4,chosen=16": one whose queries choose among the blocks.

    chosen                  as in `PooledIndexer`; None for `Pooled`, where all complete blocks are seen
    small, narrow, weight   of the indexer; None for those that `PooledIndexer` has by default
    raises                  ValueError for an option of the indexer where nothing is chosen
    """
    own = {"chosen": chosen, "small": small, "narrow": narrow, "weight": weight}
    given: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
    if given and chosen is None:
        raise ValueError(
            f"{next(iter(given))}: is of an indexer, and there is one only where blocks are chosen; say chosen=16"
        )
    kind = Pooled if chosen is None else PooledIndexer
    return kind(width, heads, block, window, head_width, rotary, base, **given)
