"""A language model: at every position, a distribution over the next token.

    X = √D · E[tokens] + Π,     logits = LN(blocks(X)) Eᵀ

One table E reads the tokens and writes the predictions (tied embeddings), so its gradient has two parts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.attention.multi_head import KeysValues
from minitransformer.functional import EmbeddingPullback, LinearPullback, dropout, embedding, linear
from minitransformer.models.block import Block
from minitransformer.models.stack import Stack, StackParams, StackPullback
from minitransformer.positions import Encoding, Placed, place
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Float, Int, checked


class EmbeddedPullback(NamedTuple):
    """X = dropout(√D · E[tokens] + Π): back through positions and scale to the rows that were looked up."""

    embedding: EmbeddingPullback
    positions: Pullback
    dropout: Pullback
    scale: float

    def __call__(self, dX: Array) -> tuple[Array, Tree]:
        dpositions, dX = self.positions(self.dropout(dX))
        return self.embedding(self.scale * dX), dpositions


def embed(
    E: Array,
    positions: Callable[..., tuple[Array, Pullback]],
    params: Tree,
    tokens: Array,
    rate: float,
    rng: np.random.Generator | None,
    first: int = 0,
) -> tuple[Array, EmbeddedPullback]:
    """√D · E[tokens] + Π: with entries of E of size 1/√D, tokens and positions start equally loud."""
    scale = E.dtype.type(math.sqrt(E.shape[-1]))
    X, looked_up = embedding(tokens, E)
    X, placed = positions(params, scale * X, first=first)
    X, dropped = dropout(X, rate, rng)
    return X, EmbeddedPullback(looked_up, placed, dropped, scale)


class LanguageModelParams(NamedTuple):
    """The shared table (vocabulary, D), the positions, the stack."""

    E: Array
    positions: Tree
    stack: StackParams


class LanguageModelPullback(NamedTuple):
    """logits = N Eᵀ gives dN = dlogits E and dE = dlogitsᵀ N, to which the reading side of E adds its own."""

    embedded: EmbeddedPullback
    stack: StackPullback
    head: LinearPullback

    @property
    def blocks(self) -> tuple[Pullback, ...]:
        """The blocks' pullbacks: `pullback.blocks[3].attention.A`."""
        return self.stack.blocks

    def __call__(self, dlogits: Array) -> LanguageModelParams:
        dN, dE_write = self.head(dlogits)
        dstack, dX = self.stack(dN)
        dE_read, dpositions = self.embedded(dX)
        return LanguageModelParams(dE_write.T + dE_read, dpositions, dstack)


@dataclass(frozen=True)
class LanguageModel:
    """A causal transformer over tokens.

    vocabulary   number of tokens; 256 for bytes
    context      longest sequence it can be trained on (and, with learned positions, can read at all)
    width, depth, heads, hidden    D, number of blocks, H, width of the feed-forward network (4 D if None)
    positions    the name of an encoding (minitransformer/positions/registry.py), or one that acts inside attention
    order, norm, activation, dropout    see Block
    cost         O(n D² + n² D) per block; 12 D² parameters per block
    """

    vocabulary: int = 256
    context: int = 128
    width: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    positions: str | Encoding = "sinusoidal"
    order: Literal["pre", "post"] = "pre"
    norm: str = "layer"
    activation: str = "gelu_tanh"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 1 or self.context < 1:
            raise ValueError(f"vocabulary and context must be at least 1, got {self.vocabulary} and {self.context}")
        _ = self._stack, self._positions  # each refuses what it can't do

    @property
    def _stack(self) -> Stack:
        hidden = 4 * self.width if self.hidden is None else self.hidden
        block = Block(self.width, self.heads, hidden, self.order, self.norm, 1e-5, self.activation, self.dropout)
        return Stack(replace(block, position=self._placed.in_attention), self.depth)

    @property
    def _placed(self) -> Placed:
        return place(self.positions, width=self.width, heads=self.heads, longest=self.context)

    @property
    def _positions(self) -> Any:
        return self._placed.at_embedding

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LanguageModelParams:
        """Entries of E are normal with variance 1/D."""
        E = (rng.standard_normal((self.vocabulary, self.width)) / math.sqrt(self.width)).astype(dtype)
        return LanguageModelParams(E, self._positions.init(rng, dtype), self._stack.init(rng, dtype))

    @checked
    def __call__(
        self, params: LanguageModelParams, tokens: Int[Array, "*batch n"], *, rng: np.random.Generator | None = None
    ) -> tuple[Float[Array, "*batch n {self.vocabulary}"], LanguageModelPullback]:
        """Logits for the token after each position. A generator turns dropout on. Pullback: dlogits to dparams.

        raises   ValueError for a token outside the vocabulary, or more tokens than learned positions
        """
        X, embedded = embed(params.E, self._positions, params.positions, tokens, self.dropout, rng)
        N, stack = self._stack(params.stack, X, causal=True, rng=rng)
        logits, head = linear(N, params.E.T)
        return logits, LanguageModelPullback(embedded, stack, head)

    def decode(
        self, params: LanguageModelParams, tokens: Array, past: tuple[KeysValues, ...] | None = None
    ) -> tuple[Array, tuple[KeysValues, ...]]:
        """Logits for new tokens (*batch, n) that follow the past, and the longer past. Same numbers as calling on all.

        cost   O(m D + D²) per block for one token after m; the past holds 2 m D numbers per block
        """
        first = past[0].K.shape[-2] if past else 0
        X, _ = embed(params.E, self._positions, params.positions, tokens, 0, None, first)
        N, past = self._stack.decode(params.stack, X, past)
        return N @ params.E.T, past
