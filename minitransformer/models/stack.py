"""Stacks of blocks: the encoder, the decoder of a translator, and the causal stack of a language model.

A pre-norm stack ends with one more norm, because nothing has normalised the sum that its blocks have built up.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from minitransformer.attention.multi_head import KeysValues
from minitransformer.models.block import Block, BlockParams
from minitransformer.models.norms import NormParams
from minitransformer.pullback import ChainPullback, Pullback, chain
from minitransformer.typing import Array, Bool, Float, checked


class StackParams(NamedTuple):
    """One tree for each block; the last norm is None in a post-norm stack."""

    blocks: tuple[BlockParams, ...]
    norm: NormParams | None


class StackPullback(NamedTuple):
    """Backwards through the blocks: `pullback.blocks[3].attention.A` is the attention of the fourth."""

    blocks: ChainPullback
    norm: Pullback | None

    def __call__(self, dY: Array) -> tuple[StackParams, Array]:
        dnorm, dY = self.norm(dY) if self.norm else (None, dY)
        dblocks, dX = self.blocks(dY)
        return StackParams(dblocks, dnorm), dX


class DecoderPullback(NamedTuple):
    """As a stack, but every block also looked at the memory: dmemory is the sum over the blocks."""

    blocks: tuple[Pullback, ...]
    norm: Pullback | None

    def __call__(self, dY: Array) -> tuple[StackParams, Array, Array]:
        dnorm, dX = self.norm(dY) if self.norm else (None, dY)
        dblocks, dmemories = [], []
        for block in reversed(self.blocks):
            dblock, dX, dmemory = block(dX)
            dblocks.append(dblock)
            dmemories.append(dmemory)
        return StackParams(tuple(reversed(dblocks)), dnorm), dX, np.sum(dmemories, axis=0)


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
        return StackParams(tuple(init(rng, dtype) for _ in range(self.depth)), norm)

    def _blocks(self, params: StackParams) -> tuple[BlockParams, ...]:
        if len(params.blocks) != self.depth:
            raise ValueError(f"params: {len(params.blocks)} blocks for a stack of {self.depth}")
        return params.blocks

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
        return X, StackPullback(blocks_pullback, norm_pullback)

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
        return X, DecoderPullback(tuple(pullbacks), norm_pullback)

    def decode(
        self, params: StackParams, X: Array, past: tuple[KeysValues, ...] | None
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """The causal stack on new tokens only, given the past of every block."""
        now = []
        for block_params, kv in zip(self._blocks(params), past or (None,) * self.depth, strict=True):
            X, kv = self.block.decode(block_params, X, kv)
            now.append(kv)
        return self._last_norm(params, X)[0], tuple(now)
