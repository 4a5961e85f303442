"""Where a position encoding acts. An encoding changes one stage of attention and leaves the others as they are.

    on the embeddings         X + Π                                    sinusoids, learned tables
    on queries and keys       q_i → R_i q_i,  k_j → R_j k_j            rotary
    on the scores             S_ij = scale · ⟨q_i, k_j⟩ + b_{j−i}      a number for each offset: T5, ALiBi, KERPLE
                              S_ij = f(q_i, k_j, i, j)                 Shaw, Transformer-XL, TENER, DeBERTa, TUPE, FIRE, grid
    on the values             y_i = Σ_j A_ij (v_j + r_{j−i})           Shaw

An encoding that acts inside attention is a frozen dataclass, built on one of the classes below. Whoever has queries,
keys and values of H heads calls it in place of `dot_product_attention`:

    Y, pullback = encoding(params, Q, K, V, causal=…, mask=…)          Y = A V, or what the encoding makes of it
    dparams, dQ, dK, dV = pullback(dY)

An encoding of scores takes a sink and a cap as well, as `dot_product_attention` does, and then dsink comes last.

The n queries stand at the last n of the m positions, so the same call serves training (n = m) and generation with a
cache of keys (n = 1). What is cached are the keys as they were projected; positions are given out at every call.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype, those_seen
from minitransformer.attention.block_sparse import BlockPattern, block_sparse_attention
from minitransformer.attention.dot_product import (
    AggregatePullback,
    WeightsPullback,
    aggregate,
    dot_product_attention,
    gradients_of_weights,
    weights,
)
from minitransformer.attention.masks import causal_mask
from minitransformer.functional import SoftmaxPullback
from minitransformer.gather_scatter import for_each_head, heads_fit, refuse_other_heads, sum_over_heads
from minitransformer.pullback import NoParams, Pullback, Tree, tree_add
from minitransformer.ranges import NonNegative, PositiveNumber
from minitransformer.typing import Array, Bool, Checked, Float, checked


class Encoding(Checked):
    """What all that act inside attention have in common.

    acts_on   the stages that it changes
    shared    names of the parameters that all layers of a stack share, in the paper that it is from
    relative  whether it knows distances only, so that a text may begin anywhere
    scale     of the product of content with content; None for 1/√d
    """

    acts_on: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()
    relative: ClassVar[bool] = True
    scale: float | None = None

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """Parameters of one layer."""
        return NoParams()


@checked
def refuse_without_scores(encoding: Encoding, core: str = "KernelAttention") -> None:
    """Raise ValueError if this encoding can't be used in a core that has no scores to offer, such as kernel attention.

    φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ sums over the keys before it sees a query, so nothing can depend on both i and j. What acts on
    queries and keys one by one is still possible.
    """
    if needs := [stage for stage in encoding.acts_on if stage not in ("embeddings", "queries and keys")]:
        raise ValueError(
            f"positions: {type(encoding).__name__} acts on the {' and the '.join(needs)}, and {core} has no score for a "
            "pair (i, j) that an encoding could change"
        )


# ------------------------------------------------------------------------------- a number for each offset


class OffsetBiasPullback(NamedTuple):
    """Back through attention, then from the bias to what it was made of."""

    bias: Pullback
    attention: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, H, n, m)."""
        return self.attention.A

    def __call__(self, dY: Array) -> tuple[Tree, ...]:
        dQ, dK, dV, dbias, *dsink = self.attention(dY)
        return self.bias(dbias), dQ, dK, dV, *dsink


