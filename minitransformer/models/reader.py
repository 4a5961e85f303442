"""An encoder that answers a question about what it reads: a small BERT with one linear layer on top.

logits = BERT(tokens) W + b                  one row of answers for each token
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitransformer.functional import LinearPullback, linear
from minitransformer.models.bert import BERT, BertParams, BertPullback
from minitransformer.positions import Encoding
from minitransformer.typing import Array, Float, Int, checked


class ReaderParams(NamedTuple):
    """The encoder's, and W (D, outputs) and b (outputs,) of the layer on top."""

    bert: BertParams
    W: Array
    b: Array


class ReaderPullback(NamedTuple):
    """First through the linear layer, then through the encoder."""

    bert: BertPullback
    answer: LinearPullback

    def __call__(self, dlogits: Array) -> ReaderParams:
        dhidden, dW, db = self.answer(dlogits)
        return ReaderParams(self.bert(dhidden), dW, db)


@dataclass(frozen=True)
class Reader:
    """`outputs` numbers for each token. For a question about the whole sequence, read those of its first token.

    The other sizes are those of BERT. Not causal. Cost as BERT's.
    """

    vocabulary: int
    outputs: int
    longest: int = 64
    width: int = 32
    depth: int = 2
    heads: int = 4
    hidden: int = 64
    positions: str | Encoding = "learned"

    def __post_init__(self) -> None:
        if self.outputs < 1:
            raise ValueError(f"outputs: {self.outputs} is not at least 1")
        _ = self._bert  # refuses what it can't do

    @property
    def _bert(self) -> BERT:
        sizes = (self.vocabulary, self.longest, self.width, self.depth, self.heads, self.hidden)
        return BERT(*sizes, types=1, positions=self.positions)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> ReaderParams:
        """W is normal with variance 1/D, b zero."""
        W = (rng.standard_normal((self.width, self.outputs)) / math.sqrt(self.width)).astype(dtype)
        return ReaderParams(self._bert.init(rng, dtype), W, np.zeros(self.outputs, dtype))

    @checked
    def __call__(
        self, params: ReaderParams, tokens: Int[Array, "*batch n"], *, rng: np.random.Generator | None = None
    ) -> tuple[Float[Array, "*batch n {self.outputs}"], ReaderPullback]:
        """Logits at each token. Pullback: dlogits to dparams."""
        hidden, bert = self._bert(params.bert, tokens)
        logits, answer = linear(hidden, params.W, params.b)
        return logits, ReaderPullback(bert, answer)
