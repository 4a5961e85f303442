"""One new token through all blocks, as in generation. For each of them:

    z = LN(x);   q, k, v = z W_q + b_q,  z W_k + b_k,  z W_v + b_v        q and k normed, then turned, if they are
    K, V with one row more                                               in the room that the state has
    y = softmax(q Kᵀ/√d) V                                               head by head
    x ← x + y W_o + b_o
    x ← x + f(LN(x) W₁ + b₁) W₂ + b₂                                     or (f(LN(x) W₁ + b₁) ⊙ (LN(x) W₃ + b₃)) W₂ + b₂

Why this is fast. A token has so little arithmetic that the calls around it take longer, in NumPy as in any framework: here all
blocks are one call, with one table that says where their arrays are. (An array takes 0.3 µs to hand over; a block has 16 to 22.)
What is left is the reading of the weights. It is for usual blocks (pre-norm, dense softmax) that are alike; any other goes step
by step, to the same numbers.
"""

import ctypes
import math
from operator import is_
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from minitransformer.arrays import for_reading
from minitransformer.kernels.compiling import compiled, inlined
from minitransformer.kernels.few_queries import attend_plainly
from minitransformer.kernels.few_rows import KINDS, gated_layers, norm_rows, product, two_layers
from minitransformer.kernels.pointwise import GATES
from minitransformer.typing import Array

EPS = 1e-6  # of `rms_norm`, which makes queries and keys of length √d
KEPT = 8  # models whose parameters have been looked at


class Weights(NamedTuple):
    """The arrays of a block; zeros for a bias that is not there, and no numbers for gains and gates that are not."""

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
    g_q: Array
    g_k: Array
    W_3: Array
    b_3: Array


