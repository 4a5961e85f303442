"""A task that is about order and nothing else: each token names the one that stands before it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from minitransformer.functional import cross_entropy
from minitransformer.pullback import Tree
from minitransformer.training.objective import LossPullback
from minitransformer.typing import Array

START = 0


@dataclass(frozen=True)
class TokenBefore:
    """A sequence is the start token and then `length` − 1 different others, in random order.

        tokens    0  7  2  9  4
        targets   0  0  7  2  9

    No token says anything about another, so a model that is blind to order can only guess.
    """

    vocabulary: int = 33
    length: int = 16

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.vocabulary:
            raise ValueError(f"length: {self.length} is not within 2 … {self.vocabulary}, the vocabulary")

    @property
    def data(self) -> dict[str, Any]:
        """Sequences are drawn, not read."""
        return {"task": "token before", "name": f"{self.length} of {self.vocabulary}", "sha256": ""}

    def batch(self, size: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Tokens and targets, (size, length) each."""
        others = rng.permuted(np.tile(np.arange(START + 1, self.vocabulary), (size, 1)), axis=1)[:, : self.length - 1]
        start = np.full((size, 1), START)
        tokens = np.concatenate([start, others], axis=1)
        return tokens, np.concatenate([start, tokens[:, :-1]], axis=1)

    def parts(self, batch: tuple[Array, Array], count: int) -> list[tuple[Array, Array]]:
        """The batch in `count` equal parts."""
        return list(zip(*(np.split(array, count) for array in batch), strict=True))

    def loss(
        self, model: Any, params: Tree, batch: tuple[Array, Array], rng: np.random.Generator | None = None
    ) -> tuple[Any, LossPullback]:
        """Mean of −log P(token before)."""
        tokens, targets = batch
        logits, model_pullback = model(params, tokens)
        loss, loss_pullback = cross_entropy(logits, targets)
        return loss, LossPullback(model_pullback, loss_pullback)

    def look(self, model: Any, params: Tree) -> float:
        """Bits per token on a hundred sequences that are the same each time."""
        return float(self.loss(model, params, self.batch(100, np.random.default_rng(0)))[0]) / math.log(2)

    def right(self, model: Any, params: Tree, size: int = 200) -> float:
        """Fraction of the tokens after the start that name the one before them."""
        tokens, targets = self.batch(size, np.random.default_rng(1))
        named = model(params, tokens)[0].argmax(-1)
        return float((named == targets)[:, 1:].mean())
