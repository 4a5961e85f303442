"""Forgetting attention: softmax attention in which what is past fades, as fast as each token says.

    S_ij = ⟨q_i, k_j⟩ / √d + c_i − c_j,      c_i = Σ_{t ≤ i} ln f_t,      f_t = σ(x_t w)
    Y    = softmax(S) V = the rows of (L ⊙ exp(Q Kᵀ/√d)) V, each divided by its sum       L_ij = f_{j+1} ⋯ f_i

L is the mask of linear attention with gates (gated.py), now under a softmax. With f = 1 it is dense attention; with one f for all
positions, ALiBi with the slope −ln f. ALiBi counts tokens; a gate has read them, and can close at the end of a sentence.

A row of S may be shifted as a whole, so c_i is left out. And −c_j is a product: of one more column of the keys with a constant in
the queries. So the core of dense attention will do, in all tiers.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.core import Core, seen_keys, where_seen
from minitransformer.attention.dot_product import attend_to_buffer, dot_product_attention
from minitransformer.attention.keys_values import KeysValues
from minitransformer.door import frozen
from minitransformer.functional import softplus
from minitransformer.pullback import NoParams, Pullback
from minitransformer.typing import Array, Bool, Float, checked


def with_column(X: Array, column: Array) -> Array:
    """[X, column]: one channel more."""
    return np.concatenate([X, column[..., None]], -1)


class ForgettingPullback(NamedTuple):
    """The last column of dK is −dc_j, the sum of column j of dS. c_j sums over t ≤ j:  dln f_t = Σ_{j ≥ t} dc_j."""

    attention: Pullback
    seen: Array | None

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrix, (*batch, n, n)."""
        return self.attention.A

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        dlog_forget = -dK[..., ::-1, -1].cumsum(-1)[..., ::-1]
        if self.seen is not None:
            dlog_forget = where_seen(self.seen[..., 0], dlog_forget)
        return dQ[..., :-1], dK[..., :-1], dV, dlog_forget


@checked
def forgetting_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    log_forget: Float[Array, "*batch n"],
    *,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Causal attention whose scores fall by −ln f_t at each position t between query and key.

        Y = softmax(scale · ⟨q_i, k_j⟩ + Σ_{j < t ≤ i} ln f_t) V

    log_forget  ln f, finite; that of the first position has no effect. To forget all is the work of a mask: in a sum, a gate of
                −10¹⁵ leaves no digits for the others
    mask        True where a key is there, (…, 1, n); what is hidden does not fade either
    scale       1/√d by default
    source      Lin et al. 2025
    cost        that of `dot_product_attention` with one channel more. Always causal
    returns     Y and a pullback: dQ, dK, dV, dlog_forget = pullback(dY)
    raises      TypeError for a wrong shape or dtype, ValueError for a mask that hides pairs
    """
    one_dtype(Q=Q, K=K, V=V, log_forget=log_forget)
    seen = seen_keys(mask, Q, K, "a sum of gates")
    if seen is not None:
        log_forget = where_seen(seen[..., 0], log_forget)
    scale = max(Q.shape[-1], 1) ** -0.5 if scale is None else scale
    queries, keys = faded(Q, K, log_forget.cumsum(-1), scale)
    Y, attention = dot_product_attention(queries, keys, V, causal=True, mask=mask, scale=float(scale))
    return Y, ForgettingPullback(attention, seen)


def faded(Q: Array, K: Array, c: Array, scale: float) -> tuple[Array, Array]:
    """[q, 1/scale] and [k, −c]: scale times their product is scale · ⟨q, k⟩ − c."""
    ones = np.full(Q.shape[:-1], 1 / scale, Q.dtype)
    return with_column(Q, ones), with_column(K, -c.astype(K.dtype, copy=False))


# --------------------------------------------------------------------------------------------- the core


class ForgettingCorePullback(NamedTuple):
    """ln f = −softplus(−x)."""

    attention: Pullback
    gate: Pullback

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, H, n, n)."""
        return self.attention.A

    def __call__(self, dY: Array) -> tuple[NoParams, Array, Array, Array, Array]:
        dQ, dK, dV, dlog_forget = self.attention(dY)
        return NoParams(), dQ, dK, dV, self.gate(dlog_forget)[..., None]


class ForgettingState(NamedTuple):
    """Keys, with −c as their last channel, and values; and the sum c so far, (*batch, H)."""

    past: KeysValues
    c: Array

    @property
    def length(self) -> int:
        """Positions so far."""
        return self.past.length


@frozen
class Forgetting(Core):
    """Softmax attention whose past fades, as fast as each token says.

    source   Lin et al. 2025
    cost     O(n² d) time. Always causal, and the past has to be its own: m = n
    """

    causal = "always"
    remembers = "keys, values and sums of gates"
    needs = "a gate from X"
    streams: ClassVar[dict[str, int]] = {"forget": 1}

    def __call__(
        self,
        params: NoParams,
        Q: Array,
        K: Array,
        V: Array,
        *streams: Array,
        causal: bool = True,
        mask: Array | None = None,
        rng: Any = None,
    ) -> tuple[Array, ForgettingCorePullback]:
        """Pullback: dY to (dparams, dQ, dK, dV, dforget). Raises ValueError if m ≠ n, or for a mask that hides pairs."""
        self.refuse(causal=causal)
        if Q.shape[-2] != K.shape[-2]:
            raise ValueError(f"K: each token has a gate, so {K.shape[-2]} keys for {Q.shape[-2]} queries")
        closed, gate = softplus(-streams[0][..., 0])
        Y, attention = forgetting_attention(Q, K, V, -closed, mask=mask)
        return Y, ForgettingCorePullback(attention, gate)

    def step(
        self, params: NoParams, Q: Array, K: Array, V: Array, *streams: Array, state: ForgettingState | None = None
    ) -> tuple[Array, ForgettingState]:
        """O(m d) for one new token."""
        closed, _ = softplus(-streams[0][..., 0])
        c = -closed.cumsum(-1) if state is None else state.c[..., None] - closed.cumsum(-1)
        scale = max(Q.shape[-1], 1) ** -0.5
        queries, keys = faded(Q, K, c, scale)
        past = KeysValues.of(keys, V) if state is None else state.past.extended(keys, V)
        Y = attend_to_buffer(queries, past.K, past.V, past.length, scale=scale)
        return Y, ForgettingState(past, c[..., -1])
