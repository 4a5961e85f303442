"""Softmax attention over a list of tiles: local, window, dilated, strided, global, BigBird, and whatever has been sorted.

    for each tile of 64 queries, in parallel:
        for each tile of 64 keys in its list:                the list comes from the pattern, not from a loop over all
            as in attention.py

What a tile costs is the same as in dense attention, and the parts are the same functions; there are fewer tiles. A tile
of which every pair counts needs no mask; those at an edge of the pattern have one of a few masks of 64 × 64.
On the way back each tile of keys needs the query tiles that see it: the same list, sorted the other way round.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.functional import one_dtype
from minitransformer.kernels.attention import (
    LOG2E,
    collect,
    exponentiate,
    from_panels,
    heads,
    hide,
    in_panels,
    matrix,
    padded,
    weights_and_slopes,
    write_columns,
    write_rows,
)
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.threads import in_parallel
from minitransformer.kernels.tiles import LANES, add_product, fours, plain_loops, product, tile, tiles, transpose_into
from minitransformer.typing import Array


@compiled
def attend(Q, K, V, key_tiles, which, seen, m, scale, i0, loops, Y, L):
    """One tile of queries of one head: rows i0 … i0 + 63 of Y and L. seen[w] has the keys on its rows."""
    d, dv = K.shape[1], V.shape[1]
    QT, space, YT = tile(d, Q), tile(LANES, Q), tile(dv, Q)
    transpose_into(QT, Q[i0 : min(i0 + LANES, len(L))], Q.dtype.type(scale * LOG2E))
    numbers = tile(4, Q)
    numbers[0] = -np.inf
    for t in range(len(key_tiles)):
        j0 = key_tiles[t] * LANES
        S = space[: min(LANES, fours(m - j0))]
        product(K[j0 : j0 + len(S), :d], QT, S, LANES, loops)
        if which[t] >= 0:
            hide(S, LANES, seen[which[t]], 0, 0)
        exponentiate(S, YT, numbers)
        add_product(V[j0 : j0 + len(S), :dv].T, S, YT, LANES, loops)
    write_rows(YT, numbers[0], numbers[1], i0, Y, L)


@compiled
def forward(Q, K, V, starts, key_tiles, which, seen, m, scale, loops, Y, L, first, threads):
    """Y and L. One task for each tile of queries of each head."""
    number = len(starts) - 1
    for task in range(first, len(Y) * number, threads):
        b, t = task // number, task % number
        its = slice(starts[t], starts[t + 1])
        attend(Q[b], K[b], V[b], key_tiles[its], which[its], seen, m, scale, t * LANES, loops, Y[b], L[b])


@compiled
def attend_back(Q, K, V, dY, L, D, query_tiles, which, seen, scale, j0, loops, dQ, dK, dV):
    """One tile of keys of one head: rows j0 … j0 + 63 of dK and dV, and what they add to dQ. seen[w]: queries on rows."""
    n, d, dv = len(L), K.shape[1], V.shape[1]
    keys = min(LANES, len(dK) - j0)
    KT, VT, dKT, dVT = tile(d, Q), tile(dv, Q), tile(d, Q), tile(dv, Q)
    transpose_into(KT, K[j0 : j0 + keys], Q.dtype.type(scale * LOG2E))
    transpose_into(VT, V[j0 : j0 + keys], Q.dtype.type(1))
    K_panels, space = tiles(dQ.shape[1], LANES, Q), tiles(2, LANES, Q)
    in_panels(K[j0 : j0 + keys, :d], K_panels)
    for t in range(len(query_tiles)):
        i0 = query_tiles[t] * LANES
        rows = min(LANES, n - i0)
        P, dS = space[0, : fours(rows)], space[1, : fours(rows)]
        Q_tile, dY_tile = Q[i0 : i0 + len(P), :d], dY[i0 : i0 + len(P), :dv]
        product(Q_tile, KT, P, LANES, loops)  # scores, in base 2
        product(dY_tile, VT, dS, LANES, loops)  # dP
        if which[t] >= 0:
            hide(P[:rows], LANES, seen[which[t]], 0, 0)
        weights_and_slopes(P, dS, L[i0 : i0 + rows], D[i0 : i0 + rows])
        collect(Q_tile, dY_tile, K_panels, fours(keys), P, dS, loops, dQ[query_tiles[t]], dKT, dVT)
    write_columns(dKT, Q.dtype.type(scale), dK[j0 : j0 + keys])
    write_columns(dVT, Q.dtype.type(1), dV[j0 : j0 + keys])


@compiled
def backward(Q, K, V, dY, L, D, starts, query_tiles, which, seen, scale, loops, dQ, dK, dV, first, threads):
    """dQ, dK and dV. One task for each part of the key tiles of each head, with a dQ of its own."""
    parts = len(dQ)
    for task in range(first, len(dK) * parts, threads):
        b, part = task // parts, task % parts
        for t in range(part, len(starts) - 1, parts):
            its = slice(starts[t], starts[t + 1])
            attend_back(
                *(Q[b], K[b], V[b], dY[b], L[b], D[b], query_tiles[its], which[its], seen, scale, t * LANES, loops),
                *(dQ[part, b], dK[b], dV[b]),
            )


class TilesAttentionPullback(NamedTuple):
    """As for dense attention, over the pairs of the pattern: a pair that is not seen has A_ij = 0 and no gradient."""

    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    scale: float
    pattern: Any

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrix, (*batch, n, m), made again by the definition, in NumPy."""
        return matrix(self.Q, self.K, self.scale, self.pattern.mask)

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        dY = dY.astype(self.Y.dtype, copy=False)
        Q, K, V, dY_ = (padded(X) for X in (self.Q, self.K, self.V, dY))
        (B, _, _), (n, d), m = Q.shape, self.Q.shape[-2:], self.K.shape[-2]
        D = np.vecdot(dY, self.Y).reshape(B, n)
        dK, dV = np.empty((B, m, d), dY.dtype), np.empty((B, m, self.V.shape[-1]), dY.dtype)
        parts = max(1, min(-(-8 // max(B, 1)), -(-m // LANES)))  # few heads: several tasks for each
        dQ = np.zeros((parts, B, -(-n // LANES), -(-d // LANES), LANES, LANES), dY.dtype)
        _, _, starts, key_tiles, which, masks = self.pattern
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        order = np.argsort(key_tiles, kind="stable")
        columns = np.searchsorted(key_tiles[order], np.arange(-(-m // LANES) + 1))
        in_parallel(
            B * parts,
            backward,
            *(Q, K, V, dY_, self.L.reshape(B, n), D, columns, rows[order], which[order], masks),
            *(self.scale, plain_loops(), dQ, dK, dV),
        )
        return from_panels(dQ, self.scale, self.Q.shape), dK.reshape(self.K.shape), dV.reshape(self.V.shape)


def tiles_attention(
    Q: Array, K: Array, V: Array, pattern, *, scale: float | None
) -> tuple[Array, TilesAttentionPullback]:
    """`block_sparse_attention` in the compiled tiers; `pattern` is a `BlockPattern`."""
    one_dtype(Q=Q, K=K, V=V)
    scale = Q.dtype.type(1 / math.sqrt(max(Q.shape[-1], 1)) if scale is None else scale)
    n, m, starts, key_tiles, which, masks = pattern
    Y, L = np.empty((*Q.shape[:-1], V.shape[-1]), Q.dtype), np.empty(Q.shape[:-1], Q.dtype)
    in_parallel(
        math.prod(Q.shape[:-2]) * (len(starts) - 1),
        forward,
        *(padded(X) for X in (Q, K, V)),
        *(starts, key_tiles, which, np.ascontiguousarray(masks.mT), m, scale, plain_loops()),
        *(heads(Y), L.reshape(math.prod(L.shape[:-1]), n)),
    )
    return Y, TilesAttentionPullback(Q, K, V, Y, L, scale, pattern)
