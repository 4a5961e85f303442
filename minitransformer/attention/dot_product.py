"""Scaled dot-product attention, the core of the book, in its three stages.

    S = scale · Q Kᵀ          scores:     how well does query i match key j
    A = softmax(S, mask)      normalise:  weights that sum to one along each row; or to less, beside a sink (sink.py)
    Y = A V                   aggregate:  the weighted average of the values

Each stage is a function of `functional.py` with its own pullback, so that a later chapter can replace one and keep the others.
"""

from typing import Any

from minitransformer.arrays import FEW, must_be_for_heads, must_broadcast, one_dtype, scale_for, unless_hidden
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.masks import causal_mask
from minitransformer.attention.sink import SinkPullback, softmax_with_sink
from minitransformer.attention.soft_cap import soft_cap
from minitransformer.functional import (
    AggregatePullback,
    ScoresPullback,
    SoftmaxPullback,
    aggregate,
    loops_in,
    scores,
    softmax,
)
from minitransformer.gather_scatter import (
    by_offset,
    for_each_head,
    heads_fit,
    sum_by_offset,
    sum_over_heads,
    unbroadcast,
)
from minitransformer.pullback import Pullback
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array, Bool, Float, checked


class WeightsPullback(AroundAttention):
    """Through a softmax, which may have a sink, and then through a cap: dA to dS, or to (dS, dsink)."""

    normalise: SoftmaxPullback | SinkPullback
    cap: Pullback | None
    inside = "normalise"

    def __call__(self, dA: Array) -> Any:
        dS, *dsink = gradients_of_weights(self.normalise, dA)
        dS = dS if self.cap is None else unless_hidden(self.cap(dS), self.A)
        return (dS, *dsink) if dsink else dS


def gradients_of_weights(pullback: Pullback, dA: Array) -> tuple[Array, ...]:
    """(dS,), or (dS, dsink) if the weights have a sink."""
    found = pullback(dA)
    return found if isinstance(found, tuple) else (found,)


def weights(S: Array, mask: Array | None, sink: Array | None, cap: float | None) -> tuple[Array, Any]:
    """The stage `normalise`: A = softmax(S) of what the mask allows, below a cap and beside a sink where there are such."""
    if sink is None and cap is None:
        return softmax(S, mask=mask)
    S, capped = (S, None) if cap is None else soft_cap(S, cap)
    A, pullback = softmax(S, mask=mask) if sink is None else softmax_with_sink(S, sink, mask=mask)
    return A, WeightsPullback(pullback, capped)


class AttentionPullback(AroundAttention):
    """The chain rule through the stages, last stage first.

    What is used in several places gets the sum: keys and values shared by heads, the bias along its diagonals.
    """

    scores: ScoresPullback
    softmax: SoftmaxPullback | WeightsPullback
    aggregate: AggregatePullback
    shapes: tuple[tuple[int, ...], ...]  # of K, of V, and of the bias if there is one
    inside = "softmax"

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dA, dV = self.aggregate(dY)
        dS, *dsink = gradients_of_weights(self.softmax, dA)
        dQ, dK = self.scores(dS)
        K_shape, V_shape, *bias_shape = self.shapes
        dbias = (unbroadcast(sum_by_offset(dS), shape) for shape in bias_shape)
        return dQ, sum_over_heads(dK, K_shape), sum_over_heads(dV, V_shape), *dbias, *dsink


def refuse_what_does_not_fit(
    Q: Array, K: Array, V: Array, bias: Array | None, mask: Array | None, sink: Array | None
) -> None:
    """Raise TypeError for mixed dtypes or heads that can't share these keys, ValueError for another shape of bias, mask, sink."""
    one_dtype(Q=Q, K=K, V=V, bias=bias, sink=sink)
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    if not heads_fit(K, batch):
        raise TypeError(
            f"parameter 'K': batch axes {K.shape[:-2]} should be those of Q, {batch}, or end in a divisor of its last"
        )
    if mask is not None:
        must_broadcast(mask, (*batch, n, m))
    if bias is not None:
        must_broadcast(bias, (*batch, max(n + m - 1, 0)), "bias", "one number for each offset")
    if sink is not None:
        must_be_for_heads(sink, batch, "sink")


