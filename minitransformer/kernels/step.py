"""Memories from a state on, position by position: a prompt, or one new token.

    S̄ = Diag(α_t) S                what is held fades
    e = v_t − k_tᵀ S̄               or v_t itself, where nothing is corrected
    S = S̄ + β_t k_t eᵀ
    y_t = q_tᵀ S                   divided by q_tᵀ z_t, z_t = z_{t−1} + k_t, where there is a z

For one token of a layer, loops here also make α and β from its logits, and apply the norm and the gate behind the memory; or
they make the features of its query and key.

Why this is fast. In generation a memory is so small that NumPy spends its time on starting a dozen operations: here they are
one. Where something is corrected, S̄ is looked up first; then S fades and is written to in one pass, from the old state to the new
one, eight rows at a time, which are then read by fours. (A whole text, with its gradients, is for the sweeps of sweep.py.)
"""

import math
from typing import Any

import numpy as np

from minitransformer.arrays import for_reading, one_batch
from minitransformer.kernels.compiling import compiled, inlined
from minitransformer.kernels.few_queries import add_four
from minitransformer.kernels.few_rows import norm_rows, product
from minitransformer.kernels.norms_and_loss import squares, total
from minitransformer.kernels.pointwise import GATES, open_gate
from minitransformer.kernels.threads import borrowed, claimed, in_parallel
from minitransformer.kernels.tiles import dot, put, rows_of
from minitransformer.typing import Array

# of |D|; below it 1 / D counts as 0, as in `inverse` of arrays.py
LEAST = {np.dtype(kind): kind(float(np.finfo(kind).tiny) ** 0.8) for kind in (np.float32, np.float64)}
NEAR = 8  # rows of S that are written and then read, while they are in the nearest cache
SMALL = 2**18  # multiply-adds; what has fewer is done before a second thread is awake


@compiled
def recur(Q, K, V, beta, decay, S, z, least, eps, after, z_after, Y, queue):
    """Add to Y, which is zero before, and fill `after` and `z_after`, the state after all positions.

    beta     β, (B, n); (B, 0): nothing is corrected
    decay    α, (B, n, 1) or (B, n, r); (B, n, 0): nothing fades
    z        (B, r), the sum of the keys before: y is divided by D = ⟨q, z_t⟩ + ε, and is 0 where |D| < least. (B, 0): no division
    """
    Q, K, V, beta, decay, S, z = borrowed((Q, K, V, beta, decay, S, z))
    after, z_after, Y = borrowed((after, z_after, Y))
    corrects, gates, zero, one = beta.shape[1] > 0, decay.shape[2], Y.dtype.type(0), Y.dtype.type(1)
    for h in claimed(queue, len(Y)):
        e, held, now, sums = np.empty(V.shape[2], V.dtype), S[h], after[h], z[h].copy()
        for t in range(V.shape[1]):
            q, k, y = Q[h, t], K[h, t], Y[h, t]
            for c in range(len(e)):
                e[c] = V[h, t, c]
            if corrects:
                for c in range(len(k)):
                    a = decay[h, t, min(c, gates - 1)] if gates > 0 else one
                    for j in range(len(e)):
                        e[j] -= k[c] * (a * held[c, j])
                for j in range(len(e)):
                    e[j] *= beta[h, t]
            for first in range(0, len(k), NEAR):
                end = min(first + NEAR, len(k))
                fours = end - (end - first) % 4
                for c in range(first, end):
                    a, share = decay[h, t, min(c, gates - 1)] if gates > 0 else one, k[c]
                    for j in range(len(e)):
                        now[c, j] = a * held[c, j] + share * e[j]
                for c in range(first, fours, 4):
                    add_four(q, now, c, y)
                for c in range(fours, end):
                    for j in range(len(y)):
                        y[j] += q[c] * now[c, j]
            if len(sums) > 0:
                for c in range(len(k)):
                    sums[c] += k[c]
                D = dot(q, sums) + eps
                share = zero if abs(D) < least else one / D
                for j in range(len(y)):
                    y[j] *= share
            held = now
        if V.shape[1] == 0:
            put(held, now)
        for c in range(len(sums)):
            z_after[h, c] = sums[c]