class OffsetBias(Encoding):
    """S_ij = scale · ⟨q_i, k_j⟩ + b_{j−i}: one number for each head and offset, in the tiles of the fused core.

    A subclass says what the bias is:    bias(params, n, m, causal) → (H, n + m − 1) from offset −(n − 1) to m − 1,
    and a pullback from its gradient to dparams.
    """

    acts_on: ClassVar[tuple[str, ...]] = ("scores",)

    def bias(self, params: Any, n: int, m: int, *, causal: bool) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} has no bias")

    @checked
    def __call__(
        self,
        params: Any,
        Q: Float[Array, "*batch n d"],
        K: Float[Array, "*shared m d"],
        V: Float[Array, "*shared m dv"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        pattern: BlockPattern | None = None,
        sink: Float[Array, "*own"] | None = None,
        cap: PositiveNumber | None = None,
    ) -> tuple[Float[Array, "*batch n dv"], OffsetBiasPullback]:
        """Attention with the bias, of the pairs of a pattern. Pullback: dY to (dparams, dQ, dK, dV)."""
        n, m = queries_last(Q, K)
        bias, bias_pullback = self.bias(params, n, m, causal=causal)
        if len(bias) > 1:  # one of a single head is that of all
            refuse_other_heads(Q, len(bias))
        bias = bias.astype(Q.dtype, copy=False)
        options: dict[str, Any] = {"causal": causal, "mask": mask, "scale": self.scale, "cap": cap}
        if pattern is None:
            Y, attention = dot_product_attention(Q, K, V, bias, sink, **options)
        else:
            Y, attention = block_sparse_attention(Q, K, V, pattern, bias, sink, **options)
        return Y, OffsetBiasPullback(bias_pullback, attention)


@checked
def offsets(n: NonNegative, m: NonNegative) -> Array:
    """j − i for the n + m − 1 diagonals of a matrix of scores whose queries are the last n of the m positions."""
    return np.arange(n + m - 1) - (m - 1)


def queries_last(Q: Array, K: Array) -> tuple[int, int]:
    """n and m, if the n queries can be the last of the m positions."""
    n, m = Q.shape[-2], K.shape[-2]
    if n > m:
        raise ValueError(f"Q: {n} queries for {m} keys; an encoding of positions needs every query among the keys")
    return n, m


# ------------------------------------------------------------------------------------ any kind of scores


class ScoreEncodingPullback(NamedTuple):
    """The chain rule through the stages, last stage first. What acts on scores and on values gets the sum."""

    scores: Pullback
    softmax: SoftmaxPullback | WeightsPullback
    aggregate: Pullback
    shapes: tuple[tuple[int, ...], ...]  # of K and V: heads may share them

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, H, n, m)."""
        return self.softmax.A

    def __call__(self, dY: Array) -> tuple[Tree, ...]:
        dvalues, dA, dV = self.aggregate(dY)
        dS, *dsink = gradients_of_weights(self.softmax, dA)
        dparams, dQ, dK = self.scores(dS)
        if dvalues is not None:
            dparams = tree_add(dparams, dvalues)
        return dparams, dQ, sum_over_heads(dK, self.shapes[0]), sum_over_heads(dV, self.shapes[1]), *dsink


class PlainAggregatePullback(NamedTuple):
    """As without positions, and no parameter to give a gradient to."""

    aggregate: AggregatePullback

    def __call__(self, dY: Array) -> tuple[None, Array, Array]:
        return None, *self.aggregate(dY)


class ScoreEncoding(Encoding):
    """Scores that depend on both contents and both positions. They are formed: O(n m) memory in every tier.

    A subclass says        scores(params, Q, K) → S (*batch, H, n, m), scaled, and a pullback from dS to (dparams, dQ, dK);
    if it acts on values   aggregate(params, A, V) → Y, and a pullback from dY to (dparams, dA, dV).
    """

    acts_on: ClassVar[tuple[str, ...]] = ("scores",)

    def scores(self, params: Any, Q: Array, K: Array) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} has no scores")

    def aggregate(self, params: Any, A: Array, V: Array) -> tuple[Array, Pullback]:
        Y, pullback = aggregate(A, V)
        return Y, PlainAggregatePullback(pullback)

    @checked
    def __call__(
        self,
        params: Any,
        Q: Float[Array, "*batch n d"],
        K: Float[Array, "*shared m d"],
        V: Float[Array, "*shared m dv"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        pattern: BlockPattern | None = None,
        sink: Float[Array, "*own"] | None = None,
        cap: PositiveNumber | None = None,
    ) -> tuple[Float[Array, "*batch n dv"], ScoreEncodingPullback]:
        """Attention with these scores; a pattern is a mask more. Pullback: dY to (dparams, dQ, dK, dV)."""
        one_dtype(Q=Q, K=K, V=V, sink=sink)
        n, m = queries_last(Q, K)
        batch = Q.shape[:-2]
        if not heads_fit(K, batch):
            raise TypeError(
                f"K: batch axes {K.shape[:-2]} should be those of Q, {batch}, or end in a divisor of its last"
            )
        if mask is not None:
            must_broadcast(mask, (*batch, n, m))
        if causal:
            mask = causal_mask(n, m) if mask is None else mask & causal_mask(n, m)
        if pattern is not None:
            mask = pattern.mask if mask is None else mask & pattern.mask
        shapes = K.shape, V.shape
        K, V = those_seen(mask, for_each_head(K, batch), for_each_head(V, batch))
        S, scores = self.scores(params, Q, K)
        A, normalise = weights(S, mask, sink, cap)
        Y, aggregate = self.aggregate(params, A, V)
        return Y, ScoreEncodingPullback(scores, normalise, aggregate, shapes)
