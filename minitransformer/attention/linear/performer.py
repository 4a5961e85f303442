"""Performer: softmax attention, approximately, in linear time. Its features are random (random_features.py).

    φ(q)ᵀ φ(k) ≈ exp(⟨q, k⟩/√d)            with x = q/d^¼ and y = k/d^¼
    y_i ≈ φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j)

Numbers must not overflow, and what prevents it must not leak later keys to a query. A factor of all features of one query
cancels, so a query's are divided by their sum. Of keys, only a factor that all of them have would cancel; the authors' code takes
it from their largest ⟨w, y⟩, which is known when the last key is. But nothing has to be subtracted: an exponent of a key is at
most ‖w‖²/2, whatever the key. So features of keys are what their definition says, and the state of a decoder is never rescaled.

What is too small for a float becomes 0, though: a query that sees none but very long keys, in float32 with entries of deviation
5 or more, gets zeros.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.kernel_attention import (
    FeatureAttention,
    Features,
    FromFeaturesPullback,
    kernel_attention,
)
from minitransformer.attention.linear.random_features import (
    CAP,
    gaussian_rows,
    of_same_length,
    orthogonal_rows,
    positive_features,
    relu_features,
    trigonometric_features,
)
from minitransformer.attention.linear.scaled import ScaledPullback, fourth_root
from minitransformer.checks import frozen
from minitransformer.gather_scatter import refuse_other_heads
from minitransformer.pullback import Pullback, Tree
from minitransformer.ranges import Integer
from minitransformer.typing import Array, Float, checked

Kind = Literal["positive", "hyperbolic", "trigonometric", "relu"]


def performer_features(X: Array, W: Array, kind: Kind, *, query: bool) -> tuple[Array, ScaledPullback]:
    """Features of this kind of X/d^¼, and their pullback."""
    pullback: Pullback
    c = fourth_root(X)
    if kind == "relu":
        F, pullback = relu_features(c * X, W)
    elif kind == "trigonometric":
        F, pullback = trigonometric_features(c * X, W, query=query)
    else:
        F, pullback = positive_features(c * X, W, both_signs=kind == "hyperbolic", query=query)
    return F, ScaledPullback(pullback, c)


@checked
def performer_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    *,
    W: Float[Array, "*own rows d"],
    kind: Kind = "positive",
    causal: bool = False,
) -> tuple[Float[Array, "*batch n dv"], FromFeaturesPullback]:
    """Softmax attention, approximately: y_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j).

    W         the directions, (rows, d), or one matrix for each head
    kind      of the features: "positive", "hyperbolic" or "trigonometric", which approximate exp(⟨q, k⟩/√d), or "relu", which
              is attention of another kind
    causal    query i sees keys j ≤ i only; the queries are the last n of the m positions
    source    Lecture notes, Performer; Aalto (10), (11); Choromanski et al. 2021. Their code subtracts the largest ⟨w, y⟩ of
              all keys and adds an ε, so that later keys change earlier outputs
    cost      O((n + m) rows (d + dv)) time, O((n + m) rows) memory. Can be causal
    returns   Y and a pullback: dQ, dK, dV = pullback(dY), without a gradient for W
    raises    TypeError for a wrong shape or dtype, ValueError for a W of other heads
    """
    one_dtype(Q=Q, K=K, V=V, W=W)
    FQ, q = performer_features(Q, W, kind, query=True)
    FK, k = performer_features(K, W, kind, query=False)
    Y, attention = kernel_attention(FQ, FK, V, causal=causal)
    return Y, FromFeaturesPullback(q, k, attention)


# --------------------------------------------------------------------------------------------- the core


class PerformerParams(NamedTuple):
    """W (H, rows, d), drawn and not learned; and how many steps ago it was drawn, (1,)."""

    W: Array
    age: Array


class NotLearnedPullback(Pullback):
    """The gradient of what the features are made of; W and its age get None."""

    features: Pullback

    def __call__(self, dF: Array) -> tuple[PerformerParams, Array]:
        return PerformerParams(None, None), self.features(dF)  # type: ignore[arg-type]


@frozen
class Performer(FeatureAttention):
    """Softmax attention, approximately, in linear time: random features.

    heads, d     filled in by the model
    kind         of the features: "positive", "hyperbolic", "trigonometric", "relu"
    rows         R, how many directions each head draws; d ln d if None
    orthogonal   whether they are orthogonal, in blocks of d
    same_length  whether all have the length √d: the kernel is then SMREG, a little below exp
    redraw       steps of training after which they are drawn anew; None for never

    The directions belong to the parameters: they are saved with them, and no gradient moves them.

    source   Lecture notes, Performer; Aalto (10), (11); Choromanski et al. 2021
    cost     O(n rows (d + dv)) time, O(n rows) memory; one new token costs O(rows (d + dv)). Can be causal
    """

    heads: int
    d: int
    kind: Kind = "positive"
    rows: int | None = None
    orthogonal: bool = True
    same_length: bool = False
    redraw: int | None = 1000

    cost = "O(n rows)"
    remembers = "S and z, rows·(dv + 1) for each head"
    untrained = ("W", "age")

    @property
    def moves(self) -> bool:  # type: ignore[override]
        """Whether directions are drawn anew in training."""
        return self.redraw is not None

    @property
    def drawn(self) -> int:
        """m, the number of directions to draw."""
        return max(int(self.d * np.log(self.d)), 1) if self.rows is None else self.rows

    def _draw(self, rng: np.random.Generator, dtype: Any) -> Array:
        shape = self.heads, self.drawn, self.d
        W = orthogonal_rows(rng, shape) if self.orthogonal else gaussian_rows(rng, shape)
        return (of_same_length(W) if self.same_length else W).astype(dtype)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> PerformerParams:
        """The directions of each head are drawn at random."""
        return PerformerParams(self._draw(rng, dtype), np.zeros(1, dtype))

    def phi(
        self, params: PerformerParams, X: Array, *, first: Integer, query: bool
    ) -> tuple[Array, NotLearnedPullback]:
        """`performer_features` with the directions of each head."""
        refuse_other_heads(X, self.heads)
        F, pullback = performer_features(X, params.W, self.kind, query=query)
        return F, NotLearnedPullback(pullback)

    def for_loops(self, params: PerformerParams, d: int, first: int) -> Features | None:
        """Positive features, with one sign or both; any others have to be called."""
        signs = {"positive": 1, "hyperbolic": 2}.get(self.kind)
        return Features("exponentials", signs, max(d, 1) ** -0.25, CAP, params.W) if signs else None

    def after_step(self, params: PerformerParams, observed: Tree, rng: np.random.Generator) -> PerformerParams:
        """The directions a step older, or new ones every `redraw` steps; if they are never drawn anew, the same."""
        if self.redraw is None:
            return params
        if params.age[0] + 1 < self.redraw:
            return params._replace(age=params.age + 1)
        return PerformerParams(self._draw(rng, params.W.dtype), np.zeros_like(params.age))