@intrinsic
def at(typingctx, address, like):
    """The numbers at an address, of the dtype of an array."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), code


def _at_in_python(address: int, like: Array) -> Any:
    return ctypes.cast(int(address), ctypes.POINTER(np.ctypeslib.as_ctypes_type(like.dtype)))


if numba.config.DISABLE_JIT:
    at = _at_in_python


@inlined
def vector(address, n, like):
    """The n numbers at an address."""
    return carray(at(address, like), (n,))


@inlined
def matrix(address, rows, columns, like):
    """The rows × columns numbers at an address."""
    return carray(at(address, like), (rows, columns))


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
def through_block(X, w, K, V, m, cos, sin, interleaved, eps, centre, normed, scale, kind, gate):
    """One row of each sample through the block, X (B, D); its key and its value become row m − 1 of K and V (B, G, room, d)."""
    Z, d = norm_rows(X, w.gamma, w.beta, eps, centre), K.shape[3]
    Q, k = product(Z, w.W_q, w.b_q), product(Z, w.W_k, w.b_k)
    if normed:
        zeros = np.zeros(d, X.dtype)
        Q = norm_rows(Q.reshape(-1, d), w.g_q, zeros, EPS, False).reshape(Q.shape)
        k = norm_rows(k.reshape(-1, d), w.g_k, zeros, EPS, False).reshape(k.shape)
    if len(cos) > 0:
        turn_rows(Q, d, cos, sin, interleaved)
        turn_rows(k, d, cos, sin, interleaved)
    put_row(K, k, m - 1)
    put_row(V, product(Z, w.W_v, w.b_v), m - 1)
    heads, groups = Q.size // d, K.shape[0] * K.shape[1]
    keys, values = K.reshape(groups, K.shape[2], d), V.reshape(groups, K.shape[2], d)
    Y = attend_plainly(Q.reshape(heads, 1, d), keys, values, m, scale)
    Z = X + product(Y.reshape(len(X), Q.shape[1]), w.W_o, w.b_o)
    F = norm_rows(Z, w.gamma_2, w.beta_2, eps, centre)
    if gate >= 0:
        return Z + gated_layers(F, w.W_1, w.b_1, w.W_3, w.b_3, w.W_2, w.b_2, gate)
    return Z + two_layers(F, w.W_1, w.b_1, w.W_2, w.b_2, kind)


@compiled
def through_blocks(X, table, G, d, hidden, m, cos, sin, interleaved, eps, centre, normed, scale, kind, gate):
    """One row of each sample through all blocks, (B, D); a row of the table says where a block has its arrays, and its room."""
    D, kv, gains, beside = X.shape[1], G * d, d if normed else 0, hidden if gate >= 0 else 0
    for a in table:
        w = Weights(
            *(vector(a[0], D, X), vector(a[1], D, X)),
            *(matrix(a[2], D, D, X), vector(a[3], D, X)),
            *(matrix(a[4], D, kv, X), vector(a[5], kv, X)),
            *(matrix(a[6], D, kv, X), vector(a[7], kv, X)),
            *(matrix(a[8], D, D, X), vector(a[9], D, X)),
            *(vector(a[10], D, X), vector(a[11], D, X)),
            *(matrix(a[12], D, hidden, X), vector(a[13], hidden, X)),
            *(matrix(a[14], hidden, D, X), vector(a[15], D, X)),
            *(vector(a[16], gains, X), vector(a[17], gains, X)),
            *(matrix(a[18], D, beside, X), vector(a[19], beside, X)),
        )
        K, V = carray(at(a[20], X), (len(X), G, a[22], d)), carray(at(a[21], X), (len(X), G, a[22], d))
        X = through_block(X, w, K, V, m, cos, sin, interleaved, eps, centre, normed, scale, kind, gate)
    return X


class Known:
    """The parameters of some blocks, looked at once; and where all arrays are, with the keys and values of the last call."""

    def __init__(self, params: tuple[Any, ...], D: int, kv: int, hidden: int, d: int) -> None:
        self.params, self.dtype = params, params[0].attention.W_q.dtype
        found = [_weights(own, D, kv, hidden, d, self.dtype) for own in params]
        self.weights = [own for own in found if own is not None]
        self.last: tuple[Any, list[Array], Array] = None, [], np.empty((0, 0), np.int64)
        self.no_angles = np.empty(0, self.dtype)

    def table(self, states: tuple[Any, ...], shape: tuple[int, ...], m: int) -> Array | None:
        """A row for each block; None if something is not of this dtype, row by row, or keys and values are not (*batch, G, m, d).

        shape    (*batch, G, d)
        """
        buffers: list[Array] = []
        for state in states:
            buffers += state.K, state.V
            if state.length != m:
                return None
        before, same, table = self.last
        if shape != before or not all(map(is_, buffers, same)):
            fits = all(
                (*M.shape[:-2], M.shape[-1]) == shape and M.dtype == self.dtype and M.flags.carray for M in buffers
            )
            rooms = all(state.K.shape == state.V.shape for state in states)
            if len(self.weights) < len(states) or not fits or not rooms:
                return None
            of_blocks = zip(self.weights, states, strict=True)
            rows = [[*(A.ctypes.data for A in (*w, s.K, s.V)), s.K.shape[-2]] for w, s in of_blocks]
            table = np.array(rows, np.int64)
            self.last = shape, buffers, table
        return table


_looked_at: dict[tuple[int, ...], Known] = {}


def known(params: tuple[Any, ...], D: int, kv: int, hidden: int, d: int) -> Known:
    """What is known of these parameters, of blocks of this form. They are kept, so nothing else can have their ids."""
    key = D, kv, hidden, d, *map(id, params)
    if (found := _looked_at.get(key)) is None:
        if len(_looked_at) >= KEPT:
            _looked_at.clear()
        found = _looked_at[key] = Known(params, D, kv, hidden, d)
    return found


def _weights(params: Any, D: int, kv: int, hidden: int, d: int, dtype: Any) -> Weights | None:
    a, f, norms = params.attention, params.ffn, (params.attention_norm, params.ffn_norm)
    gated, gains = hasattr(f, "U_2"), a.gains or (None, None)
    arrays = {
        **{"gamma": norms[0].gamma, "beta": norms[0].beta, "gamma_2": norms[1].gamma, "beta_2": norms[1].beta},
        **{name: getattr(a, name) for name in ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v", "W_o", "b_o")},
        **dict(
            zip(("W_1", "b_1", "W_3", "b_3", "W_2", "b_2") if gated else ("W_1", "b_1", "W_2", "b_2"), f, strict=True)
        ),
        **{"g_q": gains[0], "g_k": gains[1]},
    }
    shapes = {
        **dict.fromkeys(("gamma", "beta", "gamma_2", "beta_2", "b_q", "b_o", "b_2"), (D,)),
        **dict.fromkeys(("W_q", "W_o"), (D, D)),
        **dict.fromkeys(("W_k", "W_v"), (D, kv)),
        **dict.fromkeys(("b_k", "b_v"), (kv,)),
        **{"W_1": (D, hidden), "b_1": (hidden,), "W_2": (hidden, D)},
        **({"W_3": (D, hidden), "b_3": (hidden,)} if gated else {"W_3": (D, 0), "b_3": (0,)}),
        **dict.fromkeys(("g_q", "g_k"), (0 if a.gains is None else d,)),
    }
    whole = {
        name: np.zeros(shape, dtype) if arrays.get(name) is None else arrays[name] for name, shape in shapes.items()
    }
    fits = all(X.shape == shapes[name] and X.dtype == dtype and X.flags.carray for name, X in whole.items())
    return Weights(**whole) if fits else None


def one_token(block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...]) -> tuple[Array, Any] | None:
    """`Block.step` of usual blocks, all like this one, one after another, for one token of each sample, X (*batch, 1, D).

    The states are those of softmax attention: keys and values, with room for one more. None for what has to go step by step.
    """
    attention, ffn, norm = block.attention, block.ffn, block._norm
    d, D, G, m = block.width // attention.heads, block.width, attention._groups, states[0].length + 1
    found, gate = known(params, D, G * d, ffn.hidden, d), getattr(ffn, "gate", None)
    if X.dtype != found.dtype or ((gate or ffn.activation) == "gelu" and X.dtype != np.float32):
        return None
    states = tuple([state.with_room(1) for state in states])
    table = found.table(states, (*X.shape[:-2], G, d), m)
    if table is None:
        return None
    rows, cos, sin, interleaved = X.reshape(-1, D), found.no_angles, found.no_angles, True
    if attention.rotate is not None:
        cos, sin, interleaved = attention.rotate.angles_of(m - 1, X.dtype)
        cos, sin = for_reading(cos), for_reading(sin)
    Y = through_blocks(
        *(rows, table, G, d, ffn.hidden, m, cos, sin, interleaved),
        *(norm.eps, norm.kind == "layer", attention.core.norm is not None, 1 / math.sqrt(d)),
        *((KINDS[ffn.activation], -1) if gate is None else (-1, GATES[gate])),
    )
    return Y.reshape(X.shape), states
