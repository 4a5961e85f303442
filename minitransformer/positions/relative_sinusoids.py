"""Sinusoids of the distance, compared with the query: Transformer-XL's and TENER's scores.

    S_ij = scale · [ ⟨q_i + u, k_j⟩ + ⟨q_i + v, r_{i−j}⟩ ]

Content with content and content with position are as in the expansion of (x_i + π_i) W_q W_kᵀ (x_j + π_j)ᵀ, with a
sinusoid r of the distance where π_j was. In the two terms that had the position of the query, which says nothing about a
distance, a learned vector of each head takes its place: u for content, v for positions. A sine is odd, so r tells before
from behind.

The n m products with r come from n (n + m): one for each query and distance. They are then moved along their rows, so
that key j is in column j (the relative shift). No array of n m vectors exists.
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, refuse_indivisible
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, ScoresPullback, linear, scores
from minitransformer.gather_scatter import merge_heads, refuse_other_heads, split_heads, unbroadcast
from minitransformer.positions.absolute import must_be_even, sinusoids
from minitransformer.positions.encoding import ScoreEncoding, refuse_other_width
from minitransformer.pullback import Pullback
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array


def relative_shift(T: Array) -> Array:
    """S_ij = T_{i, j−i+n−1}, (…, n, n + m) to (…, n, m): row i of S is a piece of row i of T, one entry further left each time.

    Read as one line from entry n − 1 on, T has these pieces n + m − 1 entries apart, so a reshape puts them below each other.
    The last column of T is not used.
    """
    *batch, n, columns = T.shape
    if n == 0:
        return T
    flat = T.reshape(*batch, n * columns)[..., n - 1 : -1]
    return flat.reshape(*batch, n, columns - 1)[..., : columns - n]


def unshift(dS: Array) -> Array:
    """The gradient of `relative_shift`: every entry goes back to where it came from, (…, n, m) to (…, n, n + m)."""
    *batch, n, m = dS.shape
    dT = np.zeros((*batch, n * (n + m)), dS.dtype)
    if n:
        dT[..., n - 1 : -1].reshape(*batch, n, n + m - 1)[..., :m] = dS
    return dT.reshape(*batch, n, n + m)


class RelativeSinusoidParams(NamedTuple):
    """u and v, (H, d): what stands for the query's own position. W_kr, (D, H d), makes sinusoids into keys; or None."""

    u: Array
    v: Array
    W_kr: Array | None = None


class RelativeSinusoidPullback(Pullback):
    """T = scale · (Q + v) Rᵀ, and shifted it is added to the scores: dT = unshift(dS), δT = scale · ((δQ + δv) Rᵀ + (Q + v) δRᵀ).

    The query is in both terms, so dQ is the sum of what is sent back to Q + u and to Q + v; du and dv are sums over it.
    """

    content: ScoresPullback  # of Q + u and K
    Qv: Array  # Q + v
    R: Array
    project: LinearPullback | None
    scale: float

    def __call__(self, dS: Array) -> tuple[RelativeSinusoidParams, Array, Array]:
        dQu, dK = self.content(dS)
        dT = unshift(self.scale * dS)
        dQv = dT @ self.R
        heads, _, d = shape = (self.Qv.shape[-3], 1, self.Qv.shape[-1])
        du, dv = (unbroadcast(dX, shape).reshape(heads, d) for dX in (dQu, dQv))
        if self.project is None:
            return RelativeSinusoidParams(du, dv), dQu + dQv, dK
        dR = unbroadcast(dT.mT @ self.Qv, self.R.shape)
        _, dW_kr = self.project(merge_heads(dR))  # the sinusoids themselves learn nothing
        return RelativeSinusoidParams(du, dv, dW_kr), dQu + dQv, dK


