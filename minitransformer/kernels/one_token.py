"""One new token through a block, as in generation:

    before    z = LN(x);   q, k, v, … = z W + b                    then q and k are normed and turned, in a model that does so
    core      y = what the core, or another mixer, makes of them and of the past
    behind    x ← x + y W_o + b_o                               or x + y + b_o, where there is no W_o
              x ← x + f(LN(x) W₁ + b₁) W₂ + b₂                     or (f(LN(x) W₁ + b₁) ⊙ (LN(x) W₃ + b₃)) W₂ + b₂

Two kinds of core are here too, and all blocks are one call:

    softmax attention    dense, or to the keys of a pattern: K and V get one row more, in the room that the state has, and
                         y = softmax(q Kᵀ/√d) V, head by head
    memories             sums of features, or a matrix that fades and is corrected (step.py): the states of all blocks are slices
                         of one array, and the next ones of a new array

Why this is fast. A token has so little arithmetic that the calls around it take longer, in NumPy as in any framework: here
they are one for all blocks, with tables that say where arrays are. (An array takes 0.3 µs to hand over; a block has 16 to 30.)
What is left is the reading of the weights, and two threads share it if there are many. Both go through all steps, but of each
product, and of the heads of attention, a thread computes one half and takes the other half from the other thread. So a core
reads the same half of the weights for every token, and may find it in its own cache.

Between any other core and the next there is one call: what is behind the one and before the other. All this is for pre-norm
blocks whose attention says what its projections are, with heads or without (attention/projected.py); any other goes part by
part, and gives the same numbers.
"""

import ctypes
import math
from itertools import chain, repeat
from operator import is_
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from minitransformer.arrays import FEW, for_reading, scale_for
from minitransformer.kernels.compiling import compiled, inlined, inside
from minitransformer.kernels.exp2 import LOG2E
from minitransformer.kernels.few_queries import attend_to_seen, in_base_2
from minitransformer.kernels.few_rows import KINDS, add_rows, norm_rows
from minitransformer.kernels.pointwise import GATES, activate_some, open_gate, sigma
from minitransformer.kernels.step import FEATURES, LEAST, SMALL, finish_one, number_of, sum_one, write_one
from minitransformer.kernels.threads import LINE, LOOKS, claim, halves, in_parallel, watch
from minitransformer.kernels.tiles import put, rows_of
from minitransformer.typing import Array

EPS = 1e-6  # of `rms_norm`, which makes queries and keys of length √d
EVERY_KEY = np.empty((1, 0), np.bool_)
MANY = 2**19  # weights; to call a second thread for fewer takes longer than to read them
KEPT = 128  # blocks whose addresses are remembered, at most

# A row says where the arrays of a block are. First the addresses of these twelve; W₃ and b₃ may be empty. Then six numbers for
# each projection: the addresses of W, of b and of the gain, 0 for no gain; how many columns it has; how many of them are one row
# that is normed or turned; and 1 if it is turned, or 0.
GAMMA, BETA, GAMMA_2, BETA_2, W_O, B_O, W_1, B_1, W_3, B_3, W_2, B_2, FIRST = range(13)
EACH = 6


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


# Two threads share the flags of `halves`, and room for what each step gives. Beside them goes what each of them knows for itself:
# its number, 0 or 1, which step is next, and where in the room that one begins.
ME, STEP, START = range(3)


@inlined
def one_of_two(flags, room, queue):
    """What a thread needs for its part of the work. Its number is above 1 if it comes too late."""
    return flags, room, np.array([claim(queue), 0, 0])


