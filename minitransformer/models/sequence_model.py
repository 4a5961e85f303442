"""The one model of a sequence: embed the tokens, pass them through a stack of blocks, read something off at each of them.

    X = √D · E[tokens] + Π              embed; or without √D; or as in BERT, LN(E[tokens] + T[types] + Π)
    N = blocks(X)                       the stack, with a last norm if it is pre-norm
    logits = N Eᵀ                       what token: from the table that reads (tied embeddings), or from one of its own, N W
    logits = N W + b                    or numbers of any other kind

A language model is a causal one, a tagger one that sees both sides, a classifier one of whose rows only the first is used.
"""

import math
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from minitransformer.attention.multi_head import ProjectionParams
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.marks import DecodingState
from minitransformer.models.assemble import block_of, in_turns, keys_that_are_there
from minitransformer.models.block import FFN, Order
from minitransformer.models.embed import (
    EMBEDDINGS,
    EmbeddedPullback,
    Embedding,
    NormedEmbeddingPullback,
    embed,
    embed_normed,
)
from minitransformer.models.model import Model
from minitransformer.models.norms import Norm, norm_of
from minitransformer.models.registry import stack_of
from minitransformer.models.stack import Stack, StackParams
from minitransformer.positions import NoPositions, Placed, SinusoidalPositions, place
from minitransformer.pullback import Pullback, Tree
from minitransformer.ranges import Depth, Fraction, Range
from minitransformer.registry import named
from minitransformer.typing import Array, Float, Int, checked

Outputs = (
    Annotated[int, Range('at least 1, or "tied", "own" or "none"', lambda x: x >= 1)] | Literal["tied", "own", "none"]
)


class SequenceParams(NamedTuple):
    """The table of tokens (vocabulary, D), the positions, the stack; and what only some models have.

    types   BERT's table of kinds of sentence, (types, D)
    norm    BERT's, of the sum of the tables
    head    W (D, outputs) and b, where the answer is not a token; W (D, vocabulary) where it is, in a table of its own
    """

    E: Array
    positions: Tree
    stack: StackParams
    types: Tree = None
    norm: Tree = None
    head: Tree = None


class SequencePullback(Pullback):
    """Backwards: head, stack, embedding.

    logits = N Eᵀ gives dN = dlogits E and dE = dlogitsᵀ N, to which the reading side of E adds its own. A model without a
    head (None) gives N itself.
    """

    embedded: EmbeddedPullback | NormedEmbeddingPullback
    stack: Pullback
    head: LinearPullback | None
    tied: bool

    @property
    def blocks(self) -> tuple[Pullback, ...]:
        """The blocks' pullbacks: `pullback.blocks[3].attention.A`."""
        return self.stack.blocks

    def __call__(self, dlogits: Array) -> SequenceParams:
        dW: Any
        dN, dW, *db = (dlogits, None) if self.head is None else self.head(dlogits)
        dhead = None if self.tied or dW is None else ProjectionParams(dW, *db)
        dstack, dX = self.stack(dN)
        dE, dpositions, dtypes, dnorm = (*self.embedded(dX), None, None)[:4]  # the last two in a normed embedding only
        return SequenceParams(dW.T + dE if self.tied else dE, dpositions, dstack, dtypes, dnorm, dhead)


class Written(DecodingState):
    """What a causal model keeps of the `length` tokens so far: the states of its blocks, or the tokens, to read them again."""

    length: int
    blocks: tuple[Any, ...] | None
    tokens: Array | None

    many = ("tokens",)
    as_long = ("blocks",)


