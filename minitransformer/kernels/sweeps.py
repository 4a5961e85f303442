"""Memories, position by position: a matrix that is written to and read, and that may fade. All of these attentions have one:

    the sum rule             S_t = S_{t−1} + k_t v_tᵀ                        kernel attention, where a query has a key beside it
    with gates               S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ              gated linear attention, RetNet, Mamba-2
    the delta rule           S_t = S_{t−1} + β_t k_t (v_t − k_tᵀ S_{t−1})ᵀ
    with gates               the same with Diag(α_t) S_{t−1} for S_{t−1}

    for each head and each panel of 64 columns, in parallel:
        M = 0                                            rows × 64: in the first-level cache from the first position to the last
        for each position t:
            M = a_t ⊙ (M + w_{t−1} x_{t−1}ᵀ)             what the position before has written, and all of it fades
            y_t = r_tᵀ M + ⟨r_t, w_t⟩ x_t                what is read, with what is written now already in it

With r, w, x, y = q, k, v, y this is S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ, y_t = q_tᵀ S_t. The gradients are sweeps too:

    dV    r, w, x = k, q, dy    last position first      M is G = ∂L/∂S_t, read by the keys
    dQ    r, w, x = dy, v, k                             M is Sᵀ, read by dy; its columns are the channels, and fade one by one
    dK    r, w, x = v, dy, q    last position first      M is Gᵀ, read by the values

The delta rule reads before it writes, under the key itself, and its gradients take back what was read:

    E     x_t = β_t e_t,  e_t = v_t − k_tᵀ M             a second read, of what is held before anything is written
    dV    M = a_t ⊙ (M + q dyᵀ − k dvᵀ),  dv_t = β_t y_t      a second write, of what the sweep itself has found
    dQ    with x = β e in the place of v, and a second read b_t = S̄_t dv_t
    dK    with a second write −k dvᵀ; then dk_t = y_t − b_t

Attention divides: with z_t = Σ_{s ≤ t} k_s it is y_t = q_tᵀ S_t / q_tᵀ z_t. z is one more column of S, and one more row in what
dQ and dK read: `read_1` and `write_1` are what r and w have in that row, where the other one has 1.

dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i), for the delta rule with + b in the place of − b. Rounding would add up in it
from the end of the text to its beginning; so every 32 positions it begins anew, with Σ_v S ⊙ G: what the sweep for dQ has left
there, met by that for dK.

Why this is fast. Products of matrices over 64 positions need the weights of their pairs, and with a decay for each channel they
are no product at all; all in all they take more multiply-adds than this. Here a panel never leaves the cache, since a column
knows nothing of the others; and it is read and written once for each position, because what one position writes enters when
the next one reads. A plain sum takes two positions in one pass: what the first one writes, the second reads from the register.
Of a taller memory 64 rows go through the whole text, and then the next 64: what they say is added up. (Not so when x is what has
been read: that needs all rows.) Nothing is divided, no exponent is positive, and any decay will do, also 0.
"""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.arrays import for_reading, inverse
from minitransformer.kernels.compiling import any_order, compiled, inlined
from minitransformer.kernels.micro_kernel import REGISTER, some_columns
from minitransformer.kernels.threads import claimed, in_parallel
from minitransformer.kernels.tiles import LANES, plain_loops, tile
from minitransformer.typing import Array

ROWS = 64  # of a memory, that go through the text together
BLOCK = 32  # positions from one meeting of S and G to the next
IN, IN_2, OUT, OUT_2, FADES, ONE = (k * LANES for k in range(6))  # what stands below the columns of M, and where


@compiled
def fade(fades, h, u, c0, width, below):
    """How each column fades, or all of them."""
    if fades.shape[2] == 1:
        a = fades[h, u, 0]
        for i in range(width):
            below[FADES + i] = a
    else:
        each = fades[h, u, c0:]
        for i in range(width):
            below[FADES + i] = each[i]


@compiled
def advance_by_loops(M, R, R_2, W, W_2, A, fades, below, h, t, s, u, k0, rows, width):
    """M = a ⊙ (M + w xᵀ − w₂ x₂ᵀ), y = rᵀ M, y₂ = r₂ᵀ M in one pass: r of position t, w of s, a of u, in `width` columns."""
    below[OUT:FADES] = 0
    y, y_2 = below[OUT:OUT_2], below[OUT_2:FADES]
    for c in range(rows):
        m, k = M[c * LANES : (c + 1) * LANES], k0 + c
        for i in range(width):
            value = m[i] + W[h, s, k] * below[IN + i]
            if W_2 is not None:
                value -= W_2[h, s, k] * below[IN_2 + i]
            if A is not None:
                value *= A[h, u, k]
            elif fades is not None:
                value *= below[FADES + i]
            m[i] = value
            y[i] += R[h, t, k] * value
            if R_2 is not None:
                y_2[i] += R_2[h, t, k] * value


