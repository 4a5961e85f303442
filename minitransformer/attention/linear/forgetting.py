"""Forgetting attention: softmax attention in which what is past fades, as fast as each token says.

    S_ij = ⟨q_i, k_j⟩ / √d + c_i − c_j,      c_i = Σ_{t ≤ i} ln f_t,      f_t = σ(x_t w)
    Y    = softmax(S) V = W V, each row of W = L ⊙ exp(Q Kᵀ/√d) divided by its sum        L_ij = f_{j+1} ⋯ f_i

L is the mask of linear attention with gates (gated_linear_attention.py), here in softmax attention. With f = 1 it is dense
attention; with one f for all positions, ALiBi with the slope −ln f. ALiBi counts tokens; a gate has read them, and can close at
the end of a sentence.

c_i − c_j is a product too, of columns [c_i, 1] beside the queries and [1, −c_j] beside the keys, so the core of dense attention
will do, in all tiers. But c grows with the text, and so does its rounding error in float32. So c is summed in float64 and cut
in two, a whole number and a rest. Whole numbers have an exact difference; and the rest of c_i shifts a row of S as a whole, so
it can be dropped.
"""

import math
from typing import Any, ClassVar

import numpy as np

from minitransformer.arrays import FEW, one_dtype, refuse_other_lengths, scale_for
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend, attend_formed
from minitransformer.attention.cache.keys_values import KeysValues, WithPast
from minitransformer.attention.core import Core, numbers_where_seen, seen_keys
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.checks import frozen
from minitransformer.functional import loops_in, softplus
from minitransformer.positions.encoding import OffsetBias, ScoreEncoding, bias_for
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.typing import Array, Bool, Float, checked

UNIT = math.log(2)  # of c: where the core of attention takes exponentials to the base 2, it multiplies S by 1/ln 2


def in_two(c: Array, dtype: Any) -> tuple[Array, Array]:
    """c / ln 2 as a whole number and a rest, each (…, 1): the nearest whole number, and what is missing."""
    c = c[..., None] / UNIT
    whole = np.rint(c)
    return whole.astype(dtype), (c - whole).astype(dtype)


def faded_queries(Q: Array, whole: Array, scale: float) -> Array:
    """[whole c_i, 1, 1, q · scale/ln 2]."""
    one = np.ones_like(whole)
    return np.concatenate([whole, one, one, Q * Q.dtype.type(scale / UNIT)], -1)


def faded_keys(K: Array, whole: Array, rest: Array) -> Array:
    """[1, −whole c_j, −rest of c_j, k]: ln 2 times a query and a key is scale · ⟨q_i, k_j⟩ + c_i − c_j, less the rest of c_i."""
    return np.concatenate([np.ones_like(whole), -whole, -rest, K], -1)


def fading(c: Array, n: int, dtype: Any) -> Array:
    """c_i − c_j of all pairs, (…, n, m), for queries that are the last n of the m positions."""
    return (c[..., c.shape[-1] - n :, None] - c[..., None, :]).astype(dtype)


def from_t_on(X: Array) -> Array:
    """Σ_{s ≥ t} x_s for each t, summed in float64."""
    return X[..., ::-1].cumsum(-1, dtype=np.float64)[..., ::-1].astype(X.dtype)


class ForgettingPullback(AroundAttention):
    """dc_t = Σ_j dS_tj − Σ_i dS_it, from the columns of dQ and dK where c was.  c_j sums over t ≤ j:  dln f_t = Σ_{j ≥ t} dc_j.

    The first of the two sums is zero but for rounding errors, and these cancel a part of those in the second.
    """

    attention: Pullback
    scale: float
    seen: Array | None

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        *dparams, dQ, dK, dV = self.attention(dY)
        dlog_forget = numbers_where_seen(self.seen, from_t_on((dQ[..., 0] - dK[..., 2]) / dQ.dtype.type(UNIT)))
        return *dparams, dQ[..., 3:] * dQ.dtype.type(self.scale / UNIT), dK[..., 3:], dV, dlog_forget


class FormedForgettingPullback(AroundAttention):
    """The same, where an encoding of positions forms the scores and c_i − c_j is added to them: dc_t = Σ_j dS_tj − Σ_i dS_it."""

    attention: Pullback
    seen: Array | None

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        *gradients, dS = self.attention(dY)
        return *gradients, numbers_where_seen(self.seen, from_t_on(dS.sum(-1) - dS.sum(-2)))


def scale_of(encoding: Any, Q: Array) -> float:
    """The scale that the encoding asks for, or 1/√d."""
    return scale_for(Q.shape[-1], None if encoding is None else encoding.scale)


