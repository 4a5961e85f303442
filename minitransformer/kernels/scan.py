"""Memories that are read as they are written: scans of a text, their values and their gradients. All of them have one S:

    the sum rule             S_t = S_{t−1} + k_t v_tᵀ                        kernel attention, where a query has a key beside it
    with gates               S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ              gated linear attention, RetNet, Mamba-2
    the delta rule           S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ
    with gates               the same with Diag(α_t) S_{t−1} for S_{t−1}

    for all of them          y_t = q_tᵀ S_t

Each is one sweep of a memory over the text, sweep.py: `Reads(q)`, `Writes(k, v)`, and α. The gradients are sweeps too, by other
names, in which M is S_t or G = ∂L/∂S_t, or the transpose of one:

    dV    reads k, writes q dyᵀ      last position first     M is G, read by the keys
    dQ    reads dy, writes v kᵀ                              M is Sᵀ; its columns are the channels, and fade one by one
    dK    reads v, writes dy qᵀ      last position first     M is Gᵀ, read by the values

The delta rule reads before it writes, with the key itself, and so the gradients have second reads and second writes:

    E     x_t = β_t e_t,  e_t = v_t − k_tᵀ M             a second read, of what is held before anything is written
    dV    M = a_t ⊙ (M + q dyᵀ − k dvᵀ),  dv_t = β_t y_t      a second write, of what the sweep itself has found
    dQ    with e for v, β k for k, and a second read b_t = S̄_t dv_t
    dK    with e for v, β y for y, and a second write −dv kᵀ; then dk_t = y_t − b_t

Attention divides: with z_t = Σ_{s ≤ t} k_s it is y_t = q_tᵀ S_t / D_t, D_t = q_tᵀ z_t. z is one more column of S, and one more
row in what dQ and dK read, with dD in it: the row of `ones`. No array of dy_t / D_t is made: y or x is divided
by D_t while it is in the cache, where D_t is made, too.

From a state S_0 on, a sweep whose last position comes first begins with dS_n and ends as dS_0, which gates multiply by the first
α. Where M is transposed, so are they.

Why this is fast: see sweep.py. No state is kept for each position; with gates one in 32, for one panel of one head at a time.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import inverse, one_batch
from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.decays import fading, log_decay_gradient, meet_at_the_ends
from minitransformer.kernels.pointwise import SMALL
from minitransformer.kernels.sweep import a_sweep, run, run_to_meet
from minitransformer.kernels.sweep_parts import Divisor, Reads, Writes
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import LANES, dot
from minitransformer.pullback import Pullback
from minitransformer.typing import Array


def turned(S: Array) -> Array:
    """A contiguous copy of Sᵀ of every head, in which a sweep leaves what it has at the end."""
    return S.mT.copy()


# ------------------------------------------------------------------------------------ S_t = S_{t−1} + k_t v_tᵀ, divided


@compiled
def less_products(A, B, Y, queue):
    """Fill Y (B, n) with Y_t = −⟨a_t, b_t⟩, a task for each head."""
    A, B, Y = borrowed((A, B, Y))
    for h in claimed(queue, len(Y)):
        for t in range(Y.shape[1]):
            Y[h, t] = -dot(A[h, t], B[h, t])


Sums = tuple[Array, Array]  # S (*batch, r, dv) and z (*batch, r)


class SweptKernelAttentionPullback(Pullback):
    """dN = dY / D,  dD_t = −⟨dN_t, y_t⟩; then a sweep for each of dFQ, dFK and dV, and nothing is remembered but the arrays.

    D_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ + ε; it has no entries without normalisation, where dN = dY and dD = 0.
    From a state on, the sweep for dFQ begins with S and z, that for dFK with dS and dz of the last state, that for dV with dS.
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    D: Array
    initial: Sums | None = None

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, n), made again by the definition, in NumPy."""
        W = np.tril(self.FQ @ self.FK.mT)
        return W * inverse(self.D)[..., None] if self.D.size else W

    def __call__(self, dY: Any) -> tuple[Any, ...]:
        dY, after = dY if self.initial is not None else (dY, None)
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        q, k, v, y, dy = (one_batch(X) for X in (self.FQ, self.FK, self.V, self.Y, dY.astype(self.Y.dtype, copy=False)))
        dd = share = past = future = dS = dz = None
        if self.D.size:
            share, dd = inverse(self.D.reshape(y.shape[:2])), np.empty(y.shape[:2], y.dtype)
            in_parallel(len(y) if y.size > SMALL else 1, less_products, dy, y, dd)  # undoes Y = N / D, for D
        if self.initial is not None and after is not None:
            (S, z), (G, dz) = ((one_batch(X), x.reshape(len(q), 1, q.shape[-1])) for X, x in (self.initial, after))
            past, future, dS = turned(S), turned(G), G.copy()
            if dd is not None:
                past, future = np.concatenate([past, z], 1), np.concatenate([future, dz], 1)
        # undoes y_t = q_tᵀ S_t, for q; then S_t = S_{t−1} + k_t v_tᵀ, for k and for v
        dq, dk, dv = run(
            a_sweep(Reads(dy, ones=dd), Writes(v, k), share=share, S=past),
            a_sweep(Reads(v), Writes(dy, q, share, ones=dd), reverse=True, S=future),
            a_sweep(Reads(k), Writes(q, dy, share), reverse=True, S=dS),
        )
        gradients = dq.reshape(self.FQ.shape), dk.reshape(self.FK.shape), dv.reshape(self.V.shape)
        if self.initial is None or dS is None or dz is None:
            return gradients
        if dd is None or share is None:
            dk += dz  # undoes z += k_t
        else:
            dz = dz + ((share * dd)[..., None] * q).sum(-2, keepdims=True)
        return *gradients, tuple(d.reshape(X.shape) for d, X in zip((dS, dz), self.initial, strict=True))


def swept_kernel_attention(
    FQ: Array, FK: Array, V: Array, initial: Sums | None = None, *, normalise: bool, eps: float
) -> tuple[Any, SweptKernelAttentionPullback]:
    """`kernel_attention` that is causal, of as many queries as keys: y_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ v_s / D_t.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    q, k, v = one_batch(FQ), one_batch(FK), one_batch(V)
    D, S = np.empty(FQ.shape[:-1] if normalise else (0,), V.dtype), None
    z = np.zeros((len(k), k.shape[-1]), k.dtype)
    if initial is not None:
        S, z = one_batch(initial[0]).copy(), initial[1].reshape(z.shape)
    divisor = Divisor(D.reshape(q.shape[:2]), z, V.dtype.type(eps)) if normalise else None
    (Y,) = run(a_sweep(Reads(q), Writes(k, v), S=S, divisor=divisor))
    Y = Y.reshape(V.shape)
    pullback = SweptKernelAttentionPullback(FQ, FK, V, Y, D, initial)
    if initial is None or S is None:
        return Y, pullback
    return (Y, (S.reshape(initial[0].shape), (z + k.sum(-2)).reshape(initial[1].shape))), pullback


