"""What a pullback around one of attention has in common with it: the attention matrix."""

from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class AroundAttention(Pullback, named=False):
    """A pullback around that of attention, which is its field `attention`, or the one that `inside` names: A is what that has."""

    inside = "attention"

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights of the attention inside: mostly matrices, (*batch, n, m), with the heads in the batch."""
        return getattr(self, self.inside).A
