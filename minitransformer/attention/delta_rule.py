"""The delta rule: a memory that looks up what it holds under a key before it writes, and writes only the difference.

    e_t = v_t − k_tᵀ S_{t−1}                 what is new about v_t
    S_t = S_{t−1} + β_t k_t e_tᵀ             write it, as far as the gate β_t opens
    y_t = q_tᵀ S_t                           read

With e_t = v_t and β_t = 1 this is kernel attention without a denominator (the sum rule), where two values written under
one key are read as their sum. Here the second replaces the first: with ‖k_t‖ = 1 and β_t = 1, k_tᵀ S_t = v_t. Keys should be
of norm one, or at least β_t ‖k_t‖² < 2: beyond that, the memory grows when one key is written to again and again.

S is (r, dv), as in `KernelState`; sources that print W_t = W_{t−1} + β_t (v_t − W_{t−1} k_t) k_tᵀ mean W = Sᵀ.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.functional import loops_in, rms_norm, sigmoid
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, Float, checked

CHUNK = 64  # positions from one remembered state to the next


class DeltaRulePullback(Pullback):
    """Backwards in t, with G = ∂L/∂S_t, to which y_t = q_tᵀ S_t adds q_t dy_tᵀ:  dq_t = S_t dy_t.

    δS_t = δS_{t−1} + δ(β_t k_t) e_tᵀ + β_t k_t δe_tᵀ. With g = Gᵀ k_t:  dβ_t = ⟨e_t, g⟩,  de_t = β_t g = dv_t.
    e_t = v_t − S_{t−1}ᵀ k_t:  dk_t = β_t G e_t − S_{t−1} de_t,  and G −= k_t de_tᵀ goes on to S_{t−1}.
    S_before holds the state before each chunk of 64 positions; those inside are computed again from the e_t, one chunk at a time.
    If S_0 was given, G begins as dS, the gradient of the last state, and what is left of it at the end is dS_0.
    """

    Q: Array
    K: Array
    beta: Array
    E: Array
    S_before: Array
    initial: Array | None = None

    def __call__(self, dY: Any) -> tuple[Array, ...]:
        Q, K, beta, E = self.Q, self.K, self.beta, self.E
        dQ, dK, dV, dbeta = (np.empty_like(X) for X in (Q, K, E, beta))
        dY, G = (dY, empty(K, E)) if self.initial is None else dY
        for chunk in reversed(range(len(self.S_before))):
            times = range(CHUNK * chunk, min(CHUNK * (chunk + 1), Q.shape[-2]))
            S = [self.S_before[chunk]]
            for t in times:
                S.append(S[-1] + outer(beta[..., t, None] * K[..., t, :], E[..., t, :]))
            for t in reversed(times):
                S_t = S.pop()
                G = G + outer(Q[..., t, :], dY[..., t, :])
                g = read(K[..., t, :], G)
                dQ[..., t, :] = read(dY[..., t, :], S_t.mT)
                dbeta[..., t] = np.vecdot(E[..., t, :], g)
                dV[..., t, :] = beta[..., t, None] * g
                dK[..., t, :] = beta[..., t, None] * read(E[..., t, :], G.mT) - read(dV[..., t, :], S[-1].mT)
                G = G - outer(K[..., t, :], dV[..., t, :])
        return (dQ, dK, dV, dbeta) if self.initial is None else (dQ, dK, dV, dbeta, G)


def empty(K: Array, V: Array) -> Array:
    """A memory (*batch, r, dv) before anything is written."""
    return np.zeros((*K.shape[:-2], K.shape[-1], V.shape[-1]), K.dtype)


def read(k: Array, S: Array) -> Array:
    """kᵀ S, of each memory of the batch. (Not by BLAS, which may give spurious warnings for such small products.)"""
    return (k[..., :, None] * S).sum(-2)


def outer(a: Array, b: Array) -> Array:
    """The matrix a bᵀ for each vector a and b of the batch."""
    return a[..., :, None] * b[..., None, :]


@checked
def delta_rule(
    Q: Float[Array, "*batch n r"],
    K: Float[Array, "*batch n r"],
    V: Float[Array, "*batch n dv"],
    beta: Float[Array, "*batch n"],
    initial: Float[Array, "*batch r dv"] | None = None,
) -> tuple[Any, Pullback]:
    """Read from a memory that is corrected at each position, not added to.

        S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ,   y_t = q_tᵀ S_t

    beta     how far each write goes: 0 writes nothing, 1 replaces what is under a key of norm one, 2 mirrors the memory
    initial  S_0, what the memory holds before the first position. With it the value is (Y, S_n), and the gradients end in dS_0
    source   Borealis II, fast weight memory systems (the equation is not printed there)
    cost     O(n r dv) time, O(n (r + dv)) memory, and n r dv / 64 more in the tier "numpy".
             Always causal: y_t depends on positions up to t only
    returns  Y (*batch, n, dv) and a pullback: dQ, dK, dV, dbeta = pullback(dY). With an S_0, Y, S = value, and
             dQ, dK, dV, dbeta, dS_0 = pullback((dY, dS))
    raises   TypeError for a wrong shape or dtype
    """
    one_dtype(Q=Q, K=K, V=V, beta=beta, initial=initial)
    if loops := loops_in("scan"):
        return loops.swept_delta_rule(Q, K, V, beta, initial)
    n, S = Q.shape[-2], empty(K, V) if initial is None else initial
    S_before, E, Y = np.empty((-(-n // CHUNK), *S.shape), Q.dtype), np.empty_like(V), np.empty_like(V)
    for t in range(n):
        if t % CHUNK == 0:
            S_before[t // CHUNK] = S
        E[..., t, :] = V[..., t, :] - read(K[..., t, :], S)
        S = S + outer(beta[..., t, None] * K[..., t, :], E[..., t, :])
        Y[..., t, :] = read(Q[..., t, :], S)
    value = Y if initial is None else (Y, S)
    return value, DeltaRulePullback(Q, K, beta, E, S_before, initial)


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
    if loops := loops_in("step"):
        return loops.recurrence(Q, K, V, S, beta=beta)
    return delta_rule(Q, K, V, beta, S)[0]


# ------------------------------------------------------------------------------------------- keys and gates


class UnitPullback(Pullback):
    """x/‖x‖ is an RMS norm with the gain 1/√d, which is not learned."""

    norm: Pullback

    def __call__(self, dY: Array) -> Array:
        return self.norm(dY)[0]


def unit(X: Array, eps: float = 1e-6) -> tuple[Array, UnitPullback]:
    """x / √(‖x‖² + d ε), row by row: keys of norm one, as the delta rule wants them. It is the RMS norm
    of the book, which adds ε to the mean of the squares; to add 10⁻⁶ to their sum, as Qwen3-Next does, take ε = 10⁻⁶/d.
    """
    d = X.shape[-1]
    Y, norm = rms_norm(X, np.full(d, d**-0.5, X.dtype), eps=eps)
    return Y, UnitPullback(norm)


class ReachPullback(Pullback):
    """β = c σ(x):  dx = c σ′ dβ."""

    sigmoid: Pullback
    reach: float

    def __call__(self, dbeta: Array) -> Array:
        return self.sigmoid(self.reach * dbeta)


def opened(X: Array, reach: float) -> tuple[Array, ReachPullback]:
    """β = c σ(x), between 0 and c, the reach: how far each write goes."""
    gate, pullback = sigmoid(X)
    return X.dtype.type(reach) * gate, ReachPullback(pullback, reach)


def refuse_to_grow(reach: float) -> None:
    """Raise ValueError for a reach at which a memory grows by being written to, or is never written to."""
    if not 0 < reach <= 2:
        raise ValueError(f"reach: {reach} should be above 0, and at most 2: I − β k kᵀ stretches S along k by |1 − β|")
