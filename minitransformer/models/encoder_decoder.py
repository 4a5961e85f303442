"""The original transformer: an encoder reads the source, a decoder writes the target and looks at the source as it goes.

Every block of the decoder attends to the same thing, the output of the last block of the encoder, so that output
collects a gradient from every block of the decoder.
"""

import math
import operator
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, SupportsIndex

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import refuse_unknown
from minitransformer.models.assemble import block_of, in_turns, keys_that_are_there
from minitransformer.models.block import FFN, Order
from minitransformer.models.embed import EmbeddedPullback, embed
from minitransformer.models.model import Model
from minitransformer.models.stack import Stack, StackParams, StackPullback
from minitransformer.positions import Placed, place
from minitransformer.pullback import Pullback, Tree, tree_add
from minitransformer.ranges import Depth, Fraction, NonNegative
from minitransformer.typing import Array, Float, Int, checked

LONGEST = 2**16  # tokens of a translation: each step reads all of it again


class EncoderDecoderParams(NamedTuple):
    """One table of tokens (vocabulary, D) for source, target and output; positions; the two stacks."""

    E: Array
    positions: Tree
    encoder: StackParams
    decoder: StackParams


class EncoderDecoderPullback(Pullback):
    """E is used three times and the positions twice: their gradients are sums."""

    source: EmbeddedPullback
    encoder: StackPullback
    target: EmbeddedPullback
    decoder: StackPullback
    N: Array
    E: Array

    def __call__(self, dlogits: Array) -> EncoderDecoderParams:
        flat = dlogits.reshape(-1, dlogits.shape[-1])
        dE_write = flat.T @ self.N.reshape(-1, self.N.shape[-1])
        ddecoder, dtarget, dencoded = self.decoder(dlogits @ self.E)
        dencoder, dsource = self.encoder(dencoded)
        dE_target, dpositions_target = self.target(dtarget)
        dE_source, dpositions_source = self.source(dsource)
        dpositions = tree_add(dpositions_source, dpositions_target)
        return EncoderDecoderParams(dE_write + dE_target + dE_source, dpositions, dencoder, ddecoder)


@frozen
class EncoderDecoder(Model):
    """Sequence to sequence.

    vocabulary   tokens of source and target together
    longest      of source and target; more is refused by learned positions, and by attention that has a longest length
    width, depth, heads, hidden, attention, positions, groups, head_width, ffn, norm, order, dropout
                 as in SequenceModel; depth of each stack. Cross-attention is always dense
    source       Aalto 2.1.5; Lecture notes, decoder block; Borealis II, figure 15
    cost         O(n D² + n m D) per block, and self-attention's own
    raises       ValueError for impossible choices, such as attention that is always causal: the encoder sees both sides
    """

    vocabulary: int
    longest: int = 64
    width: int = 64
    depth: Depth = 2
    heads: int = 4
    hidden: int | None = None
    attention: Any = "softmax"
    positions: Any = "sinusoidal"
    groups: int | None = None
    head_width: int | None = None
    ffn: FFN = "relu"
    norm: str = "layer"
    order: Order = "pre"
    dropout: Fraction = 0.0

    stacks: ClassVar = {"encoder": "encoder", "decoder": "decoder"}

    def __post_init__(self) -> None:
        self.encoder.refuse(causal=False)
        self.decoder.refuse(causal=True)

    @cached_property
    def _placed(self) -> Placed:
        d = self.head_width
        return place(self.positions, width=self.width, heads=self.heads, longest=self.longest, head_width=d)

    @cached_property
    def encoder(self) -> Stack:
        """Its blocks see the whole source."""
        return self._stack(cross=False)

    @cached_property
    def decoder(self) -> Stack:
        """Its blocks see the target so far, and the source."""
        return self._stack(cross=True)

    def _stack(self, *, cross: bool) -> Stack:
        block = partial(block_of, self, encoding=self._placed.in_attention, longest=self.longest, cross=cross)
        return Stack(in_turns(self.attention, block, self.depth))

    def _embed(self, params: EncoderDecoderParams, tokens: Array, rng: Any = None) -> tuple[Array, EmbeddedPullback]:
        positions = self._placed.at_embedding
        return embed(params.E, positions, params.positions, tokens, rate=self.dropout, rng=rng)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> EncoderDecoderParams:
        """Entries of E are normal with variance 1/D."""
        E = (rng.standard_normal((self.vocabulary, self.width)) / math.sqrt(self.width)).astype(dtype)
        positions = self._placed.at_embedding.init(rng, dtype)
        return EncoderDecoderParams(E, positions, self.encoder.init(rng, dtype), self.decoder.init(rng, dtype))

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
        for name, tokens in (("source", source), ("target", target)):
            refuse_unknown(tokens, self.vocabulary, name)
        mask = keys_that_are_there(lengths, source.shape[-1])
        X, embedded_source = self._embed(params, source, rng)
        encoded, encoder = self.encoder(params.encoder, X, mask=mask, rng=rng)
        X, embedded_target = self._embed(params, target, rng)
        N, decoder = self.decoder(params.decoder, X, encoded, causal=True, Z_mask=mask, rng=rng)
        return N @ params.E.T, EncoderDecoderPullback(embedded_source, encoder, embedded_target, decoder, N, params.E)

    @checked
    def translate(
        self,
        params: EncoderDecoderParams,
        source: Int[Array, "batch m"],
        *,
        begin: NonNegative,
        end: NonNegative,
        longest: SupportsIndex,
        lengths: Int[Array, "batch"] | None = None,
    ) -> Int[Array, "batch length"]:
        """Write the most probable next token until `end` or `longest` tokens; (batch, ≤ longest), `end` repeated after the end.

        The source is read once. The target is short, so each step runs the decoder over all of it again. An `end` outside the
        vocabulary never comes.
        raises   ValueError for a source or `begin` outside the vocabulary, a length beyond m, or more than 65,536 tokens to write
        """
        most = operator.index(longest)
        if not 0 <= most <= LONGEST:
            raise ValueError(f"longest: {longest} should be a number from 0 to {LONGEST}")
        for name, tokens in (("source", source), ("begin", np.array(begin))):
            refuse_unknown(tokens, self.vocabulary, name)
        mask = keys_that_are_there(lengths, source.shape[-1])
        encoded, _ = self.encoder(params.encoder, self._embed(params, source)[0], mask=mask)
        target = np.full((len(source), 1), begin)
        done = np.zeros(len(source), bool)
        while target.shape[1] <= most and not done.all():
            X, _ = self._embed(params, target)
            N, _ = self.decoder(params.decoder, X, encoded, causal=True, Z_mask=mask)
            token = np.where(done, end, (N[:, -1] @ params.E.T).argmax(-1))
            target = np.concatenate([target, token[:, None]], 1)
            done |= token == end
        return target[:, 1:]