@any_order
def dot(a, b):
    """⟨a, b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


@inlined
def share_of(one, total, tiny):
    """1 / total, and 0 where it is nearly zero, as `inverse` in arrays.py has it."""
    return one - one if abs(total) < tiny else one / total


@compiled
def leave(M, w, x, state):
    """What M holds when this position has written: state = M + w xᵀ."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(LANES):
            s[i] = m[i] + w[c] * x[i]


@compiled
def meet(M, state, met):
    """met += Σ over the rows of M ⊙ state, for each column."""
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(len(met)):
            met[i] += m[i] * s[i]


@compiled
def sweep(
    h, p, k0, k1, R, R_2, read_1, W, X, W_2, X_2, write_1, A, fades, beta, D, reverse, loops, states, met, Y_2, Y
):
    """Rows k0 … k1 − 1 of panel p of head h; the other arguments as in `run`."""
    n, rows, c0, one, tiny = R.shape[1], k1 - k0, p * LANES, Y.dtype.type(1), np.finfo(Y.dtype).tiny ** 0.8
    width, wide = min(LANES, Y.shape[2] - c0), 4 * REGISTER // Y.itemsize
    M, below = tile(rows, Y).reshape(-1), tile(6, Y).reshape(-1)
    step, pairs = 0, False
    if loops is None and R_2 is None and W_2 is None and A is None and fades is None:
        pairs = True  # of positions, in one pass over M
    while step < n:
        t = n - 1 - step if reverse else step
        before, further = (t + 1, -1) if reverse else (t - 1, 1)
        u = before if reverse else t  # what lies between two positions fades as the later of them says
        together = 2 if pairs and 0 < step < n - 1 else 1
        if step > 0:
            if together == 2:
                x = X[h, t, c0:]
                for i in range(width):
                    below[IN_2 + i] = x[i]
            if fades is not None:
                fade(fades, h, u, c0, width, below)
            if loops is None:
                for c in range(0, width, wide):
                    left = width - c
                    if together == 2:
                        some_columns(M, R, R, W, W, None, None, True, below, h, t, before, u, k0, rows, c, left)
                    else:
                        some_columns(M, R, R_2, W, W_2, A, fades, None, below, h, t, before, u, k0, rows, c, left)
            else:
                advance_by_loops(M, R, R_2, W, W_2, A, fades, below, h, t, before, u, k0, rows, width)
        for out in range(OUT, OUT + together * LANES, LANES):
            x, y = X[h, t, c0:], Y[h, t, c0:]
            for i in range(width):
                below[IN + i] = x[i]
            if R_2 is not None:
                y_2 = Y_2[h, t, c0:]
                if beta is not None:  # what is written is what is new
                    b = beta[h, t]
                    for i in range(width):
                        y_2[i] = x[i] - below[OUT_2 + i]
                        below[IN + i] = b * y_2[i]
                else:
                    if k0 > 0:  # earlier rows have been through
                        for i in range(width):
                            below[OUT_2 + i] += y_2[i]
                    for i in range(width):
                        y_2[i] = below[OUT_2 + i]
            if k0 > 0:
                for i in range(width):
                    below[out + i] += y[i]
            overlap, share = dot(R[h, t, k0:k1], W[h, t, k0:k1]), one
            if D is not None and k1 == R.shape[2]:
                share = share_of(one, D[h, t], tiny)
            for i in range(width):
                y[i] = share * (below[out + i] + overlap * below[IN + i])
            if k0 == 0 and read_1 is not None:
                r = read_1[h, t]
                for i in range(width):
                    below[ONE + i] += below[IN + i]
                    y[i] += r * below[ONE + i]
            if k0 == 0 and write_1 is not None:
                w = write_1[h, t]
                for i in range(width):
                    below[ONE + i] += w * below[IN + i]
                    y[i] += below[ONE + i]
            if W_2 is not None:
                x_2 = X_2[h, t, c0:]
                if beta is not None:  # what is taken away is what has been read
                    b = beta[h, t]
                    for i in range(width):
                        below[IN_2 + i] = x_2[i] = b * y[i]
                else:
                    for i in range(width):
                        below[IN_2 + i] = x_2[i]
            if states is not None and (t + 1) % BLOCK == 0:
                state = states[h, p, t // BLOCK, k0 * LANES : k1 * LANES]
                if met is not None:
                    meet(M, state, met[h, t // BLOCK, c0 : c0 + width])
                else:
                    leave(M, W[h, t, k0:k1], below[IN:IN_2], state)
            t += further
        step += together


@compiled
def sweeps(reading, writing, fading, beta, D, reverse, loops, meeting, Y_2, Y, queue):
    """`sweep` for all heads and panels, a task for each."""
    panels, inner = (Y.shape[2] + LANES - 1) // LANES, reading[0].shape[2]
    together = ROWS if beta is None else max(inner, 1)
    for task in claimed(queue, len(Y) * panels):
        for k0 in range(0, max(inner, 1), together):
            which = (task // panels, task % panels, k0, min(k0 + together, inner))
            sweep(*which, *reading, *writing, *fading, beta, D, reverse, loops, *meeting, Y_2, Y)


@compiled
def since_the_next_meeting(q, dq, k, dk, looked_up, met, Y, queue):
    """Y_t = Σ (q_i ⊙ dq_i − k_i ⊙ dk_i) over i from t to the end of its block, and what has met there; a task for each head.

    With one gate for all channels, Y is (B, n, 1), the sum over them. Of the delta rule dk is what its keys have written; less
    what they have looked up it is their gradient, and takes its place, and together they are in Y.
    """
    n, one, sums = Y.shape[1], Y.shape[2] != q.shape[2], np.empty(Y.shape[2], Y.dtype)
    for h in claimed(queue, len(Y)):
        for block in range(met.shape[1]):
            beyond = met[h, block]
            there = beyond.sum()
            sums[:] = 0
            for t in range(min((block + 1) * BLOCK, n) - 1, block * BLOCK - 1, -1):
                away = dk[h, t]
                if looked_up is not None:
                    away = looked_up[h, t]
                    for c in range(len(away)):
                        away[c], dk[h, t, c] = dk[h, t, c] + away[c], dk[h, t, c] - away[c]
                if one:
                    sums[0] += dot(q[h, t], dq[h, t]) - dot(k[h, t], away)
                    Y[h, t, 0] = sums[0] + there
                else:
                    for c in range(len(sums)):
                        sums[c] += q[h, t, c] * dq[h, t, c] - k[h, t, c] * away[c]
                        Y[h, t, c] = sums[c] + beyond[c]


@compiled
def denominators(A, B, eps, D, queue):
    """D_t = ⟨a_t, Σ_{s ≤ t} b_s⟩ + ε; a task for each head."""
    for h in claimed(queue, len(D)):
        z = np.zeros(B.shape[2], B.dtype)
        for t in range(D.shape[1]):
            b = B[h, t]
            for k in range(len(z)):
                z[k] += b[k]
            D[h, t] = dot(A[h, t], z) + eps


@compiled
def of_numerators(dY, Y, D, dD, dN, queue):
    """dN_t = dY_t / D_t,  dD_t = −⟨dN_t, y_t⟩; a task for each head."""
    one, tiny = Y.dtype.type(1), np.finfo(Y.dtype).tiny ** 0.8
    for h in claimed(queue, len(D)):
        for t in range(D.shape[1]):
            dy, dn, share = dY[h, t], dN[h, t], share_of(one, D[h, t], tiny)
            for c in range(len(dn)):
                dn[c] = share * dy[c]
            dD[h, t] = -dot(dn, Y[h, t])


@compiled
def of_errors(beta, E, g, u, dbeta, queue):
    """u_t = β_t e_t,  dβ_t = ⟨e_t, g_t⟩; a task for each head."""
    for h in claimed(queue, len(E)):
        for t in range(E.shape[1]):
            e, out, b = E[h, t], u[h, t], beta[h, t]
            for c in range(len(e)):
                out[c] = b * e[c]
            dbeta[h, t] = dot(e, g[h, t])


@compiled
def take_away(X, Y, queue):
    """Y −= X; a task for each head."""
    for h in claimed(queue, len(Y)):
        for t in range(Y.shape[1]):
            for c in range(Y.shape[2]):
                Y[h, t, c] -= X[h, t, c]


# ------------------------------------------------------------------------------------------- in and out


def heads(X: Array) -> Array:
    """All batch axes as one, row by row in memory: (*batch, n, d) to (B, n, d). A copy only if it can't be helped."""
    return for_reading(X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]))


def run(
    R: Array, W: Array, X: Array, decay: Array | None = None, *, R_2: Array | None = None, W_2: Array | None = None,
    X_2: Array | None = None, beta: Array | None = None, read_1: Array | None = None, write_1: Array | None = None,
    D: Array | None = None, by_columns: bool = False, reverse: bool = False, states: Array | None = None,
    met: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """y_t = Σ_{s ≤ t} L_ts ⟨r_t, w_s⟩ x_s of every head, (B, n, columns).

    decay             α, (B, n, 1), (B, n, rows) or, by columns, (B, n, columns); None: nothing fades. If `reverse`, s ≥ t
    R_2               a second read, Σ_{s < t}, the second result. With β it is e = x − Σ_{s < t}, and x becomes β e
    W_2, X_2          a second write, at s < t only, which is taken away, not added. With β it is x₂ = β_t y_t, the second result
    read_1, write_1   one more row of r, with 1 for w, or of w, with 1 for r, (B, n). D is what y is divided by, (B, n)
    states            M after every 32 positions, (B, panels, blocks, rows · 64), to be filled; if `reverse`, to be met, in
    met               (B, blocks, columns), which begins with zeros
    """
    second = R_2 is not None or beta is not None
    Y, Y_2 = np.empty(X.shape, X.dtype), np.empty(X.shape if second else (0, 0, 0), X.dtype)
    X_2 = Y_2 if X_2 is None else X_2
    by_columns = by_columns or (decay is not None and decay.shape[-1] == 1)
    in_parallel(
        len(Y) * -(-Y.shape[-1] // LANES),
        sweeps,
        *((R, R_2, read_1), (W, X, W_2, X_2, write_1), (None, decay) if by_columns else (decay, None), beta, D),
        *(reverse, plain_loops(), (states, met), Y_2, Y),
    )
    return Y, Y_2


class SweptKernelAttentionPullback(NamedTuple):
    """dN = dY / D,  dD_t = −⟨dN_t, y_t⟩; then a sweep for each of dFQ, dFK and dV, and nothing is remembered but the arrays.

    D_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ + ε; it has no entries without normalisation, where dN = dY and dD = 0.
    """

    FQ: Array
    FK: Array
    V: Array
    Y: Array
    D: Array

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights, (*batch, n, n), made again by the definition, in NumPy."""
        W = np.tril(self.FQ @ self.FK.mT)
        return W * inverse(self.D)[..., None] if self.D.size else W

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        if dY.shape != self.Y.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.Y.shape}")
        q, k, v, y, dn = (heads(X) for X in (self.FQ, self.FK, self.V, self.Y, dY.astype(self.Y.dtype, copy=False)))
        dd = None
        if self.D.size:
            D = self.D.reshape(y.shape[:2])
            dy, dn, dd = dn, np.empty_like(y), np.empty_like(D)
            in_parallel(len(y), of_numerators, dy, y, D, dd, dn)
        dq, _ = run(dn, v, k, read_1=dd)
        dk, _ = run(v, dn, q, write_1=dd, reverse=True)
        dv, _ = run(k, q, dn, reverse=True)
        return dq.reshape(self.FQ.shape), dk.reshape(self.FK.shape), dv.reshape(self.V.shape)


def swept_kernel_attention(
    FQ: Array, FK: Array, V: Array, *, normalise: bool, eps: float
) -> tuple[Array, SweptKernelAttentionPullback]:
    """`kernel_attention` that is causal, of as many queries as keys: y_t = Σ_{s ≤ t} ⟨φ(q_t), φ(k_s)⟩ v_s / D_t.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    q, k, v = heads(FQ), heads(FK), heads(V)
    D = np.empty((*FQ.shape[:-1],) if normalise else (0,), V.dtype)
    if normalise:
        in_parallel(len(q), denominators, q, k, V.dtype.type(eps), D.reshape(q.shape[:2]))
    Y, _ = run(q, k, v, D=D.reshape(q.shape[:2]) if normalise else None)
    Y = Y.reshape(V.shape)
    return Y, SweptKernelAttentionPullback(FQ, FK, V, Y, D)


class Meetings:
    """Where the sweep for dQ leaves its states, and that for dK meets them."""

    def __init__(self, V: Array, K: Array) -> None:
        B, n, r = K.shape
        blocks = -(-n // BLOCK)
        self.states = np.empty((B, -(-r // LANES), blocks, V.shape[-1] * LANES), K.dtype)
        self.met = np.zeros((B, blocks, r), K.dtype)

    def gradient(
        self, log_decay: Array, q: Array, dq: Array, k: Array, dk: Array, looked_up: Array | None = None
    ) -> Array:
        """dln α: Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i) within each block; beyond its end is what has met there."""
        dlog_decay = np.empty((len(q), *log_decay.shape[-2:]), q.dtype)
        in_parallel(len(q), since_the_next_meeting, q, dq, k, dk, looked_up, self.met, dlog_decay)
        return dlog_decay.reshape(log_decay.shape)


def gated_linear(Q: Array, K: Array, V: Array, log_decay: Array) -> Array:
    """Y of `gated_linear_attention`; ln α is (*batch, n, 1 or r)."""
    Y, _ = run(heads(Q), heads(K), heads(V), heads(np.exp(log_decay)))
    return Y.reshape(V.shape)


def gated_linear_back(Q: Array, K: Array, V: Array, log_decay: Array, dY: Array) -> tuple[Array, Array, Array, Array]:
    """dQ, dK, dV and dln α: a sweep for each of three, and what lies between."""
    q, k, v, dy, decay = (heads(X) for X in (Q, K, V, dY.astype(V.dtype, copy=False), np.exp(log_decay)))
    meetings = Meetings(v, k)
    dq, _ = run(dy, v, k, decay, by_columns=True, states=meetings.states)
    dk, _ = run(v, dy, q, decay, by_columns=True, reverse=True, states=meetings.states, met=meetings.met)
    dv, _ = run(k, q, dy, decay, reverse=True)
    dlog_decay = meetings.gradient(log_decay, q, dq, k, dk)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(V.shape), dlog_decay


def delta(Q: Array, K: Array, V: Array, beta: Array, log_decay: Array | None = None) -> tuple[Array, Array]:
    """Y and E of `delta_rule` or, with ln α, (*batch, n, 1 or r), of `gated_delta_rule`."""
    k, decay = heads(K), None if log_decay is None else heads(np.exp(log_decay))
    Y, E = run(heads(Q), k, heads(V), decay, R_2=k, beta=heads(beta[..., None])[..., 0])
    return Y.reshape(V.shape), E.reshape(V.shape)


def delta_back(
    Q: Array, K: Array, beta: Array, E: Array, dY: Array, log_decay: Array | None = None
) -> tuple[Array, ...]:
    """dQ, dK, dV, dβ and, of gates, dln α: a sweep that finds g = Gᵀ k, and dv = β g with it; then one for dQ, one for dK."""
    q, k, dy, e = (heads(X) for X in (Q, K, dY.astype(E.dtype, copy=False), E))
    b, decay = heads(beta[..., None])[..., 0], None if log_decay is None else heads(np.exp(log_decay))
    g, dv = run(k, q, dy, decay, reverse=True, W_2=k, beta=b)
    u, dbeta = np.empty_like(e), np.empty_like(b)
    in_parallel(len(e), of_errors, b, e, g, u, dbeta)
    meetings = None if log_decay is None else Meetings(e, k)
    states, met = (None, None) if meetings is None else (meetings.states, meetings.met)
    dq, looked_up = run(dy, u, k, decay, by_columns=True, R_2=dv, states=states)
    dk, _ = run(u, dy, q, decay, by_columns=True, reverse=True, W_2=dv, X_2=k, states=states, met=met)
    gates: tuple[Array, ...] = ()
    if meetings and log_decay is not None:
        gates = (meetings.gradient(log_decay, q, dq, k, dk, looked_up),)
    else:
        in_parallel(len(k), take_away, looked_up, dk)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(E.shape), dbeta.reshape(beta.shape), *gates


class SweptDeltaRulePullback(NamedTuple):
    """Three sweeps: they stand at the top of this file. E_t = v_t − k_tᵀ S_{t−1}."""

    Q: Array
    K: Array
    beta: Array
    E: Array

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        if dY.shape != self.E.shape:
            raise ValueError(f"dY: shape {dY.shape} should be that of Y, {self.E.shape}")
        return delta_back(self.Q, self.K, self.beta, self.E, dY)


def swept_delta_rule(Q: Array, K: Array, V: Array, beta: Array) -> tuple[Array, SweptDeltaRulePullback]:
    """`delta_rule` in the compiled tiers, which has checked the arguments.

    cost     O(n r dv) time, O(n (r + dv)) memory
    """
    Y, E = delta(Q, K, V, beta)
    return Y, SweptDeltaRulePullback(Q, K, beta, E)
