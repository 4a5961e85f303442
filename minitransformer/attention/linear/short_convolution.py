"""A short convolution of queries, keys and values: each channel looks at the last few tokens before a memory is asked.

    y_t = f(θ_0 ⊙ x_{t−τ+1} + … + θ_{τ−1} ⊙ x_t + b),      f = swish

In a text, what is to be remembered often stands beside its key and not at it: "capital Paris". A memory writes k_t and v_t of
the same token, so a layer by itself can't tie the two. With τ = 2 taps the key at "Paris" can be that of "capital".
"""

from typing import NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.functional import silu
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


class ShortConvolutionPullback(NamedTuple):
    """With a = θ * x + b and da = f′ ⊙ dy:  dx_t = Σ_s θ_s ⊙ da_{t+τ−1−s},  dθ_s = Σ_t da_t ⊙ x_{t−τ+1+s},  db = Σ_t da_t."""

    rows: Array  # x, with τ − 1 rows in front
    theta: Array
    b: Array | None
    activation: Pullback

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dA, taps, n = self.activation(dY), self.theta.shape[-2], dY.shape[-2]
        d_rows, dtheta = np.zeros_like(self.rows), np.empty_like(self.theta)
        for s in range(taps):
            d_rows[..., s : s + n, :] += self.theta[..., s, None, :] * dA
            dtheta[..., s, :] = unbroadcast((dA * self.rows[..., s : s + n, :]).sum(-2), dtheta[..., s, :].shape)
        db = () if self.b is None else (unbroadcast(dA.sum(-2), self.b.shape),)
        return d_rows[..., taps - 1 :, :], dtheta, *db


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
    taps, n = theta.shape[-2], X.shape[-2]
    if taps == 0:
        raise ValueError("theta: no taps, should be at least one")
    if (own := theta.shape[:-2]) != X.shape[-2 - len(own) : -2]:
        raise TypeError(f"theta: axes {own} of heads should be the last ones in front of the rows, {X.shape[:-2]}")
    if before is None:
        before = np.zeros((*X.shape[:-2], taps - 1, X.shape[-1]), X.dtype)
    if before.shape[-2] != taps - 1:
        raise ValueError(f"before: {before.shape[-2]} rows for {taps} taps, should be {taps - 1}")
    rows = np.concatenate([before, X], -2)
    A = np.zeros_like(X) if b is None else np.zeros_like(X) + b[..., None, :]
    for s in range(taps):
        A += theta[..., s, None, :] * rows[..., s : s + n, :]
    Y, activation = silu(A)
    return Y, ShortConvolutionPullback(rows, theta, b, activation)


class Kernel(NamedTuple):
    """Of queries, keys and values, one after another: θ (3H, taps, d), and b (3H, d) in a model that has one. Fewer than 3H where
    heads of values share queries and keys.
    """

    theta: Array
    b: Array | None = None


def drawn(
    rng: np.random.Generator, heads: int, key_heads: int | None, taps: int | None, d: int, dtype: type, *,
    bias: bool = False,
) -> Kernel | None:  # fmt: skip
    """Uniform on ±1/√taps, and b = 0; None without taps."""
    if taps is None:
        return None
    rows = heads + 2 * (heads if key_heads is None else key_heads)
    theta = rng.uniform(-1, 1, (rows, taps, d)) / np.sqrt(taps)
    return Kernel(theta.astype(dtype), np.zeros((rows, d), dtype) if bias else None)


def refuse_uneven(heads: int, key_heads: int | None) -> None:
    """Raise ValueError unless each head of queries and keys can serve as many of values."""
    if key_heads is not None and heads % key_heads:
        raise ValueError(f"key_heads: {heads} heads of values are not divisible among {key_heads} of queries and keys")
