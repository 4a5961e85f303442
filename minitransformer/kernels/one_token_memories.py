"""The loop of one_token.py for blocks whose cores have memories: sums of features, or a matrix that fades and is corrected."""

import numpy as np

from minitransformer.kernels.compiling import compiled, inside
from minitransformer.kernels.exp2 import LOG2E
from minitransformer.kernels.one_token_addresses import (
    BIAS,
    DIRECTIONS,
    GAIN,
    SHIFT,
    SKIP,
    SPEED,
    THETA,
    WIDE,
    learned,
)
from minitransformer.kernels.one_token_blocks import after_mixing, projections
from minitransformer.kernels.one_token_halves import ME, give, halves_of_next, one_of_two, room_for
from minitransformer.kernels.one_token_text import DRAWN, row_of_next, steps_of
from minitransformer.kernels.pointwise import sigma
from minitransformer.kernels.step import finish_one, sum_one, write_one
from minitransformer.kernels.tiles import rows_of


@inside
def of_heads(of_all, start, B, heads, d):
    """The rows of heads, (B, heads, d), that begin at this number."""
    return rows_of(of_all, start, start + B * heads * d).reshape(B, heads, d)


@inside
def convolve_heads(X, first, theta, bias, tail, after):
    """x ← swish(Σ_s θ_s ⊙ x_{t−τ+1+s} + b) for the heads of X (B, heads, d), in place: those from `first` on of all.

    The τ − 1 rows before x are in `tail` (B, all heads, τ − 1, d), and those before the next token come into `after`.
    """
    one, base, last = X.dtype.type(1), X.dtype.type(-LOG2E), theta.shape[1] - 1
    for b in range(len(X)):
        for h in range(X.shape[1]):
            x, weights, past, sums = X[b, h], theta[first + h], tail[b, first + h], np.zeros(X.shape[2], X.dtype)
            for s in range(last):
                for c in range(len(x)):
                    sums[c] += weights[s, c] * past[s, c]
                    after[b, first + h, s, c] = past[s + 1, c] if s + 1 < last else x[c]
            for c in range(len(x)):
                y = sums[c] + weights[last, c] * x[c]
                if len(bias) > 0:
                    y += bias[first + h, c]
                x[c] = y * sigma(y, one, base)


@compiled
def through_memories(
    X, rows, cores, way, numbers, S, beside, S_after, beside_after,
    d, cos, sin, position, interleaved, hidden, eps, centre, kind, gate, text, chances, flags, room, out, queue,
):  # fmt: skip
    """Fill `out` with X (B, D) after all blocks. Their cores have memories: S (blocks, B·H, r, d), and `beside` it z or rows
    that were before. With a `text` this goes on, each time with the next token.

    way      heads of values, and of keys; the features, or −1 for a memory with gates. Then of such a one: columns of its logits
             for a head, the gate behind it or −1; and whether that comes before the norm, whether the speed is learned, and steps
    numbers  of each token, or of all: a and b of the features, or those of `WriteAndRead`; at 4 the ε of the norm, at 5 the least
             denominator
    S_after, beside_after   room for what is left of each token, which those after the next ones may take again
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    B, H, G, kind_of_features, w, opens = len(X), way[0], way[1], way[2], way[3], way[4]
    to_q, to_k, to_streams = B * H * d, B * (H + G) * d, B * (H + 2 * G) * d
    writes = 1 if kind_of_features < 0 and numbers[0, 2] > 0 else 0
    to_x, to_gate = to_streams + B * H * writes, to_streams + B * H * (writes + w)
    for t in range(steps_of(text)):
        own = numbers[t % len(numbers)]
        S_next, beside_next = S_after[t % len(S_after)], beside_after[t % len(beside_after)]
        for n in range(len(rows)):
            of_all = projections(X, rows[n], cos, sin, position + t, interleaved, eps, centre, shared)
            core = cores[n]
            V, Q, K = of_heads(of_all, 0, B, H, d), of_heads(of_all, to_q, B, G, d), of_heads(of_all, to_k, B, G, d)
            if kind_of_features < 0:
                theta, bias = learned(core, THETA, X), learned(core, BIAS, X)[0]
                if theta.size > 0:
                    shape = B, H + 2 * G, theta.shape[1] - 1, d
                    past, after = beside[n].reshape(shape), beside_next[n].reshape(shape)
                    convolve_heads(Q, 0, theta, bias, past, after)
                    convolve_heads(K, G, theta, bias, past, after)
                    convolve_heads(V, 2 * G, theta, bias, past, after)
            write, x = of_heads(of_all, to_streams, B, H, writes), of_heads(of_all, to_x, B, H, w)
            queries, keys, values = Q.reshape(B * G, d), K.reshape(B * G, d), V.reshape(B * H, 1, d)
            Y = room_for(shared, V.size).reshape(B * H, 1, d)
            for half in halves_of_next(shared):
                start, stop = half * len(Y) // 2, (half + 1) * len(Y) // 2
                if kind_of_features >= 0:
                    z, z_after = beside[n].reshape(S[n].shape[:2]), beside_next[n].reshape(S[n].shape[:2])
                    sum_one(
                        *(queries, keys, values, learned(core, DIRECTIONS, X), S[n], z, kind_of_features),
                        *(own[0], own[1], own[5], start, stop, S_next[n], z_after, Y),
                    )
                else:
                    write_one(
                        *(Q, K, V, write, x, learned(core, SPEED, X)[0, 0], learned(core, SHIFT, X)[0, 0]),
                        *(learned(core, WIDE, X)[0], S[n], own[0], own[1], own[2], own[3]),
                        *(way[6] > 0, way[7] > 0, start, stop, S_next[n], Y),
                    )
            Y = Y.copy()
            if kind_of_features < 0 and opens >= 0:
                gain, skip = learned(core, GAIN, X)[0, 0], learned(core, SKIP, X)[0, 0]
                opener, heads = of_heads(of_all, to_gate, B, H, d), Y.reshape(B, H, d)
                Y = finish_one(heads, V, opener, gain, skip, own[4], opens, way[5] > 0).reshape(B * H, 1, d)
            X = after_mixing(X, Y.reshape(B, H * d), rows[n], hidden, eps, centre, kind, gate, shared)
        S, beside = S_next, beside_next
        if len(text) > 0:
            X = row_of_next(X, text, chances, t, eps, centre, shared)
            if text[DRAWN + t] < 0:
                break
    give(X, shared, queue, out)
