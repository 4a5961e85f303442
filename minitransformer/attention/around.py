"""Pullbacks that wrap that of attention, and have its attention matrix."""

from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class AroundAttention(Pullback, named=False):
    """A pullback that wraps that of attention, in its field `attention` or the one that `inside` names, and has the same A."""

    inside = "attention"

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights of the attention inside: mostly matrices, (*batch, n, m), with the heads in the batch."""
        return getattr(self, self.inside).A
