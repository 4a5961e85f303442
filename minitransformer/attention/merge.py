"""Attention to parts of the keys, and the results joined: they are those of one softmax over all parts.

    L_i = ln Σ_j exp S_ij                               how much a part weighs for query i, beside its Y_i
    L = ln Σ_r exp L_r,   Y = Σ_r exp(L_r − L) Y_r      the same as if there had been one part

The order and the grouping of the parts do not matter. A part may be a round of hashing (Reformer), what another machine holds
(ring attention), a page of a cache, or a tile in the compiled loops.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype, zero_if_minus_infinite
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.dot_product import AttentionPullback, dot_product_attention
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked


class PartPullback(AroundAttention):
    """∂L_i/∂S_ij = A_ij: attention's own dS = A ⊙ (dA − D) gets A_ij dL_i, that is, D_i − dL_i in place of D_i = ⟨dy_i, y_i⟩.

    In the tiles D_i is made of dY and Y: one more column, dL in dY, −1 in Y and 0 in V, makes it ⟨dy_i, y_i⟩ − dL_i, and
    dA_ij = ⟨dy_i, v_j⟩ stays as it was.
    """

    attention: Pullback
    Y: Array
    V: Array

    def __call__(self, gradients: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        dY, dL = gradients
        if isinstance(self.attention, AttentionPullback):
            dA, dV = self.attention.aggregate(dY)
            dS = self.attention.softmax(dA) + self.attention.A * dL[..., None]
            return *self.attention.scores(dS), dV
        column = np.ones_like(dL)[..., None]
        dY, Y = np.concatenate([dY, dL[..., None]], -1), np.concatenate([self.Y, -column], -1)
        V = np.concatenate([self.V, np.zeros_like(self.V[..., :1])], -1)
        dQ, dK, dV = self.attention._replace(Y=Y, V=V)(dY)
        return dQ, dK, dV[..., :-1]


@checked
def partial_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[tuple[Float[Array, "*batch n dv"], Float[Array, "*batch n"]], Any]:
    """Attention, and for each query how much all that it saw weighs.

        Y = softmax(S) V,   L_i = ln Σ_j exp S_ij,   S = scale · Q Kᵀ

    mask     True where query i sees key j. A query that sees no key has Y_i = 0 and L_i = −∞
    cost     that of `dot_product_attention`
    returns  (Y, L) and a pullback: dQ, dK, dV = pullback((dY, dL))
    raises   as `dot_product_attention`
    """
    Y, attention = dot_product_attention(Q, K, V, mask=mask, scale=scale)
    if isinstance(attention, AttentionPullback):
        S = (attention.scores.scale * Q) @ K.mT
        L = log_sum_exp(S if mask is None else np.where(mask, S, S.dtype.type(-np.inf)))
    else:
        L = attention.L
    return (Y, L), PartPullback(attention, Y, V)


def log_sum_exp(S: Array, axis: int = -1) -> Array:
    """ln Σ exp S along an axis; −∞ where there is nothing to sum, or −∞ alone."""
    top = zero_if_minus_infinite(S.max(axis, keepdims=True, initial=-np.inf))
    with np.errstate(divide="ignore"):  # ln 0
        return np.log(np.exp(S - top).sum(axis)) + top.squeeze(axis)


class MergePullback(Pullback):
    """With w_r = exp(L_r − L):  dY_r = w_r dY,  dL_r = w_r (⟨dY, Y_r − Y⟩ + dL)."""

    w: Array
    parts: Array
    Y: Array

    def __call__(self, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        dY, dL = gradients
        return self.w[..., None] * dY, self.w * (np.vecdot(self.parts - self.Y, dY) + dL)


@checked
def merge(
    Y: Float[Array, "parts *batch n dv"], L: Float[Array, "parts *batch n"]
) -> tuple[tuple[Float[Array, "*batch n dv"], Float[Array, "*batch n"]], Any]:
    """Join the results of attention to several parts of the keys: the average of the Y_r, weighted by exp L_r.

        L = ln Σ_r exp L_r,   Y = Σ_r exp(L_r − L) Y_r

    A part that saw nothing, L_r = −∞, does not count; if none saw anything, Y = 0 and L = −∞.
    cost     O(parts n dv)
    returns  (Y, L) and a pullback: dY_r, dL_r = pullback((dY, dL))
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Y=Y, L=L)
    whole = log_sum_exp(L, 0)
    w = np.exp(L - zero_if_minus_infinite(whole))
    merged: Any = (w[..., None] * Y).sum(0)
    return (merged, whole), MergePullback(w, Y, merged)
