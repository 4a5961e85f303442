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

In generation one call even writes several tokens, each drawn from the logits of the one before. For each token all weights are
read, and they push everything else out of the cache: Python would find it empty after each call, and take longer than the loops.

Between any other core and the next there is one call: what is behind the one and before the other. All this is for pre-norm
blocks whose attention says what its projections are, with heads or without (attention/projected.py); any other goes part by
part, and gives the same numbers.

one_token_addresses.py   where the arrays of blocks are, and how a loop finds them
one_token_tables.py      what is looked at once for some blocks, and remembered
one_token_halves.py      how two threads share a product
one_token_blocks.py      the loops for softmax attention, and around any other core
one_token_memories.py    the loop for memories
one_token_text.py        from one token to the next: the two ends of a model, and how a token is drawn
here                     what Python calls
"""

import math
from itertools import repeat
from typing import Any

import numpy as np

from minitransformer.arrays import FEW, for_reading, scale_for
from minitransformer.kernels.exp2 import LOG2E
from minitransformer.kernels.few_queries import in_base_2
from minitransformer.kernels.few_rows import KINDS
from minitransformer.kernels.one_token_blocks import around, through_blocks
from minitransformer.kernels.one_token_memories import through_memories
from minitransformer.kernels.one_token_tables import Known, Memories, known
from minitransformer.kernels.one_token_text import NO_TEXT, Text, draw_next
from minitransformer.kernels.pointwise import GATES
from minitransformer.kernels.step import SMALL
from minitransformer.kernels.threads import LINE, in_parallel
from minitransformer.typing import Array

EVERY_KEY = np.empty((1, 0), np.bool_)
MANY = 2**19  # weights; to call a second thread for fewer takes longer than to read them


def _by_two(
    found: Known, blocks: int, weights: int, loop: Any, X: Array, *arguments: Any, text: Text = NO_TEXT
) -> None:
    """loop(X, …, flags, room, out) on two threads if these blocks have many weights; `out` is the last of the arguments.

    Each token of a text has room of its own: a thread that comes late still reads what is there, when the other is far ahead.
    """
    each, flags = len(X) * blocks * found.room + text.rows, np.zeros(4 * LINE, np.int64)
    room = np.empty((1 + text.more) * each, X.dtype)
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


def _seen_by_each(core: Any, own: list[Any], end: int, m: int, more: int) -> tuple[Array, Array]:
    """`_seen` of this token and each after it: masks (tokens, rows, keys), one for all if nothing is hidden; first keys."""
    each = [_seen(core, own, end + t, m + t) for t in range(1 + more)]
    firsts = np.array([first for _, first in each])
    if all(mask is EVERY_KEY for mask, _ in each):
        return EVERY_KEY[None], firsts
    masks = np.zeros((1 + more, max(len(mask) for mask, _ in each), end + more), np.bool_)
    for t, (mask, first) in enumerate(each):
        masks[t, :, first : end + t] = True if mask is EVERY_KEY else mask
    return masks, np.zeros_like(firsts)


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


def _beside_scores_of_each(core: Any, own: list[Any], end: int, firsts: Array, heads: int, X: Array) -> Any:
    """`_beside_scores` of this token and each after it: biases (tokens, blocks, rows, keys), one for all if nothing is added."""
    each = [_beside_scores(core, own, end + t - first, heads, X) for t, first in enumerate(firsts.tolist())]
    if any(found is None for found in each):
        return None
    biases, (_, sinks, cap) = [bias for bias, *_ in each], each[0]
    if len(biases) == 1 or not biases[0].size:
        return biases[0][None], sinks, cap
    padded = np.zeros((len(biases), *biases[0].shape[:2], max(bias.shape[2] for bias in biases)), X.dtype)
    for bias, room in zip(biases, padded, strict=True):
        room[..., : bias.shape[2]] = bias
    return padded, sinks, cap


def one_token(
    block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...], text: Text = NO_TEXT
) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each sample, X (*batch, 1, D); None if impossible.

    The states are those of softmax attention: keys and values, all or those that its pattern sees; they get one row more. With a
    text X is one token alone, (1, D), and the states get as many rows as it has tokens.
    """
    attention = block.attention
    if (found := _known_for(block, params, X)) is None:
        return None
    d, G, core, more = attention.d, attention._groups, attention.core, text.more
    states = tuple([state.with_room(1 + more) for state in states])
    rooms = found.rooms(states, (*X.shape[:-2], G, d))
    if rooms is None:
        return None
    (m, end), (eps, centre, kind, gate) = (states[0].length - more, states[0].end - more), _network(block)
    Y, rows = np.empty(X.shape, X.dtype), for_reading(X.reshape(-1, block.width))
    masks, firsts = _seen_by_each(core, own := [each.attention.core for each in params], end, m, more)
    beside = found.beside or _beside_scores_of_each(core, own, end, firsts, attention.heads, X)
    if beside is None:
        return None
    seen = masks, *beside, firsts, end, G, d, *found.angles(m - 1, more), block.ffn.hidden
    rest = eps, centre, scale_for(d, core.scale), kind, gate, *text[:2], Y.reshape(rows.shape)
    _by_two(found, len(params), sum(found.weights), through_blocks, rows, found.rows, rooms, *seen, *rest, text=text)
    return Y, states


