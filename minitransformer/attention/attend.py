"""Attention with an encoding of positions: the stages, one after another. A core says which pairs it scores.

    turn        q_i, k_j → R_i q_i, R_j k_j
    score       S_ij = scale · ⟨q_i, k_j⟩ + b_{j−i}      a number for each offset, in the tiles of the loops
                S_ij = s(q_i, k_j, i, j)                any scores: they are formed, O(n m) memory
    normalise   A = softmax(S), over the pairs of the core
    aggregate   Y = A V,  or  y_i = Σ_j A_ij (v_j + r_{j−i})

An encoding changes one of them, or two (positions/encoding.py), and the others stay as they are.
"""

from typing import Any

from minitransformer.arrays import must_broadcast, one_dtype, those_seen
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.block_sparse import BlockPattern, block_sparse_attention
from minitransformer.attention.core import NothingLearnedPullback
from minitransformer.attention.dot_product import (
    dot_product_attention,
    gradients_of_weights,
    refuse_what_does_not_fit,
    weights,
)
from minitransformer.attention.masks import causal_mask
from minitransformer.gather_scatter import (
    by_offset,
    for_each_head,
    refuse_other_heads,
    sum_by_offset,
    sum_over_heads,
    unbroadcast,
)
from minitransformer.positions.encoding import Encoding, OffsetBias, ScoreEncoding, bias_for, pair_scores, queries_last
from minitransformer.pullback import Pullback, tree_add
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array, Bool, Float, checked


class TurnedPullback(AroundAttention):
    """Back through attention, then turned back."""

    q: Pullback
    k: Pullback
    attention: Pullback

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dparams, dQ, dK, *others = self.attention(dY)
        return dparams, self.q(dQ), self.k(dK), *others


class OffsetBiasPullback(AroundAttention):
    """Back through attention, then from the bias to its parameters. A bias of the core was added, and gets the same gradient."""

    bias: Pullback
    attention: Pullback
    shapes: tuple[tuple[int, ...], ...]  # of the bias, and of that of the core if there is one

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dQ, dK, dV, dsum, *dsink = self.attention(dY)
        dbias, *dmore = (unbroadcast(dsum, shape) for shape in self.shapes)
        return self.bias(dbias), dQ, dK, dV, *dmore, *dsink


class FormedPullback(AroundAttention):
    """The chain rule through the stages, last stage first. An encoding that acts on scores and on values gets the sum."""

    scores: Pullback
    softmax: Pullback
    aggregate: Pullback
    shapes: tuple[tuple[int, ...], ...]  # of K and V: heads may share them; and of the bias of the core if there is one
    matrix: bool = False  # whether the core added a number to the score of each pair
    inside = "softmax"

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dvalues, dA, dV = self.aggregate(dY)
        dS, *dsink = gradients_of_weights(self.softmax, dA)
        dparams, dQ, dK = self.scores(dS)
        if dvalues is not None:
            dparams = tree_add(dparams, dvalues)
        K_shape, V_shape, *more = self.shapes
        dmore = [unbroadcast(sum_by_offset(dS), shape) for shape in more] + [dS] * self.matrix
        return dparams, dQ, sum_over_heads(dK, K_shape), sum_over_heads(dV, V_shape), *dmore, *dsink