@checked
def dot_product_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    bias: Float[Array, "*some o"] | None = None,
    sink: Float[Array, "*own"] | None = None,
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    cap: PositiveNumber | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Every query takes the average of the values, weighted by how well it matches their keys.

        Y = softmax(scale · Q Kᵀ + B) V,    B_ij = bias_{j − i + n − 1}

    K, V     (*batch, m, …); or one for each group of neighbouring heads: (…, G, m, …) for Q of (…, H, n, …), G a divisor of H
    bias     a number for each j − i of column and row, from −(n − 1) to m − 1: (H, n + m − 1), or broadcast to
             (*batch, n + m − 1)
    sink     b, a score without a key that takes part in the softmax (sink.py): (H,) or what broadcasts to (*batch,)
    causal   query i sees keys j ≤ i only; with m ≠ n the queries are the last n of the m positions
    mask     True where query i sees key j; must broadcast to (*batch, n, m). A query that sees no key gives zeros.
    scale    1/√d by default, as in the paper
    cap      c: scores, with their bias, become c tanh(S/c) before anything is hidden (soft_cap.py)
    source   Borealis II (1); Aalto (3); Lecture notes, scaled dot product; CS224N notes
    cost     O(n m d) time; O(n m) memory in the tier "numpy", O(n + m) in the others. Can be causal.
    returns  Y and a pullback: dQ, dK, dV = pullback(dY), and dbias and dsink where these are given; `pullback.A` is the
             attention matrix. In the tier "numpy" the stages are there too: pullback.scores, pullback.softmax, pullback.aggregate
    raises   TypeError for a wrong shape or dtype, ValueError for a mask, a bias or a sink that does not fit, or a cap not above 0
    """
    refuse_what_does_not_fit(Q, K, V, bias, mask, sink)
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    scale = Q.dtype.type(scale_for(Q.shape[-1], scale))
    if loops := loops_in("attention"):
        return loops.tiled_attention(Q, K, V, bias, sink, causal=causal, mask=mask, scale=scale, cap=cap)
    if causal:
        mask = causal_mask(n, m) if mask is None else mask & causal_mask(n, m)
    S, scores_pullback = scores(Q, for_each_head(K, batch), scale=scale)
    if bias is not None:
        S += by_offset(bias, n, m)
    A, softmax_pullback = weights(S, mask, sink, cap)
    Y, aggregate_pullback = aggregate(A, for_each_head(V, batch))
    shapes = (K.shape, V.shape) if bias is None else (K.shape, V.shape, bias.shape)
    return Y, AttentionPullback(scores_pullback, softmax_pullback, aggregate_pullback, shapes)


def attend_to_buffer(
    Q: Array, K: Array, V: Array, m: int, bias: Array | None = None, mask: Array | None = None,
    scale: float | None = None, sink: Array | None = None, cap: float | None = None,
) -> Array:  # fmt: skip
    """Causal attention of the last queries to the first m rows of longer arrays, in which a cache keeps keys and values: Y alone.

    K, V     (*batch, capacity, …), or one for each group of neighbouring heads
    bias     as in `dot_product_attention`, (…, n + m − 1), and so is the mask, which must broadcast to (*batch, n, m);
             so are sink and cap
    cost     O(n m d) time. For a few queries the tiers of loops copy nothing, and do not read a key that the mask hides.
             Arguments are not checked: this is the inner loop of generation
    """
    scale = Q.dtype.type(scale_for(Q.shape[-1], scale))
    if (loops := loops_in("attention")) and Q.shape[-2] <= FEW:
        return loops.attend_to_buffer(Q, K, V, m, bias, mask, scale, sink, cap)
    K, V = K[..., :m, :], V[..., :m, :]
    return dot_product_attention(Q, K, V, bias, sink, causal=True, mask=mask, scale=float(scale), cap=cap)[0]
