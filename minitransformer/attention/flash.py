"""FlashAttention: exact softmax attention, one block of keys after another, so that the n × m scores never exist at once.

What a query has found in some of the keys is three things, and two such findings can be joined:

    m = max_j S_ij,   total = Σ_j exp(S_ij − m),   sum = Σ_j exp(S_ij − m) v_j
    join: M = max(m, m′), and both totals and sums, times exp(m − M) and exp(m′ − M), added
    Y = sum / total,   L = m + ln total

Joining is commutative and associative, and (−∞, 0, 0) changes nothing. So the keys can come in any blocks and any order: from
the tiles of a kernel, from other machines (ring.py), from the pages of a cache (pages.py). `merge` joins findings that are
divided already, (Y, L), and has a gradient. Here joining needs none: the backward pass makes each block of A again, from L.

A sink (sink.py) is one finding more, (b, 1, 0), and it has to be joined once: each part with a sink of its own would count it
as often as there are parts.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import (
    must_be_for_heads,
    must_broadcast,
    one_dtype,
    scale_for,
    times,
    unless_hidden,
    zero_if_minus_infinite,
)
from minitransformer.attention.masks import causal_mask
from minitransformer.attention.soft_cap import soft_cap
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Bool, Float, checked


class Found(NamedTuple):
    """What queries have found in some keys: the largest score (*batch, n), Σ exp (*batch, n), Σ exp · v (*batch, n, dv)."""

    m: Array
    total: Array
    sum: Array


def nothing_found(Q: Array, V: Array, sink: Array | None = None) -> Found:
    """What is found in no keys, (−∞, 0, 0); or in a sink alone, with its score b and no value, (b, 1, 0)."""
    zeros = np.zeros(Q.shape[:-1], Q.dtype)
    nothing = np.zeros((*Q.shape[:-1], V.shape[-1]), Q.dtype)
    return Found(zeros - np.inf, zeros, nothing) if sink is None else Found(zeros + sink[..., None], zeros + 1, nothing)


def find(Q: Array, K: Array, V: Array, mask: Array | None, scale: float, cap: float | None = None) -> Found:
    """What each query finds in these keys. One that sees none of them finds nothing, (−∞, 0, 0)."""
    S = (Q.dtype.type(scale) * Q) @ K.mT
    if cap is not None:
        S = soft_cap(S, cap)[0]
    if mask is not None:
        S = np.where(mask, S, S.dtype.type(-np.inf))
    m = S.max(-1, initial=-np.inf)
    P = np.exp(S - zero_if_minus_infinite(m)[..., None])
    return Found(m, P.sum(-1), times(P, V))


def join(a: Found, b: Found) -> Found:
    """The findings of both parts, joined: nothing where neither has found anything."""
    M = np.maximum(a.m, b.m)
    of_a, of_b = (np.exp(part.m - zero_if_minus_infinite(M)) for part in (a, b))
    total = of_a * a.total + of_b * b.total
    return Found(M, total, of_a[..., None] * a.sum + of_b[..., None] * b.sum)


def finish(found: Found) -> tuple[Array, Array]:
    """Y = sum / total and L = m + ln total; 0 and −∞ for a query that has found nothing."""
    none = found.total == 0
    total = np.where(none, found.total.dtype.type(1), found.total)
    return found.sum / total[..., None], np.where(none, found.m, found.m + np.log(total))


def gradients(
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    scale: float,
    L: Array,
    D: Array,
    dY: Array,
) -> tuple[Array, Array, Array]:
    """dQ, dK, dV of a block of pairs. All that it needs of the others is in L and D.

    A = exp(S − L),   dA = dY Vᵀ,   dS = A ⊙ (dA − D),   D_i = ⟨dy_i, y_i⟩
    """
    s = Q.dtype.type(scale)
    S = (s * Q) @ K.mT
    A = np.exp(S - zero_if_minus_infinite(L)[..., None])
    if mask is not None:
        A = np.where(mask, A, A.dtype.type(0))
    dS = s * A * (unless_hidden(dY @ V.mT, A) - D[..., None])
    return times(dS, K), times(dS.mT, Q), times(A.mT, dY)


class FlashPullback(Pullback):
    """Σ_j A_ij dA_ij = ⟨dy_i, Σ_j A_ij v_j⟩ = ⟨dy_i, y_i⟩ = D_i: the sum over a whole row is known without the row.

    So a block of A is computed again from L, used, and forgotten. The backward pass merges nothing: gradients of blocks add.
    The weight of a sink is e^{b − L_i} and its value zero, so db = −Σ_i e^{b − L_i} D_i.
    """

    Q: Array
    K: Array
    V: Array
    mask: Array | None
    Y: Array
    L: Array
    block: int
    scale: float
    sink: Array | None = None

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        D = np.vecdot(dY, self.Y)
        dQ, dK, dV = (np.zeros_like(X) for X in (self.Q, self.K, self.V))
        for keys, part in blocks(self.K.shape[-2], self.block, self.mask):
            K, V = self.K[..., keys, :], self.V[..., keys, :]
            of_Q, of_K, of_V = gradients(self.Q, K, V, part, self.scale, self.L, D, dY)
            dQ += of_Q
            dK[..., keys, :], dV[..., keys, :] = of_K, of_V
        if self.sink is None:
            return dQ, dK, dV
        weight = np.exp(self.sink[..., None] - zero_if_minus_infinite(self.L))
        return dQ, dK, dV, unbroadcast(-(weight * D).sum(-1), self.sink.shape)


def blocks(m: int, block: int, mask: Array | None) -> list[tuple[slice, Array | None]]:
    """Which keys are in each block, and the columns of the mask for them; a mask of one column is that of all keys."""
    keys = [slice(start, start + block) for start in range(0, m, block)]
    if mask is None or mask.shape[-1] == 1:
        return [(k, mask) for k in keys]
    return [(k, mask[..., k]) for k in keys]


@checked
def flash_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch m d"],
    V: Float[Array, "*batch m dv"],
    sink: Float[Array, "*own"] | None = None,
    *,
    block: int = 64,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], FlashPullback]:
    """Softmax attention in blocks of keys: for each block find, and join with what was found before.

        Y = softmax(scale · Q Kᵀ) V

    block    keys that are looked at together; the result is the same for any, to rounding
    others   as in `dot_product_attention`
    source   Dao et al. 2022; the running maximum is older: Milakov and Gimelshein 2018. The compiled loops of the book do
             this in tiles of queries as well
    cost     O(n m d) time, O(n block) numbers besides Q, K, V and Y; a mask, also that of `causal`, is n × m booleans. Can be
             causal
    returns  Y and a pullback: dQ, dK, dV = pullback(dY), and dsink if there is one; it computes the scores once more
    raises   TypeError for a wrong shape or dtype, ValueError for a mask or a sink that does not fit
    """
    one_dtype(Q=Q, K=K, V=V, sink=sink)
    if sink is not None:
        must_be_for_heads(sink, Q.shape[:-2], "sink")
    n, m = Q.shape[-2], K.shape[-2]
    if mask is not None:
        must_broadcast(mask, (*Q.shape[:-1], m))
    if causal:
        mask = causal_mask(n, m) if mask is None else mask & causal_mask(n, m)
    scale = scale_for(Q.shape[-1], scale)
    found = nothing_found(Q, V, sink)
    for keys, part in blocks(m, block, mask):
        found = join(found, find(Q, K[..., keys, :], V[..., keys, :], part, scale))
    Y, L = finish(found)
    return Y, FlashPullback(Q, K, V, mask, Y, L, block, scale, sink)
