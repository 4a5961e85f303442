"""Positions inside the product of query and key: four ways for an offset to meet both.

    M1   S_ij = scale · ⟨q_i, k_j⟩ a_{|j−i|}                             a number for each distance
    M2   S_ij = scale · ⟨q_i, k_j⟩ a_{j−i}                               a number for each offset
    M3   S_ij = scale · Σ_c q_ic k_jc a_{j−i, c}                         a vector for each offset, inside the product
    M4   S_ij = scale · (⟨q_i, k_j⟩ + ⟨q_i, a_{j−i}⟩ + ⟨k_j, a_{j−i}⟩)   the three products of two

Offsets are clipped to −k … k. A factor is no penalty: a small one pulls a negative score *up* to zero, so that a key which
content had ruled out comes back. At a = 1, where M1 to M3 begin, and at a = 0 in M4, this is attention without positions.
"""

from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import outer_sum, scale_for
from minitransformer.checks import frozen
from minitransformer.functional import ScoresPullback, scores
from minitransformer.gather_scatter import by_offset, sum_by_index, sum_by_offset
from minitransformer.positions.encoding import ScoreEncoding, offsets
from minitransformer.positions.shaw import by_clipped_offset, heads_are, sum_by_clipped_offset
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative
from minitransformer.typing import Array

# ---------------------------------------------------------------------------------- M1 and M2: a number


class ScaledScoresPullback(Pullback):
    """δS = scale (δP ⊙ F + P ⊙ δF) with P = Q Kᵀ, F_ij = a_{row(j−i)}: da_o sums scale · dS ⊙ P over all its pairs."""

    content: ScoresPullback  # from dP to dQ and dK
    P: Array  # scaled
    a: Array
    row: Array  # of a, for each offset

    def __call__(self, dS: Array) -> tuple[Array, Array, Array]:
        n, m = dS.shape[-2:]
        dF = (dS * self.P).sum(tuple(range(dS.ndim - 2)))
        da = sum_by_index(sum_by_offset(dF), self.row, len(self.a))
        return da, *self.content(dS * by_offset(self.a[self.row], n, m))


def scaled_scores(a: Array, Q: Array, K: Array, *, signed: bool, scale: float) -> tuple[Array, ScaledScoresPullback]:
    """S_ij = scale · ⟨q_i, k_j⟩ a_o with the clipped offset o = j − i, from −k to k, or its size |o|, from 0 to k."""
    n, m = Q.shape[-2], K.shape[-2]
    o = offsets(n, m)
    k = len(a) // 2 if signed else len(a) - 1
    row = np.clip(o, -k, k) + k if signed else np.minimum(np.abs(o), k)
    P, content = scores(Q, K, scale=scale)
    return P * by_offset(a[row], n, m), ScaledScoresPullback(content, P, a, row)


# ------------------------------------------------------------------------ M3: a vector inside the product


def _diagonal(n: int, m: int, offset: int) -> tuple[slice, slice]:
    """Which queries have a key at this offset, and which keys these are; the queries are the last n of the m positions."""
    shift = m - n + offset
    start, stop = max(0, -shift), max(0, -shift, min(n, m - shift))
    return slice(start, stop), slice(start + shift, stop + shift)


def _index(rows: slice, columns: slice) -> tuple:
    """The pairs of a diagonal, of a matrix with any batch axes in front."""
    return ..., np.arange(rows.start, rows.stop), np.arange(columns.start, columns.stop)


class ThreeWayScoresPullback(Pullback):
    """δS_ij = scale Σ_c (δq k a + q δk a + q k δa)_c: each factor gets the product of the other two with dS_ij.

    Far keys, k and more to one side, share their vector: two products of matrices. Near ones go diagonal by diagonal.
    """

    Q: Array
    K: Array
    a: Array
    scale: float

    def __call__(self, dS: Array) -> tuple[Array, Array, Array]:
        Q, K, a = self.Q, self.K, self.a
        n, m, k = Q.shape[-2], K.shape[-2], len(a) // 2
        dS = self.scale * dS
        da, dQ, dK = np.zeros_like(a), np.zeros_like(Q), np.zeros_like(K)
        left = np.tril(dS, m - n - max(k, 1))  # j − i ≤ −k, and not 0
        right = np.triu(dS, m - n + k)
        for place, far in ((0, left), (2 * k, right)):
            dQ_a = far @ K  # the gradient of q_i ⊙ a
            da[place] += (dQ_a * Q).sum(tuple(range(Q.ndim - 1)))
            dQ += dQ_a * a[place]
            dK += far.mT @ (Q * a[place])
        for offset in range(1 - k, k):
            rows, columns = _diagonal(n, m, offset)
            near, q, key = dS[_index(rows, columns)][..., None], Q[..., rows, :], K[..., columns, :]
            da[offset + k] += (near * q * key).sum(tuple(range(Q.ndim - 1)))
            dQ[..., rows, :] += near * a[offset + k] * key
            dK[..., columns, :] += near * a[offset + k] * q
        return da, dQ, dK


