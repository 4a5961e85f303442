"""Latent attention: a token leaves one short row behind, from which the keys and values of all heads are made.

    C   = RMS(X W_dc) γ_c,   K_R = turned(X W_kr)           the latent (n, r), and one turned key for all heads (n, d_r)
    K_h = C W_uk,h,          V_h = C W_uv,h                 made from it again, (n, d) for each head
    S_h = (Q_h K_hᵀ + Q_R,h K_Rᵀ) / √(d + d_r)
    Y   = Σ_h softmax(S_h) V_h W_o,h

A product of matrices can be bracketed in another way, Q_h (C W_uk,h)ᵀ = (Q_h W_uk,hᵀ) Cᵀ and A_h (C W_uv,h) = (A_h C) W_uv,h.
Then no head has keys or values of its own: C is both. That is the absorbed form, in which decoding keeps C and K_R, and the
expanded form is for many queries. If Q_h and K_h were turned, a rotation by i − j would stand between Q_h and W_uk,h, and there
would be no fixed matrix to bring to the queries' side: so positions have channels of their own, Q_R and K_R.
"""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import as_one_axis, one_dtype, refuse_indivisible, scale_for, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.attention.projected import Projected, Projection
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, RMSNormPullback, linear, rms_norm
from minitransformer.gather_scatter import merge_heads, split_heads
from minitransformer.positions.rope import RoPE
from minitransformer.pullback import Pullback
from minitransformer.ranges import PositiveNumber, so_many
from minitransformer.typing import Array, Bool, Float, checked

ABSORBED = 4  # a step of at most so many tokens is absorbed: making keys of all that came before would take longer


class ExpandedPullback(AroundAttention):
    """Attention back to K_h, V_h and K_R. All heads had K_R: a sum over heads. C made keys and values: the sum of both."""

    attention: Pullback
    key: LinearPullback
    value: LinearPullback
    d: int

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        d, (dQ, dK, dV) = self.d, self.attention(dY)
        dC_key, dW_uk = self.key(merge_heads(dK[..., :d]))
        dC_value, dW_uv = self.value(merge_heads(dV))
        return dQ[..., :d], dQ[..., d:], dC_key + dC_value, dK[..., d:].sum(-3), dW_uk, dW_uv


class AbsorbedPullback(AroundAttention):
    """With Q̃_h = Q_h W_uk,hᵀ and U_h = A_h C:  dU_h = dY_h W_uv,hᵀ,  dC = Σ_h (s dS_hᵀ Q̃_h + A_hᵀ dU_h), for C is key and value.

    dK_R = s Σ_h dS_hᵀ Q_R,h. These sums over heads are what attention gives to a key that all heads share.
    """

    attention: Pullback
    Q: Array
    U: Array
    W_uk: Array  # (H, r, d)
    W_uv: Array  # (H, r, dv)

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK, dC_value = self.attention(dY @ self.W_uv.mT)
        r = self.W_uk.shape[-2]
        dW_uk = _over_samples(dQ[..., :r].mT @ self.Q)
        dW_uv = _over_samples(self.U.mT @ dY)
        dC = (dK[..., :r] + dC_value)[..., 0, :, :]
        return dQ[..., :r] @ self.W_uk, dQ[..., r:], dC, dK[..., 0, :, r:], dW_uk, dW_uv


def _over_samples(dW: Array) -> Array:
    """The sum over the samples, with the heads side by side: (*batch, H, r, d) to (r, H·d)."""
    return merge_heads(as_one_axis(dW, 0, -3).sum(0))


