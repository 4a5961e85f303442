"""The delta rule with gates: what is held fades, then it is looked up and corrected.

    S̄_t = Diag(α_t) S_{t−1}                  all that is held fades
    e_t = v_t − k_tᵀ S̄_t                     what is new about v_t, compared with what is left
    S_t = S̄_t + β_t k_t e_tᵀ                 write it, as far as the gate β_t opens
    y_t = q_tᵀ S_t                           read

With α = 1 it is the delta rule. β_t = 0 writes nothing: y reads what fades. With orthonormal keys nothing has to be corrected: it
is gated linear attention. To fade and to correct can't change places unless α_t is one number for all channels.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention.delta_rule import empty, outer, read
from minitransformer.attention.linear.gated_linear_attention import by_channel, overlap
from minitransformer.functional import loops_in
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked


class GatedDeltaPullback(Pullback):
    """Backwards with G = ∂L/∂S_t, to which y_t adds q_t dy_tᵀ:  dq_t = S_t dy_t.

    With g = Gᵀ k_t:  dβ_t = ⟨e_t, g⟩,  dv_t = de_t = β_t g.  k_t writes β_t e_t and reads S̄_t:  dk_t = β_t G e_t − S̄_t dv_t.
    Ḡ = G − k_t dv_tᵀ is ∂L/∂S̄_t:  dln α_t = Σ_v S̄_t ⊙ Ḡ, along each row, and Diag(α_t) Ḡ goes on to S_{t−1}.
    In the tiers of loops, what is read from t on less what is written, where a key does both:
    dln α_t = Σ_{i ≥ t} (q ⊙ dq − k ⊙ (β G e + S̄ dv)).
    From a state on, G begins with the gradient dS of the last one, and ends as dS_0; and to each dln α_t comes Σ_v S ⊙ dS.
    """

    Q: Array
    K: Array
    beta: Array
    log_decay: Array
    E: Array
    initial: Array | None = None
    S: Array | None = None

    def __call__(self, dY: Any) -> tuple[Array, ...]:
        dY, dS = (dY, None) if self.initial is None else dY
        log_decay = by_channel(self.log_decay, self.K)
        if loops := loops_in("scan"):
            ends = None if dS is None else (self.initial, self.S, dS)
            gradients = loops.delta_back(self.Q, self.K, self.beta, self.E, dY, log_decay, ends)
        else:
            gradients = self._by_definition(log_decay, dY, dS)
        dQ, dK, dV, dbeta, dlog_decay, *dS_0 = gradients
        return dQ, dK, dV, dbeta, dlog_decay.reshape(self.log_decay.shape), *dS_0

    def _by_definition(self, log_decay: Array, dY: Array, dS: Array | None) -> tuple[Array, ...]:
        Q, K, E, beta = self.Q, self.K, self.E, self.beta[..., None]
        alpha = np.exp(log_decay)[..., None]
        dQ, dK, g, dlog_decay = (np.empty_like(X) for X in (Q, K, E, log_decay))
        left, S = [], empty(K, E) if self.initial is None else self.initial
        for t in range(K.shape[-2]):
            left.append(alpha[..., t, :, :] * S)
            S = left[t] + outer(K[..., t, :], beta[..., t, :] * E[..., t, :])
            dQ[..., t, :] = read(dY[..., t, :], S.mT)
        G = empty(K, E) if dS is None else dS
        for t in reversed(range(K.shape[-2])):
            G = G + outer(Q[..., t, :], dY[..., t, :])
            g[..., t, :] = read(K[..., t, :], G)
            dv = beta[..., t, :] * g[..., t, :]
            dK[..., t, :] = beta[..., t, :] * read(E[..., t, :], G.mT) - read(dv, left[t].mT)
            G = G - outer(K[..., t, :], dv)
            dlog_decay[..., t, :] = overlap(left[t], G, log_decay.shape[-1])
            G = alpha[..., t, :, :] * G
        return dQ, dK, beta * g, np.vecdot(E, g), dlog_decay, *(() if dS is None else (G,))


@checked
def gated_delta_rule(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    beta: Float[Array, "*batch n"],
    log_decay: Float[Array, "..."],
    initial: Float[Array, "*batch r dv"] | None = None,
) -> tuple[Any, Pullback]:
    """Read from a memory that fades, and is corrected at each position.

        S̄_t = Diag(α_t) S_{t−1},   S_t = S̄_t + β_t k_t (v_t − k_tᵀ S̄_t)ᵀ,   y_t = q_tᵀ S_t

    beta        how far each write goes: 0 writes nothing, 1 replaces what is under a key of norm one, 2 mirrors the memory
    log_decay   ln α: one number for each position, (*batch, n), or one for each channel too, (*batch, n, r). Below 0 the memory
                fades, above 0 it grows
    initial     S_0, what the memory holds before the first position. With it the value is (Y, S_n), and the gradients end in dS_0
    source      Yang, Kautz and Hatamizadeh 2025 (Gated DeltaNet) for one number; Kimi 2025 for channels. No scale
    cost        O(n r dv) time, O(n (r + dv)) memory; in the tier "numpy", O(n r dv) memory in the backward pass. Always causal:
                y_t depends on positions up to t only
    returns     Y (*batch, n, dv) and a pullback: dQ, dK, dV, dbeta, dlog_decay = pullback(dY). From S_0 on, Y, S = value, and
                dQ, dK, dV, dbeta, dlog_decay, dS_0 = pullback((dY, dS))
    raises      TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, beta=beta, log_decay=log_decay, initial=initial)
    decay = by_channel(log_decay, K)
    if loops := loops_in("scan"):
        value, E = loops.delta(Q, K, V, beta, decay, initial)
        return value, GatedDeltaPullback(Q, K, beta, log_decay, E, initial, None if initial is None else value[1])
    S, E, Y = empty(K, V) if initial is None else initial, np.empty_like(V), np.empty_like(V)
    for t in range(K.shape[-2]):
        S = np.exp(decay[..., t, :, None]) * S
        E[..., t, :] = V[..., t, :] - read(K[..., t, :], S)
        S = S + outer(beta[..., t, None] * K[..., t, :], E[..., t, :])
        Y[..., t, :] = read(Q[..., t, :], S)
    value, last = (Y, None) if initial is None else ((Y, S), S)
    return value, GatedDeltaPullback(Q, K, beta, log_decay, E, initial, last)


@checked
def gated_delta_step(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    beta: Float[Array, "*batch n"],
    log_decay: Float[Array, "..."],
    S: Float[Array, "*batch r dv"],
) -> tuple[Float[Array, "*batch n dv"], Float[Array, "*batch r dv"]]:
    """`gated_delta_rule` of n new positions, most often one, from a state S on. An empty memory is a state of zeros.

        S̄_t = Diag(α_t) S_{t−1},   S_t = S̄_t + β_t k_t (v_t − k_tᵀ S̄_t)ᵀ,   y_t = q_tᵀ S_t

    cost     O(n r dv), the past is not read again
    returns  Y and the state after the new positions; the old state is not changed
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, beta=beta, log_decay=log_decay, S=S)
    if loops := loops_in("step"):
        return loops.recurrence(Q, K, V, S, beta=beta, decay=np.exp(by_channel(log_decay, K)))
    return gated_delta_rule(Q, K, V, beta, log_decay, S)[0]
