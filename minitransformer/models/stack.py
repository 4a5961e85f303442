"""Stacks of blocks: the encoder, the decoder of a translator, and the causal stack of a language model.

Blocks may differ, and may have parameters in common. A pre-norm stack ends with one more norm, because nothing has
normalised the sum that its blocks have built up.
"""

from functools import cached_property, reduce
from itertools import pairwise
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import loops_in
from minitransformer.gather_scatter import unbroadcast
from minitransformer.models.block import Block, BlockParams, BlockPullback
from minitransformer.models.norms import NormParams
from minitransformer.models.subclasses import keeps_up
from minitransformer.pullback import Pullback, Tree, tree_add, tree_get, tree_leaves, tree_set
from minitransformer.typing import Array, Bool, Float, checked


class StackParams(NamedTuple):
    """One tree for each block; the last norm is None in a post-norm stack.

    shared   what several blocks have in common, by its path within a block; the blocks have None in its place
    prefix   rows that stand in front of every sequence, (prefix, D), if attention wants some
    """

    blocks: tuple[BlockParams, ...]
    norm: NormParams | None
    shared: Tree = None
    prefix: Tree = None


class StackPullback(Pullback):
    """Backwards through the blocks: `pullback.blocks[3].attention.A` is the attention of the fourth.

    If the blocks looked at other rows Z, dZ is the sum over the blocks. The rows in front are no part of Y, so their dY is zero;
    they are the same in all samples, so their gradient is the sum over the samples.
    """

    blocks: tuple[BlockPullback, ...]
    norm: Pullback | None
    ties: tuple[tuple[str, tuple[int, ...]], ...]
    prefix: int = 0

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        if self.prefix:
            silent = np.zeros((*dY.shape[:-2], self.prefix, dY.shape[-1]), dY.dtype)
            dY = np.concatenate([silent, dY], -2)
        dnorm, dX = self.norm(dY) if self.norm else (None, dY)
        dblocks, dZs = [], []
        for block in reversed(self.blocks):
            dblock, dX, *dZ = block(dX)
            dblocks.append(dblock)
            dZs += dZ
        blocks, shared = untie(tuple(reversed(dblocks)), self.ties)
        dZ = [np.sum(dZs, axis=0)] if dZs else []
        dprefix = None
        if self.prefix:
            dprefix = unbroadcast(dX[..., : self.prefix, :], (self.prefix, dX.shape[-1]))
            dX = dX[..., self.prefix :, :]
        return StackParams(blocks, dnorm, shared, dprefix), dX, *dZ


