"""Reversible layers: a stack that remembers only its output, and computes its inputs again in the backward pass.

    Y_1 = X_1 + F(X_2)              X_2 = Y_2 − G(Y_1)
    Y_2 = X_2 + G(Y_1)              X_1 = Y_1 − F(X_2)

F is attention and G the feed-forward network, each after its norm. Two streams run side by side, and each half adds to one
what it reads from the other: so it can be taken away again. A usual block, X + F(X), has no such inverse.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np

from minitransformer.checks import frozen
from minitransformer.models.block import Block, BlockParams
from minitransformer.models.stack import Stack, StackParams, untie
from minitransformer.models.subclasses import keeps_up
from minitransformer.pullback import Pullback, Tree, added_losses, with_added
from minitransformer.typing import Array, Bool, Float, checked

# X to F(LN(X)), and a pullback from its gradient to (dnorm, dlayer, dX)
Half = Callable[[Array], tuple[Array, Pullback]]


def forth(F: Half, G: Half, X_1: Array, X_2: Array) -> tuple[Array, Array, Pullback, Pullback]:
    """Y_1 = X_1 + F(X_2), Y_2 = X_2 + G(Y_1); and the pullbacks of F and of G."""
    change, f = F(X_2)
    Y_1 = X_1 + change
    change, g = G(Y_1)
    return Y_1, X_2 + change, f, g


def back(F: Half, G: Half, Y_1: Array, Y_2: Array, dY_1: Array, dY_2: Array, dadded: float = 0.0) -> Any:
    """X_1, X_2, dX_1, dX_2, and the gradients of F's parameters and of G's: each half is computed once more, G first.

    Y_2 = X_2 + G(Y_1): dX_1 is dY_1 and what G sends back. Y_1 = X_1 + F(X_2): dX_2 is dY_2 and what F sends back, for
    dX_1 and for the loss that attention adds.
    """
    change, g = G(Y_1)
    X_2 = Y_2 - change
    *of_G, dX = g(dY_2)
    dX_1 = dY_1 + dX
    change, f = F(X_2)
    X_1 = Y_1 - change
    *of_F, dX = with_added(f, dadded)(dX_1)
    return X_1, X_2, dX_1, dY_2 + dX, of_F, of_G


class ReversiblePullback(Pullback):
    """Block by block from the last to the first, with `back`. Besides the model's parameters it remembers two arrays
    of the size of X and the seed of the blocks' draws, whatever the depth.

    seed       from which each half draws again what it drew
    observed   what each block has to know for `after_step`, if anything
    added      the sum of the losses that the blocks add
    """

    stack: "ReversibleStack"
    params: StackParams
    Y_1: Array
    Y_2: Array
    norm: Pullback | None
    causal: bool
    mask: Array | None
    seed: int | None
    observed: tuple[Tree, ...]
    added: float
    dadded: float = 0.0

    def __call__(self, dY: Array) -> tuple[StackParams, Array]:
        dnorm, dX = (None, dY) if self.norm is None else self.norm(dY)
        Y_1, Y_2, dY_1, dY_2 = self.Y_1, self.Y_2, dX / 2, dX / 2  # of their mean
        gradients = []
        for F, G in reversed(self.stack.halves(self.params, self.causal, self.mask, self.seed)):
            Y_1, Y_2, dY_1, dY_2, of_F, of_G = back(F, G, Y_1, Y_2, dY_1, dY_2, self.dadded)
            gradients.append(BlockParams(*of_F, *of_G))
        blocks, shared = untie(tuple(reversed(gradients)), self.stack.ties)
        return StackParams(blocks, dnorm, shared), dY_1 + dY_2


@frozen
class ReversibleStack(Stack):
    """Blocks, one after another, on two streams that both begin as X; the output is their mean, normalised.

    The authors lay the two streams side by side at the end, which makes what reads them twice as wide; here the model keeps
    its width, and its parameters are those of a `Stack`.

    In the backward pass the inputs are found to rounding, each block's from the next one's. Dropout and other random numbers are
    drawn again from the same seed; what is chosen, such as the buckets of a hash, is chosen again, and two choices that
    are equal to rounding may turn out the other way.

    source   Gomez et al. 2017; Kitaev, Kaiser and Levskaya 2020 (Aalto 3.2.1 leaves them out)
    cost     one more forward pass than a `Stack`, within the backward pass; memory for the activations of one block
    raises   ValueError for blocks that are post-norm, have cross-attention or a `__call__` of their own, are attention alone, or
             want tokens in front
    """

    takes = "pre-norm blocks of attention and a feed-forward network, without tokens in front"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks[0].order != "pre":
            raise ValueError("order: reversible layers are pre-norm; a norm around X + F(X) can't be taken away again")
        if any(block.cross is not None or block.ffn is None for block in self.blocks):
            raise ValueError("blocks: reversible ones have two halves, attention and a feed-forward network")
        for kind in map(type, self.blocks):
            if not keeps_up(kind, "mix", "change"):
                raise ValueError(
                    f"blocks: {kind.__name__} has a `__call__` of its own; reversible ones are called by halves"
                )
        if self.prefix:
            raise ValueError(f"blocks: reversible ones take no tokens in front, and these want {self.prefix}")

    def halves(
        self, params: StackParams, causal: bool, mask: Array | None, seed: int | None
    ) -> list[tuple[Half, Half]]:
        """F and G of each block; both draw from a generator of their own, the same one at every call."""

        def half(function: Callable[..., Any], own: BlockParams, number: int) -> Half:
            return lambda X: function(own, X, rng=None if seed is None else np.random.default_rng([seed, number]))

        found = []
        for k, (block, own) in enumerate(zip(self.blocks, self._tied(params), strict=True)):
            mix = partial(block.mix, causal=causal, mask=mask)
            found.append((half(mix, own, 2 * k), half(block.change, own, 2 * k + 1)))
        return found

    @checked
    def __call__(  # type: ignore[override]
        self,
        params: StackParams,
        X: Float[Array, "*batch n {self.width}"],
        *,
        causal: bool = False,
        mask: Bool[Array, "..."] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], ReversiblePullback]:
        """Pullback: dY to (dparams, dX)."""
        seed = None if rng is None else int(rng.integers(2**62))
        X_1 = X_2 = X
        observed, added = [], 0.0
        for block, (F, G) in zip(self.blocks, self.halves(params, causal, mask, seed), strict=True):
            X_1, X_2, f, _ = forth(F, G, X_1, X_2)
            observed.append(block.attention.observe(f.layer) if block.attention.moves else None)
            added += float(sum(added_losses(f)))
        Y, norm = self._last_norm(params, (X_1 + X_2) / 2)
        return Y, ReversiblePullback(self, params, X_1, X_2, norm, causal, mask, seed, tuple(observed), added)

    @cached_property
    def decodes(self) -> bool:
        """As in a `Stack`; and no block has halves of its own, which a step would pass over."""
        usual = all(type(block).mix is Block.mix and type(block).change is Block.change for block in self.blocks)
        return usual and super().decodes

    def _through_blocks(
        self, params: tuple[BlockParams, ...], X: Array, states: tuple[Any, ...]
    ) -> tuple[Array, tuple[Any, ...]]:
        X_1, X_2, longer = X, X, []
        for block, own, state in zip(self.blocks, params, states, strict=True):
            F, state = block.attention.step(own.attention, block._norm.value(own.attention_norm, X_2), state)
            X_1 = X_1 + F
            X_2 = X_2 + block.ffn.value(own.ffn, block._norm.value(own.ffn_norm, X_1))  # type: ignore[union-attr]
            longer.append(state)
        return (X_1 + X_2) / 2, tuple(longer)

    def observe(self, pullback: Pullback) -> Tree:
        """What `after_step` needs to know of each block's attention, as the forward pass has collected it."""
        return pullback.observed
