"""What is known of some blocks and their parameters: the tables that the loops of one_token.py take, made once.

A table has only addresses of arrays whose shape and dtype are as they should be. Where one array is not, there is no table, and
the blocks go part by part, where it is refused or computed.
"""

from itertools import chain
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import for_reading
from minitransformer.kernels.one_token_addresses import DIRECTIONS, W_O
from minitransformer.kernels.pointwise import GATES
from minitransformer.kernels.step import FEATURES, LEAST, number_of
from minitransformer.typing import Array

KEPT = 128  # blocks whose addresses are remembered, at most


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

    rows   (blocks, numbers), as one_token_addresses.py says; None if an array has another shape or dtype than it should, or is
           not contiguous
    """

    def __init__(self, block: Any, params: tuple[Any, ...]) -> None:
        self.block, self.params = block, params
        self.projections = block.attention.projections(params[0].attention)
        self.dtype, widest = self.projections[0].W.dtype, max(p.columns for p in self.projections)
        self.zeros = np.zeros(max(block.width, block.ffn.hidden, widest), self.dtype)
        self.held: list[Any] = []  # the arrays whose addresses are in the table
        found = [self._row(own) for own in params]
        self.rows: Any = None if None in found else np.array(found, np.int64)
        D, hidden, mixed, layers = block.width, block.ffn.hidden, block.attention.mixed, len(params[0].ffn) // 2
        columns = sum(p.columns for p in self.projections)
        self.weights = D * columns, D * (mixed + layers * hidden)  # of a block, before its core and behind it
        self.room = 2 * (columns + 2 * hidden + 2 * D) + mixed  # numbers that two threads share of one row in a block
        self.turns: tuple[Array, ...] = (np.empty((0, 0), self.dtype),) * 2  # cos and sin
        self.last: tuple[Any, list[Array], Array] = None, [], np.empty((0, 0), np.int64)
        self.memories = self._memories() if self.rows is not None and block.one_loop_with_memory else None
        none = np.empty((1, 1, 1, 0), self.dtype), np.full((1, 1), -np.inf, self.dtype), self.dtype.type(0)
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
        projections = self.block.attention.projections(attention)
        self.held += fixed, W_o, b_o, projections
        for p in projections:
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

    def angles(self, position: int, more: int = 0) -> tuple[Array, Array, int, bool]:
        """cos and sin (positions, pairs), up to `more` behind this position; the position; whether pairs are interleaved."""
        rotate, (cos, sin) = self.block.attention.rotate, self.turns
        if rotate is not None and position + more >= len(cos):
            cos, sin = self.turns = tuple(map(for_reading, rotate.table(position + more + 1, self.dtype)))
        return cos, sin, position, rotate is not None and rotate.layout == "interleaved"

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
