"""One new token through a whole block, as in generation.

    z = LN(x);   q, k, v = z W_q + b_q,  z W_k + b_k,  z W_v + b_v        q and k turned, where positions turn them
    K, V with one row more                                               in the room that the state has
    y = softmax(q Kᵀ/√d) V                                               head by head
    x ← x + y W_o + b_o
    x ← x + f(LN(x) W₁ + b₁) W₂ + b₂

Why this is fast. A token has so little arithmetic that the calls around it take longer, in NumPy as in any framework: here a
block is one call. It is for the usual block (pre-norm, dense softmax); any other goes step by step, to the same numbers.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from minitransformer.kernels.compiling import compiled
from minitransformer.kernels.few_queries import attend_plainly
from minitransformer.kernels.few_rows import KINDS, norm_rows, product, two_layers
from minitransformer.typing import Array

KEPT = 64  # blocks whose parameters have been looked at


class Weights(NamedTuple):
    """The arrays of a block, in the order in which they are used; zeros for a bias that is not there."""

    gamma: Array
    beta: Array
    W_q: Array
    b_q: Array
    W_k: Array
    b_k: Array
    W_v: Array
    b_v: Array
    W_o: Array
    b_o: Array
    gamma_2: Array
    beta_2: Array
    W_1: Array
    b_1: Array
    W_2: Array
    b_2: Array


@compiled
def turn_rows(X, d, cos, sin, interleaved):
    """Each head of each row, d numbers, turned pair by pair."""
    pairs = len(cos)
    for i in range(len(X)):
        for h in range(0, X.shape[1], d):
            x = X[i, h : h + d]
            for f in range(pairs):
                a, b = (2 * f, 2 * f + 1) if interleaved else (f, pairs + f)
                first, second = x[a], x[b]
                x[a] = first * cos[f] - second * sin[f]
                x[b] = first * sin[f] + second * cos[f]


@compiled
def put_row(X, rows, m):
    """rows (B, G·d) as row m of X (B, G, room, d)."""
    d = X.shape[3]
    for b in range(X.shape[0]):
        for g in range(X.shape[1]):
            for c in range(d):
                X[b, g, m, c] = rows[b, g * d + c]


@compiled
def through_block(X, w, K, V, m, cos, sin, interleaved, eps, centre, scale, kind):
    """One row of each sample through the block, X (B, D); its key and its value become row m − 1 of K and V (B, G, room, d)."""
    Z, d = norm_rows(X, w.gamma, w.beta, eps, centre), K.shape[3]
    Q, k = product(Z, w.W_q, w.b_q), product(Z, w.W_k, w.b_k)
    if len(cos) > 0:
        turn_rows(Q, d, cos, sin, interleaved)
        turn_rows(k, d, cos, sin, interleaved)
    put_row(K, k, m - 1)
    put_row(V, product(Z, w.W_v, w.b_v), m - 1)
    heads, groups = Q.size // d, K.shape[0] * K.shape[1]
    keys, values = K.reshape(groups, K.shape[2], d), V.reshape(groups, K.shape[2], d)
    Y = attend_plainly(Q.reshape(heads, 1, d), keys, values, m, scale)
    Z = X + product(Y.reshape(len(X), Q.shape[1]), w.W_o, w.b_o)
    return Z + two_layers(norm_rows(Z, w.gamma_2, w.beta_2, eps, centre), w.W_1, w.b_1, w.W_2, w.b_2, kind)


_looked_at: dict[int, tuple[Any, Weights | None]] = {}


def weights_of(params: Any, D: int, kv: int, hidden: int) -> Weights | None:
    """The arrays of a block as the loop takes them, looked at once; None if one of them is not what it should be."""
    found = _looked_at.get(id(params))
    if found is None or found[0] is not params:
        if len(_looked_at) >= KEPT:
            _looked_at.clear()
        found = _looked_at[id(params)] = params, _weights(params, D, kv, hidden)
    return found[1]


def _weights(params: Any, D: int, kv: int, hidden: int) -> Weights | None:
    a, f, norms = params.attention, params.ffn, (params.attention_norm, params.ffn_norm)
    arrays = {
        **{"gamma": norms[0].gamma, "beta": norms[0].beta, "gamma_2": norms[1].gamma, "beta_2": norms[1].beta},
        **{name: getattr(a, name) for name in ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v", "W_o", "b_o")},
        **{name: getattr(f, name) for name in ("W_1", "b_1", "W_2", "b_2")},
    }
    shapes = {
        **dict.fromkeys(("gamma", "beta", "gamma_2", "beta_2", "b_q", "b_o", "b_2"), (D,)),
        **dict.fromkeys(("W_q", "W_o"), (D, D)),
        **dict.fromkeys(("W_k", "W_v"), (D, kv)),
        **dict.fromkeys(("b_k", "b_v"), (kv,)),
        **{"W_1": (D, hidden), "b_1": (hidden,), "W_2": (hidden, D)},
    }
    dtype = a.W_q.dtype
    whole = {name: np.zeros(shapes[name], dtype) if X is None else X for name, X in arrays.items()}
    fits = all(X.shape == shapes[name] and X.dtype == dtype and X.flags.carray for name, X in whole.items())
    return Weights(**whole) if fits else None


def block_step(block: Any, params: Any, X: Array, state: Any) -> tuple[Array, Any] | None:
    """`Block.step` of a usual block, for one token of each sample, X (*batch, 1, D); None for what has to go step by step.

    The state is that of softmax attention: keys and values, with room for one more.
    """
    attention, ffn, norm = block.attention, block.ffn, block._norm
    d, D = block.width // attention.heads, block.width
    w = weights_of(params, D, attention._groups * d, ffn.hidden)
    if w is None or X.dtype != w.W_q.dtype or (ffn.activation == "gelu" and X.dtype != np.float32):
        return None
    state = state.with_room(1)
    if state.K.dtype != X.dtype or state.K.shape != (*X.shape[:-2], attention._groups, state.K.shape[-2], d):
        return None
    m, cos, sin, interleaved = state.length, w.gamma[:0], w.gamma[:0], True
    if attention.rotate is not None:
        cos, sin, interleaved = attention.rotate.angles_of(m - 1, X.dtype)
    room = state.K.shape[-2]
    K, V = (M.reshape(math.prod(X.shape[:-2]), attention._groups, room, d) for M in (state.K, state.V))
    scale, centre = 1 / math.sqrt(d), norm.kind == "layer"
    Y = through_block(
        X.reshape(-1, D), w, K, V, m, cos, sin, interleaved, norm.eps, centre, scale, KINDS[ffn.activation]
    )
    return Y.reshape(X.shape), state
