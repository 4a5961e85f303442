"""A window that never lets go of the first tokens: for texts without an end.

    token i keeps the first a keys and the last w, its own among them; they stand at 0 … a + w − 1, wherever they once stood

Softmax has to put its weight somewhere, and what a trained model has nothing to say with it puts on the first tokens, which
every row could see. A plain window loses them as soon as the text is longer than w, and the model with them. Kept, they need
positions, and those of the text would grow without end; so they get those inside the cache, which the model knows from
training. Two keys of the window are as far apart there as in the text. Only how far away the first tokens are is cut off.
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.attention.block_sparse import block_sparse_attention
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import Core, NothingLearnedPullback, refuse_more_queries
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.pullback import Pullback, Tree
from minitransformer.ranges import Integer
from minitransformer.typing import Array, Bool, Float, checked


class SinksPullback(NamedTuple):
    """Back through attention, then every row is turned back; a query that was turned in two ways gets the sum of both."""

    attention: Pullback
    q: Pullback
    far: Pullback
    k: Pullback
    first: int
    late: int  # the first query that stands further from the sinks than the cache is long

    @property
    def A(self) -> Array:  # noqa: N802
        """The attention matrices, (*batch, n, m)."""
        return self.attention.A

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        near, sinks = np.split(dQ, 2, -1)
        early = np.concatenate([near[..., : self.late, :] + sinks[..., : self.late, :], near[..., self.late :, :]], -2)
        dQ = self.q(early)
        dQ[..., self.late :, :] += self.far(sinks[..., self.late :, None, :])[..., 0, :]
        near, sinks = np.split(dK, 2, -1)
        return dQ, self.k(np.concatenate([sinks[..., : self.first, :], near[..., self.first :, :]], -2)), dV


@checked
def sink_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    *,
    first: Integer = 4,
    last: int = 64,
    rotate: Any = None,
    mask: Bool[Array, "..."] | None = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Causal attention to the first a keys and the last w, turned by where they stand among those a + w.

        S_ij = ⟨R_i q_i, R_j k_j⟩ / √d              j > i − w, in the window
        S_ij = ⟨R_{min(i, a+w−1)} q_i, R_j k_j⟩ / √d     j < a, a sink

    The two products are one: a query becomes [R_i q_i, R_{min(i, a+w−1)} q_i], a sink [0, R_j k_j], any other key [R_j k_j, 0].

    first, last   a and w; with n ≤ a + w it is dense attention. K, V, mask: as in `dot_product_attention`
    rotate        an encoding with `turn` (positions/rope.py); None for the same without any R
    source        Xiao et al. 2024, in whose code the cache is turned anew for every token
    cost          O(n (a + w) d) time. Always causal
    returns       Y and a pullback: dQ, dK, dV = pullback(dY)
    raises        ValueError for a < 0, w < 1, or more queries than keys
    """
    n, m = Q.shape[-2], K.shape[-2]
    if first < 0:
        raise ValueError(f"first: {first} should be at least 0")
    refuse_more_queries(n, m)
    pattern, scale = Window(last - 1, global_tokens=first)(n, m, causal=True), 1 / np.sqrt(max(Q.shape[-1], 1))
    if rotate is not None and not hasattr(rotate, "turn"):
        raise TypeError(f"rotate: {type(rotate).__name__} turns nothing; RoPE does")
    if rotate is None:
        return block_sparse_attention(Q, K, V, pattern, causal=True, mask=mask, scale=float(scale))
    cap = first + last - 1
    late = min(max(cap - (m - n), 0), n)
    near, q = rotate.turn(Q, first=m - n, length=m)
    far, far_turn = rotate.turn(Q[..., late:, None, :], first=cap, length=max(m, cap + 1))
    turned, k = rotate.turn(K, length=m)
    keys = np.zeros((*K.shape[:-1], 2 * K.shape[-1]), K.dtype)
    keys[..., first:, : K.shape[-1]], keys[..., :first, K.shape[-1] :] = turned[..., first:, :], turned[..., :first, :]
    queries = np.concatenate([near, np.concatenate([near[..., :late, :], far[..., 0, :]], -2)], -1)
    Y, attention = block_sparse_attention(queries, keys, V, pattern, causal=True, mask=mask, scale=float(scale))
    return Y, SinksPullback(attention, q, far_turn, k, first, late)


@frozen
class Sinks(Core):
    """Causal attention to the first few tokens and the last ones, at the positions of a text no longer than these.

    first    a, the sinks
    last     w, the window, the query's own key among them
    rotate   a rotary encoding; the model puts it there
    source   Xiao et al. 2024
    cost     O(n (a + w) d); while it writes, memory for a + w keys, however long the text
    """

    first: Integer = 4
    last: int = 64
    rotate: Any = None

    causal = "always"
    cost = "O(n last)"
    turns = True
    groups = True

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first: {self.first} should be at least 0")

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """What is in the cache, not turned yet."""
        return f"the first {self.first} and the last {self.last} keys and values"

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        self.refuse(causal=causal)
        Y, attention = sink_attention(Q, K, V, first=self.first, last=self.last, rotate=self.rotate, mask=mask)
        return Y, NothingLearnedPullback(attention)

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: Recent | None = None
    ) -> tuple[Array, Recent]:
        """The cache and the new tokens are a text of their own, whose last rows are asked for. O((a + w) d) for one token."""
        if state is None:
            seen, longer = (K, V), Recent.of(K, V, Kept(self.first, self.last))
        else:
            seen = np.concatenate([state.keys, K], -2), np.concatenate([state.values, V], -2)
            longer = state.extended(K, V)
        Y, _ = sink_attention(Q, *seen, first=self.first, last=self.last, rotate=self.rotate)
        return Y, longer
