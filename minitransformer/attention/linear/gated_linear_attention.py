"""Linear attention with gates: a memory that fades before it is written to, as fast as each token says.

    S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,      y_t = q_tᵀ S_t                              as a recurrence:  O(n r dv)
    Y = (L ⊙ Q Kᵀ) V,                        L_ij = α_{j+1} α_{j+2} ⋯ α_i for j ≤ i      as a matrix:      O(n² (r + dv))

One number α_t for all channels of a head: RetNet, where it is the same at all positions, and Mamba-2. One for each channel:
gated linear attention, and in the matrix Σ_c q_ic L_ijc k_jc in place of L_ij ⟨q_i, k_j⟩. With α = 1, L is the causal mask, and
this is kernel attention without a denominator.

The argument is ln α, because that adds up: ln L_ij is a sum over the positions from j + 1 to i. It is not computed as the
difference of two sums from the beginning: these grow with the text, and so do their rounding errors.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.delta_rule import empty, outer, read
from minitransformer.functional import loops_in
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


@checked
def decay_mask(log_decay: Float[Array, "*batch n"]) -> Float[Array, "*batch n n"]:
    """What is left at position i of what was written at j: L_ij = exp Σ_{j < l ≤ i} ln α_l, and 0 for j > i.

        L⁻¹ = I − subdiag(α): to multiply by L is to run the recurrence s_i = α_i s_{i−1} + x_i

    source   Dao and Gu 2024, where each sum is made for itself too (`segsum`), not as a difference of two long ones
    cost     O(n²)
    """
    n = log_decay.shape[-1]
    before = np.tril(np.ones((n, n), bool), -1)  # [l, j]: position l comes after j
    sums = np.where(before, log_decay[..., None], 0).cumsum(-2)
    return np.where(np.tril(np.ones((n, n), bool)), np.exp(sums), 0).astype(log_decay.dtype, copy=False)


def by_channel(log_decay: Array, K: Array) -> Array:
    """ln α with an axis for the channels, (*batch, n, 1 or r).

    raises   TypeError for a shape that is neither that of a number for each position, nor that of K
    """
    if log_decay.shape == K.shape[:-1]:
        return log_decay[..., None]
    if log_decay.shape != K.shape:
        raise TypeError(f"parameter 'log_decay': shape {log_decay.shape} should be {K.shape[:-1]}, or {K.shape}")
    return log_decay


def overlap(S: Array, G: Array, gates: int) -> Array:
    """Σ_v S ⊙ G for each channel, or their sum if there is one gate for all."""
    rows = np.vecdot(S, G)
    return rows if gates == rows.shape[-1] else rows.sum(-1, keepdims=True)


class FadingPullback(Pullback):
    """Backwards in t, with G = ∂L/∂S_t, to which y_t = q_tᵀ S_t adds q_t dy_tᵀ:  dq_t = S_t dy_t.

    δS_t = Diag(δα_t) S_{t−1} + Diag(α_t) δS_{t−1} + δk_t v_tᵀ + k_t δv_tᵀ:  dk_t = G v_t,  dv_t = Gᵀ k_t,  G becomes Diag(α_t) G.
    dln α_t = Σ_v Diag(α_t) S_{t−1} ⊙ G, a sum along each row. It is also what is read from t on, less what is written from t on:
    dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i), as the tiers of loops have it. Nothing is remembered but the arguments.
    From a state on, G begins with the gradient dS of the last one, and ends as dS_0; and to each dln α_t comes Σ_v S ⊙ dS.
    """

    Q: Array
    K: Array
    V: Array
    log_decay: Array
    initial: Array | None = None
    S: Array | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, L ⊙ Q Kᵀ, (*batch, n, n)."""
        if self.log_decay.ndim < self.K.ndim:
            return decay_mask(self.log_decay) * (self.Q @ self.K.mT)
        L = decay_mask(self.log_decay.mT)  # one for each channel: (*batch, r, n, n)
        return np.einsum("...ic,...cij,...jc->...ij", self.Q, L, self.K)

    def __call__(self, dY: Any) -> tuple[Array, ...]:
        dY, dS = (dY, None) if self.initial is None else dY
        Q, K, V, log_decay = self.Q, self.K, self.V, by_channel(self.log_decay, self.K)
        if loops := loops_in("scan"):
            ends = None if dS is None else (self.initial, self.S, dS)
            dQ, dK, dV, dlog_decay, *dS_0 = loops.gated_linear_back(Q, K, V, log_decay, dY, ends)
            return dQ, dK, dV, dlog_decay.reshape(self.log_decay.shape), *dS_0
        alpha = np.exp(log_decay)[..., None]
        dQ, dK, dV, dlog_decay = (np.empty_like(X) for X in (Q, K, V, log_decay))
        left, S = [], empty(K, V) if self.initial is None else self.initial
        for t in range(K.shape[-2]):
            left.append(alpha[..., t, :, :] * S)
            S = left[t] + outer(K[..., t, :], V[..., t, :])
            dQ[..., t, :] = read(dY[..., t, :], S.mT)
        G = empty(K, V) if dS is None else dS
        for t in reversed(range(K.shape[-2])):
            G = G + outer(Q[..., t, :], dY[..., t, :])
            dK[..., t, :], dV[..., t, :] = read(V[..., t, :], G.mT), read(K[..., t, :], G)
            dlog_decay[..., t, :] = overlap(left[t], G, log_decay.shape[-1])
            G = alpha[..., t, :, :] * G
        return dQ, dK, dV, dlog_decay.reshape(self.log_decay.shape), *(() if dS is None else (G,))


