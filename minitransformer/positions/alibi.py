"""ALiBi: the further back a key is, the lower its score, at a slope that each head has for itself. Nothing is learned.

S_ij = ⟨q_i, k_j⟩/√d − m_h |i − j|
"""

import numpy as np

from minitransformer.checks import frozen
from minitransformer.positions.encoding import NoParams, OffsetBias, offsets
from minitransformer.pullback import Pullback
from minitransformer.typing import Array, checked


@checked
def alibi_slopes(heads: int) -> Array:
    """The slopes m_h, (H,): for H a power of two m_h = 2^(−8h/H), h = 1 … H.

    For another H the slopes of the power of two below it, and then every second one of the power of two above it.
    """
    below = 2 ** int(np.log2(heads))
    slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    between = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
    return np.concatenate([slopes, between[: heads - below]])


class FixedBiasPullback(Pullback):
    """dbias to NoParams(): the bias has no parameters."""

    def __call__(self, dbias: Array) -> NoParams:
        return NoParams()


@frozen
class ALiBi(OffsetBias):
    """A linear penalty on distance.

    heads    H
    source   Press, Smith and Lewis 2022, for causal attention; both ways, −m_h |i − j| is the usual extension
    cost     O(H (n + m)) besides attention itself
    """

    heads: int

    def bias(self, params: NoParams, n: int, m: int, *, causal: bool) -> tuple[Array, FixedBiasPullback]:
        """−m_h |o| for each offset o."""
        return -alibi_slopes(self.heads)[:, None] * np.abs(offsets(n, m)), FixedBiasPullback()