@checked
def latent_attention(
    Q: Float[Array, "*batch heads n d"],
    Q_R: Float[Array, "*batch heads n turned"],
    C: Float[Array, "*batch m r"],
    K_R: Float[Array, "*batch m turned"],
    W_uk: Float[Array, "r Hd"],
    W_uv: Float[Array, "r Hdv"],
    *,
    causal: bool = False,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    absorbed: bool = False,
) -> tuple[Float[Array, "*batch heads n dv"], Pullback]:
    """Attention of H heads to keys and values that are made from one latent row for each token.

        Y_h = softmax(scale · (Q_h (C W_uk,h)ᵀ + Q_R,h K_Rᵀ)) C W_uv,h

    Q_R, K_R   the part that is turned, if positions count; K_R is one key for all heads
    W_uk       (r, H·d), and W_uv (r, H·dv): columns h·d … (h + 1)·d − 1 are those of head h
    causal     query i sees keys j ≤ i only; with m ≠ n the queries are the last n of the m positions
    mask       True where query i sees key j; must broadcast to (*batch, H, n, m)
    scale      1/√(d + d_r) by default
    absorbed   the same numbers with the brackets elsewhere: no keys or values are made
    source     DeepSeek-AI 2024a (DeepSeek-V2), equations 9 to 19
    cost       O(n m H (d + d_r + dv) + m r H (d + dv)) time; absorbed O(n m H (2 r + d_r) + n r H (d + dv)): more for many
               queries, less for one
    returns    Y and a pullback: dQ, dQ_R, dC, dK_R, dW_uk, dW_uv = pullback(dY)
    raises     TypeError for a wrong shape or dtype, ValueError for weights of other heads or a mask that does not fit
    """
    one_dtype(Q=Q, Q_R=Q_R, C=C, K_R=K_R, W_uk=W_uk, W_uv=W_uv)
    H, d = Q.shape[-3], Q.shape[-1]
    if W_uk.shape[1] != H * d or W_uv.shape[1] % H:
        columns = f"{W_uk.shape[1]} and {so_many(W_uv.shape[1], 'column')}"
        heads = f"{so_many(H, 'head')} of width {d}"
        raise ValueError(f"W_uk, W_uv: {columns}, for {heads}, should be {H * d} and a multiple of {H}")
    scale = scale_for(d + Q_R.shape[-1], scale)
    if absorbed:
        W_k, W_v = split_heads(W_uk, H), split_heads(W_uv, H)
        queries, keys = np.concatenate([Q @ W_k.mT, Q_R], -1), np.concatenate([C, K_R], -1)[..., None, :, :]
        U, attention = dot_product_attention(queries, keys, C[..., None, :, :], causal=causal, mask=mask, scale=scale)
        return U @ W_v, AbsorbedPullback(attention, Q, U, W_k, W_v)
    (K, key), (V, value) = linear(C, W_uk), linear(C, W_uv)
    turned = np.broadcast_to(K_R[..., None, :, :], (*Q.shape[:-2], *K_R.shape[-2:]))
    queries, keys = np.concatenate([Q, Q_R], -1), np.concatenate([split_heads(K, H), turned], -1)
    Y, attention = dot_product_attention(queries, keys, split_heads(V, H), causal=causal, mask=mask, scale=scale)
    return Y, ExpandedPullback(attention, key, value, d)


class LatentParams(NamedTuple):
    """For queries W_q (D, H·d) and W_qr (D, H·d_r), for keys and values W_uk and W_uv (r, H·d), for the output W_o (H·d, D).

    W_dc (D, r) leads to the latent, whose norm has the gain gamma_c (r,), and W_kr (D, d_r) to the turned key. Where queries have
    a latent of their own, W_dq (D, r_q) and gamma_q (r_q,) lead to it, and W_q and W_qr have r_q rows; else the two are None.
    """

    W_q: Array
    W_qr: Array
    W_dc: Array
    gamma_c: Array
    W_kr: Array
    W_uk: Array
    W_uv: Array
    W_o: Array
    W_dq: Array | None = None
    gamma_q: Array | None = None


class NarrowPullback(Pullback):
    """RMS(X W) γ: dY to (dX, dW, dgamma)."""

    linear: LinearPullback
    norm: RMSNormPullback

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dZ, dgamma = self.norm(dY)
        dX, dW = self.linear(dZ)
        return dX, dW, dgamma


def _narrow(X: Array, W: Array, gamma: Array) -> tuple[Array, NarrowPullback]:
    """The latent RMS(X W) γ, (*batch, n, r)."""
    Z, product = linear(X, W)
    C, norm = rms_norm(Z, gamma)
    return C, NarrowPullback(product, norm)


