"""T5: one number for each head and bucket of offsets, added to the scores. Near offsets have a bucket each, far ones share.

S_ij = ⟨q_i, k_j⟩ + b_bucket(j − i)

`OffsetScalars` is a plainer form, with one number for each signed offset, as Borealis II prints it.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.checks import frozen
from minitransformer.gather_scatter import sum_by_index
from minitransformer.positions.encoding import OffsetBias, offsets
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Int, checked


@checked
def t5_buckets(
    offsets: Int[Array, "*batch o"], *, buckets: int = 32, distance: int = 128, causal: bool
) -> Int[Array, "*batch o"]:
    """The bucket of each offset j − i, from 0 to buckets − 1.

        t < e away           bucket t                                     e = half of the r buckets of this direction
        from there on        bucket e + ⌊(r − e) ln(t/e) / ln(distance/e)⌋, or r − 1 if that is less

    causal    all buckets are for j ≤ i, r = buckets; an offset ahead counts as 0. If not, r = buckets/2, and offsets ahead
              get the second half of the buckets. Its first would be for a distance of 0, which is not ahead: it is never
              used (16 of 32)
    distance  from there on all is one bucket, the last, which begins somewhat before: with 32 and 128, beyond 90 both ways, and
              beyond 112 if causal
    source    Raffel et al. 2020; the bounds are those of the code published with it
    raises    ValueError for an odd number of buckets, too few, or if `distance` comes before the buckets of one offset end
    """
    r = buckets if causal else buckets // 2
    exact = r // 2
    if buckets % 2 or exact < 1:
        raise ValueError(f"buckets: {buckets} should be even, and at least {2 if causal else 4}")
    if distance <= exact:
        raise ValueError(f"distance: {distance} should be more than the {exact} distances with a bucket of their own")
    away = np.maximum(-offsets, 0) if causal else np.abs(offsets)
    ratio = np.log(np.maximum(away, exact) / exact) / math.log(distance / exact)
    far = np.minimum(exact + (ratio * (r - exact)).astype(int), r - 1)
    bucket = np.where(away < exact, away, far)
    return bucket if causal else bucket + r * (offsets > 0)


class T5Params(NamedTuple):
    """The number of each head and bucket, (H, buckets)."""

    table: Array


class T5Pullback(Pullback):
    """bias_o = b_bucket(o), so db_k = Σ_{o in bucket k} dbias_o."""

    bucket: Array
    buckets: int

    def __call__(self, dbias: Array) -> T5Params:
        return T5Params(sum_by_index(dbias, self.bucket, self.buckets))


@frozen
class T5Bias(OffsetBias):
    """One learned number for each head and bucket of offsets. Scores are not divided by √d.

    W_q has to make up for that when it is drawn: standard deviation (D d)^−½ where W_k has D^−½, as T5 does.

    heads     H
    buckets   for the offsets of both directions, or for those behind alone if causal
    distance  see `t5_buckets`
    source    Raffel et al. 2020; Borealis II (11), which has neither buckets nor a word on the scale (E9)
    shared    the table, by all layers of a stack. T5 has no positions in cross-attention
    cost      O(H (n + m)) besides attention itself. Can be causal: a decoder has other buckets than an encoder
    """

    heads: int
    buckets: int = 32
    distance: int = 128

    shared = ("table",)
    scale = 1.0

    def __post_init__(self) -> None:
        for causal in (False, True):
            t5_buckets(np.zeros(1, int), buckets=self.buckets, distance=self.distance, causal=causal)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> T5Params:
        """Small random numbers, of standard deviation 0.02."""
        return T5Params((0.02 * rng.standard_normal((self.heads, self.buckets))).astype(dtype))

    def bias(self, params: T5Params, n: int, m: int, *, causal: bool) -> tuple[Array, T5Pullback]:
        """b_bucket(o) for each offset o."""
        bucket = t5_buckets(offsets(n, m), buckets=self.buckets, distance=self.distance, causal=causal)
        return params.table[:, bucket], T5Pullback(bucket, self.buckets)


class OffsetScalarParams(NamedTuple):
    """π_o of each head, (H, 2 longest − 1), from offset o = j − i = −(longest − 1) to longest − 1."""

    table: Array


class OffsetScalarPullback(Pullback):
    """The bias is a piece of the table, and so is its gradient; the rest of the table was not used."""

    used: slice
    longest: int

    def __call__(self, dbias: Array) -> OffsetScalarParams:
        dtable = np.zeros((len(dbias), 2 * self.longest - 1), dbias.dtype)
        dtable[:, self.used] = dbias
        return OffsetScalarParams(dtable)


@frozen
class OffsetScalars(OffsetBias):
    """S_ij = ⟨q_i, k_j⟩ + π_{j − i}: one learned number for each head and signed offset.

    There is no number for an offset of `longest` or more, and so no longer sequence: T5's buckets are the way out.

    heads     H
    longest   of the sequences, which have 2 longest − 1 signed offsets
    source    Borealis II (11), which counts i − j: the same table from the other end. Not scaled, as printed, and as in T5
    shared    the table, as in T5
    cost      O(H (n + m)) besides attention itself. Can be causal
    raises    ValueError for more than `longest` keys
    """

    heads: int
    longest: int

    shared = ("table",)
    scale = 1.0

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> OffsetScalarParams:
        """Small random numbers, of standard deviation 0.02."""
        return OffsetScalarParams((0.02 * rng.standard_normal((self.heads, 2 * self.longest - 1))).astype(dtype))

    def bias(self, params: OffsetScalarParams, n: int, m: int, *, causal: bool) -> tuple[Array, OffsetScalarPullback]:
        """π_o for each offset o."""
        if m > self.longest:
            raise ValueError(f"K: {m} positions have offsets up to {m - 1}, and the table ends at {self.longest - 1}")
        used = slice(self.longest - m, self.longest + n - 1)
        return params.table[:, used], OffsetScalarPullback(used, self.longest)
