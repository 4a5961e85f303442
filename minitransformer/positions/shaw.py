"""Shaw, Uszkoreit and Vaswani: a learned vector for each offset, added to the keys, and another added to the values.

    S_ij = ⟨q_i, k_j + a^K_{c(j−i)}⟩ / √d
    y_i  = Σ_j A_ij (v_j + a^V_{c(j−i)})            c(x) = max(−k, min(k, x)): beyond k all offsets are alike

Written so, both are sums over n · n · d numbers. But an offset has only 2k + 1 values, so a query meets at most 2k + 1 vectors:

    R = Q a^Kᵀ, (n, 2k + 1):   S_ij = (⟨q_i, k_j⟩ + R_{i, c(j−i)}) / √d
    T_ic = Σ_{j: c(j−i) = c} A_ij, (n, 2k + 1):   Y = A V + T a^V

`by_clipped_offset` spreads R over the matrix, `sum_by_clipped_offset` gathers T; each is the gradient of the other.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, outer_sum
from minitransformer.checks import frozen
from minitransformer.functional import AggregatePullback, ScoresPullback, aggregate, scores
from minitransformer.positions.encoding import PlainAggregatePullback, ScoreEncoding, refuse_other_width
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative
from minitransformer.typing import Array

# --------------------------------------------------------------------------- rows of offsets, there and back


def _near(i: int, n: int, m: int, k: int) -> tuple[slice, slice]:
    """Where the keys at most k away from query i stand, and their places among −k … k; query i is at position i + m − n."""
    at = i + m - n
    start, stop = min(max(at - k, 0), m), min(max(at + k + 1, 0), m)
    return slice(start, stop), slice(start - at + k, stop - at + k)


def by_clipped_offset(R: Array, m: int) -> Array:
    """S_ij = R_{i, c(j−i)}: one number for each query and offset −k … k, (…, n, 2k + 1), as a matrix (…, n, m).

    The n rows are the last n of the m positions. Row i of S is row i of R, with its two ends repeated.
    """
    *batch, n, size = R.shape
    S = np.empty((*batch, n, m), R.dtype)
    for i in range(n):
        keys, places = _near(i, n, m, size // 2)
        S[..., i, : keys.start] = R[..., i, :1]
        S[..., i, keys] = R[..., i, places]
        S[..., i, keys.stop :] = R[..., i, -1:]
    return S


def sum_by_clipped_offset(dS: Array, k: int) -> Array:
    """dR_ic = Σ_{j: c(j−i) = c} dS_ij: for each query the sums over equal offsets, (…, n, m) to (…, n, 2k + 1)."""
    *batch, n, m = dS.shape
    dR = np.zeros((*batch, n, 2 * k + 1), dS.dtype)
    for i in range(n):
        keys, places = _near(i, n, m, k)
        dR[..., i, places] = dS[..., i, keys]
        dR[..., i, 0] += dS[..., i, : keys.start].sum(-1)
        dR[..., i, -1] += dS[..., i, keys.stop :].sum(-1)
    return dR


def heads_are(width: int, a: Array, **rows: Array) -> None:
    """Raise ValueError for heads of another width than this, and TypeError for those of another dtype than the table a."""
    one_dtype(a=a, **rows)
    refuse_other_width(width, **rows)


# -------------------------------------------------------------------------------------------- the encoding


class ShawParams(NamedTuple):
    """The vectors of the offsets −k … k, (2k + 1, d), shared by the heads: for keys, and for values (or None)."""

    a_k: Array
    a_v: Array | None = None


class ShawScoresPullback(Pullback):
    """R = scale · Q a_kᵀ was spread over S, so dR is the sum over equal offsets, dQ has dR a_k too, and da_k = dRᵀ Q."""

    content: ScoresPullback
    params: ShawParams

    def __call__(self, dS: Array) -> tuple[ShawParams, Array, Array]:
        a_k, a_v = self.params
        dQ, dK = self.content(dS)
        dR = self.content.scale * sum_by_clipped_offset(dS, len(a_k) // 2)
        dparams = ShawParams(outer_sum(dR, self.content.Q), None if a_v is None else np.zeros_like(a_v))
        return dparams, dQ + dR @ a_k, dK


class ShawAggregatePullback(Pullback):
    """δY = … + δT a_v + T δa_v: dT = dY a_vᵀ goes to every pair with that offset, and da_v = Tᵀ dY."""

    content: AggregatePullback
    T: Array
    a_v: Array

    def __call__(self, dY: Array) -> tuple[ShawParams, Array, Array]:
        dA, dV = self.content(dY)
        dT = dY @ self.a_v.T
        dparams = ShawParams(np.zeros_like(self.a_v), outer_sum(self.T, dY))
        return dparams, dA + by_clipped_offset(dT, dA.shape[-1]), dV


@frozen
class Shaw(ScoreEncoding):
    """A learned vector for each offset, added to the key, and another to the value; with `values=False` to the key alone.

    d        width, of a head; the values' heads are as wide
    clip     k ≥ 0, beyond which all offsets to one side have the same vector
    values   whether the values get vectors too
    source   Aalto (16), (17), where a^K, a^V = w_{clip(j−i)}; Borealis II (10), keys alone, with π_{i−j} for our a_{j−i};
             CS224N notes, "relative positions are learned". Tables are shared by the heads of a layer, not by layers.
    cost     O(n m d) as attention itself; O(n k) memory besides the scores. Can be causal.
    raises   ValueError for heads of another width, TypeError for tables of another size
    """

    d: int
    clip: NonNegative = 16
    values: bool = True
    acts_on = ("scores", "values")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> ShawParams:
        """Small random vectors, of standard deviation 0.02."""
        tables = [(0.02 * rng.standard_normal(self._shape)).astype(dtype) for _ in range(1 + self.values)]
        return ShawParams(*tables)

    @property
    def _shape(self) -> tuple[int, int]:
        return 2 * self.clip + 1, self.d

    def scores(self, params: ShawParams, Q: Array, K: Array) -> tuple[Array, ShawScoresPullback]:
        """S_ij = scale · (⟨q_i, k_j⟩ + ⟨q_i, a_k at c(j − i)⟩)."""
        heads_are(self.d, params.a_k, Q=Q)
        S, content = scores(Q, K, scale=self.scale)
        S += by_clipped_offset(content.scale * Q @ params.a_k.T, K.shape[-2])
        return S, ShawScoresPullback(content, params)

    def aggregate(self, params: ShawParams, A: Array, V: Array) -> tuple[Array, Pullback]:
        """y_i = Σ_j A_ij v_j + Σ_c T_ic a_v at c."""
        Y, content = aggregate(A, V)
        if params.a_v is None:
            return Y, PlainAggregatePullback(content)
        heads_are(self.d, params.a_v, V=V)
        T = sum_by_clipped_offset(A, self.clip)
        return Y + T @ params.a_v, ShawAggregatePullback(content, T, params.a_v)
