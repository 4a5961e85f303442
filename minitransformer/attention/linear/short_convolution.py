"""A short convolution of queries, keys and values: each channel looks at the last few tokens before a memory is read.

    y_t = f(θ_0 ⊙ x_{t−τ+1} + … + θ_{τ−1} ⊙ x_t + b),      f = swish

In a text, what is to be remembered often stands beside its key and not at it: "capital Paris". A memory writes k_t and v_t of
the same token, so a layer by itself can't tie the two. With τ = 2 taps the key at "Paris" can be that of "capital".
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.depthwise import depthwise_convolution
from minitransformer.functional import silu
from minitransformer.pullback import Pullback
from minitransformer.ranges import so_many
from minitransformer.typing import Array, Float, checked


class ShortConvolutionPullback(Pullback):
    """Back through swish and the weighted sum, for which the heads stand behind the rows."""

    convolve: Pullback
    activation: Pullback
    of_heads: bool  # whether each head has a θ of its own

    @property
    def rows(self) -> Array:
        """x, with τ − 1 rows in front, (*batch, τ − 1 + n, d)."""
        return _rows_last(self.convolve.rows, self.of_heads)

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dX, dtheta, *db = self.convolve(_heads_last(self.activation(dY), self.of_heads))
        dkernel = dtheta[..., 0, :, :, :], *(d[..., 0, :, :] for d in db)
        return _rows_last(dX, self.of_heads), *(d if self.of_heads else d[0] for d in dkernel)


def _heads_last(X: Array, of_heads: bool) -> Array:
    """(…, H, n, d) as (…, n, H, d), or (…, n, d) as one head."""
    return X.swapaxes(-2, -3) if of_heads else X[..., None, :]


def _rows_last(X: Array, of_heads: bool) -> Array:
    """The inverse of `_heads_last`."""
    return X.swapaxes(-2, -3) if of_heads else X[..., 0, :]


@checked
def short_convolution(
    X: Float[Array, "*batch n d"],
    theta: Float[Array, "*heads taps d"],
    b: Float[Array, "*heads d"] | None = None,
    *,
    before: Float[Array, "*batch past d"] | None = None,
) -> tuple[Float[Array, "*batch n d"], Pullback]:
    """Each channel's own weighted sum of this row and the τ − 1 before it, then swish.

        y_t = f(Σ_s θ_s ⊙ x_{t−τ+1+s} + b),  s = 0 … τ − 1

    theta    θ (taps, d), or (H, taps, d) for X (…, H, n, d); the last tap is that of the row itself. b (d,) or (H, d)
    before   the τ − 1 rows that stood before X, to which no gradient goes; zeros if there are none
    source   Dao and Gu 2024 (Mamba-2), with b; Yang, Kautz and Hatamizadeh 2025 (Gated DeltaNet), without. τ = 4 in both
    cost     O(n taps d). Causal
    returns  Y and a pullback: dX, dtheta = pullback(dY), and db if there is a b; `pullback.rows` ends in the next `before`
    raises   TypeError for a wrong shape or dtype, ValueError for no taps, or another number of rows in `before`
    """
    one_dtype(X=X, theta=theta, b=b, before=before)
    taps = theta.shape[-2]
    if taps == 0:
        raise ValueError("theta: no taps, should be at least one")
    if (own := theta.shape[:-2]) != X.shape[-2 - len(own) : -2]:
        raise TypeError(f"theta: axes {own} of heads should be the last ones in front of the rows, {X.shape[:-2]}")
    if before is not None and before.shape[-2] != taps - 1:
        raise ValueError(f"before: {so_many(before.shape[-2], 'row')} for {so_many(taps, 'tap')}, should be {taps - 1}")
    of_heads = len(own) > 0
    kernel = (theta if of_heads else theta[None])[..., None, :, :, :]
    bias = None if b is None else (b if of_heads else b[None])[..., None, :, :]
    past = None if before is None else _heads_last(before, of_heads)
    A, convolve = depthwise_convolution(_heads_last(X, of_heads), kernel, bias, causal=True, before=past)
    Y, activation = silu(_rows_last(A, of_heads))
    return Y, ShortConvolutionPullback(convolve, activation, of_heads)


class Kernel(NamedTuple):
    """The kernels of the heads of queries, keys and values, one after another: θ (3H, taps, d), and b (3H, d) or None.

    They are fewer than 3H where heads of values share queries and keys.
    """

    theta: Array
    b: Array | None = None


def drawn(
    rng: np.random.Generator, heads: int, key_heads: int | None, taps: int | None, d: int, dtype: type, *,
    bias: bool = False,
) -> Kernel | None:  # fmt: skip
    """The initial kernel: θ uniform on ±1/√taps, and b = 0; None without taps."""
    if taps is None:
        return None
    rows = heads + 2 * (heads if key_heads is None else key_heads)
    theta = rng.uniform(-1, 1, (rows, taps, d)) / np.sqrt(taps)
    return Kernel(theta.astype(dtype), np.zeros((rows, d), dtype) if bias else None)


def refuse_uneven(heads: int, key_heads: int | None) -> None:
    """Raise ValueError unless each head of queries and keys can serve equally many heads of values."""
    if key_heads is not None and heads % key_heads:
        raise ValueError(
            f"key_heads: {so_many(heads, 'head')} of values can't be divided among {key_heads} of queries and keys"
        )
