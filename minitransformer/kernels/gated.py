"""Memories with gates, position by position: a matrix that fades, is written to, and is read.

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

and dln α_t = Σ_{i ≥ t} (q_i ⊙ dq_i − k_i ⊙ dk_i), for the delta rule with + b in the place of − b. Rounding would add up in it
from the end of the text to its beginning; so every 32 positions it begins anew, with Σ_v S ⊙ G: what the sweep for dQ has left
there, met by that for dK.

Why this is fast. A product of matrices over 64 positions needs the weights of their pairs, and with a decay for each channel they
are no product at all: they take as many multiply-adds as this does. Here a panel never leaves the cache, since a column knows
nothing of the others; and it is read and written once for each position, because what one position writes enters when the next
one reads. Nothing is divided, no exponent is positive, and any decay will do, also 0.
"""

import numpy as np

from minitransformer.kernels.compiling import any_order, compiled, inlined
from minitransformer.kernels.kernel_attention import heads
from minitransformer.kernels.threads import claimed, in_parallel
from minitransformer.kernels.tiles import LANES, fours, tile
from minitransformer.typing import Array

BLOCK = 32  # positions from one meeting of S and G to the next
READ, READ_2, WRITE, WRITE_2, FADE = range(5)  # what stands beside the rows of M
IN, IN_2, OUT, OUT_2, FADES = (k * LANES for k in range(5))  # ... and below its columns, where each begins


@inlined
def advance(M, beside, below, second_read, second_write, by_columns, narrow):
    """M = a ⊙ (M + w xᵀ − w₂ x₂ᵀ), y = rᵀ M, y₂ = r₂ᵀ M in one pass, four rows of M at a time."""
    width = LANES
    if narrow is not None:
        width = LANES // 2
    for c in range(0, beside.shape[1], 4):
        m = M[c * LANES : (c + 4) * LANES]
        w0, w1, w2, w3 = beside[WRITE, c], beside[WRITE, c + 1], beside[WRITE, c + 2], beside[WRITE, c + 3]
        z0, z1, z2, z3 = beside[WRITE_2, c], beside[WRITE_2, c + 1], beside[WRITE_2, c + 2], beside[WRITE_2, c + 3]
        a0, a1, a2, a3 = beside[FADE, c], beside[FADE, c + 1], beside[FADE, c + 2], beside[FADE, c + 3]
        r0, r1, r2, r3 = beside[READ, c], beside[READ, c + 1], beside[READ, c + 2], beside[READ, c + 3]
        h0, h1, h2, h3 = beside[READ_2, c], beside[READ_2, c + 1], beside[READ_2, c + 2], beside[READ_2, c + 3]
        for i in range(width):
            x = below[IN + i]
            m0, m1, m2, m3 = m[i] + w0 * x, m[i + LANES] + w1 * x, m[i + 2 * LANES] + w2 * x, m[i + 3 * LANES] + w3 * x
            if second_write is not None:
                x = below[IN_2 + i]
                m0, m1, m2, m3 = m0 - z0 * x, m1 - z1 * x, m2 - z2 * x, m3 - z3 * x
            if by_columns is not None:
                a = below[FADES + i]
                m0, m1, m2, m3 = a * m0, a * m1, a * m2, a * m3
            else:
                m0, m1, m2, m3 = a0 * m0, a1 * m1, a2 * m2, a3 * m3
            m[i], m[i + LANES], m[i + 2 * LANES], m[i + 3 * LANES] = m0, m1, m2, m3
            below[OUT + i] = below[OUT + i] + r0 * m0 + r1 * m1 + r2 * m2 + r3 * m3
            if second_read is not None:
                below[OUT_2 + i] = below[OUT_2 + i] + h0 * m0 + h1 * m1 + h2 * m2 + h3 * m3


