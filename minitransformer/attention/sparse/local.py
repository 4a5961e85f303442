"""Local attention: the sequence is cut into blocks, and each is a sequence of its own.

    ⌊i / B⌋ = ⌊j / B⌋          causal: and j ≤ i

Replaces the stage "pattern (which pairs)". What stands in one block never reaches another, however many layers there are: a
stack of local layers alone is a model of short texts. In turns with layers that see further, it is a cheap half of a model.
"""

from minitransformer.attention.block_sparse import TILE
from minitransformer.attention.cache.recent import Kept
from minitransformer.attention.sparse.pattern import Pattern
from minitransformer.checks import frozen
from minitransformer.typing import Array


@frozen
class Local(Pattern):
    """Blocks of `block` neighbours that see each other and nobody else.

    block    B, how many tokens a block has; the last one of a text may be shorter
    source   Borealis II, local attention; Aalto (4), whose "[j/N]" is a floor, N the size of the block there (E47)
    """

    block: int = 64

    cost = "O(n block)"

    @property
    def kept(self) -> Kept:  # type: ignore[override]
        """No first positions, and the last `block`."""
        return Kept(0, self.block)

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether i and j are in the same block."""
        return i // self.block == j // self.block

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that have a block in common."""
        return share_a_block(t, k, self.block)


def share_a_block(t: Array, k: Array, block: int) -> Array:
    """Whether tile t of queries and tile k of keys have a block in common."""
    (t_low, t_high), (k_low, k_high) = ((x * TILE // block, (x * TILE + TILE - 1) // block) for x in (t, k))
    return (t_low <= k_high) & (k_low <= t_high)