def three_way_scores(a: Array, Q: Array, K: Array, *, scale: float) -> tuple[Array, ThreeWayScoresPullback]:
    """S_ij = scale · Σ_c q_ic k_jc a_{o, c} with the clipped offset o = j − i, in O(n m d + n k d), no n × m × d array."""
    n, m, k = Q.shape[-2], K.shape[-2], len(a) // 2
    left, right = ((scale * Q * a[place]) @ K.mT for place in (0, -1))
    S = np.where(np.tri(n, m, m - n - 1, dtype=bool), left, right)
    for offset in range(1 - k, k):
        rows, columns = _diagonal(n, m, offset)
        S[_index(rows, columns)] = (scale * Q[..., rows, :] * a[offset + k] * K[..., columns, :]).sum(-1)
    return S, ThreeWayScoresPullback(Q, K, a, scale)


# -------------------------------------------------------------------------- M4: a vector for each of the two


class QueryKeyScoresPullback(Pullback):
    """R = Q aᵀ and C = K aᵀ were spread over S, row by row and column by column; their gradients sum over equal offsets."""

    content: ScoresPullback
    a: Array

    def __call__(self, dS: Array) -> tuple[Array, Array, Array]:
        k, s = len(self.a) // 2, self.content.scale
        dQ, dK = self.content(dS)
        dR = s * sum_by_clipped_offset(dS, k)
        dC = s * sum_by_clipped_offset(dS.mT, k)[..., ::-1]  # seen from the key, the offset has the other sign
        da = outer_sum(dR, self.content.Q) + outer_sum(dC, self.content.K)
        return da, dQ + dR @ self.a, dK + dC @ self.a


def query_key_scores(a: Array, Q: Array, K: Array, *, scale: float) -> tuple[Array, QueryKeyScoresPullback]:
    """S_ij = scale · (⟨q_i, k_j⟩ + ⟨q_i, a_o⟩ + ⟨k_j, a_o⟩) with the clipped offset o = j − i."""
    S, content = scores(Q, K, scale=scale)
    R, C = (content.scale * X @ a.T for X in (Q, K))
    S += by_clipped_offset(R, K.shape[-2])
    S += by_clipped_offset(C[..., ::-1], Q.shape[-2]).mT
    return S, QueryKeyScoresPullback(content, a)


# -------------------------------------------------------------------------------------------- the encoding


class MultiplicativeParams(NamedTuple):
    """The factors of the offsets, shared by the heads: M1 (k + 1,), M2 (2k + 1,), M3 and M4 (2k + 1, d)."""

    a: Array


class MultiplicativeScoresPullback(Pullback):
    """The pullback of the scores of this kind, with da in a MultiplicativeParams."""

    scores: Pullback

    def __call__(self, dS: Array) -> tuple[MultiplicativeParams, Array, Array]:
        da, dQ, dK = self.scores(dS)
        return MultiplicativeParams(da), dQ, dK


@frozen
class Multiplicative(ScoreEncoding):
    """Positions that multiply the product of query and key (M1, M2), stand inside it (M3), or meet each of the two (M4).

    d        width, of a head
    clip     k ≥ 0, beyond which all offsets to one side are alike
    kind     "M1", "M2", "M3" or "M4"
    source   Borealis II (12) is M1, where "π_{i−j} for each absolute offset" means π_|i−j| (E10), and the scale is left
             out (E1). M4 is "method 4" of Huang, Liang, Xu and Xiang 2020, known from BERT models as "relative_key_query";
             M2 and M3 are the steps from the one to the other
    cost     O(n m d) as attention itself, and O(n k d) in M3; O(n k) memory besides the scores. Can be causal.
    raises   ValueError for an unknown kind and heads of another width; TypeError for a table of another size
    """

    d: int
    clip: NonNegative = 16
    kind: Literal["M1", "M2", "M3", "M4"] = "M1"

    @property
    def _shape(self) -> tuple[int, ...]:
        k = self.clip
        return {"M1": (k + 1,), "M2": (2 * k + 1,)}.get(self.kind, (2 * k + 1, self.d))

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> MultiplicativeParams:
        """Factors of one; in M4 small random vectors, of standard deviation 0.02."""
        a = 0.02 * rng.standard_normal(self._shape) if self.kind == "M4" else np.ones(self._shape)
        return MultiplicativeParams(a.astype(dtype))

    def scores(self, params: MultiplicativeParams, Q: Array, K: Array) -> tuple[Array, MultiplicativeScoresPullback]:
        """S (*batch, H, n, m) of this kind. Pullback: dS to (dparams, dQ, dK)."""
        heads_are(self.d, params.a, Q=Q, K=K)
        scale = Q.dtype.type(scale_for(self.d, self.scale))
        pullback: Pullback
        if self.kind in ("M1", "M2"):
            S, pullback = scaled_scores(params.a, Q, K, signed=self.kind == "M2", scale=scale)
        elif self.kind == "M3":
            S, pullback = three_way_scores(params.a, Q, K, scale=scale)
        else:
            S, pullback = query_key_scores(params.a, Q, K, scale=scale)
        return S, MultiplicativeScoresPullback(pullback)