@inlined
def give(X, shared, queue, out):
    """Fill `out` with X, as thread 0. That is the caller, unless a helper was first; thread 1 leaves after it, see `leave`."""
    if shared[2][ME] == 0:
        put(X, out)
    else:
        watch(queue[2:], LOOKS // 10)


@inlined
def halves_of_next(shared):
    """The halves of the next step that this thread takes."""
    flags, _, own = shared
    own[STEP] += 1
    return halves(flags, own[ME], own[STEP] - 1)


@inside
def room_for(shared, size):
    """Room for what the next step gives, `size` numbers."""
    _, room, own = shared
    own[START] += size
    return rows_of(room, own[START] - size, own[START])


@inlined
def fill_half(X, W, half, Y):
    """Fill Y with one half of the terms of X W."""
    middle = len(W) // 2
    for i in range(len(Y)):
        for c in range(Y.shape[1]):
            Y[i, c] = 0
    add_rows(X, W, half * middle, len(W) if half else middle, Y)


@inside
def sum_of_halves(Y, b):
    """Y₀ + Y₁ + b, of Y (2, rows, columns)."""
    total = np.empty(Y.shape[1:], Y.dtype)
    for i in range(len(total)):
        for c in range(len(b)):
            total[i, c] = (Y[0, i, c] + Y[1, i, c]) + b[c]
    return total


@inside
def product(X, W, b, shared):
    """X W + b."""
    Y = room_for(shared, 2 * len(X) * W.shape[1]).reshape(2, len(X), W.shape[1])
    for half in halves_of_next(shared):
        fill_half(X, W, half, Y[half])
    return sum_of_halves(Y, b)


@inside
def projections(X, row, cos, sin, position, interleaved, eps, centre, shared):
    """LN(X) W + b of all projections, normed and turned as `row` says: (B, columns) each, one behind the other in one array."""
    B, D = X.shape
    Z = norm_rows(X, vector(row[GAMMA], D, X), vector(row[BETA], D, X), eps, centre)
    of_all = np.empty(B * row[FIRST + 3 :: EACH].sum(), X.dtype)
    room, start = room_for(shared, 2 * len(of_all)), 0
    for half in halves_of_next(shared):
        start = 0
        for p in range(FIRST, len(row), EACH):
            W, columns = row[p], row[p + 3]
            Y = rows_of(room, 2 * start, 2 * (start + B * columns)).reshape(2, B, columns)
            fill_half(Z, matrix(W, D, columns, X), half, Y[half])
            start += B * columns
    start = 0
    for p in range(FIRST, len(row), EACH):
        b, gain, columns, d, turned = row[p + 1], row[p + 2], row[p + 3], row[p + 4], row[p + 5]
        halves_of_it = rows_of(room, 2 * start, 2 * (start + B * columns)).reshape(2, B, columns)
        Y = rows_of(of_all, start, start + B * columns).reshape(B, columns)
        put(sum_of_halves(halves_of_it, vector(b, columns, X)), Y)
        if gain != 0:
            heads = Y.reshape(-1, d)
            put(norm_rows(heads, vector(gain, d, X), np.zeros(d, X.dtype), EPS, False), heads)
        if turned:
            turn_rows(Y, d, cos[position], sin[position], interleaved)
        start += B * columns
    return of_all


@inside
def feed_forward(X, row, hidden, kind, gate, shared):
    """f(X W₁ + b₁) W₂ + b₂, or (f(X W₁ + b₁) ⊙ (X W₃ + b₃)) W₂ + b₂; no gate is −1."""
    D = X.shape[1]
    F = product(X, matrix(row[W_1], D, hidden, X), vector(row[B_1], hidden, X), shared)
    f = F.reshape(-1)
    if gate < 0:
        activate_some(kind, f, f)
    else:
        G = product(X, matrix(row[W_3], D, hidden, X), vector(row[B_3], hidden, X), shared)
        open_gate(gate, f, G.reshape(-1), f)
    return product(F, matrix(row[W_2], hidden, D, X), vector(row[B_2], D, X), shared)


@inside
def after_mixing(X, Y, row, hidden, eps, centre, kind, gate, shared):
    """Z = X + Y W_o + b_o, Y (B, H·dv), and then Z + the feed-forward network of LN(Z). W_o may be missing."""
    D, b_o = X.shape[1], vector(row[B_O], X.shape[1], X)
    Z = X + (Y + b_o if row[W_O] == 0 else product(Y, matrix(row[W_O], Y.shape[1], D, X), b_o, shared))
    F = norm_rows(Z, vector(row[GAMMA_2], D, X), vector(row[BETA_2], D, X), eps, centre)
    return Z + feed_forward(F, row, hidden, kind, gate, shared)


@compiled
def around(
    X, Y, rows, b, cos, sin, position, interleaved, hidden, eps, centre, kind, gate, flags, room, out, queue
):  # fmt: skip
    """Fill `out` with the rows that block b gets, (B, D), and then with its `projections`.

    Block 0 gets X. Another one gets what X becomes in the block before it, `after_mixing`, with Y from the core there. Where b is
    the number of blocks, there are no projections any more.
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    if b > 0:
        X = after_mixing(X, Y, rows[b - 1], hidden, eps, centre, kind, gate, shared)
    if b < len(rows):
        of_all = projections(X, rows[b], cos, sin, position, interleaved, eps, centre, shared)
        if shared[2][ME] == 0:
            put(of_all.reshape(1, -1), out[X.size :].reshape(1, -1))
    give(X, shared, queue, out[: X.size].reshape(X.shape))


@compiled
def through_blocks(
    X, rows, rooms, mask, bias, sinks, cap, first, end, G, d, cos, sin, position, interleaved, hidden, eps, centre, scale,
    kind, gate, flags, room, out, queue,
):  # fmt: skip
    """Fill `out` with X (B, D) after all blocks; `rooms` has for each the addresses of K and V, and how many rows fit there.

    Row end − 1 of K and V is filled; the keys first … end − 1 are those that mask, bias and sink of `attend_to_seen` are for.
    Of bias and sinks there is one for each block, or one for all.
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    B, columns = len(X), len(X) * G * d
    for b in range(len(rows)):
        keys, values, fit = rooms[b]
        of_all = projections(X, rows[b], cos, sin, position, interleaved, eps, centre, shared)
        K, V = carray(at(keys, X), (B, G, fit, d)), carray(at(values, X), (B, G, fit, d))
        put_row(V, of_all[:columns].reshape(B, G * d), end - 1)
        put_row(K, of_all[len(of_all) - columns :].reshape(B, G * d), end - 1)
        Q = of_all[columns : len(of_all) - columns].reshape(-1, 1, d)
        k, v, Y = K.reshape(B * G, fit, d), V.reshape(B * G, fit, d), room_for(shared, Q.size)
        for half in halves_of_next(shared):
            start, stop = half * len(Q) // 2, (half + 1) * len(Q) // 2
            beside = bias[b % len(bias)], sinks[b % len(sinks)], cap
            attend_to_seen(Q, k, v, mask, *beside, first, end, scale, start, stop, Y.reshape(Q.shape))
        Y = Y.copy().reshape(B, Q.size // B)
        X = after_mixing(X, Y, rows[b], hidden, eps, centre, kind, gate, shared)
    give(X, shared, queue, out)


# What a core has learned stands in a table of its own: of each array the address and three axes, in front 1 where it has fewer.
SPEED, SHIFT, WIDE, GAIN, SKIP, THETA, BIAS, DIRECTIONS = range(8)


@inside
def of_heads(of_all, start, B, heads, d):
    """The rows of heads, (B, heads, d), that begin at this number."""
    return rows_of(of_all, start, start + B * heads * d).reshape(B, heads, d)


@inside
def learned(core, which, like):
    """An array of a core, with three axes."""
    address, first, rows, columns = core[which]
    return carray(at(address, like), (first, rows, columns))


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
    d, cos, sin, position, interleaved, hidden, eps, centre, kind, gate, flags, room, out, queue,
):  # fmt: skip
    """Fill `out` with X (B, D) after all blocks. Their cores have memories: S (blocks, B·H, r, d), and `beside` it z or rows
    that were before.

    way      heads of values, and of keys; the features, or −1 for a memory with gates. Then of such a one: columns of its logits
             for a head, the gate behind it or −1; and whether that comes before the norm, whether the speed is learned, and steps
    numbers  a and b of the features, or those of `WriteAndRead`; at 4 the ε of the norm, at 5 the least denominator
    """
    shared = one_of_two(flags, room, queue)
    if shared[2][ME] > 1:
        return
    B, H, G, kind_of_features, w, opens = len(X), way[0], way[1], way[2], way[3], way[4]
    to_q, to_k, to_streams = B * H * d, B * (H + G) * d, B * (H + 2 * G) * d
    writes = 1 if kind_of_features < 0 and numbers[2] > 0 else 0
    to_x, to_gate = to_streams + B * H * writes, to_streams + B * H * (writes + w)
    for n in range(len(rows)):
        of_all = projections(X, rows[n], cos, sin, position, interleaved, eps, centre, shared)
        core = cores[n]
        V, Q, K = of_heads(of_all, 0, B, H, d), of_heads(of_all, to_q, B, G, d), of_heads(of_all, to_k, B, G, d)
        if kind_of_features < 0:
            theta, bias = learned(core, THETA, X), learned(core, BIAS, X)[0]
            if theta.size > 0:
                shape = B, H + 2 * G, theta.shape[1] - 1, d
                past, after = beside[n].reshape(shape), beside_after[n].reshape(shape)
                convolve_heads(Q, 0, theta, bias, past, after)
                convolve_heads(K, G, theta, bias, past, after)
                convolve_heads(V, 2 * G, theta, bias, past, after)
        write, x = of_heads(of_all, to_streams, B, H, writes), of_heads(of_all, to_x, B, H, w)
        queries, keys, values = Q.reshape(B * G, d), K.reshape(B * G, d), V.reshape(B * H, 1, d)
        Y = room_for(shared, V.size).reshape(B * H, 1, d)
        for half in halves_of_next(shared):
            start, stop = half * len(Y) // 2, (half + 1) * len(Y) // 2
            if kind_of_features >= 0:
                z, z_after = beside[n].reshape(S[n].shape[:2]), beside_after[n].reshape(S[n].shape[:2])
                sum_one(
                    *(queries, keys, values, learned(core, DIRECTIONS, X), S[n], z, kind_of_features),
                    *(numbers[0], numbers[1], numbers[5], start, stop, S_after[n], z_after, Y),
                )
            else:
                write_one(
                    *(Q, K, V, write, x, learned(core, SPEED, X)[0, 0], learned(core, SHIFT, X)[0, 0]),
                    *(learned(core, WIDE, X)[0], S[n], numbers[0], numbers[1], numbers[2], numbers[3]),
                    *(way[6] > 0, way[7] > 0, start, stop, S_after[n], Y),
                )
        Y = Y.copy()
        if kind_of_features < 0 and opens >= 0:
            gain, skip = learned(core, GAIN, X)[0, 0], learned(core, SKIP, X)[0, 0]
            opener, heads = of_heads(of_all, to_gate, B, H, d), Y.reshape(B, H, d)
            Y = finish_one(heads, V, opener, gain, skip, numbers[4], opens, way[5] > 0).reshape(B * H, 1, d)
        X = after_mixing(X, Y.reshape(B, H * d), rows[n], hidden, eps, centre, kind, gate, shared)
    give(X, shared, queue, out)


# ------------------------------------------------------------------------------------- what is known of the arrays


class Memories(NamedTuple):
    """What `through_memories` takes of the cores of some blocks; and the shapes of the arrays of a state, behind its batch.

    held     arrays that `cores` has the addresses of, and that nobody else may hold
    """

    cores: Array
    way: Array
    numbers: Array
    shapes: list[tuple[int, ...]]
    held: list[Any]


class Known:
    """Blocks of one form with their parameters: where all arrays are, and the keys and values of the last call.

    rows   (blocks, numbers), as said above; None if any array has another shape or dtype than it should, or is not contiguous
    """

    def __init__(self, block: Any, params: tuple[Any, ...]) -> None:
        self.block, self.params = block, params
        self.projections = block.attention.projections(params[0].attention)
        self.dtype, widest = self.projections[0].W.dtype, max(p.columns for p in self.projections)
        self.zeros = np.zeros(max(block.width, block.ffn.hidden, widest), self.dtype)
        found = [self._row(own) for own in params]
        self.rows: Any = None if None in found else np.array(found, np.int64)
        D, hidden, mixed, layers = block.width, block.ffn.hidden, block.attention.mixed, len(params[0].ffn) // 2
        columns = sum(p.columns for p in self.projections)
        self.weights = D * columns, D * (mixed + layers * hidden)  # of a block, before its core and behind it
        self.room = 2 * (columns + 2 * hidden + 2 * D) + mixed  # numbers that two threads share of one row in a block
        self.cos = self.sin = np.empty((0, 0), self.dtype)
        self.last: tuple[Any, list[Array], Array] = None, [], np.empty((0, 0), np.int64)
        self.memories = self._memories() if self.rows is not None and block.of_memories else None
        none = np.empty((1, 1, 0), self.dtype), np.full((1, 1), -np.inf, self.dtype), self.dtype.type(0)
        core = getattr(block.attention, "core", None)
        added = [getattr(core, part, None) for part in ("encoding", "sink", "cap", "furthest")]
        self.beside = none if added == [None] * 4 else None  # the scores: bias, sinks, cap
        self.left: list[tuple[list[Array], Array]] = []  # the arrays of the last states, of each block and of all

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
            places += [self._place(p.W, (D, p.columns)), self._place(p.b, (p.columns,)), gain]
            places += [p.columns, p.width, int(p.turned)]
        return None if None in places else places  # type: ignore[return-value]

    def _place(self, X: Array | None, shape: tuple[int, ...]) -> int | None:
        """Address of X, or of zeros for a bias that is None; None if X has another shape or dtype, or is not contiguous."""
        if X is None and len(shape) == 1:
            X = self.zeros[: shape[0]]
        return (
            X.ctypes.data if X is not None and X.shape == shape and X.dtype == self.dtype and X.flags.carray else None
        )

    def _memories(self) -> Memories | None:
        """What is known of the cores; None if one has to be called, or an array of theirs is not as it should be."""
        attention, cores, held = self.block.attention, [], []
        columns = [p.columns for p in self.projections]
        for own in (params.attention.core for params in self.params):
            if (how := attention.core.for_loops(own, attention.d, 0)) is None:
                return None
            found = _of_features if len(how) > 2 else _of_gates
            wanted, arrays, allowed, way, numbers, shapes = found(how, attention, own, columns, self.dtype)
            fits = columns == wanted and all(X.shape in some for X, some in zip(arrays, allowed, strict=True))
            places = [self._place(X, X.shape) for X in arrays]
            if not fits or None in places:
                return None
            axes = ([1] * (3 - X.ndim) + list(X.shape) for X in arrays)
            cores.append([[place, *three] for place, three in zip(places, axes, strict=True)])
            held += arrays
        way, numbers = np.array([attention.heads, attention._key_heads, *way]), np.array(numbers, self.dtype)
        return Memories(np.array(cores, np.int64), way, numbers, shapes, held)

    def together(self, parts: tuple[Any, ...], shape: tuple[int, ...]) -> Array | None:
        """The same part of the state of each block in one array, (blocks, *shape), as the last call has left it, or a copy.

        None if a part has another shape or dtype.
        """
        for before, whole in self.left:
            if whole.shape[1:] == shape and all(map(is_, parts, before)):
                return whole
        fits = all(type(X) is np.ndarray and X.shape == shape and X.dtype == self.dtype for X in parts)
        return np.stack(parts) if fits else None

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


def _of_features(how: Any, attention: Any, own: Any, columns: list[int], dtype: Any) -> tuple[Any, ...]:
    """Of `Features`: columns of the projections, arrays of the core with their shapes, and then what `Memories` says."""
    H, d, r, none = attention.heads, attention.d, number_of(how, attention.d), np.empty(0, dtype)
    W = np.empty((1, 0, d), dtype) if how.W is None else how.W
    arrays, allowed = (
        [none] * DIRECTIONS + [W],
        [{(0,)}] * DIRECTIONS + [{(1, *W.shape[1:-1], d), (H, *W.shape[1:-1], d)}],
    )
    numbers = how.a, how.b, 0, 0, 0, LEAST[dtype]
    return [H * d] * 3, arrays, allowed, [FEATURES[how.kind], 0, -1, 0, 0, 0], numbers, [(H, r, d), (H, r)]


def _of_gates(how: Any, attention: Any, own: Any, columns: list[int], dtype: Any) -> tuple[Any, ...]:
    """Of a `WriteAndRead`, and the `NormAndGate` behind it or None: the same."""
    (writes, behind), H, G, d = how, attention.heads, attention._key_heads, attention.d
    none, taps, rows = np.empty(0, dtype), getattr(attention.core, "taps", None), 2 * G + H
    w = sum(columns[3 + (writes.reach > 0) : len(columns) - (behind is not None)]) // H
    wanted = [H * d, G * d, G * d] + [H] * (writes.reach > 0) + [H * w] * (w > 0) + [H * d] * (behind is not None)
    speed, shift, W = writes.arrays(dtype)
    gain, skip = (none, none) if behind is None else behind.arrays(dtype)
    theta, bias = (none, None) if taps is None else own.kernel
    bias = np.empty((0, 0), dtype) if bias is None else bias
    shapes_of_logits = {(H * d,), (H * w, H * d)} if len(W) else {(H,) if w else (0,), (0, 0)}
    allowed = [
        *({(1,), (H,)}, shapes_of_logits, shapes_of_logits, {(d,), (H * d,)} if behind else {(0,)}, {(0,), (H,)}),
        *({(0,)} if taps is None else {(rows, taps, d)}, {(0, 0), (rows, d)}, {(0,)}),
    ]
    way = [-1, w, -1, False, writes.learned, writes.steps]
    if behind is not None:
        way[2:4] = GATES[behind.gate], behind.gate_first
    numbers = *writes.numbers, 0 if behind is None else behind.eps, LEAST[dtype]
    shapes = [(H, d, d)] + ([] if taps is None else [(rows, taps - 1, d)])
    return wanted, [speed, shift, W, gain, skip, theta, bias, none], allowed, way, numbers, shapes


_looked_at: dict[tuple[int, ...], Known] = {}


def known(block: Any, params: tuple[Any, ...]) -> Known:
    """The `Known` of these blocks, made once. It is found by ids, and holds the objects, so that no others get these ids.

    The streams of a core stand in a dict, whose arrays a reader may have replaced: their ids have to be the same, too.
    """
    streams = [s for own in params for s in (getattr(own.attention, "streams", None) or {}).values()]
    key = id(block), *map(id, params), *map(id, chain.from_iterable(streams))
    if (found := _looked_at.get(key)) is None:
        while _looked_at and sum(len(one.params) for one in list(_looked_at.values())) + len(params) > KEPT:
            for oldest in list(_looked_at)[:1]:  # of a copy: other threads change it
                _looked_at.pop(oldest, None)
        found = _looked_at[key] = Known(block, params)
    return found


# ------------------------------------------------------------------------------------- the calls


def _by_two(found: Known, blocks: int, weights: int, loop: Any, X: Array, *arguments: Any) -> None:
    """loop(X, …, flags, room, out) on two threads if these blocks have many weights; `out` is the last of the arguments."""
    flags, room = np.zeros(4 * LINE, np.int64), np.empty(len(X) * blocks * found.room, X.dtype)
    in_parallel(2 if blocks * weights > MANY else 1, loop, X, *arguments[:-1], flags, room, arguments[-1])


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


def _seen(core: Any, own: list[Any], end: int, m: int) -> tuple[Array, int]:
    """The mask of `attend_to_seen` for the last of m positions, and its first key, among the `end` rows of a state."""
    if hasattr(core, "furthest"):
        return EVERY_KEY, max(0, end - 1 - max(map(core.furthest, own)))
    seen = slice(0, end) if core.pattern is None else core.pattern.last_rows(1, end, m)
    return (EVERY_KEY, seen.start) if isinstance(seen, slice) else (for_reading(seen.reshape(-1, end)), 0)


def _beside_scores(core: Any, own: list[Any], keys: int, heads: int, X: Array) -> Any:
    """Bias, sinks and cap of `through_blocks` for this many keys; None if an array has another shape or dtype than it should.

    They are looked at anew for each token, since a reader may have changed the parameters where they stand.
    """
    bias, sinks = np.empty((1, 1, 0), X.dtype), np.full((1, 1), -np.inf, X.dtype)
    without = isinstance(own[0], tuple) and not own[0]  # any parameters: then it is the same for all blocks
    found = [core.beside_scores(params, 1, keys, X) for params in (own[:1] if without else own)]
    biases, options = [np.atleast_2d(b) for b, _ in found if b is not None], [options for _, options in found]
    each = [np.atleast_1d(one["sink"]) for one in options if "sink" in one]
    if any(b.shape not in ((1, keys), (heads, keys)) for b in biases):
        return None
    if any(b.shape not in ((1,), (heads,)) or b.dtype != X.dtype for b in each):
        return None
    if any(len({b.shape for b in some}) > 1 for some in (biases, each)):
        return None
    if biases:
        bias = np.stack([in_base_2(b) for b in biases])
    if each:
        sinks = np.stack(each) * X.dtype.type(LOG2E)
    return bias, sinks, X.dtype.type(options[0].get("cap", 0) * LOG2E)


def one_token(block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...]) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each sample, X (*batch, 1, D); None if impossible.

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
    (m, end), (eps, centre, kind, gate), core = (states[0].length, states[0].end), _network(block), attention.core
    Y, rows = np.empty(X.shape, X.dtype), for_reading(X.reshape(-1, block.width))
    mask, first = _seen(core, own := [each.attention.core for each in params], end, m)
    beside = found.beside or _beside_scores(core, own, end - first, attention.heads, X)
    if beside is None:
        return None
    seen = mask, *beside, first, end, G, d, *found.angles(m - 1), block.ffn.hidden
    rest = eps, centre, scale_for(d, core.scale), kind, gate, Y.reshape(rows.shape)
    _by_two(found, len(params), sum(found.weights), through_blocks, rows, found.rows, rooms, *seen, *rest)
    return Y, states


