"""Softmax attention, tile by tile, without ever holding the matrix A: what Python calls.

attention_pairs.py      which pairs of a query and a key count, and what is done to their scores, as the loops are told
attention_scores.py     what happens to a tile of scores, forwards and backwards
attention_forward.py    the loop that makes Y and L, and why it is fast
attention_backward.py   the loop that makes the gradients from L
few_queries.py          the loop for a few queries, as in generation

Sparse attention is the same loop over a list of tiles: local, window, dilated, strided, global, BigBird, and whatever has been
sorted. A tile costs what it costs in dense attention; there are fewer. For a tile at an edge of the pattern, a mask of 64 × 64
says which pairs count; a quarter without any is left out, as it is on the diagonal of causal attention. The backward pass takes
the same list, sorted by keys instead of queries.

No two tasks write to the same place, and sums are always taken in the same order: the same input gives the same bits,
whatever the number of threads. To walk through these loops with a debugger set NUMBA_DISABLE_JIT=1.
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import (
    FEW,
    as_one_axis,
    finite,
    for_reading,
    one_batch,
    times,
    unless_hidden,
    without_the_hidden,
)
from minitransformer.gather_scatter import by_offset, for_each_head, sum_by_offset, sum_over_heads, unbroadcast
from minitransformer.kernels.attention_backward import Gradients, Known, backward
from minitransformer.kernels.attention_forward import forward
from minitransformer.kernels.attention_pairs import backwards, forwards, pairs_of
from minitransformer.kernels.few_queries import attend_plainly, forward_few, in_base_2, merge_parts, retrieve
from minitransformer.kernels.threads import ENOUGH, in_parallel
from minitransformer.kernels.tiles import LANES, plain_loops
from minitransformer.pullback import Pullback
from minitransformer.typing import Array

LONG = 2**17  # numbers in the keys, or values, of a few queries: with more, the heads are shared among threads
PART = 1024  # keys of a few queries that are one task, at the least


def padded(X: Array) -> Array:
    """X (*batch, rows, columns) as (B, rows, columns) for the loops: contiguous, with zeros up to multiples of four."""
    X = as_one_axis(X, 0, -2)
    B, rows, columns = X.shape
    if rows % 4 == 0 and columns % 4 == 0:
        return for_reading(X)
    wider = np.zeros((B, rows + -rows % 4, columns + -columns % 4), X.dtype)
    wider[:, :rows, :columns] = X
    return wider


def matrix(
    Q: Array, K: Array, scale: float, sees: Array, bias: Array | None = None, sink: Array | None = None,
    cap: float | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The attention matrix A, (*batch, n, m), which the loops never hold, made in NumPy; and the slopes of the cap, or 1."""
    S, slopes = (scale * Q) @ for_each_head(K, Q.shape[:-2]).mT, Q.dtype.type(1)
    if bias is not None:
        S += by_offset(bias, *S.shape[-2:])
    if cap:
        S = np.tanh(S / S.dtype.type(cap))
        S, slopes = S.dtype.type(cap) * S, 1 - S * S
    S = np.where(sees, S, S.dtype.type(-np.inf))
    beside = S.dtype.type(-np.inf) if sink is None else sink[..., None, None]
    top = np.maximum(S.max(-1, keepdims=True, initial=-np.inf), beside)
    top = np.where(top == -np.inf, S.dtype.type(0), top)
    A = np.exp(S - top)
    total = A.sum(-1, keepdims=True) + np.exp(beside - top)
    return A / np.maximum(total, 1), slopes  # at least exp(0), except in a row that sees nothing


def from_panels(dQ: Array, scale: float, shape: tuple[int, ...]) -> Array:
    """The parts of dQ, (parts, B, tiles, panels, LANES, LANES), summed and times `scale`, in the shape of Q."""
    B, n, d = math.prod(shape[:-2]), *shape[-2:]
    whole = (dQ[0] if len(dQ) == 1 else dQ.sum(0)).swapaxes(-3, -2)
    whole = whole.reshape(B, whole.shape[1] * LANES, whole.shape[3] * LANES)[:, :n, :d]
    return np.multiply(scale, whole, order="C").reshape(shape)