@checked
def attend(
    encoding: Encoding | None,
    params: Any,
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    bias: Float[Array, "*some o"] | None = None,
    sink: Float[Array, "*own"] | None = None,
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    pattern: BlockPattern | None = None,
    scale: float | None = None,
    cap: PositiveNumber | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Attention with an encoding of positions, over the pairs that a mask and a pattern leave. The queries are the last n of m.

    encoding  what changes the scores, and perhaps the values, or turns queries and keys; None for plain attention
    params    the parameters of the encoding; NoParams() if it has none
    others    as in `block_sparse_attention`. A bias is the core's own, and is added to what the encoding makes of the scores
    scale     that of the encoding by default; only where the scores are ⟨q_i, k_j⟩ and a number
    cost      that of `block_sparse_attention`; scores that are formed take O(n m d) time and O(n m) memory, whatever the pattern
    returns   Y and a pullback: dparams, dQ, dK, dV = pullback(dY), and dbias if there is a bias, dsink if there is a sink
    raises    as `block_sparse_attention`; with an encoding, TypeError for parameters of another dtype than Q, ValueError for more
              queries than keys, another number of heads than it has, or a scale where the scores are formed
    """
    options: dict[str, Any] = {"sink": sink, "causal": causal, "mask": mask, "cap": cap}
    if encoding is None:
        Y, attention = _among_pairs(Q, K, V, pattern, bias, scale=scale, **options)
        return Y, NothingLearnedPullback(attention)
    n, m = queries_last(Q, K)
    if bias is not None:
        must_broadcast(bias, (*Q.shape[:-2], max(n + m - 1, 0)), "bias", "one number for each offset")
    if isinstance(encoding, OffsetBias):
        scale = encoding.scale if scale is None else scale
        own, back = bias_for(Q, encoding, params, n, m, causal=causal)
        if own.ndim != 2 or own.shape[-1] != max(n + m - 1, 0):
            raise ValueError(
                f"{type(encoding).__name__}.bias: should give an array (heads, {n + m - 1}), for n = {n} and m = {m}, and a "
                f"pullback; it gives shape {own.shape}"
            )
        if len(own) > 1:  # one of a single head is that of all
            refuse_other_heads(Q, len(own))
        shapes = (own.shape,) if bias is None else (own.shape, bias.shape)
        Y, attention = _among_pairs(Q, K, V, pattern, own if bias is None else bias + own, scale=scale, **options)
        return Y, OffsetBiasPullback(back, attention, shapes)
    if isinstance(encoding, ScoreEncoding):
        return attend_formed(encoding, params, Q, K, V, bias, pattern=pattern, scale=scale, **options)
    (Q, q), (K, k) = encoding.turn(Q, first=m - n, length=m), encoding.turn(K, length=m)  # type: ignore[attr-defined]
    Y, attention = _among_pairs(Q, K, V, pattern, bias, scale=scale, **options)
    return Y, TurnedPullback(q, k, NothingLearnedPullback(attention))


def _among_pairs(Q: Array, K: Array, V: Array, pattern: BlockPattern | None, bias: Array | None, **options: Any) -> Any:
    """Attention without an encoding, to all keys or to those that a pattern allows."""
    if pattern is None:
        return dot_product_attention(Q, K, V, bias, **options)
    return block_sparse_attention(Q, K, V, pattern, bias, **options)


def attend_formed(
    encoding: Any, params: Any, Q: Array, K: Array, V: Array, bias: Array | None = None, *, matrix: Array | None = None,
    causal: bool = False, mask: Array | None = None, pattern: BlockPattern | None = None, sink: Array | None = None,
    scale: float | None = None, cap: float | None = None, normalise: Any = None,
) -> tuple[Array, FormedPullback]:  # fmt: skip
    """As `attend` with an encoding of scores, but every matrix is formed, and a pattern is one more mask.

    matrix     a number that the core adds to the score of each pair, (*batch, n, m), in place of a bias; dmatrix comes after dV
    scale      None: the encoding has its own
    normalise  what takes the place of softmax with its sink and cap: from S and the mask to A and a pullback
    """
    if scale is not None:
        raise ValueError(f"scale: {type(encoding).__name__} has a scale of its own, so none can be given")
    refuse_what_does_not_fit(Q, K, V, bias, mask, sink)
    one_dtype(Q=Q, matrix=matrix)
    batch, (n, m) = Q.shape[:-2], queries_last(Q, K)
    if causal:
        mask = causal_mask(n, m) if mask is None else mask & causal_mask(n, m)
    if pattern is not None:
        mask = pattern.mask if mask is None else mask & pattern.mask
    shapes = (K.shape, V.shape) if bias is None else (K.shape, V.shape, bias.shape)
    K, V = those_seen(mask, for_each_head(K, batch), for_each_head(V, batch))
    S, back = pair_scores(encoding, params, Q, K, causal=causal)
    if bias is not None:
        matrix = by_offset(bias, n, m)
    S = S if matrix is None else S + matrix
    A, normalised = weights(S, mask, sink, cap) if normalise is None else normalise(S, mask=mask)
    Y, aggregated = encoding.aggregate(params, A, V)
    return Y, FormedPullback(back, normalised, aggregated, shapes, matrix is not None and bias is None)
