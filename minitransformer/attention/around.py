"""What a pullback around one of attention has in common with it: the attention matrix."""

from minitransformer.pullback import Pullback
from minitransformer.typing import Array


class AroundAttention(Pullback, named=False):
    """A pullback with a field `attention`, the pullback that it is around: A is that of the one inside."""

    @property
    def A(self) -> Array:  # noqa: N802
        """The weights of the attention inside: mostly matrices, (*batch, n, m), with the heads in the batch."""
        return self.attention.A