@checked
def gated_linear_attention(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    log_decay: Float[Array, "..."],
    initial: Float[Array, "*batch r dv"] | None = None,
) -> tuple[Any, Pullback]:
    """Read from a memory that fades.

        S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,   y_t = q_tᵀ S_t

    log_decay   ln α: one number for each position, (*batch, n), or one for each channel too, (*batch, n, r). Below 0 the memory
                fades, and −∞ forgets all; above 0 it grows. That of the first position has no effect on an empty memory
    initial     S_0, what the memory holds before the first position. With it the value is (Y, S_n), and the gradients end in dS_0
    source      Yang et al. 2024b for channels; Sun et al. 2023 (RetNet), Dao and Gu 2024 (Mamba-2) for one number. No scale
    cost        O(n r dv) time, O(n (r + dv)) memory; in the tier "numpy", O(n r dv) memory in the backward pass. Always causal:
                y_t depends on positions up to t only
    returns     Y (*batch, n, dv) and a pullback: dQ, dK, dV, dlog_decay = pullback(dY); `pullback.A` is the matrix of weights.
                From S_0 on, Y, S = value, and dQ, dK, dV, dlog_decay, dS_0 = pullback((dY, dS))
    raises      TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, log_decay=log_decay, initial=initial)
    decay = by_channel(log_decay, K)
    if loops := loops_in("scan"):
        value = loops.gated_linear(Q, K, V, decay, initial)
        return value, FadingPullback(Q, K, V, log_decay, initial, None if initial is None else value[1])
    S, Y = empty(K, V) if initial is None else initial, np.empty_like(V)
    for t in range(K.shape[-2]):
        S = np.exp(decay[..., t, :, None]) * S + outer(K[..., t, :], V[..., t, :])
        Y[..., t, :] = read(Q[..., t, :], S)
    return Y if initial is None else (Y, S), FadingPullback(Q, K, V, log_decay, initial, None if initial is None else S)


@checked
def gated_linear_step(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    log_decay: Float[Array, "..."],
    S: Float[Array, "*batch r dv"],
) -> tuple[Float[Array, "*batch n dv"], Float[Array, "*batch r dv"]]:
    """`gated_linear_attention` of n new positions, most often one, from a state S on. An empty memory is a state of zeros.

        S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ,   y_t = q_tᵀ S_t

    cost     O(n r dv), the past is not read again
    returns  Y and the state after the new positions; the old state is not changed
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, log_decay=log_decay, S=S)
    if loops := loops_in("step"):
        return loops.recurrence(Q, K, V, S, decay=np.exp(by_channel(log_decay, K)))
    return gated_linear_attention(Q, K, V, log_decay, S)[0]
