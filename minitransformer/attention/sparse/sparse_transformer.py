"""The sparse transformer's pattern: neighbours, and every l-th position."""

import numpy as np

from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.door import frozen
from minitransformer.typing import Array


@frozen
class Strided(Pattern):
    """The sparse transformer's: the `stride` positions around (or before) a query, and every stride-th one.

    Up to a stride of 127 nearly every tile of 64 × 64 holds one of its pairs: it saves memory and time beyond that only.
    source   Borealis II, sparse transformer
    """

    stride: int = 16

    cost = "O(n (stride + n/stride)) pairs"

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ValueError(f"stride: {self.stride} must be at least 1")

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Near, or a multiple of the stride away."""
        return (np.abs(i - j) < self.stride) | ((i - j) % self.stride == 0)