def _through_memories(
    found: Known, own: Memories, rows: Array, batch: tuple[int, ...], states: tuple[Any, ...], angles: Any, network: Any
) -> tuple[Array, Any] | None:
    """X (B, D) after all blocks, whose cores have the memories in `states`, and the longer states; None if it can't be done."""
    attention, numbers, sums, length = found.block.attention, own.numbers, own.way[2] >= 0, states[0].length
    if sums:  # of features, which may depend on the position
        how = attention.core.for_loops(found.params[0].attention.core, attention.d, length)
        if how is None or len(rows) * math.prod(own.shapes[0]) > SMALL:
            return None
        numbers = np.array([how.a, how.b, *numbers[2:]], found.dtype)
    parts = [part for part in zip(*states, strict=True) if isinstance(part[0], np.ndarray)]
    if len(parts) != len(own.shapes):
        return None
    held: list[Any] = [found.together(part, (*batch, *shape)) for part, shape in zip(parts, own.shapes, strict=True)]
    if any(X is None for X in held):
        return None
    after = [np.empty_like(X) for X in held]

    def for_loop(S: Array, *beside: Array) -> tuple[Array, Array]:
        rows_of_heads = S.reshape(len(S), len(rows) * attention.heads, *S.shape[-2:])
        return rows_of_heads, (beside[0] if beside else S[:, :0]).reshape(len(S), -1)

    Y = np.empty_like(rows)
    cores = found.rows, own.cores, own.way, numbers, *for_loop(*held), *for_loop(*after)
    rest = attention.d, *angles, found.block.ffn.hidden, *network, Y
    _by_two(found, len(states), sum(found.weights), through_memories, rows, *cores, *rest)
    found.left = left = [(list(X), X) for X in after]
    arrays = iter(left)
    fields = [
        next(arrays)[0] if isinstance(field, np.ndarray) else repeat(None if field is None else length + 1)
        for field in states[0]
    ]
    return Y, tuple(map(type(states[0]), *fields))