# ---------------------------------------------------------------------------------- S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ


Ends = tuple[Array, Array, Array]  # S before the first position, S behind the last one, and the gradient of that


def of_the_ends(ends: Ends | None) -> tuple[Array | None, ...]:
    """What the sweeps for dV, dQ and dK begin with: a copy of dS, which becomes dS_0; S_0ᵀ; and dSᵀ."""
    if ends is None:
        return None, None, None
    S_0, _, dS = (one_batch(X) for X in ends)
    return dS.copy(), turned(S_0), turned(dS)


def with_state(Y: Array, S: Array | None, initial: Array | None) -> Any:
    """Y; or (Y, S), S in the shape of the initial state, if there is one."""
    return Y if S is None or initial is None else (Y, S.reshape(initial.shape))


def apart(gradients: Any, initial: Array | None, S: Array | None) -> tuple[Array, Ends | None]:
    """Split what comes back: dY becomes (dY, None); with an initial state, (dY, dS) becomes (dY, (S_0, S, dS))."""
    return (gradients, None) if initial is None or S is None else (gradients[0], (initial, S, gradients[1]))


def gated_linear(Q: Array, K: Array, V: Array, log_decay: Array, initial: Array | None = None) -> Any:
    """Y of `gated_linear_attention`, or (Y, S) if there is an initial state; ln α is (*batch, n, 1 or r)."""
    S = None if initial is None else one_batch(initial).copy()
    (Y,) = run(a_sweep(Reads(one_batch(Q)), Writes(one_batch(K), one_batch(V)), fading(one_batch(log_decay)), S=S))
    return with_state(Y.reshape(V.shape), S, initial)


def gated_linear_back(
    Q: Array, K: Array, V: Array, log_decay: Array, dY: Array, ends: Ends | None = None
) -> tuple[Array, ...]:
    """(dQ, dK, dV, dln α), and dS_0 if there is an initial state: three sweeps; those for dQ and dK meet, for dln α."""
    q, k, v, dy = (one_batch(X) for X in (Q, K, V, dY.astype(V.dtype, copy=False)))
    decay, (dS_0, past, future) = fading(one_batch(log_decay)), of_the_ends(ends)
    # undoes y_t = q_tᵀ S_t, for q
    to_q = a_sweep(Reads(dy), Writes(v, k), decay, by_columns=True, S=past)
    # undoes S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, for k, and for α where it meets the sweep before
    to_k = a_sweep(Reads(v), Writes(dy, q), decay, by_columns=True, reverse=True, S=future)
    # and for v
    to_v = a_sweep(Reads(k), Writes(q, dy), decay, reverse=True, S=dS_0)
    met = run_to_meet(to_q, to_k, to_v)
    dq, dk, dv = (one.found.Y for one in (to_q, to_k, to_v))
    gates = gate_gradients(log_decay, decay, q, dq, k, dk, met, ends, dS_0)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(V.shape), *gates


