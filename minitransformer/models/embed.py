"""From tokens to the rows that the first block gets: one row of a table for each, and where it stands."""

import math
from collections.abc import Callable

import numpy as np

from minitransformer.checks import frozen
from minitransformer.functional import EmbeddingPullback, dropout, embedding
from minitransformer.models.norms import Norm, NormParams, NormPullback
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array

Positions = Callable[..., tuple[Array, Pullback]]


@frozen
class Embedding:
    """How the rows of E that were looked up are changed.

    scaled   whether they are multiplied by √D
    types    rows of the table T, of which one is added before the sum is normalised; None where neither happens
    """

    scaled: bool = False
    types: int | None = None


EMBEDDINGS: dict[str, Callable[..., Embedding]] = {
    "scaled": lambda: Embedding(scaled=True),
    "plain": lambda: Embedding(),
    "normed": lambda types=1: Embedding(types=types),
}


class EmbeddedPullback(Pullback):
    """X = dropout(√D · E[tokens] + Π): back through positions and scale to the rows that were looked up."""

    embedding: EmbeddingPullback
    positions: Pullback
    dropout: Pullback
    scale: float

    def __call__(self, dX: Array) -> tuple[Array, Tree]:
        dpositions, dX = self.positions(self.dropout(dX))
        return self.embedding(self.scale * dX), dpositions


def embed(
    E: Array, positions: Positions, params: Tree, tokens: Array, *, rate: float = 0.0,
    rng: np.random.Generator | None = None, first: int = 0, scaled: bool = True,
) -> tuple[Array, EmbeddedPullback]:  # fmt: skip
    """√D · E[tokens] + Π, or E[tokens] + Π if not scaled. Entries of E begin at size 1/√D: √D makes them as large as sinusoids.

    positions, params   the layer that adds Π, and its parameters
    rate, rng           of dropout
    first               position of the first token
    """
    scale = E.dtype.type(math.sqrt(E.shape[-1]) if scaled else 1)
    X, looked_up = embedding(tokens, E)
    X, placed = positions(params, scale * X, first=first)
    X, dropped = dropout(X, rate, rng)
    return X, EmbeddedPullback(looked_up, placed, dropped, scale)


class NormedEmbeddingPullback(Pullback):
    """One row of each table was added, so each gets the same gradient, that of the sum, at the rows that were used."""

    embedding: EmbeddingPullback
    positions: Pullback
    types: EmbeddingPullback
    norm: NormPullback

    def __call__(self, dX: Array) -> tuple[Array, Tree, Array, NormParams]:
        dnorm, dX = self.norm(dX)
        dpositions, dX = self.positions(dX)
        return self.embedding(dX), dpositions, self.types(dX), dnorm


def embed_normed(
    E: Array, positions: Positions, params: Tree, T: Array, norm: Norm, norm_params: NormParams, tokens: Array,
    types: Array | None, *, first: int = 0,
) -> tuple[Array, NormedEmbeddingPullback]:  # fmt: skip
    """LN(E[tokens] + T[types] + Π), as in BERT; types are 0 if none are given.

    raises   ValueError for a type outside the table
    """
    if types is None:
        types = np.zeros_like(tokens)
    elif types.size and not (0 <= types.min() and types.max() < len(T)):
        raise ValueError(f"types: {types.min()} … {types.max()} is not within 0 … {len(T) - 1}")
    X, looked_up = embedding(tokens, E)
    kind, typed = embedding(types, T)
    X, placed = positions(params, X + kind, first=first)
    X, normed = norm(norm_params, X)
    return X, NormedEmbeddingPullback(looked_up, placed, typed, normed)