def around_core(block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...]) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each of a few samples, whatever their core is.

    All are one call if their cores have memories that loops know; else there are calls between the cores. None if they can't be.
    """
    batch, found = X.shape[:-2], _known_for(block, params, X)
    lengths = {0 if state is None else state.length for state in states}
    if found is None or len(rows := for_reading(X.reshape(-1, block.width))) > FEW or len(lengths) > 1:
        return None
    angles, network = found.angles(lengths.pop()), _network(block)
    if found.memories is not None and None not in states:
        done = _through_memories(found, found.memories, rows, batch, states, angles, network)
        if done is not None:
            return done[0].reshape(X.shape), done[1]
    (eps, centre, kind, gate), (before, behind) = network, found.weights
    numbers, places, longer, Y = (block.ffn.hidden, eps, centre, kind, gate), [], [], rows
    for p in found.projections:
        start, axes = places[-1][1] if places else rows.size, () if p.heads is None else (p.heads,)
        places.append((start, start + len(rows) * p.columns, (*batch, *axes, 1, p.width)))
    for b, (own, state) in enumerate(zip(params, states, strict=True)):
        out = np.empty(places[-1][1], rows.dtype)
        _by_two(found, 1, before + (b > 0) * behind, around, rows, Y, found.rows, b, *angles, *numbers, out)
        rows = out[: rows.size].reshape(rows.shape)
        arrays = [out[start:stop].reshape(shape) for start, stop, shape in places]
        Y, state = block.attention._go_on(own.attention, arrays, state)
        Y = for_reading(Y.reshape(len(rows), block.attention.mixed))
        longer.append(state)
    last = np.empty(rows.size, rows.dtype)
    _by_two(found, 1, behind, around, rows, Y, found.rows, len(longer), *angles, *numbers, last)
    return last.reshape(X.shape), tuple(longer)
