"""Where a position encoding acts. An encoding changes one stage of attention and leaves the others as they are.

    on the embeddings         X + Π                                    sinusoids, learned tables
    on queries and keys       q_i → R_i q_i,  k_j → R_j k_j            rotary
    on the scores             S_ij = scale · ⟨q_i, k_j⟩ + b_{j−i}      a number for each offset: T5, ALiBi, KERPLE
                              S_ij = f(q_i, k_j, i, j)                 Shaw, Transformer-XL, TENER, DeBERTa, TUPE, FIRE, grid
    on the values             y_i = Σ_j A_ij (v_j + r_{j−i})           Shaw

An encoding that acts inside attention is a frozen dataclass, built on one of the classes below. It says what it changes, and
performs no attention itself: `attend` does that, for the pairs that a core scores.

The n queries stand at the last n of the m positions, so the same stage serves training (n = m) and generation with a
cache of keys (n = 1). Keys are cached as they were projected, or turned by a rotary encoding; other positions are computed at
every call.
"""

from typing import Any, ClassVar

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries
from minitransformer.checks import refuse_init
from minitransformer.functional import AggregatePullback, ScoresPullback, aggregate, scores
from minitransformer.gather_scatter import by_offset, sum_by_offset, unbroadcast
from minitransformer.pullback import NoParams, Pullback, Tree, tree_items
from minitransformer.ranges import NonNegative
from minitransformer.typing import Array, Checked, checked


class PlainAggregatePullback(Pullback):
    """The pullback of `aggregate` without positions; None in the place of dparams."""

    aggregate: AggregatePullback

    def __call__(self, dY: Array) -> tuple[None, Array, Array]:
        return None, *self.aggregate(dY)


class Encoding(Checked):
    """The base of all encodings that act inside attention.

    acts_on   the stages that it changes
    shared    names of the parameters that all layers of a stack share, in the paper that it is from
    unseen    names of the parameters that softmax doesn't see, since they add one number to all scores of a row
    relative  whether it knows distances only, so that a text may begin anywhere
    scale     the factor of ⟨q, k⟩; None for 1/√d
    """

    acts_on: ClassVar[tuple[str, ...]] = ()
    shared: ClassVar[tuple[str, ...]] = ()
    unseen: ClassVar[tuple[str, ...]] = ()
    relative: ClassVar[bool] = True
    scale: float | None = None

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """The parameters of one layer; without any, NoParams()."""
        refuse_init(rng, dtype)
        return NoParams()

    def aggregate(self, params: Any, A: Array, V: Array) -> tuple[Array, Pullback]:
        """Y = A V, without positions. Pullback: dY to (dparams, dA, dV), where dparams is None."""
        Y, pullback = aggregate(A, V)
        return Y, PlainAggregatePullback(pullback)


# ------------------------------------------------------------------------------- a number for each offset


class OffsetBias(Encoding):
    """S_ij = scale · ⟨q_i, k_j⟩ + b_{j−i}: one number for each head and offset, in the tiles of the compiled loops.

    A subclass says what the bias is:    bias(params, n, m, causal) → (H, n + m − 1), one for each of the `offsets` from −(m − 1)
    to n − 1, and a pullback from its gradient to dparams.
    """

    acts_on: ClassVar[tuple[str, ...]] = ("scores",)

    def bias(self, params: Any, n: int, m: int, *, causal: bool) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} has no bias")


def bias_for(Q: Array, encoding: Any, params: Any, n: int, m: int, *, causal: bool) -> tuple[Array, Pullback]:
    """The bias of an encoding for n queries that are the last of m positions, in the dtype of Q. Pullback: dbias to dparams.

    raises   TypeError for parameters of another dtype
    """
    one_dtype(Q=Q, **{path: a for path, a in tree_items(params, "params") if a.dtype.kind == "f"})
    bias, back = encoding.bias(params, n, m, causal=causal)
    return bias.astype(Q.dtype, copy=False), back


@checked
def offsets(n: NonNegative, m: NonNegative) -> Array:
    """j − i for the n + m − 1 diagonals of a matrix of scores whose queries are the last n of the m positions."""
    return np.arange(n + m - 1) - (m - 1)


def queries_last(Q: Array, K: Array) -> tuple[int, int]:
    """n and m. Raises ValueError unless the n queries can be the last of the m positions."""
    n, m = Q.shape[-2], K.shape[-2]
    refuse_more_queries(n, m)
    return n, m


def refuse_other_width(d: int, **rows: Array) -> None:
    """Raise ValueError unless all of these are (…, n, d) with this d."""
    for name, X in rows.items():
        if X.shape[-1] != d:
            raise ValueError(f"{name}: heads of width {X.shape[-1]}, but the positions are for heads of width {d}")


# ------------------------------------------------------------------------------------ any kind of scores


class ScoreEncoding(Encoding):
    """Scores that depend on both contents and both positions. They are formed: O(n m) memory in every tier.

    A subclass says        scores(params, Q, K) → S (*batch, H, n, m), scaled, and a pullback from dS to (dparams, dQ, dK);
    if it acts on values   aggregate(params, A, V) → Y, and a pullback from dY to (dparams, dA, dV).
    """

    acts_on: ClassVar[tuple[str, ...]] = ("scores",)

    def scores(self, params: Any, Q: Array, K: Array) -> tuple[Array, Pullback]:
        raise TypeError(f"{type(self).__name__} has no scores")


# -------------------------------------------------------------------------------------- both kinds, formed


class BiasedScoresPullback(Pullback):
    """S = C + B, where B has one number on each diagonal: dS goes to the contents, and its sum along each to the bias."""

    content: ScoresPullback
    bias: Pullback
    shape: tuple[int, ...]

    def __call__(self, dS: Array) -> tuple[Tree, Array, Array]:
        return self.bias(unbroadcast(sum_by_offset(dS), self.shape)), *self.content(dS)


def pair_scores(
    encoding: OffsetBias | ScoreEncoding, params: Any, Q: Array, K: Array, *, causal: bool
) -> tuple[Array, Pullback]:
    """The scores of all pairs as a matrix, (*batch, H, n, m), before softmax. Pullback: dS to (dparams, dQ, dK)."""
    if isinstance(encoding, ScoreEncoding):
        return encoding.scores(params, Q, K)
    n, m = queries_last(Q, K)
    bias, back = bias_for(Q, encoding, params, n, m, causal=causal)
    S, content = scores(Q, K, scale=encoding.scale)
    return S + by_offset(bias, n, m), BiasedScoresPullback(content, back, bias.shape)