@any_order
def dot(a, b):
    """⟨a, b⟩."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


@compiled
def leave(M, beside, below, state):
    """What M holds when this position has written: state = M + w xᵀ."""
    for c in range(beside.shape[1]):
        m, s, w = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES], beside[WRITE, c]
        for i in range(LANES):
            s[i] = m[i] + w * below[IN + i]


@compiled
def meet(M, state, met):
    """Σ over the rows of M ⊙ state, for each column."""
    met[:] = 0
    for c in range(len(M) // LANES):
        m, s = M[c * LANES : (c + 1) * LANES], state[c * LANES : (c + 1) * LANES]
        for i in range(len(met)):
            met[i] += m[i] * s[i]


@compiled
def sweep(h, p, R, R_2, W, X, W_2, X_2, decay, beta, by_columns, narrow, reverse, states, met, Y_2, Y):
    """Panel p of head h; the arguments as in `run`."""
    n, inner, c0 = R.shape[1], R.shape[2], p * LANES
    width = min(LANES, Y.shape[2] - c0)
    M, below = tile(fours(inner), Y).reshape(-1), tile(5, Y).reshape(-1)
    beside = np.zeros((5, fours(inner)), Y.dtype)
    for step in range(n):
        t = n - 1 - step if reverse else step
        fade = decay[h, min(t + 1, n - 1) if reverse else t]
        if by_columns is not None:
            for i in range(width):
                below[FADES + i] = fade[c0 + i]
        elif len(fade) == 1:
            beside[FADE] = fade[0]
        else:
            for c in range(inner):
                beside[FADE, c] = fade[c]
        for c in range(inner):
            beside[READ, c] = R[h, t, c]
        if R_2 is not None:
            for c in range(inner):
                beside[READ_2, c] = R_2[h, t, c]
        below[OUT:FADES] = 0
        advance(M, beside, below, R_2, W_2, by_columns, narrow)
        overlap = dot(R[h, t], W[h, t])
        for i in range(width):
            x = X[h, t, c0 + i]
            if R_2 is not None:
                held = below[OUT_2 + i]
                if beta is not None:
                    held = x - held
                    x = beta[h, t] * held
                Y_2[h, t, c0 + i] = held
            y = below[OUT + i] + overlap * x
            Y[h, t, c0 + i] = y
            below[IN + i] = x
            if W_2 is not None:
                if beta is None:
                    below[IN_2 + i] = X_2[h, t, c0 + i]
                else:
                    below[IN_2 + i] = Y_2[h, t, c0 + i] = beta[h, t] * y
        for c in range(inner):
            beside[WRITE, c] = W[h, t, c]
        if W_2 is not None:
            for c in range(inner):
                beside[WRITE_2, c] = W_2[h, t, c]
        if states is not None and (t + 1) % BLOCK == 0:
            if reverse:
                meet(M, states[h, p, t // BLOCK], met[h, t // BLOCK, c0 : c0 + width])
            else:
                leave(M, beside, below, states[h, p, t // BLOCK])


@compiled
def sweeps(R, R_2, W, X, W_2, X_2, decay, beta, by_columns, narrow, reverse, states, met, Y_2, Y, queue):
    """`sweep` for all heads and panels, a task for each."""
    panels = (Y.shape[2] + LANES - 1) // LANES
    for task in claimed(queue, len(Y) * panels):
        h, p = task // panels, task % panels
        sweep(h, p, R, R_2, W, X, W_2, X_2, decay, beta, by_columns, narrow, reverse, states, met, Y_2, Y)


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


# ------------------------------------------------------------------------------------------- in and out


def run(
    R: Array, W: Array, X: Array, decay: Array, *, R_2: Array | None = None, W_2: Array | None = None, X_2: Array | None = None,
    beta: Array | None = None, by_columns: bool = False, reverse: bool = False, states: Array | None = None,
    met: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """y_t = Σ_{s ≤ t} L_ts ⟨r_t, w_s⟩ x_s of every head, (B, n, columns).

    decay        α, (B, n, 1), (B, n, rows) or, by columns, (B, n, columns). If `reverse`, s ≥ t
    R_2          a second read, Σ_{s < t}, the second result. With β the second result is e = x − Σ_{s < t}, and x becomes β e
    W_2, X_2     a second write, at s < t only, which is taken away, not added. With β it is x₂ = β_t y_t, the second result
    states       M after every 32 positions, (B, panels, blocks, rows · 64), to be filled; if `reverse`, to be met, in
    met          (B, blocks, columns)
    """
    second = R_2 is not None or beta is not None
    Y, Y_2 = np.empty(X.shape, X.dtype), np.empty(X.shape if second else (0, 0, 0), X.dtype)
    X_2, met = X if X_2 is None else X_2, Y_2 if met is None else met
    by = True if by_columns and decay.shape[-1] > 1 else None
    narrow = True if 2 * X.shape[-1] <= LANES else None
    tasks = len(Y) * -(-Y.shape[-1] // LANES)
    in_parallel(tasks, sweeps, R, R_2, W, X, W_2, X_2, decay, beta, by, narrow, reverse, states, met, Y_2, Y)
    return Y, Y_2


class Meetings:
    """Where the sweep for dQ leaves its states, and that for dK meets them."""

    def __init__(self, V: Array, K: Array) -> None:
        B, n, r = K.shape
        self.blocks = -(-n // BLOCK)
        rows = fours(V.shape[-1])
        self.states = np.empty((B, -(-r // LANES), self.blocks, rows * LANES), K.dtype)
        self.met = np.zeros((B, self.blocks, r), K.dtype)

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


def gated_delta(Q: Array, K: Array, V: Array, beta: Array, log_decay: Array) -> tuple[Array, Array]:
    """Y and E of `gated_delta_rule`; ln α is (*batch, n, 1 or r)."""
    k = heads(K)
    Y, E = run(heads(Q), k, heads(V), heads(np.exp(log_decay)), R_2=k, beta=heads(beta[..., None])[..., 0])
    return Y.reshape(V.shape), E.reshape(V.shape)


def gated_delta_back(
    Q: Array, K: Array, beta: Array, log_decay: Array, E: Array, dY: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """dQ, dK, dV, dβ and dln α: a sweep that finds g = Gᵀ k, and dv = β g with it, then one for each side of the keys."""
    q, k, dy, e, decay = (heads(X) for X in (Q, K, dY.astype(E.dtype, copy=False), E, np.exp(log_decay)))
    g, dv = run(k, q, dy, decay, reverse=True, W_2=k, beta=heads(beta[..., None])[..., 0])
    u, meetings = heads(beta[..., None]) * e, Meetings(e, k)
    dq, looked_up = run(dy, u, k, decay, by_columns=True, R_2=dv, states=meetings.states)
    dk, _ = run(u, dy, q, decay, by_columns=True, reverse=True, W_2=dv, X_2=k, states=meetings.states, met=meetings.met)
    dlog_decay = meetings.gradient(log_decay, q, dq, k, dk, looked_up)
    dbeta = np.vecdot(e, g).reshape(beta.shape)
    return dq.reshape(Q.shape), dk.reshape(K.shape), dv.reshape(E.shape), dbeta, dlog_decay
