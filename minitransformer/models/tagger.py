"""An encoder that says something about each of its tokens: the smallest model in which order has to come from outside.

    X = √D · E[tokens] + Π,     logits = LN(blocks(X)) Eᵀ

It is the language model without the mask. With the mask goes the last thing that told one position from another.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.functional import linear
from minitransformer.models.block import Block
from minitransformer.models.language_model import LanguageModelParams, LanguageModelPullback, embed
from minitransformer.models.stack import Stack
from minitransformer.positions import SinusoidalPositions
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Float, Int, checked


@dataclass(frozen=True)
class Tagger:
    """One distribution over the vocabulary for each token of a sequence, made from the whole sequence.

    vocabulary   number of tokens
    width, depth, heads, hidden    D, number of blocks, H, width of the feed-forward network (4 D if None)
    positions    a layer that adds something to the embeddings, (params, X) → (Y, pullback), as in positions/absolute.py;
                 sinusoids if None
    cost         O(n D² + n² D) per block
    """

    vocabulary: int
    width: int = 32
    depth: int = 1
    heads: int = 2
    hidden: int | None = None
    positions: Any = None

    def __post_init__(self) -> None:
        if self.vocabulary < 1:
            raise ValueError(f"vocabulary: {self.vocabulary} is not at least 1")
        _ = self._stack, self._positions  # each refuses what it can't do

    @property
    def _stack(self) -> Stack:
        hidden = 4 * self.width if self.hidden is None else self.hidden
        return Stack(Block(self.width, self.heads, hidden, "pre"), self.depth)

    @property
    def _positions(self) -> Callable[..., tuple[Array, Pullback]]:
        return SinusoidalPositions(self.width) if self.positions is None else self.positions

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LanguageModelParams:
        """Entries of E are normal with variance 1/D."""
        E = (rng.standard_normal((self.vocabulary, self.width)) / math.sqrt(self.width)).astype(dtype)
        positions: Tree = self._positions.init(rng, dtype)  # type: ignore[attr-defined]
        return LanguageModelParams(E, positions, self._stack.init(rng, dtype))

    @checked
    def __call__(
        self, params: LanguageModelParams, tokens: Int[Array, "*batch n"], *, rng: np.random.Generator | None = None
    ) -> tuple[Float[Array, "*batch n {self.vocabulary}"], LanguageModelPullback]:
        """Logits for each token; nothing in it is random. Pullback: dlogits to dparams.

        raises   ValueError for a token outside the vocabulary, or more tokens than a learned table has rows
        """
        X, embedded = embed(params.E, self._positions, params.positions, tokens, 0.0, None)
        N, stack = self._stack(params.stack, X)
        logits, head = linear(N, params.E.T)
        return logits, LanguageModelPullback(embedded, stack, head)
