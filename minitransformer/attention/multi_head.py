"""Multi-head attention: project, split into heads, attend in each, combine.

    head_h = Attention(X W_q,h, Z W_k,h, Z W_v,h),      Y = [head_1 … head_H] W_o + b_o

The H small projections are the columns of one large one. With Z = X it is self-attention, with Z from elsewhere
(the encoder's output) it is cross-attention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.functional import LinearPullback, linear
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Bool, Float, checked


def split_heads(X: Array, heads: int) -> Array:
    """(*batch, n, H·d) to (*batch, H, n, d): head h gets columns h·d … (h+1)·d − 1. Its gradient is `merge_heads`."""
    X = X.reshape(*X.shape[:-1], heads, X.shape[-1] // heads)
    return np.ascontiguousarray(X.swapaxes(-2, -3))


def merge_heads(X: Array) -> Array:
    """(*batch, H, n, d) to (*batch, n, H·d): the inverse of `split_heads`, and so also its gradient."""
    X = X.swapaxes(-2, -3)
    return X.reshape(*X.shape[:-2], X.shape[-2] * X.shape[-1])


class MultiHeadParams(NamedTuple):
    """Projections (D, H·d), output (H·dv, D); biases are None in a model without them.

    Last what an encoding of positions inside attention has to learn; None without one.
    """

    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None
    position: Tree = None


class KeysValues(NamedTuple):
    """The keys and values of the tokens seen so far, (*batch, H, m, d): what decoding has to remember."""

    K: Array
    V: Array


class CrossAttentionPullback(NamedTuple):
    """Backwards: combine, attend, project. X reaches the output through the queries, Z through keys and values."""

    q: LinearPullback
    k: LinearPullback
    v: LinearPullback
    attention: Pullback
    o: LinearPullback
    heads: int

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices of the heads, (*batch, H, n, m)."""
        return self.attention.A

    def __call__(self, dY: Array) -> tuple[MultiHeadParams, Array, Array]:
        dheads, dW_o, *db_o = self.o(dY)
        *dposition, dQ, dK, dV = self.attention(split_heads(dheads, self.heads))
        dX, dW_q, *db_q = self.q(merge_heads(dQ))
        dZ_k, dW_k, *db_k = self.k(merge_heads(dK))
        dZ_v, dW_v, *db_v = self.v(merge_heads(dV))
        if_any = (found[0] if found else None for found in (db_q, db_k, db_v, db_o, dposition))
        return MultiHeadParams(dW_q, dW_k, dW_v, dW_o, *if_any), dX, dZ_k + dZ_v


class SelfAttentionPullback(NamedTuple):
    """X plays both parts of cross-attention, so its gradient is the sum of the two."""

    cross: CrossAttentionPullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices of the heads, (*batch, H, n, n)."""
        return self.cross.A

    def __call__(self, dY: Array) -> tuple[MultiHeadParams, Array]:
        dparams, dX, dZ = self.cross(dY)
        return dparams, dX + dZ


@dataclass(frozen=True)
class MultiHeadAttention:
    """H attentions side by side, each of width d = D/H, so that the cost is that of one of width D.

    width      D, the width of the rows of X
    heads      H, must divide D
    bias       whether the four projections have one
    position   an encoding that acts inside self-attention (minitransformer/positions/encoding.py); cross-attention has none
    source     Lecture notes, multi-head; Aalto 2.1.4; CS224N notes (H divides the width, not the output: E72)
    cost       O(n D² + n² D) time; 4 D² parameters (4 D more with bias), whatever H is. Can be causal.
    raises     ValueError if D is not divisible by H
    """

    width: int
    heads: int
    bias: bool = True
    position: Any = None

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"width: {self.width} is not divisible into {self.heads} heads")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> MultiHeadParams:
        """Projections uniform on ±√(3/D), which keeps the variance of a row; biases zero."""
        D = self.width
        W = [rng.uniform(-1, 1, (D, D)).astype(dtype) * dtype(math.sqrt(3 / D)) for _ in range(4)]
        b = [np.zeros(D, dtype) for _ in range(4)] if self.bias else []
        params = MultiHeadParams(*W, *b)
        if self.position is None:
            return params
        scale, usual = self.position.scale, 1 / math.sqrt(D // self.heads)
        if scale is not None and scale > usual:  # scores that are not divided by √d: W_q starts as much smaller
            params = params._replace(W_q=params.W_q * dtype(usual / scale))
        return params._replace(position=self.position.init(rng, dtype))

    @checked
    def __call__(
        self,
        params: MultiHeadParams,
        X: Float[Array, "*batch n {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], SelfAttentionPullback]:
        """Self-attention. mask broadcasts to (*batch, H, n, n). Pullback: dY to (dparams, dX)."""
        Y, pullback = self._attend(self._core(params), params, X, X, causal=causal, mask=mask)
        return Y, SelfAttentionPullback(pullback)

    @checked
    def cross(
        self,
        params: MultiHeadParams,
        X: Float[Array, "*batch n {self.width}"],
        Z: Float[Array, "*batch m {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], CrossAttentionPullback]:
        """Cross-attention: queries from X, keys and values from Z. Pullback: dY to (dparams, dX, dZ).

        softmax(X W_q (Z W_k)ᵀ/√d) Z W_v; the Lecture notes transpose the wrong factor (E31).
        """
        return self._attend(dot_product_attention, params, X, Z, causal=causal, mask=mask)

    def _core(self, params: MultiHeadParams) -> Callable[..., tuple[Array, Pullback]]:
        """Attention from queries, keys and values, with positions where there are any."""
        return dot_product_attention if self.position is None else partial(self.position, params.position)

    def _attend(
        self, core: Callable, params: MultiHeadParams, X: Array, Z: Array, *, causal: bool, mask: Array | None
    ) -> tuple[Array, CrossAttentionPullback]:
        if mask is not None and 2 < mask.ndim <= X.ndim:  # (batch, n, m) would be taken for (heads, n, m)
            raise ValueError(f"mask: shape {mask.shape} has no axis for the heads; mask[..., None, :, :] has")
        Q, q = linear(X, params.W_q, params.b_q)
        K, k = linear(Z, params.W_k, params.b_k)
        V, v = linear(Z, params.W_v, params.b_v)
        heads, attention = core(*(split_heads(M, self.heads) for M in (Q, K, V)), causal=causal, mask=mask)
        Y, o = linear(merge_heads(heads), params.W_o, params.b_o)
        return Y, CrossAttentionPullback(q, k, v, attention, o, self.heads)

    def decode(self, params: MultiHeadParams, X: Array, past: KeysValues | None = None) -> tuple[Array, KeysValues]:
        """Causal self-attention of new tokens X over the past and themselves; returns Y and the longer past.

        cost   O(m D) for one new token, instead of O(m² D) for all over again. Memory: 2 m D numbers.
        """
        Q, K, V = (
            split_heads(linear(X, W, b)[0], self.heads)
            for W, b in ((params.W_q, params.b_q), (params.W_k, params.b_k), (params.W_v, params.b_v))
        )
        if past is not None:
            K, V = np.concatenate([past.K, K], -2), np.concatenate([past.V, V], -2)
        heads, _ = self._core(params)(Q, K, V, causal=True)
        return linear(merge_heads(heads), params.W_o, params.b_o)[0], KeysValues(K, V)