class TiledAttentionPullback(Pullback):
    """dV = Aᵀ dY,  dA = dY Vᵀ,  dS = A ⊙ (dA − D),  dQ = scale · dS K,  dK = scale · dSᵀ Q,  dbias = diagonal sums of dS.

    A_ij = exp(S_ij − L_i) is found again from L_i = ln Σ_j exp S_ij, which is −∞ if query i sees no key.
    D_i = Σ_j A_ij dA_ij = ⟨dy_i, Σ_j A_ij v_j⟩ = ⟨dy_i, y_i⟩ needs no row of A. A pair that is not seen has A_ij = 0.
    With a sink b, L_i includes e^b. The sink takes the weight e^{b − L_i}, but its value is zero: db = Σ_i e^{b − L_i} (0 − D_i).
    With a cap c, dS is also multiplied by 1 − (S/c)².
    """

    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    scale: float
    causal: bool
    mask: Array | None
    bias: Array | None
    pattern: Any
    sink: Array | None = None
    cap: float | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrix, (*batch, n, m), made again by the definition, in NumPy."""
        return self._weights_and_slopes()[0]

    def _weights_and_slopes(self) -> tuple[Array, Array]:
        n, m = self.Q.shape[-2], self.K.shape[-2]
        sees = np.ones((n, m), bool) if self.mask is None else self.mask
        if self.pattern is not None:
            sees = sees & self.pattern.mask
        if self.causal:
            sees = sees & (np.arange(m) <= np.arange(n)[:, None] + (m - n))
        return matrix(self.Q, self.K, self.scale, sees, self.bias, self.sink, self.cap)

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        dY = dY.astype(self.Y.dtype, copy=False)
        batch, n, m, d = self.Q.shape[:-2], self.Q.shape[-2], self.K.shape[-2], self.Q.shape[-1]
        B, dv = math.prod(batch), self.V.shape[-1]
        pairs = pairs_of(self.Q, self.K, m, self.bias, self.mask, self.causal, self.sink, self.cap)
        pairs = backwards(pairs, self.pattern)
        Q, K, V, padded_dY = (padded(X) for X in (self.Q, self.K, self.V, dY))
        D = np.vecdot(dY, self.Y)
        known = Known(Q, K, V, padded_dY, self.L.reshape(B, n), D.reshape(B, n))
        parts = max(1, min(-(-8 // max(B, 1)), -(-m // LANES)))  # few heads: several tasks for each
        gradients = Gradients(
            dQ=np.zeros((parts, B, -(-n // LANES), -(-d // LANES), LANES, LANES), dY.dtype),
            dK=np.empty((B, m, d), dY.dtype),
            dV=np.empty((B, m, dv), dY.dtype),
            dbias=np.zeros((parts, B, 0 if self.bias is None else pairs.bias.shape[-1]), dY.dtype),
        )
        tasks = B * parts if B * n * m * d > ENOUGH else 1
        in_parallel(tasks, backward, known, pairs, self.scale, plain_loops(), gradients)
        dQ, dK, dV, dbias = gradients
        dX = [from_panels(dQ, self.scale, self.Q.shape)]
        dX += [sum_over_heads(G.reshape(*batch, *G.shape[1:]), X.shape) for G, X in ((dK, self.K), (dV, self.V))]
        if self.bias is not None:
            dX.append(unbroadcast(dbias.sum(0)[:, LANES:-LANES].reshape(*batch, max(n + m - 1, 0)), self.bias.shape))
        hides = self.causal or self.mask is not None or self.pattern is not None
        if hides and not all(map(finite, dX)):
            dX = self._without_the_hidden(dY, D)
        if self.sink is not None:
            weight = np.exp(self.sink[..., None] - np.where(self.L == -np.inf, self.L.dtype.type(0), self.L))
            dX.append(unbroadcast(-(weight * D).sum(-1), self.sink.shape))
        return tuple(dX)

    def _without_the_hidden(self, dY: Array, D: Array) -> list[Array]:
        """The gradients again, in NumPy: a NaN in a key or value reaches only who sees it. In the tiles 0 · NaN is NaN."""
        batch, (A, slopes) = self.Q.shape[:-2], self._weights_and_slopes()
        K, V = (for_each_head(X, batch) for X in (self.K, self.V))
        with np.errstate(invalid="ignore"):  # 0 · ∞
            dS = np.where(A == 0, A.dtype.type(0), A * slopes * (unless_hidden(dY @ V.mT, A) - D[..., None]))
        dK, dV = self.scale * times(dS.mT, self.Q), times(A.mT, dY)
        dX = [self.scale * times(dS, K), sum_over_heads(dK, self.K.shape), sum_over_heads(dV, self.V.shape)]
        if self.bias is not None:
            dX.append(unbroadcast(sum_by_offset(dS), self.bias.shape))
        return dX


def _few(q: Array, k: Array, v: Array, pairs: Any, m: int, scale: float, much: bool) -> tuple[Array, Array]:
    """(Y, L) of a few queries, (B, n, …). Parts of the keys are tasks of their own, if there is much to read."""
    parts = max(1, min(m // PART, 16)) if much else 1
    (B, n, _), dv = q.shape, v.shape[-1]
    Y, L = np.empty((parts, B, n, dv), q.dtype), np.empty((parts, B, n), q.dtype)
    in_parallel(B * parts if much else 1, forward_few, q, k, v, pairs, m, scale, Y, L)
    return (Y[0], L[0]) if parts == 1 else merge_parts(Y, L)


def tiled_attention(
    Q: Array,
    K: Array,
    V: Array,
    bias: Array | None,
    sink: Array | None = None,
    *,
    causal: bool,
    mask: Array | None,
    scale: float,
    cap: float | None = None,
    pattern: Any = None,
) -> tuple[Array, TiledAttentionPullback]:
    """`dot_product_attention` and `block_sparse_attention` in the tiers "numba" and "micro"; they have checked the arguments.

    Y = softmax(scale · Q Kᵀ + bias) V

    cost     O(n m (d + dv)) time, half of it if causal and n = m, or O(pattern.pairs (d + dv)); O(n + m) memory
    """
    batch, n, m = Q.shape[:-2], Q.shape[-2], K.shape[-2]
    if n <= FEW:
        seen = mask if pattern is None else pattern.mask if mask is None else mask & pattern.mask
        pairs = pairs_of(Q, K, m, bias, seen, causal, sink, cap)
        Y, L = _few(one_batch(Q), one_batch(K), one_batch(V), pairs, m, scale, K.size > LONG)
        Y, L = Y.reshape(*batch, n, V.shape[-1]), L.reshape(*batch, n)
    else:
        Y, L = np.empty((*batch, n, V.shape[-1]), Q.dtype), np.empty((*batch, n), Q.dtype)
        out = one_batch(Y), L.reshape(math.prod(batch), n)
        pairs = forwards(pairs_of(Q, K, m, bias, mask, causal, sink, cap), pattern)
        tasks = math.prod(batch) * -(-n // LANES) if math.prod(batch) * n * m * Q.shape[-1] > ENOUGH else 1
        in_parallel(tasks, forward, *(padded(X) for X in (Q, K, V)), pairs, m, scale, plain_loops(), *out)
    pullback = TiledAttentionPullback(Q, K, V, Y, L, scale, causal, mask, bias, pattern, sink, cap)
    if n > FEW and (causal or mask is not None or pattern is not None):
        without_the_hidden(Y, lambda: pullback.A, for_each_head(V, batch))
    return Y, pullback


def attend_to_buffer(
    Q: Array, K: Array, V: Array, m: int, bias: Array | None, mask: Array | None, scale: float,
    sink: Array | None = None, cap: float | None = None,
) -> Array:  # fmt: skip
    """`attend_to_buffer` of attention/dot_product.py, in the tiers "numba" and "micro"."""
    B, n, dv = math.prod(Q.shape[:-2]), Q.shape[-2], V.shape[-1]
    q, k, v = map(one_batch, (Q, K, V))
    if mask is None and sink is None and cap is None and B * m * dv <= LONG:
        added, rows = np.empty((1, 0), Q.dtype), 0 if bias is None else bias.size // max(m, 1)
        if n == 1 and bias is not None and (rows == 1 or bias.shape[:-1] in (Q.shape[-3:-2], Q.shape[:-2])):
            added = in_base_2(bias.reshape(rows, m))
        if bias is None or added.size:
            return attend_plainly(q, k, v, added, m, float(scale)).reshape(*Q.shape[:-1], dv)
    pairs = pairs_of(Q, K, m, bias, mask, True, sink, cap)
    return _few(q, k, v, pairs, m, scale, B * m * dv > LONG)[0].reshape(*Q.shape[:-1], dv)


def retrieve_from_buffer(Q: Array, K: Array, V: Array, m: int, scale: float, steps: int, tolerance: float) -> Array:
    """Y of `hopfield_attention` for the last queries, causally, among the first m rows of longer arrays."""
    Y = np.empty((*Q.shape[:-1], V.shape[-1]), Q.dtype)
    arrays = (as_one_axis(for_reading(X), 0, -2) for X in (Q, K, V))
    tasks = math.prod(Q.shape[:-2]) if K.shape[-1] * m * math.prod(Q.shape[:-2]) > LONG else 1
    in_parallel(tasks, retrieve, *arrays, m, float(Q.dtype.type(scale)), steps, tolerance**2, as_one_axis(Y, 0, -2))
    return Y
