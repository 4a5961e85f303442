"""TUPE: positions have queries and keys of their own, untied from those of the contents.

    S_ij = (⟨x_i W_q, x_j W_k⟩ + ⟨p_i U_q, p_j U_k⟩)/√(2d) + b_bucket(j − i)

Two scores of variance d make a sum of variance 2d: hence √(2d). TUPE-A is without b, TUPE-R has the buckets of T5.
[CLS], the first token, stands for all of the text and not for a place in it: so its row of the positional scores is θ_1, a
learned number of each head, and the rest of its column is θ_2; neither is divided. (Softmax does not see a number that is
added to a whole row: θ_1 is in the published model, and its gradient is 0.)
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, refuse_indivisible
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, ScoresPullback, layer_norm, linear, scores
from minitransformer.gather_scatter import (
    by_offset,
    merge_heads,
    refuse_other_heads,
    split_heads,
    sum_by_index,
    unbroadcast,
)
from minitransformer.positions.encoding import ScoreEncoding, offsets, refuse_other_width
from minitransformer.positions.t5 import t5_buckets
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array


class TUPEParams(NamedTuple):
    """Table p (longest, D), gain and bias of its norm (D,), U_q and U_k (D, D), a block of d columns for each head.

    theta (2, H) if [CLS] is untied; bias (H, buckets), with one bucket more if [CLS] is untied, in TUPE-R.
    """

    table: Array
    gamma: Array
    beta: Array
    U_q: Array
    U_k: Array
    theta: Tree = None
    bias: Tree = None


# --------------------------------------------------------------------------- the scores of the positions


class PositionScoresPullback(Pullback):
    """Back through scores, projections and norm. The last n positions were queries too: their rows get both parts."""

    norm: Pullback
    q: LinearPullback
    k: LinearPullback
    scores: ScoresPullback
    longest: int

    def __call__(self, dB: Array) -> tuple[Array, Array, Array, Array, Array]:
        dQ, dK = self.scores(dB)
        dqueries, dU_q = self.q(merge_heads(dQ))
        dP, dU_k = self.k(merge_heads(dK))
        dP[len(dP) - len(dqueries) :] += dqueries
        drows, dgamma, dbeta = self.norm(dP)
        dtable = np.zeros((self.longest, drows.shape[1]), drows.dtype)
        dtable[: len(drows)] = drows
        return dtable, dgamma, dbeta, dU_q, dU_k


def position_scores(params: TUPEParams, n: int, m: int, *, heads: int, scale: float):
    """scale · ⟨p_i U_q, p_j U_k⟩ for each head, (H, n, m), where p are the rows of the table after layer normalisation."""
    P, norm = layer_norm(params.table[:m], params.gamma, params.beta)
    Q, q = linear(P[m - n :], params.U_q)
    K, k = linear(P, params.U_k)
    B, pullback = scores(split_heads(Q, heads), split_heads(K, heads), scale=scale)
    return B, PositionScoresPullback(norm, q, k, pullback, len(params.table))


class UntiePullback(Pullback):
    """The scores that were overwritten get no gradient; θ gets the sum over the places that it was written to."""

    row: bool

    def __call__(self, dB: Array) -> tuple[Array, Array]:
        row, column = dB[:, : int(self.row)], dB[:, int(self.row) :, :1]  # slices, which may be empty
        dtheta = np.stack([row.sum((-2, -1)), column.sum((-2, -1))])
        dB = dB.copy()
        dB[:, :, :1] = 0
        dB[:, : int(self.row)] = 0
        return dB, dtheta


def untie(B: Array, theta: Array) -> tuple[Array, UntiePullback]:
    """B with θ_2 in the column of [CLS], then θ_1 in its row, if [CLS] is among the queries."""
    n, m = B.shape[1:]
    B = B.copy()
    B[:, :, :1] = theta[1][:, None, None]
    if n == m:
        B[:, :1] = theta[0][:, None, None]
    return B, UntiePullback(n == m)


def tupe_buckets(n: int, m: int, *, buckets: int, distance: int, cls: bool) -> Array:
    """The buckets of T5 for both directions, (n, m). The row of [CLS] gets the one that T5 leaves unused, its column one more."""
    bucket = by_offset(t5_buckets(offsets(n, m), buckets=buckets, distance=distance, causal=False), n, m).copy()
    if cls:
        bucket[:, :1] = buckets
        if n == m:
            bucket[:1] = buckets // 2
    return bucket


# ---------------------------------------------------------------------------------------- the encoding


class TUPEPullback(Pullback):
    """S = C + B: dS goes to the contents, and summed over the batch to the positions."""

    content: ScoresPullback
    positions: PositionScoresPullback
    untie: UntiePullback | None
    bucket: Array | None
    buckets: int

    def __call__(self, dS: Array) -> tuple[TUPEParams, Array, Array]:
        dB = unbroadcast(dS, dS.shape[-3:])
        dbias = dtheta = None
        if self.bucket is not None:
            dbias = sum_by_index(dB, self.bucket, self.buckets)
        if self.untie is not None:
            dB, dtheta = self.untie(dB)
        return TUPEParams(*self.positions(dB), theta=dtheta, bias=dbias), *self.content(dS)


@frozen
class TUPE(ScoreEncoding):
    """Untied positions: TUPE-A, or TUPE-R with `buckets`; with `cls=True` the first token, [CLS], stands at no place.

    width      D of the table, and H d
    heads      H, must divide D; d = D/H is the width of Q and K too
    longest    rows of the table: there is no longer sequence
    cls        whether the first token is [CLS], and untied: row 0 of the table is there then, and not used
    buckets    of T5's bias for both directions, 32 in TUPE-R; None for TUPE-A
    distance   from which on T5's last bucket holds all offsets
    source     Ke, He and Liu 2021; Borealis II (9), without the scale (E1), norm, heads and [CLS]
    shared     everything: the paper computes these scores once for all layers
    cost       O(m D²) for the projections of positions, O(n m D) for their scores; O(n m) memory
    raises     ValueError for more than `longest` keys, or heads of another number or width than d
    """

    width: int
    heads: int
    longest: int
    cls: bool = True
    buckets: int | None = None
    distance: int = 128

    shared = TUPEParams._fields
    relative = False

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)
        if self.buckets is not None:
            t5_buckets(np.zeros(1, int), buckets=self.buckets, distance=self.distance, causal=False)

    @property
    def scale(self) -> float:  # type: ignore[override]  # a value that depends on the others
        """1/√(2d), of both parts."""
        return 1 / math.sqrt(2 * self.width / self.heads)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> TUPEParams:
        """Small random rows and biases; projections as in `MultiHeadAttention`; θ zero."""
        D, s = self.width, math.sqrt(3 / self.width)
        table = (0.02 * rng.standard_normal((self.longest, D))).astype(dtype)
        U_q, U_k = (rng.uniform(-s, s, (D, D)).astype(dtype) for _ in range(2))
        params = TUPEParams(table, np.ones(D, dtype), np.zeros(D, dtype), U_q, U_k)
        if self.cls:
            params = params._replace(theta=np.zeros((2, self.heads), dtype))
        if self.buckets is not None:
            bias = 0.02 * rng.standard_normal((self.heads, self.buckets + self.cls))
            params = params._replace(bias=bias.astype(dtype))
        return params

    def scores(self, params: TUPEParams, Q: Array, K: Array) -> tuple[Array, TUPEPullback]:
        """C + B, where C are the scores of the contents and B those of the positions."""
        one_dtype(Q=Q, table=params.table)
        refuse_other_heads(Q, self.heads)
        n, m, d = Q.shape[-2], K.shape[-2], self.width // self.heads
        refuse_other_width(d, Q=Q)
        if m > self.longest:
            raise ValueError(f"K: position {m - 1} is beyond the learned table, which ends at {self.longest - 1}")
        B, positions = position_scores(params, n, m, heads=self.heads, scale=self.scale)
        untied = bucket = None
        if self.cls:
            B, untied = untie(B, params.theta)
        if self.buckets is not None:
            bucket = tupe_buckets(n, m, buckets=self.buckets, distance=self.distance, cls=self.cls)
            B = B + params.bias[:, bucket]
        C, content = scores(Q, K, scale=self.scale)
        return C + B, TUPEPullback(content, positions, untied, bucket, (self.buckets or 0) + self.cls)