@checked
def forgetting_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    log_forget: Float[Array, "*batch n"],
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: OffsetBias | ScoreEncoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Causal attention whose scores fall by −ln f_t at each position t between query and key.

        Y = softmax(scale · ⟨q_i, k_j⟩ + Σ_{j < t ≤ i} ln f_t) V

    log_forget  ln f, finite; that of the first position has no effect. To forget all is the work of a mask: in a sum, a gate of
                −10¹⁵ leaves no digits for the others
    mask        True where a key is there, (…, 1, n); what is hidden does not fade either
    scale       that of the encoding by default, or 1/√d; not where the encoding forms the scores
    encoding    an encoding of positions in the scores, and params, its parameters
    source      Lin et al. 2025
    cost        that of `dot_product_attention` with three channels more; that of `attend` with an encoding. Always causal
    returns     Y and a pullback: dQ, dK, dV, dlog_forget = pullback(dY), after dparams if there is an encoding
    raises      TypeError for a wrong shape or dtype, or a rotary encoding; ValueError for a mask that hides pairs, or a scale
                where the scores are formed
    """
    one_dtype(Q=Q, K=K, V=V, log_forget=log_forget)
    seen = seen_keys(mask, Q, K, "a sum of gates")
    c = numbers_where_seen(seen, log_forget).cumsum(-1, dtype=np.float64)
    if isinstance(encoding, ScoreEncoding):
        fades = fading(c, Q.shape[-2], Q.dtype)
        Y, formed = attend_formed(encoding, params, Q, K, V, matrix=fades, causal=True, mask=mask, scale=scale)
        return Y, FormedForgettingPullback(formed, seen)
    scale = scale_of(encoding, Q) if scale is None else scale
    whole, rest = in_two(c, K.dtype)
    queries, keys = faded_queries(Q, whole, scale), faded_keys(K, whole, rest)
    if encoding is None:
        Y, attention = dot_product_attention(queries, keys, V, causal=True, mask=mask, scale=UNIT)
    else:
        Y, attention = attend(encoding, params, queries, keys, V, causal=True, mask=mask, scale=UNIT)
    return Y, ForgettingPullback(attention, scale, seen)


# --------------------------------------------------------------------------------------------- the core


class ForgettingCorePullback(AroundAttention):
    """Back through attention, then through ln f = −softplus(−x) to the stream x."""

    attention: Pullback
    gate: Pullback

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        *dparams, dQ, dK, dV, dlog_forget = self.attention(dY)
        return *(dparams or [NoParams()]), dQ, dK, dV, self.gate(dlog_forget)[..., None]


class ForgettingState(WithPast):
    """Keys as `faded_keys` makes them, with c in three channels, and values; and the last c, (*batch, H), in float64."""

    past: KeysValues
    c: Array


@frozen
class Forgetting(Core):
    """Softmax attention whose past fades, as fast as each token says.

    encoding  of positions in the scores, beside the gates; a model puts its own there
    source    Lin et al. 2025
    cost      O(n² d) time. Always causal, with a gate for each key: m = n
    raises    TypeError for a rotary encoding
    """

    encoding: OffsetBias | ScoreEncoding | None = None

    stage = "scores"
    causal = "always"
    remembers = "keys, values and sums of gates"
    needs = "a gate from X"
    streams: ClassVar[dict[str, int]] = {"forget": 1}

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, ForgettingCorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV, dforget). Raises ValueError if m ≠ n, or for a mask that hides pairs."""
        self.refuse(causal=causal)
        refuse_other_lengths(Q, K, "each token has a gate")
        there = seen_keys(mask, Q, K, "a sum of gates")
        closed, gate = softplus(-numbers_where_seen(there, streams[0][..., 0]))
        Y, attention = forgetting_attention(Q, K, V, -closed, mask=mask, encoding=self.encoding, params=params)
        return Y, ForgettingCorePullback(attention, gate)

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: ForgettingState | None = None
    ) -> tuple[Array, ForgettingState]:
        """O(m d) for one new token."""
        if self.encoding is None and state is not None and Q.shape[-2] == 1 and (loops := loops_in("one_query")):
            done = loops.fade_and_attend(Q, K, V, streams[0], state.c, state.past, scale_for(Q.shape[-1]))
            if done is not None:
                return done[0], ForgettingState(*done[1:])
        closed = np.logaddexp(0, -streams[0][..., 0])
        before = np.zeros(Q.shape[:-2]) if state is None else state.c
        c = before[..., None] - closed.cumsum(-1, dtype=np.float64)
        (whole, rest), scale = in_two(c, K.dtype), scale_of(self.encoding, Q)
        keys = faded_keys(K, whole, rest)
        past = KeysValues.of(keys, V) if state is None else state.past.extended(keys, V)
        after = ForgettingState(past, c[..., -1] if c.shape[-1] else before)
        n, m = Q.shape[-2], past.length
        if isinstance(self.encoding, ScoreEncoding):
            sums = -UNIT * past.keys[..., 1:3].sum(-1, dtype=np.float64)
            K, fades = past.keys[..., 3:], fading(sums, n, Q.dtype)
            Y, _ = attend_formed(self.encoding, params, Q, K, past.values, matrix=fades, causal=True)
            return Y, after
        bias = None
        if self.encoding is not None:
            bias = bias_for(Q, self.encoding, params, n, m, causal=True)[0]
        if not 0 < n <= FEW:
            return attend_to_buffer(faded_queries(Q, whole, scale), past.K, past.V, m, bias, scale=UNIT), after
        rows = [one_query(Q, (whole, rest), t, past, m - n + t + 1, scale, bias) for t in range(n)]
        return np.concatenate(rows, -2), after


def one_query(
    Q: Array, c: tuple[Array, Array], t: int, past: KeysValues, m: int, scale: float, more: Array | None
) -> Array:
    """Attention of query t alone to the first m keys, its own the last, with c_t − c_j as a bias.

    The loop for one query may sum a product in any order: with c in its channels, c_t − c_j might cancel late, and cost digits.
    more   the bias of an encoding for all offsets, or None
    """
    whole, rest = (part[..., t, :] for part in c)
    bias = (whole + past.K[..., :m, 1]) + (rest + past.K[..., :m, 2])
    bias = bias * bias.dtype.type(UNIT)
    if more is not None:
        bias = bias + more[..., past.length - m : past.length]
    query = np.zeros((*Q.shape[:-2], 1, past.K.shape[-1]), Q.dtype)
    query[..., 0, 3:] = Q[..., t, :]
    return attend_to_buffer(query, past.K, past.V, m, bias, scale=scale)