def _through_memories(
    found: Known, own: Memories, rows: Array, batch: tuple[int, ...], states: tuple[Any, ...], network: Any, text: Text
) -> tuple[Array, Any] | None:
    """X (B, D) after all blocks, whose cores have the memories in `states`, and the longer states; None if it can't be done."""
    attention, numbers, sums, length = found.block.attention, own.numbers[None], own.way[2] >= 0, states[0].length
    if sums:  # of features, which may depend on the position
        first = found.params[0].attention.core
        hows = [attention.core.for_loops(first, attention.d, length + t) for t in range(1 + text.more)]
        if None in hows or len(rows) * math.prod(own.shapes[0]) > SMALL:
            return None
        numbers = np.array([[how.a, how.b, *own.numbers[2:]] for how in hows], found.dtype)
    parts = [part for part in zip(*states, strict=True) if isinstance(part[0], np.ndarray)]
    if len(parts) != len(own.shapes):
        return None
    held: list[Any] = [found.together(part, (*batch, *shape)) for part, shape in zip(parts, own.shapes, strict=True)]
    if any(X is None for X in held):
        return None
    # Of what a text leaves behind, two tokens have room in turn; but each of those whose rows are convolved, which both threads
    # write, though one may be far behind.
    two, each = min(1 + text.more, 2), 1 + text.more
    after = [np.empty((some, *X.shape), X.dtype) for some, X in zip((two, two if sums else each), held, strict=False)]

    def for_loop(S: Array, *beside: Array) -> tuple[Array, Array]:
        many = S.shape[: S.ndim - len(batch) - 3]
        z = beside[0].reshape(*beside[0].shape[: len(many)], -1) if beside else S[..., 0, :0].reshape(*many, 0)
        return S.reshape(*many, len(rows) * attention.heads, *S.shape[-2:]), z

    Y = np.empty_like(rows)
    cores = found.rows, own.cores, own.way, numbers, *for_loop(*held), *for_loop(*after)
    rest = attention.d, *found.angles(length, text.more), found.block.ffn.hidden, *network, *text[:2], Y
    _by_two(found, len(states), sum(found.weights), through_memories, rows, *cores, *rest, text=text)
    found.left = left = [(list(X), X) for X in (some[text.more % len(some)] for some in after)]
    arrays = iter(left)
    fields = [
        next(arrays)[0] if isinstance(field, np.ndarray) else repeat(None if field is None else length + 1 + text.more)
        for field in states[0]
    ]
    return Y, tuple(map(type(states[0]), *fields))


def _around_each_core(
    found: Known, params: tuple[Any, ...], rows: Array, batch: tuple[int, ...], states: tuple[Any, ...], length: int
) -> tuple[Array, tuple[Any, ...]]:
    """X (B, D) after all blocks, with a call of a loop before each core and behind it; and the longer states."""
    block, (before, behind), angles = found.block, found.weights, found.angles(length)
    numbers, places, longer, Y = (block.ffn.hidden, *_network(block)), [], [], rows
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
    return last.reshape(rows.shape), tuple(longer)


def around_core(
    block: Any, params: tuple[Any, ...], X: Array, states: tuple[Any, ...], text: Text = NO_TEXT
) -> tuple[Array, Any] | None:
    """`Block.step` of all blocks, which are like this one, for one token of each of a few samples, whatever their core is.

    All are one call if their cores have memories that loops know; else there are calls between the cores. None if they can't be.
    A text begins with X, (1, D), and this goes on until all its tokens are drawn.
    """
    batch, found = X.shape[:-2], _known_for(block, params, X)
    lengths = {0 if state is None else state.length for state in states}
    if found is None or len(rows := for_reading(X.reshape(-1, block.width))) > FEW or len(lengths) > 1:
        return None
    if found.memories is not None and None not in states:
        done = _through_memories(found, found.memories, rows, batch, states, _network(block), text)
        if done is not None:
            return done[0].reshape(X.shape), done[1]
    (first,) = lengths
    for t in range(1 + text.more):
        rows, states = _around_each_core(found, params, rows, batch, states, first + t)
        if text.rows:
            rows = draw_next(rows, *text[:2], t, *_network(block)[:2])
            if text.drawn[t] < 0:
                break
    return rows.reshape(X.shape), states
