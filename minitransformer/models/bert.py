"""BERT: an encoder that has read a lot. Post-norm blocks over the sum of three tables.

    X = LN(E[tokens] + Π + T[types]),     hidden = blocks(X)

Nothing is hidden from a token, on either side; only padding is. Every part but the sum of the tables is one that the
book already has: post-norm blocks, layer norm with ε = 10⁻¹² under the root, GELU, learned positions.
`bert_files.py` fills it with weights that others have trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minitransformer.attention import padding_mask
from minitransformer.functional import EmbeddingPullback, embedding
from minitransformer.models.block import Block
from minitransformer.models.norms import Norm, NormParams, NormPullback
from minitransformer.models.stack import Stack, StackParams, StackPullback
from minitransformer.positions import Encoding, Placed, place
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Float, Int, checked

if TYPE_CHECKING:
    from minitransformer.models.bert_files import WordPiece


class BertParams(NamedTuple):
    """Tables of words E (vocabulary, D), positions Π (longest, D) and types T (types, D); their norm; the blocks."""

    word: Array
    position: Tree
    type: Array
    norm: NormParams
    stack: StackParams


class BertPullback(NamedTuple):
    """One row of each table was added, so each gets the same gradient, that of the sum, at the rows that were used."""

    word: EmbeddingPullback
    position: Pullback
    type: EmbeddingPullback
    norm: NormPullback
    stack: StackPullback

    @property
    def blocks(self) -> tuple[Pullback, ...]:
        """The blocks' pullbacks: `pullback.blocks[3].attention.A` is the attention of the fourth, (*batch, H, n, n)."""
        return self.stack.blocks

    def __call__(self, dhidden: Array) -> BertParams:
        dstack, dX = self.stack(dhidden)
        dnorm, dX = self.norm(dX)
        dposition, dX = self.position(dX)
        return BertParams(self.word(dX), dposition, self.type(dX), dnorm, dstack)


@dataclass(frozen=True)
class BERT:
    """The encoder of a BERT; the defaults are the sizes of BERT-Base.

    vocabulary   number of word pieces
    longest      rows of the table of positions: no longer sequence can be read
    width, depth, heads, hidden    D, number of blocks, H, width of the feed-forward network
    types        kinds of sentence; BERT was trained on pairs, first and second
    eps, activation    of every layer norm, of every feed-forward network
    positions    as in LanguageModel; BERT's own are "learned"
    source       Borealis II, learned absolute position embeddings; Lecture notes, encoder block
    cost         O(n D² + n² D) per block; 12 D² parameters per block. Not causal.
    """

    vocabulary: int = 30522
    longest: int = 512
    width: int = 768
    depth: int = 12
    heads: int = 12
    hidden: int = 3072
    types: int = 2
    eps: float = 1e-12
    activation: str = "gelu"
    positions: str | Encoding = "learned"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "longest", "hidden", "types"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: a BERT needs at least one, got {getattr(self, name)}")
        _ = self._stack  # refuses what it can't do

    @property
    def _stack(self) -> Stack:
        block = Block(
            self.width,
            self.heads,
            self.hidden,
            order="post",
            eps=self.eps,
            activation=self.activation,
            position=self._placed.in_attention,
        )
        return Stack(block, self.depth)

    @property
    def _norm(self) -> Norm:
        return Norm(self.width, "layer", self.eps)

    @property
    def _placed(self) -> Placed:
        return place(self.positions, width=self.width, heads=self.heads, longest=self.longest)

    @property
    def _positions(self) -> Any:
        return self._placed.at_embedding

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> BertParams:
        """A BERT that has read nothing. Entries of the tables have standard deviation 0.02."""
        word: Array = (0.02 * rng.standard_normal((self.vocabulary, self.width))).astype(dtype)
        kind: Array = (0.02 * rng.standard_normal((self.types, self.width))).astype(dtype)
        position = self._positions.init(rng, dtype)
        return BertParams(word, position, kind, self._norm.init(rng, dtype), self._stack.init(rng, dtype))

    @checked
    def __call__(
        self,
        params: BertParams,
        tokens: Int[Array, "*batch n"],
        *,
        lengths: Int[Array, "*batch"] | None = None,
        types: Int[Array, "*batch n"] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], BertPullback]:
        """One vector per token, made from all tokens of its sequence. Pullback: dhidden to dparams.

        lengths   of the sequences; what follows in a row of `tokens` is padding, which no token looks at.
                  The vectors at the padding itself mean nothing.
        types     0 for the tokens of the first sentence, 1 for those of the second; all 0 by default
        raises    ValueError for a token or type outside its table, a length beyond n, more than `longest` tokens
        """
        mask = None
        if lengths is not None:
            mask = padding_mask(lengths, tokens.shape[-1])[..., None, :, :]  # one axis more, for the heads
        if types is None:
            types = np.zeros_like(tokens)
        elif types.size and not (0 <= types.min() and types.max() < self.types):
            raise ValueError(f"types: {types.min()} … {types.max()} is not within 0 … {self.types - 1}")
        X, word = embedding(tokens, params.word)
        T, kind = embedding(types, params.type)
        X, position = self._positions(params.position, X + T)
        X, norm = self._norm(params.norm, X)
        hidden, stack = self._stack(params.stack, X, mask=mask)
        return hidden, BertPullback(word, position, kind, norm, stack)


def sentence_embeddings(model: BERT, params: BertParams, tokenizer: "WordPiece", sentences: Sequence[str]) -> Array:
    """One vector of length 1 per sentence, (sentences, D): the direction of the mean of its tokens' vectors.

        e = m / ‖m‖,     m = (1/n) Σ_i hidden_i     over the n tokens that are not padding

    Eight sentences are read at a time. The dot product of two embeddings is their cosine similarity.
    source   what all-MiniLM-L6-v2 was trained to compare (modules.json in its folder: mean, then normalise)
    raises   TypeError for a single string
    """
    if isinstance(sentences, str):
        raise TypeError("sentences: expected a list of strings, got one string")
    embeddings = np.empty((len(sentences), model.width), params.word.dtype)
    for start in range(0, len(sentences), 8):
        tokens, lengths = tokenizer(sentences[start : start + 8])
        hidden = model(params, tokens, lengths=lengths)[0]
        real = np.arange(tokens.shape[-1]) < lengths[:, None]
        mean = np.where(real[..., None], hidden, 0).sum(1) / lengths[:, None].astype(hidden.dtype)
        embeddings[start : start + 8] = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    return embeddings
