"""Patterns as boolean matrices: which query may look at which key.

True at (i, j) means that query i sees key j. A mask is applied to the scores, before softmax: hidden scores become −∞,
so hidden weights are exactly zero and the others still sum to one (E33, E46: zeroing weights afterwards is something else).
"""

import numpy as np

from minitransformer.ranges import NonNegative
from minitransformer.typing import Array, Bool, Int, checked


@checked
def causal_mask(n: NonNegative, m: NonNegative | None = None) -> Bool[Array, "n m"]:
    """Query i sees the keys up to its own position: j ≤ i.

    With m > n keys, the n queries are the last n of the m positions (as when earlier keys are cached): j ≤ i + m − n.
    source   Lecture notes, masking, where the printed j < i leaves the first row without a key (E29); Aalto 2.1.7
    raises   ValueError for a negative length
    """
    m = n if m is None else m
    return np.arange(m) <= np.arange(n)[:, None] + (m - n)


@checked
def padding_mask(lengths: Int[Array, "*batch"], m: NonNegative) -> Bool[Array, "*batch 1 m"]:
    """Every query sees the first `lengths` keys of its sample, and not the padding after them.

    Attention with heads has one axis more: `padding_mask(lengths, m)[..., None, :, :]`.
    raises   ValueError for a length outside 0 … m
    """
    if lengths.size and not (0 <= lengths.min() and lengths.max() <= m):
        raise ValueError(f"lengths: {lengths.min()} … {lengths.max()} is not within 0 … {m}")
    return np.arange(m) < lengths[..., None, None]
