"""Deterministic parameter-free projection: many features without a random number, most of them zero.

    x        = [relu(k); relu(−k)]                      2 d numbers, at least half of them 0
    φ_s(k)   = x ⊙ roll(x, s)                           x_i x_{i−s}, indices around the circle
    φ(k)     = [φ_1; …; φ_ν]                            2 d ν features

An entry is above zero only if two of x are: each feature answers to one corner of the space, and keys in different corners don't
disturb each other. This suits a memory that is read by ⟨φ(q), φ(k)⟩.
"""

import numpy as np

from minitransformer.arrays import inverse
from minitransformer.attention.kernel_attention import FeatureAttention, Features, FeaturesPullback
from minitransformer.checks import frozen
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Integer, Iterations
from minitransformer.typing import Array, Float, checked


class DPFPPullback(Pullback):
    """φ_s,i = x_i x_{i−s}: dx_i gets dφ_s,i x_{i−s} as the first factor, and dφ_s,i+s x_{i+s} as the second.

    x = [relu(k); relu(−k)]: dk = dx where k > 0, and −dx of the other half where k < 0.
    """

    K: Array
    x: Array
    nu: int

    def __call__(self, dF: Array) -> Array:
        dx = np.zeros_like(self.x)
        for s, dphi in enumerate(np.split(dF, self.nu, -1), start=1):
            dx += dphi * np.roll(self.x, s, -1) + np.roll(dphi * self.x, -s, -1)
        positive, negative = np.split(dx, 2, -1)
        return np.where(self.K > 0, positive, np.where(self.K < 0, -negative, dx.dtype.type(0)))


@checked
def dpfp_features(
    K: Float[Array, "*batch n d"], *, nu: Iterations = 1
) -> tuple[Float[Array, "*batch n r"], DPFPPullback]:
    """[x ⊙ roll(x, 1); …; x ⊙ roll(x, ν)] with x = [relu(k); relu(−k)]: r = 2 d ν features, none negative.

    If d is odd and the signs of k alternate, no two neighbours of x are above zero, and with ν = 1 all features are 0.

    source   Borealis II, fast weight memory systems (not printed there); Schlag, Irie and Schmidhuber 2021
    cost     O(n d ν)
    raises   TypeError for a wrong shape or dtype, ValueError for ν < 1
    """
    x = np.concatenate([np.maximum(K, 0), np.maximum(-K, 0)], -1)
    F = np.concatenate([x * np.roll(x, s, -1) for s in range(1, nu + 1)], -1)
    return F, DPFPPullback(K, x, nu)


class SumNormalisedPullback(Pullback):
    """Y = F / σ with σ = Σ F: dF = (dY − ⟨dY, y⟩)/σ."""

    Y: Array
    share: Array

    def __call__(self, dY: Array) -> Array:
        return (dY - np.vecdot(dY, self.Y)[..., None]) * self.share


@checked
def sum_normalised(F: Float[Array, "*batch n r"]) -> tuple[Float[Array, "*batch n r"], SumNormalisedPullback]:
    """φ / Σ φ: features that sum to one, as a memory without a denominator needs them. A row of zeros stays zero.

    source   Schlag, Irie and Schmidhuber 2021
    """
    share = inverse(F.sum(-1))[..., None]
    Y = F * share
    return Y, SumNormalisedPullback(Y, share)


@frozen
class DPFP(FeatureAttention):
    """Kernel attention with products of neighbouring entries as features.

    nu       ν: 2 d ν features
    source   Schlag, Irie and Schmidhuber 2021
    cost     O(n d ν dv) time. Can be causal
    """

    nu: Iterations = 1

    cost = "O(n ν)"
    remembers = "S and z, 2 d ν (dv + 1) for each head"

    def phi(self, params: NoParams, X: Array, *, first: Integer, query: bool) -> tuple[Array, FeaturesPullback]:
        """`dpfp_features`, the same for queries and keys."""
        F, pullback = dpfp_features(X, nu=self.nu)
        return F, FeaturesPullback(pullback)

    def for_loops(self, params: NoParams, d: int, first: int) -> Features:
        """`dpfp_features` as data, the same at any position."""
        return Features("neighbours", self.nu)