def recurrence(
    Q: Array, K: Array, V: Array, S: Array, *, beta: Array | None = None, decay: Array | None = None,
    z: Array | None = None, eps: float = 0.0,
) -> tuple[Array, ...]:  # fmt: skip
    """(Y, S after these positions), from a memory that is S before; with z also the sum of the keys after them.

    decay    α, (*batch, n, 1 or r); None: nothing fades
    beta     β, (*batch, n); None: nothing is corrected
    z        the sum of the keys before, (*batch, r): then y_t is divided by q_tᵀ z_t + ε. None: no division
    raises   ValueError for a state of another shape
    """
    if S.shape != (wanted := (*V.shape[:-2], K.shape[-1], V.shape[-1])):
        raise ValueError(f"state: S {S.shape} should be {wanted}")
    q, k, v = one_batch(Q), one_batch(K), one_batch(V)
    B, n, r = k.shape
    corrected = np.empty((B, 0), v.dtype) if beta is None else for_reading(beta.reshape(B, n))
    alpha = np.empty((B, n, 0), v.dtype) if decay is None else one_batch(decay)
    sums = np.empty((B, 0), v.dtype) if z is None else for_reading(z.reshape(B, r))
    Y, after, z_after = np.zeros(v.shape, v.dtype), np.empty((B, r, v.shape[-1]), v.dtype), np.empty_like(sums)
    numbers = LEAST[v.dtype], v.dtype.type(eps)
    arrays = q, k, v, corrected, alpha, for_reading(S.reshape(after.shape)), sums, *numbers, after, z_after, Y
    in_parallel(B if S.size * n > SMALL else 1, recur, *arrays)
    Y, after = Y.reshape(V.shape), after.reshape(S.shape)
    return (Y, after) if z is None else (Y, after, z_after.reshape(z.shape))


# ------------------------------------------------------------------------------ one token, with what is around the memory


@inlined
def softplus(x, zero):
    """ln(1 + eˣ)."""
    return max(x, zero) + np.log1p(np.exp(-abs(x)))


@inlined
def to_unit(x, added):
    """1 / √(‖x‖² + added), the factor that brings x to norm one, as `unit` does."""
    number = x.dtype.type
    return number(1) / np.sqrt(squares(x, number(0)) + added)


@inlined
def fill_with_zeros(Y):
    """Y = 0, of three axes."""
    y = Y.reshape(-1)
    for i in range(len(y)):
        y[i] = 0