def gate_gradients(
    log_decay: Array, decay: Array, q: Array, dq: Array, k: Array, dk: Array, met: Array, ends: Ends | None,
    dS_0: Array | None, looked_up: Array | None = None,
) -> tuple[Array, ...]:  # fmt: skip
    """(dln α,), or (dln α, dS_0), where dS_0, as the sweep left it, is multiplied by the first α."""
    if ends is not None and dS_0 is not None:
        S_0, S, dS = (one_batch(X) for X in ends)
        meet_at_the_ends(met, decay, S_0, S, dS_0, dS)
    dlog_decay = log_decay_gradient(decay, q, dq, k, dk, met, looked_up).reshape(log_decay.shape)
    return (dlog_decay,) if ends is None or dS_0 is None else (dlog_decay, dS_0.reshape(ends[0].shape))


# --------------------------------------------------------------------- S_t = S̄_t + β_t k_t e_tᵀ,  e_t = v_t − k_tᵀ S̄_t


def delta(
    Q: Array, K: Array, V: Array, beta: Array, log_decay: Array | None = None, initial: Array | None = None
) -> tuple[Any, Array]:
    """(Y or (Y, S), E) of `delta_rule`; or, with ln α (*batch, n, 1 or r), of `gated_delta_rule`."""
    k, decay = one_batch(K), None if log_decay is None else fading(one_batch(log_decay))
    S, b = None if initial is None else one_batch(initial).copy(), one_batch(beta[..., None])[..., 0]
    found = a_sweep(Reads(one_batch(Q), k, b), Writes(k, one_batch(V)), decay, S=S)
    Y = run(found)[0].reshape(V.shape)
    return with_state(Y, S, initial), found.found.Y_2.reshape(V.shape)


def delta_back(
    Q: Array, K: Array, beta: Array, E: Array, dY: Array, log_decay: Array | None = None, ends: Ends | None = None
) -> tuple[Array, ...]:
    """(dQ, dK, dV, dβ), dln α if there are gates, dS_0 if there is a state: a sweep for dV and dβ, one for dQ, one for dK."""
    q, k, dy, e = (one_batch(X) for X in (Q, K, dY.astype(E.dtype, copy=False), E))
    b, decay = one_batch(beta[..., None])[..., 0], None if log_decay is None else fading(one_batch(log_decay))
    dbeta = np.empty((len(e), -(-e.shape[-1] // LANES), e.shape[1]), e.dtype)  # the part of each panel
    dS_0, past, future = of_the_ends(ends)
    # undoes S_t = S̄_t + β_t k_t e_tᵀ, for β and e; and e_t = v_t − k_tᵀ S̄_t, for v and, at once, for S̄
    (dv,) = run(a_sweep(Reads(k), Writes(q, dy, W_2=k), decay, reverse=True, share=b, E=e, dbeta=dbeta, S=dS_0))
    # undoes y_t = q_tᵀ S_t, for q; y₂ is −S̄_t dv_t, which undoes e_t = v_t − k_tᵀ S̄_t, for k
    to_q = a_sweep(Reads(dy, dv), Writes(e, k, share=b), decay, by_columns=True, S=past)
    looked_up = to_q.found.Y_2
    upon = looked_up if decay is None else None
    # undoes S_t = S̄_t + β_t k_t e_tᵀ, for k
    to_k = a_sweep(
        Reads(e), Writes(dy, q, W_2=dv, X_2=k), decay, by_columns=True, reverse=True, share=b, upon=upon, S=future
    )
    rest: tuple[Array, ...]
    if log_decay is None or decay is None:
        (dq,), (dk,) = run(to_q), run(to_k)
        rest = () if ends is None or dS_0 is None else (dS_0.reshape(ends[0].shape),)
    else:
        met, dq, dk = run_to_meet(to_q, to_k), to_q.found.Y, to_k.found.Y
        rest = gate_gradients(log_decay, decay, q, dq, k, dk, met, ends, dS_0, looked_up)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(E.shape), dbeta.sum(1).reshape(beta.shape), *rest


class SweptDeltaRulePullback(Pullback):
    """The three sweeps at the top of this file, e_t = v_t − k_tᵀ S_{t−1}. An initial state is kept, and with it the last one."""

    Q: Array
    K: Array
    beta: Array
    E: Array
    initial: Array | None = None
    S: Array | None = None

    def __call__(self, dY: Any) -> tuple[Array, ...]:
        dY, ends = apart(dY, self.initial, self.S)
        if dY.shape != self.E.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.E.shape}")
        return delta_back(self.Q, self.K, self.beta, self.E, dY, ends=ends)


def swept_delta_rule(
    Q: Array, K: Array, V: Array, beta: Array, initial: Array | None = None
) -> tuple[Any, SweptDeltaRulePullback]:
    """`delta_rule` in the compiled tiers, which has checked the arguments.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    Y, E = delta(Q, K, V, beta, initial=initial)
    return Y, SweptDeltaRulePullback(Q, K, beta, E, initial, None if initial is None else Y[1])
