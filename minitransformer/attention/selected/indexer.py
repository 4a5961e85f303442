"""An indexer: a small network scores all keys for each query, attention looks at the best of them, and the network learns to
score as attention weighs. Replaces the stage "pattern (which pairs)".

    I_ij = Σ_h w_ih relu(⟨q^I_ih, k^I_j⟩) / √(H_I d_I)         few heads, narrow: cheap for all pairs
    i sees the k keys with the largest I_ij, the same for all heads
    its loss: KL(p_i ‖ softmax_j I_ij) over the keys that i sees,    p_i: the mean over the heads of row i of A

The choice is constant, so the loss of the model gives the indexer no gradient. It has a loss of its own, which gives the model
none: what the indexer reads, and p, are constants to it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, one_dtype, scale_for, zero_if_minus_infinite
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues, WithPast
from minitransformer.attention.core import Core
from minitransformer.attention.merge import log_sum_exp
from minitransformer.attention.selected.chosen import (
    ChosenPullback,
    EncodedChosenPullback,
    attend_to_chosen,
    largest_places,
    parts,
)
from minitransformer.attention.selected.gathered import only_those_there, rows_at, sum_of_rows, who_is_there
from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.gather_scatter import merge_heads
from minitransformer.positions.encoding import Encoding, queries_last
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import NonNegativeNumber
from minitransformer.typing import Array, Bool, Float, checked


class IndexScoresPullback(Pullback):
    """I = c Σ_h w_h r_h with r_h = relu(s_h), s_h = q_h Kᵀ:  dw_ih = c Σ_j dI_ij r_hij,  ds_hij = c w_ih dI_ij where s > 0.

    Then dq_h = ds_h K and dK = Σ_h ds_hᵀ q_h.
    """

    Q: Array
    K: Array
    w: Array
    R: Array
    scale: float

    def __call__(self, dI: Array) -> tuple[Array, Array, Array]:
        dI = self.scale * dI[..., None, :, :]
        dw = (dI * self.R).sum(-1).mT
        dS = as_one_axis(np.where(self.R > 0, self.w.mT[..., None] * dI, dI.dtype.type(0)), -3, -1)
        return (dS @ self.K).reshape(self.Q.shape), dS.mT @ as_one_axis(self.Q, -3, -1), dw


@checked
def index_scores(
    Q: Float[Array, "*batch heads n d"], K: Float[Array, "*batch m d"], w: Float[Array, "*batch n heads"]
) -> tuple[Float[Array, "*batch n m"], IndexScoresPullback]:
    """How much query i wants key j: the sum over small heads of their positive scores, weighted by the query.

        I_ij = Σ_h w_ih relu(⟨q_ih, k_j⟩) / √(H d)

    source   DeepSeek-V3.2-Exp report (1); the factor as in their code. The weights matter for the order of the keys
    cost     O(n m H d) time and O(n m H) memory
    returns  I and a pullback: dQ, dK, dw = pullback(dI)
    """
    one_dtype(Q=Q, K=K, w=w)
    scale = Q.dtype.type(scale_for(Q.shape[-3] * Q.shape[-1]))
    S = as_one_axis(Q, -3, -1) @ K.mT  # the heads have the same keys, so their queries are the rows of one product
    R = np.maximum(S, 0).reshape(*Q.shape[:-1], K.shape[-2])
    return scale * (w.mT[..., None] * R).sum(-3), IndexScoresPullback(Q, K, w, R, scale)


class IndexLossPullback(Pullback):
    """∂KL(p ‖ softmax I)/∂I_ij = softmax(I)_ij − p_ij in each row that sees something, divided by the number of such rows."""

    A: Array
    p: Array
    rows: int

    def __call__(self, dloss: Any) -> Array:
        return (self.A - self.p) * self.A.dtype.type(dloss / max(self.rows, 1))


@checked
def index_loss(
    scores: Float[Array, "*batch n m"], p: Float[Array, "*batch n m"], sees: Bool[Array, "*batch n m"]
) -> tuple[Any, Any]:
    """The mean over the rows of KL(p ‖ softmax I), both over the pairs that are seen: how far the indexer is from attention.

    p        the weights of attention, constant: rows sum to one over the pairs that are seen, and have zeros elsewhere
    source   DeepSeek-V3.2-Exp report (3), (4)
    returns  loss and a pullback: dI = pullback(dloss)
    """
    one_dtype(scores=scores, p=p)
    I_seen = np.where(sees, scores, scores.dtype.type(-np.inf))
    log_A = np.where(sees, scores - zero_if_minus_infinite(log_sum_exp(I_seen))[..., None], scores.dtype.type(0))
    log_p = np.log(np.where(p > 0, p, 1))
    rows = int(sees.any(-1).sum())
    loss = (p * (log_p - log_A)).sum() / max(rows, 1)
    return loss, IndexLossPullback(np.where(sees, np.exp(log_A), scores.dtype.type(0)), p, rows)


# ----------------------------------------------------------------------------------- its choice, and what it learns


def most_wanted(Q: Array, w: Array, K: Array, k: int, ends: Array, among: Array | None = None) -> Array:
    """The k keys that each query wants most, (*batch, n, k), in rising order, −1 first where there are fewer.

    Q, w, K  of `index_scores`; only the scores of some queries are in memory at a time
    ends     (n,), rising: how many keys each query may choose from, counted from the first
    among    True at those of them that it may choose, broadcast to (*batch, n, m); None for all
    """
    n, m = Q.shape[-2], K.shape[-2]
    if n == 1 and among is None:
        return largest_places(index_scores(Q, K[..., : ends[0], :], w)[0], k, ends)
    chosen = np.empty((*w.shape[:-1], k), int)
    for rows in parts(n, math.prod(Q.shape[:-2]) * m):
        stop = ends[rows][-1]
        index, _ = index_scores(Q[..., rows, :], K[..., :stop, :], w[..., rows, :])
        own = None if among is None else np.broadcast_to(among, (*among.shape[:-2], n, m))[..., rows, :stop]
        chosen[..., rows, :] = largest_places(index, k, ends[rows], own)
    return chosen


class LessonPullback(Pullback):
    """From the loss to what the scores are made of. Each query, with the keys that it has chosen, is a sample of its own."""

    scores: IndexScoresPullback
    loss: IndexLossPullback
    chosen: Array
    m: int

    def __call__(self, dloss: Any) -> tuple[Array, Array, Array]:
        dQ, dK, dw = self.scores(self.loss(dloss)[..., None, :])
        return dQ[..., 0, :].swapaxes(-2, -3), sum_of_rows(dK, self.chosen, self.m), dw[..., 0, :]


def lesson(
    Q: Array, K: Array, w: Array, chosen: Array, weights: Array, there: Array | None = None
) -> tuple[Any, LessonPullback]:
    """The loss of an indexer over the keys that were chosen, and no others.

    Q, K, w  of `index_scores`
    chosen   (*batch, n, k), −1 for none
    weights  what attention gives to them, summed over the heads
    there    (*batch, n), whether a query is there; padding has nothing to teach. None if all are
    returns  loss and a pullback: dQ, dK, dw = pullback(dloss)
    """
    one_query = Q.swapaxes(-2, -3)[..., None, :]
    index, scores = index_scores(one_query, rows_at(K, chosen), w[..., None, :])
    total = weights.sum(-1, keepdims=True)
    taught = total > 0 if there is None else there[..., None] & (total > 0)
    p = np.where(taught, weights / np.where(total > 0, total, 1), 0).astype(weights.dtype, copy=False)
    loss, own = index_loss(index[..., 0, :], p, (chosen >= 0) & taught)
    return loss, LessonPullback(scores, own, chosen, K.shape[-2])


# --------------------------------------------------------------------------------------------- the core


class IndexerParams(NamedTuple):
    """The indexer's projections, of queries (n, H·d) and keys (m, H·d): U_q (H·d, H_I·d_I), U_k (H·d, d_I), U_w (H·d, H_I).

    And the parameters of an encoding of positions.
    """

    U_q: Array
    U_k: Array
    U_w: Array
    encoding: Tree = NoParams()


class IndexerPullback(AroundAttention):
    """Two separate ways back: dY through attention to Q, K and V; the added loss through the scores to the indexer.

    The indexer's inputs, X_q and X_k, get no gradient.
    """

    attention: ChosenPullback | EncodedChosenPullback
    lesson: LessonPullback
    X_q: Array
    X_k: Array
    weight: float
    added: float
    dadded: float = 0.0

    def __call__(self, dY: Array) -> tuple[IndexerParams, Array, Array, Array]:
        dQ, dK, dw = self.lesson(self.weight * self.dadded)

        def of_samples(X: Array, dZ: Array) -> Array:
            return as_one_axis(X, 0, -1).T @ dZ.reshape(-1, dZ.shape[-1])

        dU = of_samples(self.X_q, merge_heads(dQ)), of_samples(self.X_k, dK), of_samples(self.X_q, dw)
        *dencoding, dQ, dK, dV = self.attention(dY)
        return IndexerParams(*dU, *dencoding), dQ, dK, dV


def _for_all_heads(seen: Array, axes: int) -> Array:
    """True where any head sees: `seen` without its axis of heads, the `axes`-th from the end, if it has one."""
    return np.any(seen, axis=-axes) if seen.ndim >= axes else seen


class IndexerState(WithPast):
    """Keys and values of the positions so far, and what the indexer has made of each key, (*batch, length, d_I)."""

    past: KeysValues
    small: KeysValues


@frozen
class Indexer(Core):
    """A cheap network scores all keys, each query looks at the best of them; it learns from a loss of its own.

    heads, d   filled in by the model
    chosen     k keys for each query, the same ones for all heads
    small      H_I, heads of the indexer; narrow: d_I, their width
    weight     what its loss is multiplied by
    encoding   of positions in the scores of the chosen pairs, not in those of the indexer; a model puts its own there

    It reads the queries and keys of all heads, as constants; DeepSeek's reads the tokens, and their latents.
    Equal tokens have equal scores where no position is added to them, but for rounding: which of them is chosen may then differ
    between a text and its steps, and with an encoding so may Y.

    source   DeepSeek-V3.2-Exp report, sparse attention. Its loss is that of their second stage, over the chosen keys
    cost     O(n² H_I d_I) time to score, O(n chosen d) for each head to attend; O(n chosen d_I) memory; O(n² d) and
             O(n²) with an encoding. Can be causal, and so is the choice
    """

    heads: int
    d: int
    chosen: int = 32
    small: int = 2
    narrow: int = 8
    weight: NonNegativeNumber = 1.0
    encoding: Encoding | None = None

    encoding_at = "encoding."
    stage = "pattern"
    cost = "O(n² small narrow + n chosen)"
    remembers = "keys, values and the indexer's keys"
    adds_loss = True
    apart = ("U_q", "U_k", "U_w")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> IndexerParams:
        """Projections uniform on ±√(3/(H d)), and the parameters of the encoding."""
        D = self.heads * self.d
        b = (3 / D) ** 0.5
        widths = self.small * self.narrow, self.narrow, self.small
        own = IndexerParams(*(rng.uniform(-b, b, (D, width)).astype(dtype) for width in widths))
        return own._replace(encoding=super().init(rng, dtype))

    def __call__(
        self, params: IndexerParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, IndexerPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV). Raises ValueError for n > m, or a mask that does not fit."""
        n, m = queries_last(Q, K)
        mask, there = who_is_there(mask, (*Q.shape[:-1], m))
        K, V = only_those_there(there, K, V)
        asks = _for_all_heads(there, 2)[..., m - n :]
        asking, X_k = merge_heads(Q), merge_heads(K)
        (X_q,) = only_those_there(asks, asking)
        queries, w, keys = *self._asked(params, X_q), X_k @ params.U_k
        # a token that no query sees has no part in the lesson, but chooses its keys by its own query
        wanted = (queries, w) if X_q is asking else self._asked(params, asking)
        ends = np.arange(m - n, m) + 1 if causal else np.full(n, m)
        among = None if mask is None else _for_all_heads(mask, 3)
        chosen = most_wanted(*wanted, keys, min(self.chosen, m), ends, among)
        positions: dict[str, Any] = {"encoding": self.encoding, "params": params.encoding}
        Y, attention = attend_to_chosen(Q, K, V, chosen, 1, causal=causal, mask=mask, weigh=True, **positions)
        loss, back = lesson(queries, keys, w, chosen, attention.weights, asks)
        return Y, IndexerPullback(attention, back, X_q, X_k, self.weight, float(self.weight * loss))

    def step(
        self, params: IndexerParams, Q: Array, K: Array, V: Array, *streams: Array, state: IndexerState | None = None
    ) -> tuple[Array, IndexerState]:
        """O(H d H_I d_I + m H_I d_I + H chosen d) for one new token, if there is no encoding. Nothing is learned, so no loss."""
        keys = merge_heads(K) @ params.U_k
        nothing = keys[..., :0]  # what the indexer looks for has no value
        if state is None:
            state = IndexerState(KeysValues.of(K, V), KeysValues.of(keys, nothing))
        elif state.small.length != state.length:
            raise ValueError(
                f"state: {state.small.length} keys of the indexer do not belong to {state.length} positions"
            )
        else:
            state = IndexerState(state.past.extended(K, V), state.small.extended(keys, nothing))
        queries, w = self._asked(params, merge_heads(Q))
        if Q.shape[-2] == 1 and self.encoding is None and (loops := loops_in("chosen_keys")):
            S = w @ np.maximum(queries[..., 0, :] @ state.small.keys.mT, 0)  # I without its factor
            k = min(self.chosen, state.length)
            if (Y := loops.best_keys_of_last(Q, state.past.K, state.past.V, S, k)) is not None:
                return Y, state
        ends = np.arange(state.length - Q.shape[-2], state.length) + 1
        chosen = most_wanted(queries, w, state.small.keys, min(self.chosen, state.length), ends)
        positions: dict[str, Any] = {"encoding": self.encoding, "params": params.encoding}
        return attend_to_chosen(Q, state.past.keys, state.past.values, chosen, 1, causal=True, **positions)[0], state

    def _asked(self, params: IndexerParams, X_q: Array) -> tuple[Array, Array]:
        """The indexer's queries, (*batch, H_I, n, d_I), and their weights, (*batch, n, H_I)."""
        w = X_q @ params.U_w
        return (X_q @ params.U_q).reshape(*w.shape, self.narrow).swapaxes(-2, -3), w
