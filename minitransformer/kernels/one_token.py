"""One new token through a block, as in generation:

    before    z = LN(x);   q, k, v, … = z W + b                    then q and k are normed and turned, in a model that does so
    core      y = what the core, or another mixer, makes of them and of the past
    behind    x ← x + y W_o + b_o                               or x + y + b_o, where there is no W_o
              x ← x + f(LN(x) W₁ + b₁) W₂ + b₂                     or (f(LN(x) W₁ + b₁) ⊙ (LN(x) W₃ + b₃)) W₂ + b₂

For softmax attention, dense or to the keys of a pattern, the core is here too, and all blocks are one call: K and V get one row
more, in the room that the state has, and y = softmax(q Kᵀ/√d) V, head by head.

Why this is fast. A token has so little arithmetic that the calls around it take longer, in NumPy as in any framework: here a
block is two calls and its core's step, with one row of a table that says where its arrays are. (An array takes 0.3 µs to hand
over; a block has 16 to 30.) What is left is the reading of the weights. These loops are for pre-norm blocks whose attention says
what its projections are, with heads or without (attention/projected.py); any other goes part by part, and gives the same numbers.
"""

import ctypes
import math
from operator import is_
from typing import Any

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from minitransformer.arrays import FEW, for_reading
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.few_queries import attend_to_seen
from minitransformer.kernels.few_rows import KINDS, gated_layers, norm_rows, product, two_layers
from minitransformer.kernels.pointwise import GATES
from minitransformer.kernels.tiles import put
from minitransformer.typing import Array

EPS = 1e-6  # of `rms_norm`, which makes queries and keys of length √d
EVERY_KEY = np.empty((1, 0), np.bool_)
KEPT = 128  # blocks whose addresses are remembered, at most

# A row says where the arrays of a block are. First the addresses of these twelve; W₃ and b₃ may be empty. Then five numbers for
# each projection: the addresses of W, of b and of the gain, 0 for no gain; how many columns it has; and 1 if it is turned, or 0.
GAMMA, BETA, GAMMA_2, BETA_2, W_O, B_O, W_1, B_1, W_3, B_3, W_2, B_2, FIRST = range(13)
EACH = 5


@intrinsic
def at(typingctx, address, like):
    """A pointer to the numbers at an address, of the dtype of the array `like`."""

    def code(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like.dtype)(types.int64, like), code


def _at_in_python(address: int, like: Array) -> Any:
    return ctypes.cast(int(address), ctypes.POINTER(np.ctypeslib.as_ctypes_type(like.dtype)))


if numba.config.DISABLE_JIT:
    at = _at_in_python


@inlined
def vector(address, n, like):
    """The array of n numbers at an address, of the dtype of `like`."""
    return carray(at(address, like), (n,))


@inlined
def matrix(address, rows, columns, like):
    """The array of rows × columns numbers at an address, of the dtype of `like`."""
    return carray(at(address, like), (rows, columns))


@inside
def turn_rows(X, d, cos, sin, interleaved):
    """Turn each head of each row, d numbers, in place: pair f by the angle with cos[f] and sin[f]."""
    pairs = len(cos)
    for i in range(len(X)):
        for h in range(0, X.shape[1], d):
            x = X[i, h : h + d]
            for f in range(pairs):
                a, b = (2 * f, 2 * f + 1) if interleaved else (f, pairs + f)
                first, second = x[a], x[b]
                x[a] = first * cos[f] - second * sin[f]
                x[b] = first * sin[f] + second * cos[f]


@inside
def put_row(X, rows, m):
    """Write rows (B, G·d) to row m of X (B, G, room, d)."""
    d = X.shape[3]
    for b in range(X.shape[0]):
        for g in range(X.shape[1]):
            for c in range(d):
                X[b, g, m, c] = rows[b, g * d + c]


@compiled
def before(X, row, d, cos, sin, position, interleaved, eps, centre):
    """LN(X) W + b of all projections, normed and turned as `row` says: (B, columns) each, one behind the other in one array."""
    B, D = X.shape
    Z, start = norm_rows(X, vector(row[GAMMA], D, X), vector(row[BETA], D, X), eps, centre), 0
    of_all = np.empty(B * row[FIRST + 3 :: EACH].sum(), X.dtype)
    for p in range(FIRST, len(row), EACH):
        W, b, gain, columns, turned = row[p : p + EACH]
        Y = of_all[start : start + B * columns].reshape(B, columns)
        put(product(Z, matrix(W, D, columns, X), vector(b, columns, X)), Y)
        if gain != 0:
            heads = Y.reshape(-1, d)
            put(norm_rows(heads, vector(gain, d, X), np.zeros(d, X.dtype), EPS, False), heads)
        if turned:
            turn_rows(Y, d, cos[position], sin[position], interleaved)
        start += B * columns
    return of_all


