"""Transformer-XL: a text is read in segments, and every layer looks back at what it was given for the segments before.

    H̃ = [memory; H]                                memory: the last M rows of H̃ before, which are constants now
    Q = H W_q,   K = H̃ W_k,   V = H̃ W_v            query i of n sees the keys j ≤ i + M

No gradient goes back into the memory: a step of training stays within one segment, whatever was read before. But a row of the
memory has itself looked back when it was made: through L layers, information comes from L times as far as one layer sees, or
from further. Positions have to be relative: row 3 of this segment and row 3 of the last one would otherwise stand at the
same place.
"""

from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.attention import ATTENTIONS, KeysValues, MultiHeadAttention, SoftmaxAttention
from minitransformer.checks import frozen
from minitransformer.marks import DecodingState
from minitransformer.models.block import Block
from minitransformer.models.stack import Stack, StackParams, StackPullback
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, Rounds, so_many
from minitransformer.registry import name_of
from minitransformer.typing import Array, Bool, Float, checked

Memory = tuple[Array, ...]  # of each block, (*batch, at most M, D)


def remember(before: Array | None, H: Array, longest: int) -> Array:
    """The last M rows of [before; H], a copy: what a layer that was given H looks back at in the next segment."""
    H = H if before is None else np.concatenate([before, H], -2)
    return H[..., max(H.shape[-2] - longest, 0) :, :].copy()


@checked
def reach(layers: Rounds, segment: int, memory: NonNegative) -> int:
    """How many tokens before its segment can have an effect on a row, after this many layers and enough segments.

    One layer looks back M rows. Each of these was made in a segment of its own, from whose start the layer below looks back
    M rows again. If M is a multiple of the segment, it comes to L · M.
    """
    start = 0
    for _ in range(layers):
        start = start // segment * segment - memory  # first row that the segment of this one looks at
    return -start


class MemoryStackPullback(Pullback):
    """As that of a stack: the memory is a constant, and nothing goes back to the segments before.

    memory   what the next segment looks back at
    """

    stack: StackPullback
    memory: Memory

    @property
    def blocks(self) -> tuple[Pullback, ...]:
        """The pullbacks of the blocks."""
        return self.stack.blocks

    def __call__(self, dY: Array) -> tuple[StackParams, Array]:
        return self.stack(dY)


class Reading(DecodingState):
    """Where decoding stands: how many tokens of this segment are read, and the keys and values of each block, memory first."""

    place: int
    blocks: tuple[Any, ...]


