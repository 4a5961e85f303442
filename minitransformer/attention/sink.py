"""A sink: a score b that takes part in the softmax and has no key and no value. Replaces the stage `normalise`.

    A_ij = e^{S_ij} / (e^b + Σ_l e^{S_il}),     so a row may sum to less than one

A head that finds nothing must still give its weights to some key, because softmax sums to one; many models give much to the
first tokens (Xiao et al. 2024). With a sink they may go nowhere. It is a gate as well: with L_i = ln Σ_l e^{S_il},

    y_i = σ(L_i − b) · Σ_j softmax(S_i)_j v_j

opens by more than half where the keys together reach further than b. It is also one more key, with score b and value zero.
"""

import numpy as np

from minitransformer.arrays import must_be_for_heads, must_broadcast, one_dtype, zero_if_minus_infinite
from minitransformer.checks import frozen
from minitransformer.gather_scatter import unbroadcast
from minitransformer.pullback import Pullback, Tree
from minitransformer.typing import Array, Bool, Float, checked


class SinkPullback(Pullback):
    """The softmax with one more entry, whose weight is not used, so that its dA is zero:

    dS = A ⊙ (dA − D),   db = Σ_i a_i (0 − D_i),   D_i = Σ_j A_ij dA_ij,   a_i = e^b / (e^b + Σ_l e^{S_il})
    """

    A: Array
    a: Array
    shape: tuple[int, ...]

    def __call__(self, dA: Array) -> tuple[Array, Array]:
        D = (dA * self.A).sum(-1, keepdims=True)
        return self.A * (dA - D), unbroadcast(-(self.a * D).sum((-2, -1)), self.shape)


@checked
def softmax_with_sink(
    S: Float[Array, "*batch n m"], sink: Float[Array, "*own"], *, mask: Bool[Array, "..."] | None = None
) -> tuple[Float[Array, "*batch n m"], SinkPullback]:
    """Softmax of rows, with the score b beside them: A_ij = e^{S_ij} / (e^b + Σ_l e^{S_il}).

    sink     b, (H,) or what broadcasts to (*batch,); −∞ is softmax
    mask     True where an entry takes part; must broadcast to S. Where there is none, all weight is in the sink
    source   gpt-oss (2025), learned; b = 0 for all is "softmax off by one" of Miller (2023)
    cost     O(size of S)
    returns  A and a pullback: dS, dsink = pullback(dA)
    raises   ValueError for a mask or a sink that does not fit
    """
    one_dtype(S=S, sink=sink)
    must_be_for_heads(sink, S.shape[:-2], "sink")
    if mask is not None:
        S = np.where(must_broadcast(mask, S.shape), S, S.dtype.type(-np.inf))
    beside = sink[..., None, None]
    top = zero_if_minus_infinite(np.maximum(S.max(-1, keepdims=True, initial=-np.inf), beside))
    A, a = np.exp(S - top), np.exp(beside - top)
    total = A.sum(-1, keepdims=True) + a
    total = np.where(total == 0, S.dtype.type(1), total)
    A /= total
    return A, SinkPullback(A, a / total, sink.shape)


@frozen
class LearnedSink:
    """A number b_h for each of H heads, which `SoftmaxAttention(sink=LearnedSink(H))` learns."""

    heads: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> Tree:
        """Zeros: at first each b counts as one more key, with a score of zero."""
        return np.zeros(self.heads, dtype)
