"""Stacks of blocks: the encoder, the decoder of a translator, and the causal stack of a language model.

A pre-norm stack ends with one more norm, because nothing has normalised the sum that its blocks have built up.
"""

import functools
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from minitransformer.attention.multi_head import KeysValues
from minitransformer.models.block import Block, BlockParams
from minitransformer.models.norms import NormParams
from minitransformer.pullback import ChainPullback, Pullback, Tree, chain, tree_add
from minitransformer.typing import Array, Bool, Float, checked


class StackParams(NamedTuple):
    """One tree for each block; the last norm is None in a post-norm stack.

    shared   what an encoding of positions has in common for all blocks; theirs have None in its place
    """

    blocks: tuple[BlockParams, ...]
    norm: NormParams | None
    shared: Tree = None


def tie(params: StackParams, names: tuple[str, ...]) -> tuple[BlockParams, ...]:
    """The blocks, each with the shared parameters of these names."""
    if not names:
        return params.blocks
    shared = {name: getattr(params.shared, name) for name in names}
    return tuple(_with_position(block, block.attention.position._replace(**shared)) for block in params.blocks)


def untie(blocks: tuple[BlockParams, ...], names: tuple[str, ...]) -> tuple[tuple[BlockParams, ...], Tree]:
    """The gradients of blocks that were tied: each block's own, and the sum over the blocks of what they share."""
    if not names:
        return blocks, None
    nothing = dict.fromkeys(names)
    positions = [block.attention.position for block in blocks]
    own = {name: None for name in positions[0]._fields if name not in names}
    shared = functools.reduce(tree_add, (position._replace(**own) for position in positions))
    return tuple(_with_position(b, p._replace(**nothing)) for b, p in zip(blocks, positions, strict=True)), shared


def _with_position(block: BlockParams, position: Tree) -> BlockParams:
    return block._replace(attention=block.attention._replace(position=position))


class StackPullback(NamedTuple):
    """Backwards through the blocks: `pullback.blocks[3].attention.A` is the attention of the fourth."""

    blocks: ChainPullback
    norm: Pullback | None
    shared: tuple[str, ...] = ()

    def __call__(self, dY: Array) -> tuple[StackParams, Array]:
        dnorm, dY = self.norm(dY) if self.norm else (None, dY)
        dblocks, dX = self.blocks(dY)
        dblocks, dshared = untie(dblocks, self.shared)
        return StackParams(dblocks, dnorm, dshared), dX


class DecoderPullback(NamedTuple):
    """As a stack, but every block also looked at the memory: dmemory is the sum over the blocks."""

    blocks: tuple[Pullback, ...]
    norm: Pullback | None
    shared: tuple[str, ...] = ()

    def __call__(self, dY: Array) -> tuple[StackParams, Array, Array]:
        dnorm, dX = self.norm(dY) if self.norm else (None, dY)
        dblocks, dmemories = [], []
        for block in reversed(self.blocks):
            dblock, dX, dmemory = block(dX)
            dblocks.append(dblock)
            dmemories.append(dmemory)
        blocks, dshared = untie(tuple(reversed(dblocks)), self.shared)
        return StackParams(blocks, dnorm, dshared), dX, np.sum(dmemories, axis=0)


@dataclass(frozen=True)
class Stack:
    """`depth` blocks of the same form, one after another, each with parameters of its own."""

    block: Block
    depth: int

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth: a stack needs at least one block, got {self.depth}")

    def init(self, rng: np.random.Generator, dtype: type = np.float32, *, cross: bool = False) -> StackParams:
        """Parameters of the blocks, with cross-attention or without, and of the last norm."""
        init = self.block.init_decoder if cross else self.block.init
        norm = self.block._norm.init(rng, dtype) if self.block.order == "pre" else None
        blocks = tuple(init(rng, dtype) for _ in range(self.depth))
        _, shared = untie(blocks[:1], self._shared)
        return StackParams(untie(blocks, self._shared)[0], norm, shared)

    @property
    def _shared(self) -> tuple[str, ...]:
        return () if self.block.position is None else self.block.position.shared

    def _blocks(self, params: StackParams) -> tuple[BlockParams, ...]:
        if len(params.blocks) != self.depth:
            raise ValueError(f"params: {len(params.blocks)} blocks for a stack of {self.depth}")
        return tie(params, self._shared)

    def _last_norm(self, params: StackParams, X: Array) -> tuple[Array, Pullback | None]:
        return (X, None) if params.norm is None else self.block._norm(params.norm, X)

    @checked
    def __call__(
        self,
        params: StackParams,
        X: Float[Array, "*batch n {self.block.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.block.width}"], StackPullback]:
        """Encoder, or with causal=True the stack of a language model. Pullback: dY to (dparams, dX)."""
        blocks = chain(*[partial(self.block, causal=causal, mask=mask, rng=rng)] * self.depth)
        X, blocks_pullback = blocks(self._blocks(params), X)
        X, norm_pullback = self._last_norm(params, X)
        return X, StackPullback(blocks_pullback, norm_pullback, self._shared)

    @checked
    def decoder(
        self,
        params: StackParams,
        X: Float[Array, "*batch n {self.block.width}"],
        memory: Float[Array, "*batch m {self.block.width}"],
        *,
        memory_mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.block.width}"], DecoderPullback]:
        """Decoder: every block looks at the same memory. Pullback: dY to (dparams, dX, dmemory)."""
        pullbacks = []
        for block_params in self._blocks(params):
            X, pullback = self.block.decoder(block_params, X, memory, memory_mask=memory_mask, rng=rng)
            pullbacks.append(pullback)
        X, norm_pullback = self._last_norm(params, X)
        return X, DecoderPullback(tuple(pullbacks), norm_pullback, self._shared)

    def decode(
        self, params: StackParams, X: Array, past: tuple[KeysValues, ...] | None
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """The causal stack on new tokens only, given the past of every block."""
        now = []
        for block_params, kv in zip(self._blocks(params), past or (None,) * self.depth, strict=True):
            X, kv = self.block.decode(block_params, X, kv)
            now.append(kv)
        return self._last_norm(params, X)[0], tuple(now)