@compiled
def behind(X, Y, row, hidden, eps, centre, kind, gate):
    """Z = X + Y W_o + b_o, Y (B, H·dv), and then Z + the feed-forward network of LN(Z); no gate is −1. W_o may be missing."""
    D, b_o = X.shape[1], vector(row[B_O], X.shape[1], X)
    Z = X + (Y + b_o if row[W_O] == 0 else product(Y, matrix(row[W_O], Y.shape[1], D, X), b_o))
    F = norm_rows(Z, vector(row[GAMMA_2], D, X), vector(row[BETA_2], D, X), eps, centre)
    first = matrix(row[W_1], D, hidden, X), vector(row[B_1], hidden, X)
    last = matrix(row[W_2], hidden, D, X), vector(row[B_2], D, X)
    if gate < 0:
        return Z + two_layers(F, *first, *last, kind)
    return Z + gated_layers(F, *first, matrix(row[W_3], D, hidden, X), vector(row[B_3], hidden, X), *last, gate)


@compiled
def through_blocks(
    X, rows, rooms, mask, first, end, G, d, cos, sin, position, interleaved, hidden, eps, centre, scale, kind, gate
):
    """X (B, D) through all blocks; `rooms` has for each block the addresses of K and V, and how many rows fit there.

    Row end − 1 of K and V is filled; the keys first … end − 1 are those that the mask of `attend_to_seen` is for.
    """
    B, columns = len(X), len(X) * G * d
    for b in range(len(rows)):
        room, of_all = rooms[b], before(X, rows[b], d, cos, sin, position, interleaved, eps, centre)
        K, V = carray(at(room[0], X), (B, G, room[2], d)), carray(at(room[1], X), (B, G, room[2], d))
        put_row(V, of_all[:columns].reshape(B, G * d), end - 1)
        put_row(K, of_all[len(of_all) - columns :].reshape(B, G * d), end - 1)
        Q = of_all[columns : len(of_all) - columns].reshape(-1, 1, d)
        Y = attend_to_seen(Q, K.reshape(B * G, room[2], d), V.reshape(B * G, room[2], d), mask, first, end, scale)
        X = behind(X, Y.reshape(B, Y.size // B), rows[b], hidden, eps, centre, kind, gate)
    return X


# ------------------------------------------------------------------------------------- what is known of the arrays


class Known:
    """Blocks of one form with their parameters: where all arrays are, and the keys and values of the last call.

    rows   (blocks, numbers), as said above; None if any array has another shape or dtype than it should, or is not contiguous
    """

    def __init__(self, block: Any, params: tuple[Any, ...]) -> None:
        self.block, self.params = block, params
        self.projections = block.attention.projections(params[0].attention)
        self.dtype, columns = self.projections[0].W.dtype, max(p.columns for p in self.projections)
        self.zeros = np.zeros(max(block.width, block.ffn.hidden, columns), self.dtype)
        found = [self._row(own) for own in params]
        self.rows: Any = None if None in found else np.array(found, np.int64)
        self.cos = self.sin = np.empty((0, 0), self.dtype)
        self.last: tuple[Any, list[Array], Array] = None, [], np.empty((0, 0), np.int64)

    def _row(self, params: Any) -> list[int] | None:
        D, hidden, attention = self.block.width, self.block.ffn.hidden, params.attention
        W_1, b_1, *beside, W_2, b_2 = params.ffn
        W_3, b_3 = beside or (self.zeros[:0], self.zeros[:0])
        fixed: list[tuple[Any, tuple[int, ...]]] = [
            (X, (D,)) for norm in (params.attention_norm, params.ffn_norm) for X in norm
        ]
        W_o, b_o = self.block.attention._output(attention)
        fixed += [(W_1, (D, hidden)), (b_1, (hidden,))]
        fixed += [(W_3, (D, hidden)), (b_3, (hidden,))] if beside else [(W_3, (0,)), (b_3, (0,))]
        fixed += [(W_2, (hidden, D)), (b_2, (D,))]
        places = [self._place(*one) for one in fixed]
        last = 0 if W_o is None else self._place(W_o, (self.block.attention.mixed, D))
        places[W_O:W_O] = last, self._place(b_o, (D,))
        for p in self.block.attention.projections(attention):
            gain = 0 if p.gain is None else self._place(p.gain, (p.width,))
            places += [self._place(p.W, (D, p.columns)), self._place(p.b, (p.columns,)), gain, p.columns, int(p.turned)]
        return None if None in places else places  # type: ignore[return-value]

    def _place(self, X: Array | None, shape: tuple[int, ...]) -> int | None:
        """Address of X, or of zeros for a bias that is None; None if X has another shape or dtype, or is not contiguous."""
        if X is None and len(shape) == 1:
            X = self.zeros[: shape[0]]
        return (
            X.ctypes.data if X is not None and X.shape == shape and X.dtype == self.dtype and X.flags.carray else None
        )

    def angles(self, position: int) -> tuple[Array, Array, int, bool]:
        """cos and sin (positions, pairs), up to this position at least; the position; whether pairs are interleaved."""
        rotate = self.block.attention.rotate
        if rotate is not None and position >= len(self.cos):
            self.cos, self.sin = map(for_reading, rotate.table(position + 1, self.dtype))
        return self.cos, self.sin, position, rotate is not None and rotate.layout == "interleaved"

    def rooms(self, states: tuple[Any, ...], shape: tuple[int, ...]) -> Array | None:
        """For each block the addresses of K and V, and how many rows they have room for; None if the states don't fit.

        shape    (*batch, G, d), which K and V (*batch, G, room, d) should have without their rows
        The states should all have one length, and as many rows.
        """
        buffers: list[Array] = []
        for state in states:
            buffers += state.K, state.V
            if (state.length, state.end) != (states[0].length, states[0].end):
                return None
        before, same, rooms = self.last
        if shape != before or not all(map(is_, buffers, same)):
            fits = all(
                (*M.shape[:-2], M.shape[-1]) == shape and M.dtype == self.dtype and M.flags.carray for M in buffers
            )
            if not fits or any(state.K.shape != state.V.shape for state in states):
                return None
            rooms = np.array([[s.K.ctypes.data, s.V.ctypes.data, s.K.shape[-2]] for s in states], np.int64)
            self.last = shape, buffers, rooms
        return rooms


_looked_at: dict[tuple[int, ...], Known] = {}


def known(block: Any, params: tuple[Any, ...]) -> Known:
    """The `Known` of these blocks, made once. It is found by ids, and holds the objects, so that no others get these ids.

    The streams of a core stand in a dict, whose arrays a reader may have replaced: their ids have to be the same, too.
    """
    streams = [s for own in params for s in (getattr(own.attention, "streams", None) or {}).values()]
    key = id(block), *map(id, params), *(id(X) for s in streams for X in s)
    if (found := _looked_at.get(key)) is None:
        while _looked_at and sum(len(one.params) for one in list(_looked_at.values())) + len(params) > KEPT:
            _looked_at.pop(next(iter(_looked_at)), None)
        found = _looked_at[key] = Known(block, params)
    return found


# ------------------------------------------------------------------------------------- the calls


def _known_for(block: Any, params: tuple[Any, ...], X: Array) -> Known | None:
    """The `Known` of these blocks, if the loops can take X, one token of each sample, through them; else None."""
    ffn, found = block.ffn, known(block, params)
    exact = getattr(ffn, "gate", None) or ffn.activation  # GELU of float64 is for NumPy
    fits = X.dtype == found.dtype and X.shape[-1] == block.width and (exact != "gelu" or X.dtype == np.float32)
    return found if fits and found.rows is not None else None


def _network(block: Any) -> tuple[Any, ...]:
    """(ε, whether it is layer norm, activation, gate), as numbers for the loops; −1 for what the network does not have."""
    norm, gate = block._norm, getattr(block.ffn, "gate", None)
    return norm.eps, norm.kind == "layer", *((KINDS[block.ffn.activation], -1) if gate is None else (-1, GATES[gate]))


def _seen(core: Any, end: int, m: int) -> tuple[Array, int]:
    """The mask of `attend_to_seen` for the last of m positions, and its first key, among the `end` rows of a state."""
    seen = slice(0, end) if core.pattern is None else core.pattern.last_rows(1, end, m)
    return (EVERY_KEY, seen.start) if isinstance(seen, slice) else (for_reading(seen.reshape(-1, end)), 0)


def one_token(block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...]) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each sample, X (*batch, 1, D); None if it can't be.

    The states are those of softmax attention: keys and values, all or those that its pattern sees; they get one row more.
    """
    attention = block.attention
    if (found := _known_for(block, params, X)) is None:
        return None
    d, G = attention.d, attention._groups
    states = tuple([state.with_room(1) for state in states])
    rooms = found.rooms(states, (*X.shape[:-2], G, d))
    if rooms is None:
        return None
    (m, end), (eps, centre, kind, gate) = (states[0].length, states[0].end), _network(block)
    Y = through_blocks(
        *(X.reshape(-1, block.width), found.rows, rooms, *_seen(attention.core, end, m), end),
        *(G, d, *found.angles(m - 1), block.ffn.hidden, eps, centre, 1 / math.sqrt(d), kind, gate),
    )
    return Y.reshape(X.shape), states


def around_core(block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...]) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each of a few samples, whatever their core is.

    Each block is two calls around its core; None if they can't be.
    """
    batch, found = X.shape[:-2], _known_for(block, params, X)
    lengths = {0 if state is None else state.length for state in states}
    if found is None or len(rows := X.reshape(-1, block.width)) > FEW or len(lengths) > 1:
        return None
    attention, hidden, (eps, centre, kind, gate) = block.attention, block.ffn.hidden, _network(block)
    angles, places, longer = found.angles(lengths.pop()), [], []
    for p in found.projections:
        start, axes = places[-1][1] if places else 0, () if p.heads is None else (p.heads,)
        places.append((start, start + len(rows) * p.columns, (*batch, *axes, 1, p.width)))
    for own, row, state in zip(params, found.rows, states, strict=True):
        of_all = before(rows, row, found.projections[0].width, *angles, eps, centre)
        arrays = [of_all[start:stop].reshape(shape) for start, stop, shape in places]
        Y, state = attention._go_on(own.attention, arrays, state)
        rows = behind(rows, for_reading(Y.reshape(len(rows), attention.mixed)), row, hidden, eps, centre, kind, gate)
        longer.append(state)
    return rows.reshape(X.shape), tuple(longer)
