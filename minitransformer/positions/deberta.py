"""DeBERTa: content and position are kept apart, and each is compared with the content of the other token.

    S_ij = [ ⟨q_i, k_j⟩ + ⟨q_i, kr_δ(i,j)⟩ + ⟨qr_δ(j,i), k_j⟩ ] / √(3d)

    content with content, content with position (c2p), position with content (p2c)

A table P holds one row for each clipped distance, and all layers share it; kr = P W_kr and qr = P W_qr make it into keys
and queries. What it drops is position with position.
"""

import math
from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype, refuse_indivisible
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, ScoresPullback, linear, scores
from minitransformer.gather_scatter import merge_heads, refuse_other_heads, split_heads, sum_by_index, unbroadcast
from minitransformer.positions.encoding import ScoreEncoding, refuse_other_width
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Int, checked

Index = Literal["paper", "code"]


@checked
def deberta_buckets(distance: Int[Array, "..."], *, buckets: int, longest: int) -> Array:
    """Version 2: distances below buckets/2 stay as they are, longer ones share buckets, up to 2e − 1 at `longest` − 1.

        b(t) = t                                                       for |t| ≤ e,    e = ⌊buckets/2⌋
               ± (e + ⌈(e − 1) ln(|t|/e) / ln((longest − 1)/e)⌉)        beyond

    source   `make_log_bucket_position` in the published code
    raises   ValueError for fewer than 2 buckets, or e > longest − 2
    """
    _refuse_buckets(buckets, longest)
    t, exact = np.abs(distance), buckets // 2
    ratio = np.log(np.maximum(t, exact) / exact) / math.log((longest - 1) / exact)
    far = exact + np.ceil((exact - 1) * ratio).astype(int)
    return np.where(t <= exact, distance, np.sign(distance) * far)


def _refuse_buckets(buckets: int, longest: int) -> None:
    if buckets < 2 or longest < buckets // 2 + 2:
        raise ValueError(
            f"buckets: {buckets} should be at least 2, half of it below {longest - 1}, the longest distance"
        )


class PositionTermPullback(Pullback):
    """T = X Rᵀ and G_ab = T_{a, rows_ab}: dT sums what has the same a and row; dX = dT R, dR = dTᵀ X, and R = P W + b."""

    X: Array
    R: Array
    rows: Array
    project: LinearPullback

    def __call__(self, dG: Array) -> tuple[Array, Array, Array, Array | None]:
        tables, size = len(self.rows), self.R.shape[-2]
        entry = self.rows + size * np.arange(tables)[:, None]  # each a has a table of its own
        dT = sum_by_index(dG, entry, tables * size).reshape(*dG.shape[:-1], size)
        dP, dW, *db = self.project(merge_heads(unbroadcast(dT.mT @ self.X, self.R.shape)))
        return dT @ self.R, dP, dW, db[0] if db else None


def position_term(X: Array, P: Array, W: Array, b: Array | None, rows: Array) -> tuple[Array, PositionTermPullback]:
    """G_ab = ⟨x_a, r⟩ with r row rows_ab of P W + b, in each head: (*batch, H, a, d) to (*batch, H, a, b).

    One product for each a and row of P, and then every G_ab takes its own.
    """
    R, project = linear(P, W, b)
    R = split_heads(R, X.shape[-3])
    G = (X @ R.mT)[..., np.arange(len(rows))[:, None], rows]
    return G, PositionTermPullback(X, R, rows, project)


class DeBERTaParams(NamedTuple):
    """P (2k, D), and what makes it into keys and queries, (D, H d); None for a term that is not there.

    The paper has no biases; version 1 of the code has b_qr, and version 2 both.
    """

    P: Array
    W_kr: Array | None
    W_qr: Array | None
    b_kr: Array | None = None
    b_qr: Array | None = None

    @property
    def optional(self) -> tuple[str, ...]:
        """Parameters that may be missing: the biases."""
        return "b_kr", "b_qr"