class RelativeSinusoids(ScoreEncoding):
    """The base of Transformer-XL's and TENER's encodings. A subclass has `sizes`, and a `table` of sinusoids."""

    def sizes(self) -> tuple[int, int]:
        """H, and the width d of a head."""
        raise TypeError(f"{type(self).__name__} has no heads")

    def table(self, first: int, count: int) -> Array:
        """Sinusoids of the distances first … first + count − 1, one in each row."""
        raise TypeError(f"{type(self).__name__} has no sinusoids")

    def scores(self, params: Any, Q: Array, K: Array) -> tuple[Array, RelativeSinusoidPullback]:
        """S (*batch, H, n, m), the sum of both terms. Pullback: dS to (dparams, dQ, dK)."""
        one_dtype(Q=Q, u=params.u, v=params.v, W_kr=params.W_kr)
        heads, d = self.sizes()
        refuse_other_heads(Q, heads)
        refuse_other_width(d, Q=Q)
        n, m = Q.shape[-2], K.shape[-2]
        S, content = scores(Q + params.u[:, None], K, scale=self.scale)
        R = self.table(-n, n + m)[::-1].astype(Q.dtype)  # row c: distance i − j = m − 1 − c, the largest first
        project = None
        if params.W_kr is not None:
            R, project = linear(R, params.W_kr)
            R = split_heads(R, Q.shape[-3])
        Qv = Q + params.v[:, None]
        S += relative_shift((content.scale * Qv) @ R.mT)
        return S, RelativeSinusoidPullback(content, Qv, R, project, content.scale)


@frozen
class TransformerXLPositions(RelativeSinusoids):
    """Sinusoids as wide as the model, projected like keys; all scores divided by √d.

        S_ij = [ ⟨q_i + u, k_j⟩ + ⟨q_i + v, W_krᵀ r_{i−j}⟩ ] / √d

    width    D, even; a row of sinusoids is [sin ω_f t | cos ω_f t] with ω_f = 10000^(−2f/D)
    heads    H, must divide D
    tied     whether all layers share u and v, as the published code does by default
    source   Dai et al. 2019; XLNet has the same. Aalto 3.3.2 has no equation for it
    cost     O(n (n + m) d) for each head, and O(n (n + m)) memory. Can be causal.
    raises   ValueError for an odd width, or one that is not divisible by H
    """

    width: int
    heads: int
    tied: bool = True

    @property
    def shared(self) -> tuple[str, ...]:  # type: ignore[override]
        """u and v, if they are tied."""
        return ("u", "v") if self.tied else ()

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)
        must_be_even(self.width)

    def sizes(self) -> tuple[int, int]:
        return self.heads, self.width // self.heads

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> RelativeSinusoidParams:
        """u and v small, of standard deviation 0.02; W_kr uniform on ±√(3/D), as other projections."""
        u, v = (0.02 * rng.standard_normal((2, *self.sizes()))).astype(dtype)
        W_kr = np.sqrt(3 / self.width) * rng.uniform(-1, 1, (self.width, self.width))
        return RelativeSinusoidParams(u, v, W_kr.astype(dtype))

    def table(self, first: int, count: int) -> Array:
        """[sin | cos], (count, D): the columns of the interleaved table, sines before cosines."""
        R = sinusoids(count, self.width, first=first)
        return np.concatenate([R[:, 0::2], R[:, 1::2]], -1)


@frozen
class TENER(RelativeSinusoids):
    """Sinusoids as wide as a head, taken as keys as they are; and scores are not divided by √d.

        S_ij = ⟨q_i + u, k_j⟩ + ⟨q_i + v, r_{i−j}⟩

    In the paper the keys are not projected either: k_j of head h is its d columns of x_j. That is up to the caller, who makes K.

    heads    H
    d        width of a head, even; a row of sinusoids is [sin ω_f t | cos ω_f t] with ω_f = 10000^(−f/(d/2 − 1))
    scale    1; None for 1/√d
    source   Yan et al. 2019. The published code has r_{j−i}: there the sines have the other sign
    cost     O(n (n + m) d) for each head, and O(n (n + m)) memory. Can be causal.
    raises   ValueError for an odd d
    """

    heads: int
    d: int
    scale: PositiveNumber | None = 1.0

    def __post_init__(self) -> None:
        must_be_even(self.d, "d")

    def sizes(self) -> tuple[int, int]:
        return self.heads, self.d

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> RelativeSinusoidParams:
        """u and v normal, with variance 2/(H + d)."""
        u, v = (np.sqrt(2 / (self.heads + self.d)) * rng.standard_normal((2, self.heads, self.d))).astype(dtype)
        return RelativeSinusoidParams(u, v)

    def table(self, first: int, count: int) -> Array:
        """[sin | cos], (count, d)."""
        return sinusoids(count, self.d, first=first, layout="halves")
