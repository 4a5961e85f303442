"""Attention along the edges of a graph: softmax over the nodes that a node sees, with three kinds of scores.

    dot product    S_ij = q_i·k_j/√r                     on the complete graph this is plain attention
    dynamic        S_ij = a·LeakyReLU(q_i + k_j)         GATv2: a network with one hidden layer of r units says how well they fit
    static         S_ij = LeakyReLU(f_i + g_j)           GAT: the same with one unit, r = 1 and a = 1

The last two exist twice: with a matrix of all pairs, the definition, and along the edges, where time and memory are O(E).
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, must_broadcast, one_dtype, scale_for, those_seen, zero_if_minus_infinite
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.core import numbers_where_seen, where_seen
from minitransformer.attention.masks import causal_mask
from minitransformer.functional import AggregatePullback, SoftmaxPullback, aggregate, loops_in, softmax
from minitransformer.pullback import Pullback
from minitransformer.related.graph import Edges, fitting
from minitransformer.related.graph_convolution import segment_sums
from minitransformer.typing import Array, Bool, Float, checked

SLOPE = 0.2  # of LeakyReLU below zero, in both papers
ADDITIVE, PRODUCT = 0, 1  # as in the loops


def leaky_relu(P: Array) -> Array:
    """LeakyReLU(p): p above zero, and slope · p below."""
    return np.maximum(P, P.dtype.type(SLOPE) * P)


def leaky_relu_slope(P: Array) -> Array:
    """The slope of `leaky_relu`: 1 above zero, and 0.2 below."""
    return np.where(P > 0, P.dtype.type(1), P.dtype.type(SLOPE))


# --------------------------------------------------------------------------------- with a matrix of all pairs


class AdditiveScoresPullback(Pullback):
    """S_ij = Σ_c a_c φ(p_ijc) with p_ijc = q_ic + k_jc. With T_ijc = dS_ij a_c φ′(p_ijc),

    dq_ic = Σ_j T_ijc, dk_jc = Σ_i T_ijc: the sums of the rows and of the columns; and da_c = Σ_ij dS_ij φ(p_ijc).
    """

    Q: Array
    K: Array
    a: Array

    def __call__(self, dS: Array) -> tuple[Array, Array, Array]:
        dQ, dK, da = np.empty_like(self.Q), np.empty_like(self.K), np.empty_like(self.a)
        for c in range(self.a.shape[-1]):  # a matrix of pairs for one channel at a time
            P = self.Q[..., :, None, c] + self.K[..., None, :, c]
            U = dS * leaky_relu_slope(P)
            dQ[..., c], dK[..., c] = (self.a[:, None, c] * U.sum(axis) for axis in (-1, -2))
            da[:, c] = as_one_axis((U * P).sum((-1, -2)), 0, -1).sum(0)
        return dQ, dK, da


@checked
def additive_scores(
    Q: Float[Array, "*batch heads n r"], K: Float[Array, "*batch heads m r"], a: Float[Array, "heads r"]
) -> tuple[Float[Array, "*batch heads n m"], AdditiveScoresPullback]:
    """S_ij = a·LeakyReLU(q_i + k_j), for each head: a network with one hidden layer in place of a product.

    source   Brody, Alon and Yahav 2022; with r = 1 and a = 1 Veličković et al. 2018. With tanh it is Bahdanau et al. 2015
    cost     O(n m r) time, O(n m) memory
    """
    one_dtype(Q=Q, K=K, a=a)
    S = np.zeros((*Q.shape[:-1], K.shape[-2]), Q.dtype)
    for c in range(a.shape[-1]):
        S += a[:, None, None, c] * leaky_relu(Q[..., :, None, c] + K[..., None, :, c])
    return S, AdditiveScoresPullback(Q, K, a)


class AdditiveAttentionPullback(AroundAttention):
    """The stages backwards: aggregate, normalise, score. A is (*batch, H, n, m)."""

    scores: AdditiveScoresPullback
    softmax: SoftmaxPullback
    aggregate: AggregatePullback
    inside = "softmax"

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        dA, dV = self.aggregate(dY)
        dQ, dK, da = self.scores(self.softmax(dA))
        return dQ, dK, dV, da


@checked
def additive_attention(
    Q: Float[Array, "*batch heads n r"],
    K: Float[Array, "*batch heads m r"],
    V: Float[Array, "*batch heads m dv"],
    a: Float[Array, "heads r"],
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch heads n dv"], AdditiveAttentionPullback]:
    """Attention whose scores are additive, with a matrix of all pairs.

        Y = softmax(S) V,   S_ij = a·LeakyReLU(q_i + k_j),   hidden pairs −∞ after the LeakyReLU

    mask     True where query i sees key j; must broadcast to (*batch, H, n, m). A query that sees no key gives zeros
    source   Borealis II fig. 13c; Veličković et al. 2018; Brody, Alon and Yahav 2022
    cost     O(n m (r + dv)) time, O(n m) memory. Can be causal
    returns  Y and a pullback: dQ, dK, dV, da = pullback(dY); `pullback.A` is the attention matrix
    raises   TypeError for a wrong shape or dtype, ValueError for a mask that does not fit
    """
    one_dtype(Q=Q, K=K, V=V, a=a)
    n, m = Q.shape[-2], K.shape[-2]
    if mask is not None:
        must_broadcast(mask, (*Q.shape[:-1], m))
    if causal and n > 1:  # one query, the last, sees all
        mask = causal_mask(n, m) if mask is None else mask & causal_mask(n, m)
    K, V = those_seen(mask, K, V)
    S, back = additive_scores(Q, K, a)
    A, normalised = softmax(S, mask=mask)
    Y, aggregated = aggregate(A, V)
    return Y, AdditiveAttentionPullback(back, normalised, aggregated)


# ------------------------------------------------------------------------------------------- along the edges


def _rows(X: Array) -> Array:
    """(*batch, H, n, d) as (samples, n, H d): all heads of a node in one piece. A view, where memory has this order already."""
    X = as_one_axis(X.swapaxes(-2, -3), 0, -3)
    return X.reshape(*X.shape[:2], X.shape[2] * X.shape[3])


def _heads(X: Array, shape: tuple[int, ...]) -> Array:
    """The inverse of `_rows`: (samples, n, H d) as (*batch, H, n, d)."""
    *batch, H, n, d = shape
    return X.reshape(*batch, n, H, d).swapaxes(-2, -3)


def _seen(mask: Array | None, edges: Edges, shape: tuple[int, ...]) -> Array:
    """What a mask says of each edge, (0, 1 or samples; E; 1 or H)."""
    if mask is None:
        return np.empty((0, edges.number, 1), bool)
    *batch, H, n, _ = shape
    must_broadcast(mask, (*batch, H, n, n))
    mask = mask[(None,) * (len(batch) + 3 - mask.ndim)]
    i = edges.destinations if mask.shape[-2] > 1 else np.zeros_like(edges.destinations)
    j = edges.sources if mask.shape[-1] > 1 else np.zeros_like(edges.sources)
    seen = mask[..., i, j].swapaxes(-1, -2)
    if max(seen.shape[:-2], default=1) > 1:
        seen = np.broadcast_to(seen, (*batch, *seen.shape[-2:]))
    return np.ascontiguousarray(as_one_axis(seen, 0, -2))


class _Sample(NamedTuple):
    """One sample, with its heads as an axis: Q and K (n, H, r), V (n, H, d), seen (E, 1 or H, 1); computed in NumPy."""

    kind: int
    Q: Array
    K: Array
    V: Array
    a: Array
    edges: Edges
    seen: Array | None

    def pairs(self) -> Array:
        """q_i + k_j, or q_i ⊙ k_j, of each edge: (E, H, r); zeros where nothing is seen."""
        q, k = self.Q[self.edges.destinations], self.K[self.edges.sources]
        P = q + k if self.kind == ADDITIVE else q * k
        return where_seen(self.seen, P)

    def forward(self) -> tuple[Array, Array]:
        """Weights (E, H) and Y (n, H, d)."""
        i, starts, P = self.edges.destinations, self.edges.row_starts, self.pairs()
        S = ((self.a * leaky_relu(P)) if self.kind == ADDITIVE else P).sum(-1)
        V = self.V[self.edges.sources]
        if self.seen is not None:
            S, V = np.where(self.seen[..., 0], S, -np.inf).astype(S.dtype), where_seen(self.seen, V)
        top, some = np.zeros((len(starts) - 1, S.shape[1]), S.dtype), np.flatnonzero(np.diff(starts))
        if some.size:
            top[some] = np.maximum.reduceat(S, starts[some].astype(np.intp, copy=False), axis=0)
        A = np.exp(S - zero_if_minus_infinite(top)[i])
        total = segment_sums(A, starts)
        A /= np.where(total == 0, total.dtype.type(1), total)[i]
        return A, segment_sums(A[..., None] * V, starts)

    def backward(self, A: Array, dY: Array) -> tuple[Array, Array, Array, Array]:
        """dQ, dK, dV and da."""
        edges, dy = self.edges, dY[self.edges.destinations]
        dA = numbers_where_seen(self.seen, (dy * self.V[edges.sources]).sum(-1))
        dS = (A * (dA - segment_sums(A * dA, edges.row_starts)[edges.destinations]))[..., None]
        if self.kind == ADDITIVE:
            P = self.pairs()
            U = dS * leaky_relu_slope(P)
            to_q, to_k, da = self.a * U, self.a * U, (U * P).sum(0)
        else:
            q, k = (where_seen(self.seen, X) for X in (self.Q[edges.destinations], self.K[edges.sources]))
            to_q, to_k, da = dS * k, dS * q, np.zeros_like(self.a)
        dK, dV = (segment_sums(X[edges.by_source], edges.column_starts) for X in (to_k, A[..., None] * dy))
        return segment_sums(to_q, edges.row_starts), dK, dV, da


class EdgeAttentionPullback(Pullback):
    """As with a matrix of all pairs, with sums over edges: e = (i, j) has dA_e = dy_i·v_j, and softmax sends it to

    dS_e = A_e (dA_e − Σ A dA over the edges of i). Then dv_j = Σ A_e dy_i over the edges that leave j; and dq_i, dk_j are sums
    of dS_e ∂S_e/∂q_i over the edges of i, and of dS_e ∂S_e/∂k_j over those that leave j.
    """

    kind: int
    Q: Array
    K: Array
    V: Array
    a: Array
    scale: float
    edges: Edges
    seen: Array
    weights: Array
    shapes: tuple[tuple[int, ...], ...]

    @property
    def A(self) -> Array:  # noqa: N802
        """The weight of each edge, (*batch, H, E)."""
        *batch, H, _, _ = self.shapes[0]
        return self.weights.reshape(*batch, self.edges.number, H).swapaxes(-1, -2)

    def samples(self) -> list[_Sample]:
        """The samples one by one, as the tier "numpy" computes them."""
        H, seen = self.weights.shape[-1], self.seen[..., None]
        widths = [shape[-1] for shape in self.shapes]
        arrays = zip((self.Q, self.K, self.V), widths, strict=True)
        heads = [X.reshape(*X.shape[:2], H, width) for X, width in arrays]
        return [
            _Sample(self.kind, q, k, v, self.a.reshape(H, widths[0]), self.edges, seen[b % len(seen)] if len(seen) else None)
            for b, (q, k, v) in enumerate(zip(*heads, strict=True))
        ]  # fmt: skip

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dY = _rows(dY)
        if loops := loops_in("edges"):
            given = self.kind, self.Q, self.K, self.V, self.a, SLOPE, self.edges[1:], self.seen, self.weights, dY
            dQ, dK, dV, da = loops.backward(*given)
        else:
            dQ, dK, dV, da = *(np.empty_like(X) for X in (self.Q, self.K, self.V)), np.zeros_like(self.a)
            for b, sample in enumerate(self.samples()):
                *grads, da_b = sample.backward(self.weights[b], dY[b].reshape(sample.V.shape))
                da += da_b.reshape(-1)
                for whole, part in zip((dQ, dK, dV), grads, strict=True):
                    whole[b] = part.reshape(whole[b].shape)
        dQ, dK, dV = (_heads(dX, shape) for dX, shape in zip((dQ, dK, dV), self.shapes, strict=True))
        if self.kind == PRODUCT:
            return dQ * dQ.dtype.type(self.scale), dK, dV
        return dQ, dK, dV, da.reshape(dQ.shape[-3], dQ.shape[-1])


def _along(
    kind: int, Q: Array, K: Array, V: Array, a: Array, edges: Edges, mask: Array | None, scale: float
) -> tuple[Array, EdgeAttentionPullback]:
    """Attention along edges with scores of this kind: ADDITIVE, which has no scale, or PRODUCT, which has no a."""
    one_dtype(Q=Q, K=K, V=V, a=a)
    edges = fitting(edges, Q.shape[-2])
    shapes, seen, H = (Q.shape, K.shape, V.shape), _seen(mask, edges, Q.shape), Q.shape[-3]
    q, k, v = map(_rows, (Q, K, V))
    known = kind, q * q.dtype.type(scale) if kind == PRODUCT else q, k, v, a.reshape(-1)
    if loops := loops_in("edges"):
        A, Y = loops.forward(*known, SLOPE, edges[1:], seen, H)
        return _heads(Y, V.shape), EdgeAttentionPullback(*known, scale, edges, seen, A, shapes)
    A, Y = np.empty((len(v), edges.number, H), v.dtype), np.empty_like(v)
    pullback = EdgeAttentionPullback(*known, scale, edges, seen, A, shapes)
    for b, sample in enumerate(pullback.samples()):
        A[b], y = sample.forward()
        Y[b] = y.reshape(Y[b].shape)
    return _heads(Y, V.shape), pullback


@checked
def additive_edge_attention(
    Q: Float[Array, "*batch heads n r"],
    K: Float[Array, "*batch heads n r"],
    V: Float[Array, "*batch heads n dv"],
    a: Float[Array, "heads r"],
    edges: Edges,
    *,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch heads n dv"], EdgeAttentionPullback]:
    """`additive_attention` in which each node sees only those to which it has an edge.

        y_i = Σ_j A_ij v_j,   A_ij = exp S_ij / Σ_{k seen by i} exp S_ik,   S_ij = a·LeakyReLU(q_i + k_j)

    mask     hides edges: True where i may see j, broadcast to (*batch, H, n, n). A node that sees nobody gives zeros
    source   Veličković et al. 2018 (r = 1, a = 1); Brody, Alon and Yahav 2022
    cost     O(E H (r + dv)) time; O(E H) memory besides the arguments, in the tier "numpy" O(E H (r + dv)), sample by sample
    returns  Y and a pullback: dQ, dK, dV, da = pullback(dY); `pullback.A` has the weight of each edge, (*batch, H, E)
    raises   TypeError for a wrong shape or dtype, ValueError for edges between other nodes, or a mask that does not fit
    """
    return _along(ADDITIVE, Q, K, V, a, edges, mask, 1.0)


@checked
def edge_attention(
    Q: Float[Array, "*batch heads n r"],
    K: Float[Array, "*batch heads n r"],
    V: Float[Array, "*batch heads n dv"],
    edges: Edges,
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads n dv"], EdgeAttentionPullback]:
    """Dot-product attention in which each node sees only those to which it has an edge.

        y_i = Σ_j A_ij v_j,   A_ij = exp S_ij / Σ_{k seen by i} exp S_ik,   S_ij = q_i·k_j/√r

    On the complete graph it is plain attention; on the edges of a mask, attention with this mask.
    mask     as in `additive_edge_attention`; scale: 1/√r by default
    source   Borealis II, complete-graph view
    cost     as that of `additive_edge_attention`
    returns  Y and a pullback: dQ, dK, dV = pullback(dY)
    raises   as `additive_edge_attention`
    """
    heads, r = Q.shape[-3], Q.shape[-1]
    return _along(PRODUCT, Q, K, V, np.zeros((heads, r), Q.dtype), edges, mask, scale_for(r, scale))