def untie(blocks: tuple[Tree, ...], ties: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[tuple[Tree, ...], Any]:
    """The gradients of blocks that were tied: each block's own, and the sum over the blocks of what they share."""
    shared = {}
    for path, members in ties:
        shared[path] = reduce(tree_add, (tree_get(blocks[k], path) for k in members))
        blocks = tuple(tree_set(block, path, None) if k in members else block for k, block in enumerate(blocks))
    return blocks, shared or None


def mask_with_prefix(prefix: int, mask: Array | None, n: int) -> Array | None:
    """Extend a mask of n tokens by the rows in front, which all tokens see; in a mask with rows for queries they see all."""
    if mask is None or mask.shape[-1:] not in ((1,), (n,)):
        return mask
    mask = np.broadcast_to(mask, (*mask.shape[:-1], n))  # an axis of length 1 stands for all
    widths = [(0, 0)] * mask.ndim
    widths[-1] = prefix, 0
    if mask.ndim > 1 and mask.shape[-2] != 1:
        widths[-2] = prefix, 0
    return np.pad(mask, widths, constant_values=True)


# What `_tied_as_before` has found last: the ties, the parts that the parameters were made of, and the blocks with what they share
_last_tied: list[tuple[Any, list[Any], tuple[BlockParams, ...]]] = [((), [], ())]


@frozen
class Stack:
    """Blocks, one after another.

    blocks   as many as the stack is deep; `(block,) * depth` for blocks of one form
    tied     paths within a block of parameters that all blocks have in common, besides those that their attention shares by
             its definition; "" for all of them
    raises   ValueError for no block, or blocks of several widths or orders, or that want different numbers of tokens in front;
             and for tied parameters that are moved after a step, each block's by what it has seen
    """

    blocks: tuple[Block, ...]
    tied: tuple[str, ...] = ()

    takes = "any blocks"
    remembers = False  # whether it looks back at the segments before this one
    places = False  # whether it says in every step where a token stands, so that nothing is added to the embeddings

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("blocks: a stack needs at least one")
        if len({(block.width, block.order) for block in self.blocks}) > 1:
            raise ValueError("blocks: all should have the same width and order")
        if len(wanted := {block.attention.prefix for block in self.blocks} - {0}) > 1:
            raise ValueError(f"blocks: they want {' and '.join(map(str, sorted(wanted)))} tokens in front")
        for part in (block.attention for block in self.blocks if block.attention.moves):
            moved = [f"attention.{path}." for path in part.untrained]
            if any(path.startswith(f"{tied}." if tied else "") for tied in self.tied for path in moved):
                raise ValueError(f"tied: {', '.join(map(repr, self.tied))} has parameters that after_step moves")

    @property
    def width(self) -> int:
        """D, the width of the rows."""
        return self.blocks[0].width

    @property
    def depth(self) -> int:
        """The number of blocks."""
        return len(self.blocks)

    @property
    def prefix(self) -> int:
        """Tokens that stand in front of every sequence, from the first block to the last."""
        return max(block.attention.prefix for block in self.blocks)

    @cached_property
    def ties(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The paths that are tied, and for each the numbers of its blocks."""
        if "" in self.tied:
            return (("", tuple(range(self.depth))),)
        own = [{*self.tied, *(f"attention.{path}" for path in block.attention.shared)} for block in self.blocks]
        paths = dict.fromkeys(path for block in own for path in sorted(block))
        return tuple((path, tuple(k for k, block in enumerate(own) if path in block)) for path in paths)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> StackParams:
        """Parameters of the blocks and of the last norm; what is shared is drawn with the first block that has it.

        Entries of what stands in front have variance 1, as those of embedded tokens.
        """
        norm = self.blocks[0]._norm.init(rng, dtype) if self.blocks[0].order == "pre" else None
        blocks = tuple(block.init(rng, dtype) for block in self.blocks)
        shared = {path: self._part(blocks[members[0]], path) for path, members in self.ties}
        prefix = rng.standard_normal((self.prefix, self.width)).astype(dtype) if self.prefix else None
        return StackParams(untie(blocks, self.ties)[0], norm, shared or None, prefix)

    def _part(self, block: BlockParams, path: str) -> Tree:
        """What the blocks share at this path. Raises ValueError where a part says so of parameters that it does not have."""
        try:
            return tree_get(block, path)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: the blocks should share it, and have no such parameter; `tied` and `shared` name what they share, "
                "and `encoding_at` of a core where the parameters of its encoding are"
            ) from error

    def _tied(self, params: StackParams) -> tuple[BlockParams, ...]:
        """The blocks, each with what it shares."""
        blocks = params.blocks
        for path, members in self.ties:
            part = params.shared[path]
            blocks = tuple(tree_set(block, path, part) if k in members else block for k, block in enumerate(blocks))
        return blocks

    def _tied_as_before(self, params: StackParams) -> tuple[BlockParams, ...]:
        """As `_tied`, with the same objects again for the next token: the loops recognise parameters by their identity.

        What is shared, and the streams of a core, stand in dicts, where a reader may put other arrays.
        """
        if not self.ties:
            return params.blocks
        streams = [getattr(block and block.attention, "streams", None) for block in params.blocks]
        parts = [params.blocks, *tree_leaves((params.shared, streams))]
        ties, before, blocks = _last_tied[0]
        if ties != self.ties or len(before) != len(parts) or not all(map(is_, parts, before)):
            blocks = self._tied(params)
            _last_tied[0] = self.ties, parts, blocks
        return blocks

    def _last_norm(self, params: StackParams, X: Array) -> tuple[Array, Pullback | None]:
        """X after the last norm, and its pullback; X itself and None in a post-norm stack, which has no last norm."""
        return (X, None) if params.norm is None else self.blocks[0]._norm(params.norm, X)

    @checked
    def __call__(
        self,
        params: StackParams,
        X: Float[Array, "*batch n {self.width}"],
        Z: Float[Array, "*batch m {self.width}"] | None = None,
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        Z_mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], StackPullback]:
        """Encoder; with causal=True the stack of a language model; with an encoder's output Z, that of a translator's decoder.

        Pullback: dY to (dparams, dX), and dZ if there is a Z: every block looks at the same one.
        """
        pullbacks, prefix = [], self.prefix
        if prefix:
            mask = mask_with_prefix(prefix, mask, X.shape[-2])
            X = np.concatenate([np.broadcast_to(params.prefix, (*X.shape[:-2], *params.prefix.shape)), X], -2)
        for block, own in zip(self.blocks, self._tied(params), strict=True):
            X, pullback = block(own, X, Z, causal=causal, mask=mask, Z_mask=Z_mask, rng=rng)
            pullbacks.append(pullback)
        X, norm = self._last_norm(params, X)
        return X[..., prefix:, :], StackPullback(tuple(pullbacks), norm, self.ties, prefix)

    # ------------------------------------------------- decoding

    @cached_property
    def decodes(self) -> bool:
        """Whether every block can go on from a state, and nothing has a `__call__` that its `step` does not know."""
        return keeps_up(type(self), "step", "_through_blocks") and all(block.decodes for block in self.blocks)

    @checked
    def step(
        self, params: StackParams, X: Float[Array, "*batch n {self.width}"], states: tuple[Any, ...] | None = None
    ) -> tuple[Array, tuple[Any, ...]]:
        """The causal stack on new tokens after those in the states of its blocks; returns Y and the longer states."""
        if states is None:
            states = (None,) * self.depth
        X, states = self._through_blocks(self._tied_as_before(params), X, states)
        return X if params.norm is None else self.blocks[0]._norm.value(params.norm, X), states

    @cached_property
    def _runs(self) -> list[tuple[Block, slice]]:
        """Blocks that follow one another, are the same, and have loops around their cores: one of them, and where they are."""
        alike = [block.loops_around_core and block == before for before, block in pairwise(self.blocks)]
        starts = [0, *(k for k, same in enumerate(alike, 1) if not same), self.depth]
        return [(self.blocks[k], slice(k, end)) for k, end in pairwise(starts)]

    def _through_blocks(
        self, params: tuple[BlockParams, ...], X: Array, states: tuple[Any, ...]
    ) -> tuple[Array, tuple[Any, ...]]:
        """New tokens through all blocks, and the longer states; one token by compiled loops, run by run, where there are some."""
        longer: list[Any] = []
        for block, run in self._runs:
            done = block.by_loops(params[run], X, states[run]) if type(block).step is Block.step else None
            if done:
                X, after = done
                longer += after
                continue
            for own, state in zip(params[run], states[run], strict=True):
                X, state = block.step(own, X, state)
                longer.append(state)
        return X, tuple(longer)

    def write(self, params: StackParams, X: Array, states: Any, text: Any) -> tuple[Any, ...] | None:
        """Pass X (1, D) and then one token of a text after another through all blocks: the states after them.

        All are one call of a loop, which draws each token from the row of the one before; None if there is no loop that can.
        """
        (block, _), *others = self._runs
        loops = loops_in("one_token")
        if others or not loops or not block.loops_around_core or type(block).step is not Block.step or None in states:
            return None
        write = loops.one_token if block.one_loop else loops.around_core
        done = write(block, self._tied_as_before(params), X, states, text)
        return done and done[1]

    def refuse(self, *, causal: bool, absolute: Any = None) -> None:
        """Raise ValueError if a block can't have this `causal`; a stack with a memory also refuses absolute positions."""
        for block in self.blocks:
            block.attention.refuse(causal=causal)

    # ---------------------------------------------------------------- what no gradient moves, and added losses

    @property
    def untrained(self) -> tuple[str, ...]:
        """Paths of parameters that no gradient moves."""
        own = [(f"attention.{path}", k) for k, block in enumerate(self.blocks) for path in block.attention.untrained]
        ties = dict(self.ties)
        return tuple(dict.fromkeys(f"shared.{path}" if path in ties else f"blocks.{k}.{path}" for path, k in own))

    @property
    def moves(self) -> bool:
        """Whether `after_step` moves any parameters."""
        return any(block.attention.moves for block in self.blocks)

    @property
    def adds_loss(self) -> bool:
        """Whether a block's pullback has a loss to be added."""
        return any(block.attention.adds_loss for block in self.blocks)

    def observe(self, pullback: StackPullback) -> Tree:
        """What `after_step` needs to know of each block's attention."""
        return tuple(b.attention.observe(p.attention.layer) for b, p in zip(self.blocks, pullback.blocks, strict=True))

    def after_step(self, params: StackParams, observed: Tree, rng: np.random.Generator) -> StackParams:
        """Each block's parameters after an optimiser's step."""
        moved = tuple(
            own._replace(attention=block.attention.after_step(own.attention, seen, rng))
            for block, own, seen in zip(self.blocks, params.blocks, observed, strict=True)
        )
        return params._replace(blocks=moved)
