"""Graph attention: every node becomes a weighted average of the nodes that it sees, and the weights are learned.

    GAT      V = X W,     S_ij = LeakyReLU(a₁·v_i + a₂·v_j),               y_i = Σ_j softmax_j(S_ij) v_j + b
    GATv2    V = X W₂,    S_ij = a·LeakyReLU(W₁ᵀ x_i + W₂ᵀ x_j),           y_i likewise

In GAT, LeakyReLU rises and a₁·v_i is the same for all j: so all nodes rank those that they see in one order, by a₂·v_j. That is
called static attention. In GATv2 a stands outside of the LeakyReLU, and every node has an order of its own.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, refuse_indivisible, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.gather_scatter import merge_heads, split_heads
from minitransformer.pullback import Pullback
from minitransformer.related.edge_attention import additive_edge_attention
from minitransformer.related.graph import Edges
from minitransformer.typing import Array, Bool, Float, checked


class CombineHeadsPullback(Pullback):
    """Each head gets its columns of dY, or 1/H of all of them; b was added to every row."""

    heads: int
    average: bool

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        db = as_one_axis(dY, 0, -1).sum(0)
        if not self.average:
            return split_heads(dY, self.heads), db
        shape = (*dY.shape[:-2], self.heads, *dY.shape[-2:])
        return np.broadcast_to((dY / dY.dtype.type(self.heads))[..., None, :, :], shape), db


def combine_heads(heads: Array, b: Array, *, average: bool) -> tuple[Array, CombineHeadsPullback]:
    """Heads (*batch, H, n, d) side by side, or their mean, plus b: (*batch, n, width). Pullback: dY to (dheads, db)."""
    Y = heads.mean(-3) if average else merge_heads(heads)
    return Y + b, CombineHeadsPullback(heads.shape[-3], average)


def _in_place(X: Array, heads: int) -> Array:
    """(*batch, n, H d) as (*batch, H, n, d), a view: all heads of a node stay in one piece, as the loops want it."""
    return X.reshape(*X.shape[:-1], heads, X.shape[-1] // heads).swapaxes(-2, -3)


@frozen
class HeadsOnGraph:
    """H heads on a graph, side by side, or their mean: what GAT and GATv2 have in common."""

    inputs: int
    width: int
    heads: int = 1
    average: bool = False

    def __post_init__(self) -> None:
        if not self.average:
            refuse_indivisible(self.width, self.heads)

    @property
    def _columns(self) -> int:
        return self.width * self.heads if self.average else self.width


class GATParams(NamedTuple):
    """W (inputs, H d); a_1 for the node that looks and a_2 for the one that is seen, both (H, d); b (width,)."""

    W: Array
    a_1: Array
    a_2: Array
    b: Array


class GATPullback(AroundAttention):
    """V is used three times. With f_i = a₁·v_i and g_j = a₂·v_j, of which the scores are made: df_i = Σ_j dS_ij φ′ and

    dg_j = Σ_i dS_ij φ′, sums of rows and columns. So dv_i gets df_i a₁ + dg_i a₂ besides Σ A dy, and da₁ = Σ_i df_i v_i.
    """

    linear: LinearPullback
    V: Array
    a_1: Array
    a_2: Array
    attention: Pullback
    combine: CombineHeadsPullback

    def __call__(self, dY: Array) -> tuple[GATParams, Array]:
        dheads, db = self.combine(dY)
        df, dg, dV, _ = self.attention(dheads)  # f and g have one channel, and a is 1
        da_1, da_2 = (as_one_axis((d * self.V).sum(-2), 0, -2).sum(0) for d in (df, dg))
        dV = dV + df * self.a_1[:, None] + dg * self.a_2[:, None]
        dX, dW = self.linear(merge_heads(dV))
        return GATParams(dW, da_1, da_2, db), dX


@frozen
class GAT(HeadsOnGraph):
    """Graph attention with static scores: LeakyReLU(a₁·v_i + a₂·v_j), where v = x W is also what is averaged.

    inputs    width of the rows of X
    width     of the rows of Y
    heads     H, each of width d = width/H, side by side
    average   the mean of H heads of the whole width instead, as in a last layer
    source    Veličković et al. 2018; Borealis II fig. 13c
    cost      O(n inputs H d + E H d)
    raises    ValueError if the width is not divisible by the heads that stand side by side
    """

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GATParams:
        """W keeps the variance of a row, a₁ and a₂ give scores of variance about 1; b zero."""
        H, columns = self.heads, self._columns
        W = uniform(rng, (self.inputs, columns), dtype)
        a_1, a_2 = (uniform(rng, (columns // H, H), dtype).T.copy() for _ in range(2))
        return GATParams(W, a_1, a_2, np.zeros(self.width, dtype))

    def parts(self, params: GATParams, V: Array) -> tuple[Array, Array, Array, Array]:
        """Of V = X W, (*batch, H, n, d), what `additive_attention` wants: f and g (*batch, H, n, 1), V and a (H, 1)."""
        f, g = (V @ a[..., None] for a in (params.a_1, params.a_2))
        return f, g, V, np.ones((self.heads, 1), V.dtype)

    def maps(self, params: GATParams) -> tuple[Array]:
        """W, by which V is made of X."""
        return (params.W,)

    @checked
    def __call__(
        self,
        params: GATParams,
        X: Float[Array, "*batch n {self.inputs}"],
        edges: Edges,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], GATPullback]:
        """Pullback: dY to (dparams, dX). A mask hides edges: True where i may see j, broadcast to (*batch, H, n, n)."""
        XW, back = linear(X, params.W)
        f, g, V, a = self.parts(params, _in_place(XW, self.heads))
        heads, attention = additive_edge_attention(f, g, V, a, edges, mask=mask)
        Y, combined = combine_heads(heads, params.b, average=self.average)
        return Y, GATPullback(back, V, params.a_1, params.a_2, attention, combined)


class GATv2Params(NamedTuple):
    """W_1 of the node that looks and W_2 of the one that is seen, both (inputs, H d); a (H, d); b (width,)."""

    W_1: Array
    W_2: Array
    a: Array
    b: Array


class GATv2Pullback(AroundAttention):
    """q = x W₁ and k = x W₂, and the values are the k too: dk has two parts, dX a third."""

    queries: LinearPullback
    keys: LinearPullback
    attention: Pullback
    combine: CombineHeadsPullback

    def __call__(self, dY: Array) -> tuple[GATv2Params, Array]:
        dheads, db = self.combine(dY)
        dQ, dK, dV, da = self.attention(dheads)
        dX_q, dW_1 = self.queries(merge_heads(dQ))
        dX_k, dW_2 = self.keys(merge_heads(dK + dV))
        return GATv2Params(dW_1, dW_2, da, db), dX_q + dX_k


@frozen
class GATv2(HeadsOnGraph):
    """Graph attention with dynamic scores: a·LeakyReLU(q_i + k_j), q = x W₁, k = x W₂; the k are also what is averaged.

    inputs, width, heads, average   as in GAT
    source    Brody, Alon and Yahav 2022, where W₁ and W₂ stand side by side in one matrix
    cost      O(n inputs H d + E H d)
    """

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> GATv2Params:
        """W₁ and W₂ keep the variance of a row, a gives scores of variance about 1; b zero."""
        H, columns = self.heads, self._columns
        W_1, W_2 = (uniform(rng, (self.inputs, columns), dtype) for _ in range(2))
        return GATv2Params(W_1, W_2, uniform(rng, (columns // H, H), dtype).T.copy(), np.zeros(self.width, dtype))

    def parts(self, params: GATv2Params, Q: Array, K: Array) -> tuple[Array, Array, Array, Array]:
        """Of Q = X W₁ and K = X W₂, (*batch, H, n, d), what `additive_attention` wants: Q, K, the values K, and a (H, d)."""
        return Q, K, K, params.a

    def maps(self, params: GATv2Params) -> tuple[Array, Array]:
        """W₁ and W₂, by which Q and K are made of X."""
        return params.W_1, params.W_2

    @checked
    def __call__(
        self,
        params: GATv2Params,
        X: Float[Array, "*batch n {self.inputs}"],
        edges: Edges,
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], GATv2Pullback]:
        """Pullback: dY to (dparams, dX). A mask hides edges: True where i may see j, broadcast to (*batch, H, n, n)."""
        (Q, back_q), (K, back_k) = linear(X, params.W_1), linear(X, params.W_2)
        parts = self.parts(params, _in_place(Q, self.heads), _in_place(K, self.heads))
        heads, attention = additive_edge_attention(*parts, edges, mask=mask)
        Y, combined = combine_heads(heads, params.b, average=self.average)
        return Y, GATv2Pullback(back_q, back_k, attention, combined)