class DeBERTaPullback(Pullback):
    """Back through each term by itself; query, key and table are in two terms each, and get the sum."""

    content: ScoresPullback
    c2p: PositionTermPullback | None
    p2c: PositionTermPullback | None
    shape: tuple[int, ...]  # of P

    def __call__(self, dS: Array) -> tuple[DeBERTaParams, Array, Array]:
        dQ, dK = self.content(dS)
        dS = self.content.scale * dS
        dparams = DeBERTaParams(np.zeros(self.shape, dS.dtype), None, None)
        if self.c2p is not None:
            dX, dP, dW, db = self.c2p(dS)
            dQ, dparams = dQ + dX, dparams._replace(P=dP, W_kr=dW, b_kr=db)
        if self.p2c is not None:
            dX, dP, dW, db = self.p2c(dS.mT)
            dK, dparams = dK + dX, dparams._replace(P=dparams.P + dP, W_qr=dW, b_qr=db)
        return dparams, dQ, dK


@frozen
class DeBERTa(ScoreEncoding):
    """Disentangled attention: word with offset and offset with word, from one table of offsets; each has a projection.

        δ(i,j) = clip(i − j + k, 0, 2k − 1)

    width     D
    heads     H, must divide D
    span      k: distances from −k to k − 1 have a row of P each
    index     of the last term: "paper" is δ(j,i) as printed; "code" is δ(i,j), what the published code computes and so what
              published weights need. Two different models
    buckets   version 2: the k of the table is `buckets`, and distances up to `span` share its rows (`deberta_buckets`)
    terms     "c2p", "p2c" or both
    source    Borealis II (13), which leaves out the scale and the clipping (E11); He et al. 2020
    cost      O(n m d + (n + m) k d) for each head, and O(n m + (n + m) k) memory. Can be causal; it was made for encoders
    raises    ValueError for a width that H does not divide, a number of buckets that does not fit `span`, or other terms; when
              called, also for other heads, and TypeError for other dtypes
    """

    width: int
    heads: int
    span: int
    index: Index = "paper"
    buckets: int | None = None
    terms: tuple[str, ...] = ("c2p", "p2c")

    shared = ("P",)

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)
        if self.buckets is not None:
            _refuse_buckets(self.buckets, self.span)
        if not self.terms or not set(self.terms) <= {"c2p", "p2c"} or len(set(self.terms)) < len(self.terms):
            raise ValueError(f'terms: {self.terms} should be "c2p", "p2c" or both')

    @property
    def scale(self) -> float:  # type: ignore[override]
        """1/√(d · products), 1/√(3d) with both terms: a sum of three products has three times the variance of one."""
        return 1 / math.sqrt(self.width // self.heads * (1 + len(self.terms)))

    @property
    def k(self) -> int:
        """Half of the rows of P."""
        return self.span if self.buckets is None else self.buckets

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> DeBERTaParams:
        """P of standard deviation 0.02; projections uniform on ±√(3/D)."""
        P = 0.02 * rng.standard_normal((2 * self.k, self.width))
        W_kr, W_qr = np.sqrt(3 / self.width) * rng.uniform(-1, 1, (2, self.width, self.width))
        return DeBERTaParams(
            P.astype(dtype),
            W_kr.astype(dtype) if "c2p" in self.terms else None,
            W_qr.astype(dtype) if "p2c" in self.terms else None,
        )

    def rows(self, distance: Array) -> Array:
        """The row of P for each distance i − j."""
        if self.buckets is not None:
            distance = deberta_buckets(distance, buckets=self.buckets, longest=self.span)
        return np.clip(distance + self.k, 0, 2 * self.k - 1)

    def scores(self, params: DeBERTaParams, Q: Array, K: Array) -> tuple[Array, DeBERTaPullback]:
        """The scores of all terms, (*batch, H, n, m). Pullback: dS to (dparams, dQ, dK)."""
        one_dtype(Q=Q, **params._asdict())
        refuse_other_heads(Q, self.heads)
        refuse_other_width(self.width // self.heads, Q=Q)
        for name in params.optional:
            if (b := getattr(params, name)) is not None and b.shape != (self.width,):
                raise TypeError(f"{name}: shape {b.shape} should be {(self.width,)}")
        n, m = Q.shape[-2], K.shape[-2]
        distance = np.arange(m - n, m)[:, None] - np.arange(m)  # i − j
        S, content = scores(Q, K, scale=self.scale)
        c2p = p2c = None
        if params.W_kr is not None:
            G, c2p = position_term(Q, params.P, params.W_kr, params.b_kr, self.rows(distance))
            S += content.scale * G
        if params.W_qr is not None:
            rows = self.rows(-distance if self.index == "paper" else distance)
            G, p2c = position_term(K, params.P, params.W_qr, params.b_qr, rows.T)
            S += content.scale * G.mT
        return S, DeBERTaPullback(content, c2p, p2c, params.P.shape)