@compiled
def write_one(Q, K, V, write, x, speed, shift, W, S, unit, scale, reach, sign, learned, steps, start, stop, after, Y):
    """Fill Y (B·H, 1, dv) and `after`, the state, of the heads start … stop − 1 after one token.

    A row of Q and K (B, G, d) is for H/G heads of V.

    The logits are x (B, H, w) + shift, or x W + shift if there is a W. α is exp(−speed softplus(± logits)), or exp(−speed) if x
    has no columns. β is reach σ(write); with reach 0 nothing is corrected. Of all else see `WriteAndRead` in linear/memory.py.
    """
    H, dv, d, sharing, heads = V.shape[1], V.shape[2], Q.shape[2], V.shape[1] // Q.shape[1], stop - start
    zero, half, one = V.dtype.type(0), V.dtype.type(0.5), V.dtype.type(1)
    rows = x.reshape(len(V), H * x.shape[2])
    logits = product(rows, W, shift).reshape(len(Y), W.shape[1] // H) if len(W) > 0 else x.reshape(len(Y), x.shape[2])
    q, k, v = np.empty((heads, 1, d), V.dtype), np.empty((heads, 1, d), V.dtype), np.empty((heads, 1, dv), V.dtype)
    alpha = np.empty((heads, 1, max(logits.shape[1], 1)), V.dtype)
    beta = np.empty((heads, 1 if reach > 0 else 0), V.dtype)
    for i in range(heads):
        b, h = (start + i) // H, (start + i) % H
        g, own, rate = h // sharing, logits[start + i], speed[h % len(speed)]
        of_q = scale * to_unit(Q[b, g], unit) if unit >= zero else scale
        of_k = to_unit(K[b, g], unit) if unit >= zero else one
        if learned:
            rate = np.exp(rate)
        alpha[i, 0, 0] = np.exp(-rate)
        step = one
        for c in range(len(own)):
            fades = softplus(sign * (own[c] if len(W) > 0 else own[c] + shift[h]), zero)
            alpha[i, 0, c] = np.exp(-rate * fades)
            if steps:
                step = fades
        for c in range(d):
            q[i, 0, c], k[i, 0, c] = of_q * Q[b, g, c], of_k * K[b, g, c]
        for c in range(dv):
            v[i, 0, c] = step * V[b, h, c]
        if reach > 0:
            beta[i, 0] = reach * (half + half * np.tanh(half * write[b, h, 0]))
    nothing, y = beta[:, :0].copy(), rows_of(Y, start, stop)
    fill_with_zeros(y)
    state = rows_of(S, start, stop), nothing, zero, zero, rows_of(after, start, stop)
    recur(q, k, v, beta, alpha, *state, nothing, y, np.zeros(2, np.int64))


@compiled
def finish_one(Y, V, G, gain, skip, eps, gate, gate_first):
    """norm(y + D v) ⊙ f(g), or norm((y + D v) ⊙ f(g)) if `gate_first`; Y is changed.

    skip    D (H,), or (0,): nothing is added
    gain    of the RMS norm, (dv,) for each head, or (H·dv,) for all heads of a token together
    """
    shift, g = np.zeros(len(gain), Y.dtype), G.reshape(-1)
    for h in range(len(skip)):
        for b in range(len(Y)):
            for c in range(Y.shape[2]):
                Y[b, h, c] += skip[h] * V[b, h, c]
    if gate_first:
        open_gate(gate, g, Y.reshape(-1), Y.reshape(-1))
    Z = norm_rows(Y.reshape(-1, len(gain)), gain, shift, np.float64(eps), False)
    if not gate_first:
        open_gate(gate, g, Z.reshape(-1), Z.reshape(-1))
    return Z.reshape(Y.shape)


ELU, COSINE, NEIGHBOURS, POWERS, EXPONENTIALS = range(5)
FEATURES = {"elu": ELU, "cosine": COSINE, "neighbours": NEIGHBOURS, "powers": POWERS, "exponentials": EXPONENTIALS}


@inlined
def features(kind, x, W, a, b, query, f):
    """Fill f with the features of x, a query or a key; what a, b and W are, `Features` of kernel_attention.py says."""
    d, r, zero, one = len(x), len(f), x.dtype.type(0), x.dtype.type(1)
    if kind == ELU:
        for c in range(d):
            f[c] = x[c] + one if x[c] > zero else np.exp(x[c])
    elif kind == COSINE:
        for c in range(d):
            positive = zero if x[c] < zero else x[c]
            f[c], f[d + c] = positive * a, positive * b
    elif kind == NEIGHBOURS:
        both = np.empty(2 * d, x.dtype)
        for c in range(d):
            both[c], both[d + c] = zero if x[c] < zero else x[c], zero if x[c] > zero else -x[c]
        for s in range(r // max(2 * d, 1)):
            for c in range(2 * d):
                f[2 * d * s + c] = both[c] * both[(c - s - 1) % (2 * d)]
    elif kind == POWERS:
        f[0], before, start, p = one, 0, 1, 1
        while start < r:
            share, at = a / np.sqrt(x.dtype.type(p)), start
            for i in range(before, start):
                for c in range(d):
                    f[at + c] = f[i] * (share * x[c])
                at += d
            before, start, p = start, at, p + 1
    else:
        m, top, size = len(W), x.dtype.type(-np.inf), one
        for i in range(m):
            f[i] = a * dot(W[i], x)
        for i in range(m, r):
            f[i] = -f[i - m]
        if query:
            for i in range(r):
                top = max(top, f[i])
        else:
            top, size = a * a * squares(x, zero) / 2, np.sqrt(x.dtype.type(r))
        for i in range(r):
            f[i] = np.exp(b if f[i] - top > b else f[i] - top)
        if query:
            size = total(f)
        for i in range(r):
            f[i] /= size


@compiled
def sum_one(Q, K, V, W, S, z, kind, a, b, least, start, stop, after, z_after, Y):
    """Fill Y with y = φ(q)ᵀ S / φ(q)ᵀ z of the heads start … stop − 1 after one token, and their state.

    A head has its query and key in Q and K, (B, d); its state in `after` and `z_after`.
    """
    heads, y = stop - start, rows_of(Y, start, stop)
    F = np.empty((2, heads, 1, z.shape[1]), V.dtype)
    for i in range(heads):
        h = start + i
        features(kind, Q[h], W[h % len(W)], a, b, True, F[0, i, 0])
        features(kind, K[h], W[h % len(W)], a, b, False, F[1, i, 0])
    nothing, no_decay = np.empty((heads, 0), V.dtype), np.empty((heads, 1, 0), V.dtype)
    fill_with_zeros(y)
    state = rows_of(S, start, stop), rows_of(z, start, stop), least, V.dtype.type(0), rows_of(after, start, stop)
    given = F[0], F[1], rows_of(V, start, stop), nothing, no_decay
    recur(*given, *state, rows_of(z_after, start, stop), y, np.zeros(2, np.int64))


def write_and_read(Q: Array, K: Array, V: Array, streams: Any, S: Array, how: Any) -> tuple[Array, Array]:
    """(Y, S after it) of one token, from a memory that is S before; `how` is a `WriteAndRead` of linear/memory.py.

    streams  what β is made of, if it is made, and then the x of the logits, if there are logits
    raises   ValueError for a state of another shape or dtype
    """
    if (S.shape, S.dtype) != (wanted := ((*V.shape[:-2], K.shape[-1], V.shape[-1]), V.dtype)):
        raise ValueError(f"state: S {S.shape} of {S.dtype} should be {wanted[0]} of {V.dtype}")
    B, nothing, number = math.prod(V.shape[:-3]), V[..., :0], V.dtype.type
    write, x = (*([] if how.reach else [nothing]), *streams, nothing)[:2]
    rows = (for_reading(X.reshape(B, X.shape[-3], X.shape[-1])) for X in (Q, K, V, write, x))
    learned, numbers = map(for_reading, how.arrays(V.dtype)), map(number, how.numbers)
    after = np.empty(S.shape, S.dtype)
    Y = np.empty((len(one_batch(S)), 1, V.shape[-1]), V.dtype)
    write_one(*rows, *learned, one_batch(S), *numbers, how.learned, how.steps, 0, len(Y), one_batch(after), Y)
    return Y.reshape(V.shape), after


def number_of(how: Any, d: int) -> int:
    """How many features `how` makes of d numbers."""
    if how.kind == "powers":
        return int(sum(d**p for p in range(how.times + 1)))
    each = {"elu": d, "cosine": 2 * d, "neighbours": 2 * d, "exponentials": 0 if how.W is None else how.W.shape[-2]}
    return int(each[how.kind]) * how.times


def sum_features(Q: Array, K: Array, V: Array, S: Array, z: Array, how: Any) -> tuple[Array, Array, Array] | None:
    """(Y, S, z) after one token of `kernel_attention_step`, from queries and keys; `how` is a `Features` of that module.

    None if the loop can't do it: a state that takes two threads, or of another shape, or another dtype.
    """
    heads, d, r = V.shape[:-2], K.shape[-1], number_of(how, K.shape[-1])
    W = np.empty((1, 0, d), V.dtype) if how.W is None else how.W
    fits = {X.dtype for X in (Q, K, V, S, z, W)} == {V.dtype} and W.shape[::2] in ((1, d), (*heads[-1:], d))
    if not fits or S.size > SMALL or (S.shape, z.shape) != ((*heads, r, V.shape[-1]), (*heads, r)):
        return None
    B, number = math.prod(heads), V.dtype.type
    q, k = (for_reading(X.reshape(B, d)) for X in (Q, K))
    held = tuple(
        for_reading(X) for X in (V.reshape(B, 1, V.shape[-1]), W, S.reshape(B, r, V.shape[-1]), z.reshape(B, r))
    )
    after, z_after, numbers = np.empty(S.shape, S.dtype), np.empty(z.shape, z.dtype), (number(how.a), number(how.b))
    written = after.reshape(B, r, V.shape[-1]), z_after.reshape(B, r)
    Y = np.empty(held[0].shape, V.dtype)
    sum_one(q, k, *held, FEATURES[how.kind], *numbers, LEAST[V.dtype], 0, B, *written, Y)
    return Y.reshape(V.shape), after, z_after


def finish(Y: Array, V: Array, G: Array, how: Any) -> Array:
    """Norm and gate of what one token has read, Y in its shape; `how` is a `NormAndGate` of linear/memory.py."""
    B = math.prod(V.shape[:-3])
    y, v, g = (for_reading(X.reshape(B, X.shape[-3], X.shape[-1])) for X in (Y, V, G))
    learned, gate = map(for_reading, how.arrays(V.dtype)), (V.dtype.type(how.eps), GATES[how.gate], how.gate_first)
    return finish_one(y, v, g, *learned, *gate).reshape(V.shape)