class LatentPullback(AroundAttention):
    """Combine, attend, and back through four projections to X, or to the queries' latent and from there to X."""

    queries: NarrowPullback | None
    q: LinearPullback
    q_r: LinearPullback
    turn_q: Pullback
    latent: NarrowPullback
    k_r: LinearPullback
    turn_k: Pullback
    attention: Pullback
    o: LinearPullback
    heads: int

    def __call__(self, dY: Array) -> tuple[LatentParams, Array]:
        dheads, dW_o = self.o(dY)
        dQ, dQ_R, dC, dK_R, dW_uk, dW_uv = self.attention(split_heads(dheads, self.heads))
        dX_q, dW_q = self.q(merge_heads(dQ))
        dX_qr, dW_qr = self.q_r(merge_heads(self.turn_q(dQ_R)))
        dX, dW_dq, dgamma_q = dX_q + dX_qr, None, None
        if self.queries is not None:
            dX, dW_dq, dgamma_q = self.queries(dX)
        dX_c, dW_dc, dgamma_c = self.latent(dC)
        dX_k, dW_kr = self.k_r(self.turn_k(dK_R))
        dparams = LatentParams(dW_q, dW_qr, dW_dc, dgamma_c, dW_kr, dW_uk, dW_uv, dW_o, dW_dq, dgamma_q)
        return dparams, dX + dX_c + dX_k


