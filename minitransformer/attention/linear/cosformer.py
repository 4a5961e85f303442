"""cosFormer: the weight of a pair falls with its distance as a cosine does, which is a product of features too.

    W_ij = ⟨relu(q_i), relu(k_j)⟩ cos(π/2 · (i − j)/M)
    cos(a − b) = cos a cos b + sin a sin b,   a = π i/(2 M)
    φ(x_i) = [relu(x_i) cos a_i; relu(x_i) sin a_i]             i from 1

For |i − j| < M the cosine is above zero. M is the longest sequence, not the present one: otherwise a new token would change the
weights of all others.
"""

import math

import numpy as np

from minitransformer.arrays import one_dtype, refuse_more_queries
from minitransformer.attention.kernel_attention import (
    FeatureAttention,
    Features,
    FeaturesPullback,
    FromFeaturesPullback,
    kernel_attention,
)
from minitransformer.checks import frozen
from minitransformer.positions.encoding import queries_last
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Integer, NonNegative
from minitransformer.typing import Array, Float, checked


class CosformerFeaturesPullback(Pullback):
    """F = [relu(x) cos a; relu(x) sin a]: dx = dF_1 cos a + dF_2 sin a where x > 0."""

    positive: Array
    cos: Array
    sin: Array

    def __call__(self, dF: Array) -> Array:
        first, second = np.split(dF, 2, -1)
        return np.where(self.positive, self.cos * first + self.sin * second, dF.dtype.type(0))


@checked
def cosformer_features(
    X: Float[Array, "*batch n d"], *, longest: int, first: NonNegative = 0
) -> tuple[Float[Array, "*batch n r"], CosformerFeaturesPullback]:
    """[relu(x_i) cos a_i; relu(x_i) sin a_i] with a_i = π i/(2 M): 2 d features, none negative.

    longest   M
    first     positions before the first row of X, so that its i is first + 1
    source    Qin et al. 2022
    cost      O(n d)
    raises    TypeError for a wrong shape or dtype, ValueError for a position before the first one, or beyond M
    """
    n = X.shape[-2]
    if first + n > longest:
        raise ValueError(f"X: position {first + n} is beyond the longest, {longest}")
    a = np.pi / (2 * longest) * np.arange(first + 1, first + n + 1)[:, None]
    cos, sin = np.cos(a).astype(X.dtype), np.sin(a).astype(X.dtype)
    R = np.maximum(X, 0)
    return np.concatenate([R * cos, R * sin], -1), CosformerFeaturesPullback(X > 0, cos, sin)


@checked
def cosformer_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    *,
    longest: int,
    causal: bool = False,
) -> tuple[Float[Array, "*batch n dv"], FromFeaturesPullback]:
    """Weights that fall with the distance, as a cosine, in linear time.

        W_ij = ⟨relu(q_i), relu(k_j)⟩ cos(π/2 · (i − j)/M),   y_i = Σ_j W_ij v_j / Σ_j W_ij

    longest   M. The authors' code takes the longer of n and m
    causal    query i sees keys j ≤ i only; the queries are the last n of the m positions, causal or not
    source    Qin et al. 2022. Their code keeps denominators above 10⁻⁶, which makes Y smaller where all weights are tiny; here
              Y is an average of values, or zero where no weight is above zero, as for a query without an entry above 0
    cost      O((n + m) d dv) time, O(n + m) memory. Can be causal
    returns   Y and a pullback: dQ, dK, dV = pullback(dY)
    raises    TypeError for a wrong shape or dtype, ValueError for n > m or m > M
    """
    one_dtype(Q=Q, K=K, V=V)
    n, m = queries_last(Q, K)
    if m > longest:
        raise ValueError(f"K: position {m} is beyond the longest, {longest}")
    FQ, q = cosformer_features(Q, longest=longest, first=m - n)
    FK, k = cosformer_features(K, longest=longest)
    Y, attention = kernel_attention(FQ, FK, V, causal=causal)
    return Y, FromFeaturesPullback(q, k, attention)


@frozen
class CosFormer(FeatureAttention):
    """Weights that fall with the distance, as a cosine, in linear time.

    longest   M: the longest sequence. Filled in by the model
    source    Qin et al. 2022
    cost      O(n d dv) time. Can be causal
    raises    ValueError for a sequence longer than M
    """

    longest: int

    remembers = "S and z, 2 d (dv + 1) for each head"
    needs = "a longest length"

    def phi(self, params: NoParams, X: Array, *, first: Integer, query: bool) -> tuple[Array, FeaturesPullback]:
        """`cosformer_features` of rows that stand at the positions from `first` on."""
        if first < 0:
            refuse_more_queries(X.shape[-2], X.shape[-2] + first)
        F, pullback = cosformer_features(X, longest=self.longest, first=first)
        return F, FeaturesPullback(pullback)

    def for_loops(self, params: NoParams, d: int, first: int) -> Features | None:
        """The same with cos and sin of this position; a position beyond M is refused where `phi` is called."""
        angle = math.pi / (2 * self.longest) * (first + 1)
        return Features("cosine", 1, math.cos(angle), math.sin(angle)) if 0 <= first < self.longest else None