@frozen
class SequenceModel(Model):
    """A transformer over one sequence of tokens.

    Sizes
    vocabulary   number of tokens; 256 for bytes
    context      usual length of a sequence; more is refused by learned positions, and by attention that has a longest length
    width, depth, heads, hidden    D, number of blocks, H, width of the feed-forward network (4 D if None)

    Attention and positions
    attention    a name of the registry, with options or without ("window:radius=32"), or a core, a mixer or a pattern; or
                 a sequence of these, which take turns along the depth
    positions    a name of the registry, or an encoding, at the embeddings or inside attention
    groups       heads of keys and values, each shared by H/groups heads of queries; H if None
    head_width   d, the width of a head, so that all are H d wide; D/H if None
    causal       whether a token sees only what came before it

    The second half of a block, and the norms
    ffn          "relu", "gelu" or "gelu_tanh", the activation of a plain feed-forward network; or with a gate "glu", "reglu",
                 "geglu", "swiglu" or "bilinear" (see GatedFeedForward), which has 1.5 times the parameters at the same
                 hidden width; or "none", for blocks of attention alone
    bias         whether the projections of attention and the feed-forward network have one; norms keep theirs
    norm         "layer", "layer_eps_outside" or "rms" (see Norm), with another ε than 10⁻⁵ "layer:eps=1e-12"
    order, dropout    see Block

    The two ends
    embedding    "scaled" by √D, "plain", or "normed", see above: T has one row, or two in "normed:types=2"
    outputs      what comes out at each token: "tied", logits of tokens from the table that reads them; "own", logits from one
                 more table (vocabulary · D); an int, that many numbers of another kind; "none", the row of N itself

    The stack
    stack        how the blocks are put together, a name of the registry (models/registry.py): "plain"; "reversible", with
                 activations that are computed again and not remembered; "transformer-xl", with a memory of the segments before,
                 of `context` tokens each; "universal", one block that is used `depth` times, with tokens that halt

    cost         O(n D²) per block, and attention's own; 12 D² parameters per block
    raises       ValueError at construction, for choices that don't fit each other
    """

    vocabulary: int = 256
    context: int = 128
    width: int = 128
    depth: Depth = 4
    heads: int = 4
    hidden: int | None = None
    attention: Any = "softmax"
    positions: Any = "sinusoidal"
    groups: int | None = None
    head_width: int | None = None
    causal: bool = False
    ffn: FFN = "relu"
    bias: bool = True
    norm: str = "layer"
    order: Order = "pre"
    dropout: Fraction = 0.0
    embedding: str = "scaled"
    outputs: Outputs = "tied"
    stack: str = "plain"

    def __post_init__(self) -> None:
        _ = self._embedding  # refuses what it can't do
        self.body.refuse(causal=self.causal, absolute=self._placed.absolute)

    @property
    def answers(self) -> int:
        """How many numbers come out at each token."""
        if isinstance(self.outputs, str):
            return self.width if self.outputs == "none" else self.vocabulary
        return self.outputs

    @property
    def _has_head(self) -> bool:
        """Whether the parameters have a `head`; it has none if the output is read off E, or is N itself."""
        return self.outputs not in ("tied", "none")

    @cached_property
    def _chosen(self) -> Placed:
        d = self.head_width
        return place(self.positions, width=self.width, heads=self.heads, longest=self.context, head_width=d)

    @cached_property
    def _placed(self) -> Placed:
        """As chosen; but where the stack adds positions in every step, none are added to the embeddings."""
        return self._chosen._replace(at_embedding=NoPositions(self.width)) if self.body.places else self._chosen

    @cached_property
    def body(self) -> Stack:
        """The stack of its blocks, between the embedding and the head."""
        in_every_step = isinstance(self._chosen.at_embedding, SinusoidalPositions)
        block = partial(block_of, self, encoding=self._chosen.in_attention, longest=self.context, bias=self.bias)
        blocks = in_turns(self.attention, block, self.depth)
        return stack_of(self.stack, blocks, segment=self.context, places=in_every_step)

    @cached_property
    def _embedding(self) -> Embedding:
        return named("embedding", EMBEDDINGS, self.embedding, {})

    @cached_property
    def _norm(self) -> Norm:
        """The norm of the sum of the tables, with the ε of all norms."""
        return Norm(self.width, "layer", norm_of(self.norm, self.width).eps)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> SequenceParams:
        """Entries of E are normal with variance 1/D; in a normed embedding all tables have standard deviation 0.02."""
        head = types = norm = None
        normed = self._embedding.types is not None

        def table(rows: int) -> Array:
            shape = rows, self.width  # what is drawn gets no name below, so NumPy scales it in the memory that it has
            scaled = 0.02 * rng.standard_normal(shape) if normed else rng.standard_normal(shape) / math.sqrt(self.width)
            return scaled.astype(dtype)

        if self._has_head:
            W = (rng.standard_normal((self.width, self.answers)) / math.sqrt(self.width)).astype(dtype)
            head = ProjectionParams(W, None if self.outputs == "own" else np.zeros(self.answers, dtype))
        E = table(self.vocabulary)
        if self._embedding.types is not None:
            types, norm = table(self._embedding.types), self._norm.init(rng, dtype)
        positions = self._placed.at_embedding.init(rng, dtype)
        return SequenceParams(E, positions, self.body.init(rng, dtype), types, norm, head)

    def _embed(
        self, params: SequenceParams, tokens: Array, *, types: Array | None = None, rng: Any = None, first: int = 0
    ) -> tuple[Array, EmbeddedPullback | NormedEmbeddingPullback]:
        table = params.E, self._placed.at_embedding, params.positions
        if self._embedding.types is None:
            return embed(*table, tokens, rate=self.dropout, rng=rng, first=first, scaled=self._embedding.scaled)
        return embed_normed(*table, params.types, self._norm, params.norm, tokens, types, first=first)

    def _head(self, params: SequenceParams) -> tuple[Array, Array | None]:
        """W and b of the output N W + b: those of the head, or Eᵀ and None if the embeddings are tied."""
        return params.head if self._has_head else (params.E.T, None)

    def _answer(self, params: SequenceParams, N: Array) -> tuple[Array, LinearPullback | None]:
        return (N, None) if self.outputs == "none" else linear(N, *self._head(params))

    @checked
    def __call__(
        self,
        params: SequenceParams,
        tokens: Int[Array, "*batch n"],
        *,
        lengths: Int[Array, "*batch"] | None = None,
        types: Int[Array, "*batch n"] | None = None,
        rng: np.random.Generator | None = None,
        memory: tuple[Array, ...] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.answers}"], SequencePullback]:
        """The output at each token; a generator turns dropout on. Pullback: dlogits to dparams.

        lengths   of the sequences; what follows in a row of `tokens` is padding, which no token looks at. What comes out
        at the padding itself means nothing
        types     0 for the tokens of the first sentence, 1 for those of the second; all 0 by default (normed embedding)
        memory    `pullback.stack.memory` of the segment before, if the model has one and this is not the first
        raises    ValueError for a token or type outside its table, types without a table, a length beyond n, or more tokens
                  than a learned table has positions; TypeError for parameters of another form
        """
        if memory is not None and (not self.body.remembers or lengths is not None):
            why = "padding would be remembered" if self.body.remembers else "this model has none"
            raise ValueError(f"memory: {why}")
        if types is not None and self._embedding.types is None:
            raise ValueError(
                f'types: embedding={self.embedding!r} has no table of types; embedding="normed:types=2" has one'
            )
        X, embedded = self._embed(params, tokens, types=types, rng=rng)
        mask = keys_that_are_there(lengths, tokens.shape[-1])
        before = () if memory is None else (memory,)
        N, stack = self.body(params.stack, X, *before, causal=self.causal, mask=mask, rng=rng)
        logits, head = self._answer(params, N)
        return logits, SequencePullback(embedded, stack, head, self.outputs == "tied")

    @checked
    def step(
        self, params: SequenceParams, tokens: Int[Array, "*batch n"], state: Written | None = None
    ) -> tuple[Array, Written]:
        """The output of a causal model at new tokens (*batch, n) after those in the state, and the longer state.

        The same numbers as calling it on all, unless later tokens change what was said before: which keys a query sees (`causal:
        values only`, as in Reformer and Routing), or all angles (`DynamicNTK`). Attention that keeps no state reads all again.
        cost     one token after m − 1: O(D²) per block and attention's own, O(m D) with keys and values
        raises   ValueError if the model is not causal
        """
        if not self.causal:
            raise ValueError("causal: a model that sees both sides has no past to go on from")
        first = 0 if state is None else state.length
        longer = first + tokens.shape[-1]
        if self.body.decodes:
            X, _ = self._embed(params, tokens, first=first)
            N, blocks = self.body.step(params.stack, X, None if state is None else state.blocks)
            return self._answer(params, N)[0], Written(longer, blocks, None)
        before: Any = tokens[..., :0] if state is None else state.tokens
        if before.shape[-1] != first:
            raise ValueError(f"state: its tokens should be {first}, as its length is, are {before.shape[-1]}")
        everything = np.concatenate([before, tokens], -1)
        logits, _ = self(params, everything)
        return logits[..., first:, :], Written(longer, None, everything)


@frozen
class LanguageModel(SequenceModel):
    """A causal transformer: at every position, a distribution over the next token. The fields are those of SequenceModel."""

    causal: bool = True
    ffn: FFN = "gelu_tanh"