@frozen
class Latent(Projected):
    """Keys and values of all heads are made from one short row for each token; it and one turned key are all that is kept.

    rank         r, the width of that row; D/4 if None
    query_rank   the width of such a row for the queries, which saves activations in training, not in decoding; None for none
    rotary       d_r, channels besides the d = D/H of a head, which are turned; d/2 if None, in whole pairs
    base         of their angles, as in RoPE. So it knows where tokens stand, and needs no other encoding
    source       DeepSeek-AI 2024a (DeepSeek-V2), equations 9 to 19
    cost         O(n² (2 d + d_r)) for each head, besides the projections. Keeps r + d_r numbers for each token
    raises       ValueError for a width that is not divisible by the heads, and for an odd d_r
    """

    width: int
    heads: int
    rank: int | None = None
    query_rank: int | None = None
    rotary: int | None = None
    base: PositiveNumber = 10000.0

    stage = "project"
    remembers = "latents and turned keys"

    unplaced = "has no queries and keys that it could act on: it makes its own of latents, and turns a part of them"

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)
        if self._rotary % 2:
            raise ValueError(f"rotary: {self.rotary} should be even, for channels are turned in pairs")

    @property
    def _rank(self) -> int:
        return max(self.width // 4, 1) if self.rank is None else self.rank

    @property
    def _rotary(self) -> int:
        return max(self.width // self.heads // 4 * 2, 2) if self.rotary is None else self.rotary

    @property
    def kept(self) -> int:
        """Numbers that a token leaves behind for decoding: r + d_r, whatever the number of heads."""
        return self._rank + self._rotary

    @cached_property
    def rotate(self) -> RoPE:
        """What turns a part of the queries and the one key."""
        return RoPE(self._rotary, self.base)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LatentParams:
        """Projections uniform on ±√(3/rows), which keeps the variance of a row; gains one."""
        D, H, r, d_r = self.width, self.heads, self._rank, self._rotary

        def weights(rows: int, columns: int) -> Array:
            return uniform(rng, (rows, columns), dtype)

        r_q = self.query_rank or D
        W_q, W_qr, W_dc, W_kr = weights(r_q, D), weights(r_q, H * d_r), weights(D, r), weights(D, d_r)
        params = LatentParams(W_q, W_qr, W_dc, np.ones(r, dtype), W_kr, weights(r, D), weights(r, D), weights(D, D))
        if self.query_rank is None:
            return params
        return params._replace(W_dq=weights(D, r_q), gamma_q=np.ones(r_q, dtype))

    @checked
    def __call__(
        self, params: LatentParams, X: Float[Array, "*batch n {self.width}"], *, causal: bool = False,
        mask: Bool[Array, "..."] | None = None, rng: Any = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], LatentPullback]:  # fmt: skip
        """Pullback: dY to (dparams, dX). A mask is (n, n), or with all axes, (*batch, H, n, n), where 1 stands for "all"."""
        if mask is not None and 2 < mask.ndim <= X.ndim:
            raise ValueError(f"mask: shape {mask.shape} should have the axes (n, m), for all, or (batch, heads, n, m)")
        n, Z, queries = X.shape[-2], X, None
        if params.W_dq is not None and params.gamma_q is not None:
            Z, queries = _narrow(X, params.W_dq, params.gamma_q)
        (Q, q), (Q_R, q_r) = linear(Z, params.W_q), linear(Z, params.W_qr)
        Q_R, turn_q = self.rotate.turn(split_heads(Q_R, self.heads), length=n)
        C, latent = _narrow(X, params.W_dc, params.gamma_c)
        K_R, k_r = linear(X, params.W_kr)
        K_R, turn_k = self.rotate.turn(K_R, length=n)
        Y, attention = latent_attention(
            split_heads(Q, self.heads), Q_R, C, K_R, params.W_uk, params.W_uv, causal=causal, mask=mask
        )
        Y, o = linear(merge_heads(Y), params.W_o)
        return Y, LatentPullback(queries, q, q_r, turn_q, latent, k_r, turn_k, attention, o, self.heads)

    def projections(self, params: LatentParams) -> list[Projection]:
        """The queries and what is turned of them, or their latent; then the latent of keys and values, and the turned key."""
        latent = Projection(params.W_dc, None, None, self._rank, params.gamma_c)
        rows = [latent, Projection(params.W_kr, None, 1, self._rotary, turned=True)]
        if params.W_dq is not None:
            return [Projection(params.W_dq, None, None, params.W_dq.shape[-1], params.gamma_q), *rows]
        return [*self._queries(params), *rows]

    def _queries(self, params: LatentParams) -> list[Projection]:
        H, d = self.heads, self.width // self.heads
        return [Projection(params.W_q, None, H, d), Projection(params.W_qr, None, H, self._rotary, turned=True)]

    def _output(self, params: LatentParams) -> tuple[Array, None]:
        return params.W_o, None

    def _go_on(self, params: LatentParams, arrays: list[Array], state: KeysValues | None) -> tuple[Array, KeysValues]:
        """The state has rows [C | K_R], (*batch, m, r + d_r).

        cost   absorbed, for a few tokens: O(m H (2 r + d_r)) for one, and nothing is made of the m rows
        """
        *queries, C, K_R = arrays
        n, r = C.shape[-2], self._rank
        if params.W_dq is not None:
            first = 0 if state is None else state.length
            queries = [self._projected(projection, queries[0], first) for projection in self._queries(params)]
        Q, Q_R = queries
        rows = np.concatenate([C, K_R[..., 0, :, :]], -1)
        nothing = rows[..., :0]  # a state of keys alone
        state = KeysValues.of(rows, nothing) if state is None else state.extended(rows, nothing)
        if n == 1:
            Y = self._one(params, Q, Q_R, state)
        else:
            C, K_R = state.keys[..., :r], state.keys[..., r:]
            Y, _ = latent_attention(Q, Q_R, C, K_R, params.W_uk, params.W_uv, causal=True, absorbed=n <= ABSORBED)
        return Y, state

    def _one(self, params: LatentParams, Q: Array, Q_R: Array, state: KeysValues) -> Array:
        """The absorbed form for one new token: its H heads share the rows [C | K_R], of which only C is a value."""
        r, scale = self._rank, scale_for(Q.shape[-1] + Q_R.shape[-1])
        W_uk, W_uv = (W.reshape(r, self.heads, -1).swapaxes(0, 1) for W in (params.W_uk, params.W_uv))
        rows = state.K[..., None, :, :]
        U = attend_to_buffer(np.concatenate([Q @ W_uk.mT, Q_R], -1), rows, rows, state.length, scale=scale)
        return U[..., :r] @ W_uv