@frozen
class MemoryStack(Stack):
    """Blocks, one after another, each with a memory of its own: what it was given in the segments before.

    memory    M, rows that a block remembers. It has no parameters, so a trained model can be evaluated with a longer one
    segment   tokens that are written before what was written becomes memory
    source    Dai et al. 2019 (Aalto 3.3.2 and figure 10, without an equation: E57)
    cost      O(n (n + M) d) for each head and segment of n tokens
    raises    ValueError for attention that is not dense softmax attention, or keeps its keys in pages, and for a rotation whose
              angles change with the length of the text
    """

    memory: NonNegative = 128
    segment: int = 128

    takes = "causal blocks of dense softmax attention, with relative positions or none"
    remembers = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for block in self.blocks:
            layer = block.attention
            core = layer.core if isinstance(layer, MultiHeadAttention) else layer
            if not isinstance(core, SoftmaxAttention) or core.pattern:
                what = getattr(core, "pattern", None) or core
                raise ValueError(
                    f"memory: {name_of(what, ATTENTIONS)} can't look back; softmax can, without pattern and pages"
                )
            if core.page:
                raise ValueError(f"page: {core.page} can't be had with a memory, which keeps its keys in one buffer")
            if not layer.decodes:
                name = type(layer.rotate).__name__  # type: ignore[attr-defined]
                raise ValueError(
                    f"positions: the angles of this {name} change with the length of the text, so a memory can't keep keys"
                )

    def refuse(self, *, causal: bool, absolute: Any = None) -> None:
        """Raise ValueError for absolute positions, which each segment begins anew; and unless causal, for a memory above 0."""
        super().refuse(causal=causal)
        if absolute is not None:
            what = f"positions: {name_of(absolute, {**AT_EMBEDDING, **IN_ATTENTION})}"
        elif self.memory and not causal:
            what = "causal: False"
        else:
            return
        raise ValueError(f"{what} does not go with a memory: it wants relative positions, and to look back only")

    @checked
    def __call__(  # type: ignore[override]
        self,
        params: StackParams,
        X: Float[Array, "*batch n {self.width}"],
        memory: Memory | None = None,
        *,
        causal: bool = True,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], MemoryStackPullback]:
        """One segment. Pullback: dY to (dparams, dX); `pullback.memory` is the memory for the next one.

        memory   of the segment before, one array for each block; None for the first
        mask     of the tokens of this segment; all of the memory is seen
        """
        before = _one_for_each(memory, self.depth, X)
        pullbacks, kept = [], []
        for block, own, rows in zip(self.blocks, self._tied(params), before, strict=True):
            kept.append(remember(rows, X, self.memory))
            X, pullback = block(own, X, before=rows, causal=causal, mask=_with_memory(mask, rows), rng=rng)
            pullbacks.append(pullback)
        X, norm = self._last_norm(params, X)
        return X, MemoryStackPullback(StackPullback(tuple(pullbacks), norm, self.ties), tuple(kept))

    @checked
    def step(  # type: ignore[override]
        self, params: StackParams, X: Float[Array, "*batch n {self.width}"], states: Reading | None = None
    ) -> tuple[Array, Any]:
        """New tokens after those in the states: the same as segment by segment, each with the memory that it finds."""
        states = Reading(0, (None,) * self.depth) if states is None else states
        if not 0 <= states.place <= self.segment:
            raise ValueError(f"states.place: {states.place} should be from 0 to {self.segment}, a segment")
        before = {0 if state is None else state.length - states.place for state in states.blocks}
        if len(before) > 1 or not 0 <= max(before) <= self.memory:
            found = " and ".join(map(str, sorted(before)))
            raise ValueError(
                f"states.blocks: memories of length {found} should have one length from 0 to {self.memory} in all blocks"
            )
        rows = []
        while X.shape[-2] or not rows:
            if states.place == self.segment:
                blocks = tuple(self._turned_to_memory(*pair) for pair in zip(self.blocks, states.blocks, strict=True))
                states = Reading(0, blocks)
            piece, X = np.split(X, [self.segment - states.place], -2)
            Y, blocks = super().step(params, piece, states.blocks)
            states = Reading(states.place + piece.shape[-2], blocks)
            rows.append(Y)
        return np.concatenate(rows, -2), states

    def _turned_to_memory(self, block: Block, state: KeysValues) -> KeysValues:
        """The last M keys and values, which stand at the first positions from now on."""
        forgotten = max(state.length - self.memory, 0)
        K, V = (rows[..., forgotten:, :] for rows in (state.keys, state.values))
        rotate = block.attention.rotate  # type: ignore[attr-defined]
        if rotate is not None and forgotten:
            K = rotate.earlier(K, forgotten)
        return KeysValues.of(K, V)


def _one_for_each(memory: Memory | None, depth: int, X: Array) -> tuple[Array | None, ...]:
    """The rows before X of each block, None where there are none."""
    if memory is None:
        return (None,) * depth
    fits = all(rows.shape[:-2] == X.shape[:-2] and rows.shape[-1] == X.shape[-1] for rows in memory)
    if len(memory) != depth or not fits:
        shapes = ", ".join(str(rows.shape) for rows in memory)
        raise ValueError(f"memory: {shapes} should be rows before {X.shape}, for each of {so_many(depth, 'block')}")
    for rows in memory:
        one_dtype(X=X, memory=rows)
    return tuple(rows if rows.shape[-2] else None for rows in memory)


def _with_memory(mask: Array | None, before: Array | None) -> Array | None:
    """The mask of a segment, with columns for the memory, which everybody sees."""
    if mask is None or before is None or mask.shape[-1:] == (1,):
        return mask
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(before.shape[-2], 0)], constant_values=True)
