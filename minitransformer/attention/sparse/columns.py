"""The strided pattern without its tiles: positions written row by row, l to a row, so that what is far stands in one column.

    position i = r l + c is row r of column c           X (n, d) becomes (l, ⌈n/l⌉, d)
    far: l divides i − j                                all pairs of a column: causal attention of ⌈n/l⌉ tokens, l times
    near: i − l < j ≤ i                                 a window
    L = ln Σ_p exp L_p,   Y = Σ_p exp(L_p − L) Y_p      both in one softmax, by what each part weighs (merge.py)

The pair (i, i) is near and far, and must count once: it is left to the window, so that row r of a column sees the rows before it.

The backward pass takes nothing apart. A_ij = exp(S_ij − L_i) and D_i = ⟨dy_i, y_i⟩ of the whole are all that a pair must know of
the others, so each part sends back what its own pairs do, and these add.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import finite
from minitransformer.attention.block_sparse import BlockPattern, block_sparse_attention
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.attention.merge import merge
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


def in_columns(X: Array, stride: int) -> Array:
    """(*batch, H, n, w) to (*batch, l, H, rows, w): ⌈n/l⌉ rows, filled up with zeros to a multiple of 4, behind all others."""
    *batch, H, n, w = X.shape
    full, rest = divmod(n, stride)
    columns = np.zeros((*batch, stride, H, -(-n // (4 * stride)) * 4, w), X.dtype)
    rows = np.moveaxis(columns, -4, -2)
    rows[..., :full, :, :] = X[..., : n - rest, :].reshape(*batch, H, full, stride, w)
    if rest:
        rows[..., full, :rest, :] = X[..., n - rest :, :]
    return columns


def in_order(X: Array, n: int) -> Array:
    """The inverse: (*batch, l, H, rows, w) to (*batch, H, n, w)."""
    X = np.moveaxis(X, -4, -2)
    return X.reshape(*X.shape[:-3], X.shape[-3] * X.shape[-2], X.shape[-1])[..., :n, :]


class ColumnsPullback(Pullback):
    """dQ, dK and dV of the near pairs and of those in columns, with Y and L of the whole: their sums.

    near   the pullback of the window; None without a window, and then the columns have the pairs (i, i)
    """

    near: Pullback | None
    far: Pullback
    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    stride: int
    pattern: Any

    def dense(self) -> Pullback:
        """The pullback of attention to the same pairs, by a list of tiles."""
        pattern = self.pattern(self.Q.shape[-2], self.K.shape[-2], causal=True)
        return block_sparse_attention(self.Q, self.K, self.V, pattern, causal=True)[1]

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, H, n, n)."""
        return self.dense().A

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        if not finite(dY):  # the tiles keep NaN and ∞ away from hidden pairs
            return self.dense()(dY)
        dQ, dK, dV = (np.zeros_like(X) for X in (self.Q, self.K, self.V))
        if self.near is not None:
            dQ, dK, dV = self.near._replace(Y=self.Y, L=self.L)(dY)
        n, own = self.Y.shape[-2], 0 if self.near is None else self.stride
        Y, L, of_columns = (in_columns(X[..., own:, :], self.stride) for X in (self.Y, self.L[..., None], dY))
        of_Q, of_K, of_V = self.far._replace(Y=Y, L=L[..., 0])(of_columns)
        dQ[..., own:, :] += in_order(of_Q, n - own)
        dK[..., : n - own, :] += in_order(of_K, n - own)
        dV[..., : n - own, :] += in_order(of_V, n - own)
        return dQ, dK, dV


def column_attention(
    Q: Array, K: Array, V: Array, stride: int, near: BlockPattern | None, pattern: Any
) -> tuple[Array, ColumnsPullback]:
    """Causal attention to every stride-th key, and to those of a window, in the tiers of loops.

    near     the window of the last `stride` keys, as tiles; None for none, and then a query sees its own key in its column
    pattern  the rule of all these pairs, for A and for the way back where numbers are not finite
    cost     O(n²/stride · d) time for the columns, whatever the stride, and that of the window; O(n) memory
    """
    n, own = Q.shape[-2], 0 if near is None else stride
    # each query beside the last key that it sees in its column
    arrays = Q[..., own:, :], K[..., : n - own, :], V[..., : n - own, :]
    Y, far = dot_product_attention(*(in_columns(X, stride) for X in arrays), causal=True)
    L = in_order(far.L[..., None], n - own)[..., 0]
    Y = in_order(Y, n - own)
    if near is None:
        return Y, ColumnsPullback(None, far, Q, K, V, Y, L, stride, pattern)
    Y_near, window = block_sparse_attention(Q, K, V, near, causal=True)
    (Y, L), _ = merge(np.stack([Y_near[..., own:, :], Y]), np.stack([window.L[..., own:], L]))
    Y, L = np.concatenate([Y_near[..., :own, :], Y], -2), np.concatenate([window.L[..., :own], L], -1)
    return Y, ColumnsPullback(window, far, Q, K, V, Y, L, stride, pattern)
