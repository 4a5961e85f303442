"""The original transformer: an encoder reads the source, a decoder writes the target and looks at the source as it goes.

Every block of the decoder attends to the same thing, the output of the last block of the encoder, so that output
collects a gradient from every block of the decoder.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from minitransformer.attention import padding_mask
from minitransformer.models.block import Block
from minitransformer.models.language_model import EmbeddedPullback, embed
from minitransformer.models.stack import DecoderPullback, Stack, StackParams, StackPullback
from minitransformer.positions import Encoding, Placed, place
from minitransformer.pullback import Tree, tree_add
from minitransformer.typing import Array, Float, Int, checked


class EncoderDecoderParams(NamedTuple):
    """One table of tokens (vocabulary, D) for source, target and output; positions; the two stacks."""

    E: Array
    positions: Tree
    encoder: StackParams
    decoder: StackParams


class EncoderDecoderPullback(NamedTuple):
    """E is used three times and the positions twice: their gradients are sums."""

    source: EmbeddedPullback
    encoder: StackPullback
    target: EmbeddedPullback
    decoder: DecoderPullback
    N: Array
    E: Array

    def __call__(self, dlogits: Array) -> EncoderDecoderParams:
        flat = dlogits.reshape(-1, dlogits.shape[-1])
        dE_write = flat.T @ self.N.reshape(-1, self.N.shape[-1])
        ddecoder, dtarget, dmemory = self.decoder(dlogits @ self.E)
        dencoder, dsource = self.encoder(dmemory)
        dE_target, dpositions_target = self.target(dtarget)
        dE_source, dpositions_source = self.source(dsource)
        dpositions = tree_add(dpositions_source, dpositions_target)
        return EncoderDecoderParams(dE_write + dE_target + dE_source, dpositions, dencoder, ddecoder)


@dataclass(frozen=True)
class EncoderDecoder:
    """Sequence to sequence.

    vocabulary   tokens of source and target together
    longest      longest source or target (binding only for learned positions)
    width, depth, heads, hidden, positions, order, norm, activation, dropout    as in LanguageModel; depth of each stack
    source       Aalto 2.1.5; Lecture notes, decoder block; Borealis II, figure 15
    cost         O(n D² + n² D + n m D) per block
    """

    vocabulary: int
    longest: int = 64
    width: int = 64
    depth: int = 2
    heads: int = 4
    hidden: int | None = None
    positions: str | Encoding = "sinusoidal"
    order: Literal["pre", "post"] = "pre"
    norm: str = "layer"
    activation: str = "relu"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.vocabulary < 1 or self.longest < 1:
            raise ValueError(f"vocabulary and longest must be at least 1, got {self.vocabulary} and {self.longest}")
        _ = self._stack, self._positions  # each refuses what it can't do

    @property
    def _stack(self) -> Stack:
        hidden = 4 * self.width if self.hidden is None else self.hidden
        block = Block(self.width, self.heads, hidden, self.order, self.norm, 1e-5, self.activation, self.dropout)
        return Stack(replace(block, position=self._placed.in_attention), self.depth)

    @property
    def _placed(self) -> Placed:
        return place(self.positions, width=self.width, heads=self.heads, longest=self.longest)

    @property
    def _positions(self) -> Any:
        return self._placed.at_embedding

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> EncoderDecoderParams:
        """Entries of E are normal with variance 1/D."""
        E = (rng.standard_normal((self.vocabulary, self.width)) / math.sqrt(self.width)).astype(dtype)
        positions = self._positions.init(rng, dtype)
        return EncoderDecoderParams(
            E, positions, self._stack.init(rng, dtype), self._stack.init(rng, dtype, cross=True)
        )

    @checked
    def __call__(
        self,
        params: EncoderDecoderParams,
        source: Int[Array, "*batch m"],
        target: Int[Array, "*batch n"],
        *,
        lengths: Int[Array, "*batch"] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[Float[Array, "*batch n {self.vocabulary}"], EncoderDecoderPullback]:
        """Logits for the token after each position of the target. Pullback: dlogits to dparams.

        lengths   of the sources; what follows in a row of `source` is padding and is not looked at
        raises    ValueError for a token outside the vocabulary, a length beyond m, a sequence beyond learned positions
        """
        mask = self._source_mask(source, lengths)
        X, embedded_source = embed(params.E, self._positions, params.positions, source, self.dropout, rng)
        memory, encoder = self._stack(params.encoder, X, mask=mask, rng=rng)
        Z, embedded_target = embed(params.E, self._positions, params.positions, target, self.dropout, rng)
        N, decoder = self._stack.decoder(params.decoder, Z, memory, memory_mask=mask, rng=rng)
        return N @ params.E.T, EncoderDecoderPullback(embedded_source, encoder, embedded_target, decoder, N, params.E)

    @staticmethod
    def _source_mask(source: Array, lengths: Array | None) -> Array | None:
        if lengths is None:
            return None
        return padding_mask(lengths, source.shape[-1])[..., None, :, :]  # one axis more, for the heads

    def translate(
        self,
        params: EncoderDecoderParams,
        source: Array,
        *,
        begin: int,
        end: int,
        longest: int,
        lengths: Array | None = None,
    ) -> Array:
        """Write the most probable next token until `end` or `longest` tokens; (batch, ≤ longest), `end` repeated after the end.

        The source is read once. The target is short, so each step runs the decoder over all of it again.
        """
        mask = self._source_mask(source, lengths)
        X, _ = embed(params.E, self._positions, params.positions, source, 0, None)
        memory, _ = self._stack(params.encoder, X, mask=mask)
        target = np.full((len(source), 1), begin)
        done = np.zeros(len(source), bool)
        while target.shape[1] <= longest and not done.all():
            Z, _ = embed(params.E, self._positions, params.positions, target, 0, None)
            N, _ = self._stack.decoder(params.decoder, Z, memory, memory_mask=mask)
            token = np.where(done, end, (N[:, -1] @ params.E.T).argmax(-1))
            target = np.concatenate([target, token[:, None]], 1)
            done |= token == end
        return target[:, 1:]
