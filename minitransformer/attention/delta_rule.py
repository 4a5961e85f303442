"""The delta rule: a memory that looks up what it holds under a key before it writes, and writes only the difference.

    e_t = v_t − k_tᵀ S_{t−1}                 what is new about v_t
    S_t = S_{t−1} + β_t k_t e_tᵀ             write it, as far as the gate β_t opens
    y_t = q_tᵀ S_t                           read

With e_t = v_t and β_t = 1 this is kernel attention without a denominator (the sum rule), where two values written under
one key are read as their sum. Here the second replaces the first: with ‖k_t‖ = 1 and β_t = 1, k_tᵀ S_t = v_t. Keys should be
of norm one, or at least β_t ‖k_t‖² < 2: beyond that, the memory grows with each write.

S is (r, dv), as in `KernelState`; sources that print W_t = W_{t−1} + β_t (v_t − W_{t−1} k_t) k_tᵀ mean W = Sᵀ.
"""

from typing import NamedTuple

import numpy as np

from minitransformer.backend import current
from minitransformer.functional import one_dtype
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked

CHUNK = 64  # positions from one remembered state to the next


class DeltaRulePullback(NamedTuple):
    """Backwards in t, with G = ∂L/∂S_t, to which y_t = q_tᵀ S_t adds q_t dy_tᵀ:  dq_t = S_t dy_t.

    δS_t = δS_{t−1} + δ(β_t k_t) e_tᵀ + β_t k_t δe_tᵀ. With g = Gᵀ k_t:  dβ_t = ⟨e_t, g⟩,  de_t = β_t g = dv_t.
    e_t = v_t − S_{t−1}ᵀ k_t:  dk_t = β_t G e_t − S_{t−1} de_t,  and G −= k_t de_tᵀ goes on to S_{t−1}.
    S_before holds the state before each chunk of 64; those inside are made again, from the e_t: memory is linear in n.
    """

    Q: Array
    K: Array
    beta: Array
    E: Array
    S_before: Array

    def __call__(self, dY: Array) -> tuple[Array, Array, Array, Array]:
        Q, K, beta, E = self.Q, self.K, self.beta, self.E
        dQ, dK, dV, dbeta = (np.empty_like(X) for X in (Q, K, E, beta))
        G = np.zeros((*Q.shape[:-2], Q.shape[-1], E.shape[-1]), Q.dtype)
        for chunk in reversed(range(len(self.S_before))):
            times = range(CHUNK * chunk, min(CHUNK * (chunk + 1), Q.shape[-2]))
            S = [self.S_before[chunk]]
            for t in times:
                S.append(S[-1] + _outer(beta[..., t, None] * K[..., t, :], E[..., t, :]))
            for t in reversed(times):
                S_t = S.pop()
                G = G + _outer(Q[..., t, :], dY[..., t, :])
                g = _read(K[..., t, :], G)
                dQ[..., t, :] = _read(dY[..., t, :], S_t.mT)
                dbeta[..., t] = np.vecdot(E[..., t, :], g)
                dV[..., t, :] = beta[..., t, None] * g
                dK[..., t, :] = beta[..., t, None] * _read(E[..., t, :], G.mT) - _read(dV[..., t, :], S[-1].mT)
                G = G - _outer(K[..., t, :], dV[..., t, :])
        return dQ, dK, dV, dbeta


def _read(k: Array, S: Array) -> Array:
    """kᵀ S, of each memory of the batch."""
    return (k[..., None, :] @ S)[..., 0, :]


def _outer(a: Array, b: Array) -> Array:
    """a bᵀ."""
    return a[..., :, None] * b[..., None, :]


@checked
def delta_rule(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    beta: Float[Array, "*batch n"],
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Read from a memory that is corrected at each position, not added to.

        S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ,   y_t = q_tᵀ S_t

    beta     how far each write goes: 0 writes nothing, 1 replaces what is under a key of norm one
    source   Borealis II, fast weight memory systems (the equation is not printed there)
    cost     O(n r dv) time, O(n (r + dv) + n r dv / 64) memory. Always causal: y_t depends on positions up to t only.
    returns  Y and a pullback: dQ, dK, dV, dbeta = pullback(dY)
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, beta=beta)
    if current() != "numpy":
        from minitransformer.kernels.delta_rule import chunked_delta_rule

        return chunked_delta_rule(Q, K, V, beta)
    *batch, n, r = Q.shape
    S = np.zeros((*batch, r, V.shape[-1]), Q.dtype)
    S_before, E, Y = np.empty((-(-n // CHUNK), *S.shape), Q.dtype), np.empty_like(V), np.empty_like(V)
    for t in range(n):
        if t % CHUNK == 0:
            S_before[t // CHUNK] = S
        E[..., t, :] = V[..., t, :] - _read(K[..., t, :], S)
        S = S + _outer(beta[..., t, None] * K[..., t, :], E[..., t, :])
        Y[..., t, :] = _read(Q[..., t, :], S)
    return Y, DeltaRulePullback(Q, K, beta, E, S_before)


@checked
def delta_rule_step(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    beta: Float[Array, "*batch n"],
    S: Float[Array, "*batch r dv"],
) -> tuple[Float[Array, "*batch n dv"], Float[Array, "*batch r dv"]]:
    """The delta rule for n new positions, most often one, from a state S on. An empty memory is a state of zeros.

        S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ,   y_t = q_tᵀ S_t

    cost     O(n r dv), the past is not read again
    returns  Y and the state after the new positions; the old state is not changed
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, beta=beta, S=S)
    Y = np.empty_like(V)
    for t in range(Q.shape[-2]):
        e = V[..., t, :] - _read(K[..., t, :], S)
        S = S + _outer(beta[..., t, None] * K[..., t, :], e)
        Y[..., t, :] = _read(Q[..., t, :], S)
    return Y, S
