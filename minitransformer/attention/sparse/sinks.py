"""A window that never lets go of the first tokens: for texts without an end.

    token i keeps the first a keys and the last w, its own among them; they stand at 0 … a + w − 1, wherever they once stood

Softmax has to put its weight somewhere, and a trained model puts what it has no use for on the first tokens, which
every row could see. A plain window loses them as soon as the text is longer than w, and the model with them. Kept, they need
positions, and those of the text would grow without end; so they get those inside the cache, which the model knows from
training. Two keys of the window are as far apart there as in the text. Only how far away the first tokens are is cut off.
"""

from functools import cached_property
from typing import Any

import numpy as np

from minitransformer.arrays import must_broadcast, refuse_more_queries, scale_for
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import block_sparse_attention
from minitransformer.attention.cache.recent import Kept, Recent
from minitransformer.attention.core import Core, NothingLearnedPullback
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import Pullback, Tree, tree_add
from minitransformer.ranges import NonNegative
from minitransformer.typing import Array, Bool, Float, checked


class SinksPullback(AroundAttention):
    """Back through attention, then every row is turned back; a query that was turned in two ways gets the sum of both."""

    attention: Pullback
    q: Pullback
    far: Pullback
    k: Pullback
    first: int
    late: int  # the first query that stands further from the sinks than the cache is long

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        dQ, dK, dV = self.attention(dY)
        near, sinks = np.split(dQ, 2, -1)
        early = np.concatenate([near[..., : self.late, :] + sinks[..., : self.late, :], near[..., self.late :, :]], -2)
        dQ = self.q(early)
        dQ[..., self.late :, :] += self.far(sinks[..., self.late :, None, :])[..., 0, :]
        near, sinks = np.split(dK, 2, -1)
        return dQ, self.k(np.concatenate([sinks[..., : self.first, :], near[..., self.first :, :]], -2)), dV


class CachesPullback(Pullback):
    """Early queries, up to the length of the cache, share a text, and each late one has its own: a key gets the sum over all."""

    early: Pullback
    late: Pullback
    places: Array  # the key at each place of the cache of each late query, (late queries, a + w)
    first: int
    shapes: tuple[tuple[int, ...], ...]  # of K and V

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        late = len(self.places)
        early = dY.shape[-2] - late
        dparams, dQ, *known = self.early(dY[..., :early, :])
        more, dQ_late, *known_late = self.late(np.ascontiguousarray(alone(dY[..., early:, :])))
        gradients = []
        for shape, dX, dX_late in zip(self.shapes, known, known_late, strict=True):
            whole = np.zeros(shape, dY.dtype)
            whole[..., : dX.shape[-2], :] = dX
            for place, key in enumerate(self.places[0] if late else ()):
                of_place = dX_late[..., place, :].swapaxes(-2, -3)
                if place < self.first:
                    whole[..., place, :] += of_place.sum(-2)
                else:
                    whole[..., key : key + late, :] += of_place
            gradients.append(whole)
        return tree_add(dparams, more), np.concatenate([dQ, dQ_late[..., 0, :].swapaxes(-2, -3)], -2), *gradients


def alone(X: Array) -> Array:
    """Rows (*batch, H, n, d) as n samples of one row each, (*batch, n, H, 1, d)."""
    return X.swapaxes(-2, -3)[..., None, :]


def in_caches(
    encoding: Any,
    params: Any,
    Q: Array,
    K: Array,
    V: Array,
    mask: Array | None,
    first: int,
    last: int,
    scale: float | None,
) -> tuple[Array, CachesPullback]:
    """Attention with an encoding of positions in the scores: the cache of each query is a text of its own, which it ends."""
    n, m = Q.shape[-2], K.shape[-2]
    size = min(first + last, max(m, 1))  # a shorter text fills no cache, and an encoding may know no place behind it
    early = min(max(size - (m - n), 0), n)
    known, late = m - n + early, n - early
    places = np.arange(m - late, m)[:, None] + np.arange(1 - size, 1)
    places[:, :first] = np.arange(first)[:size]
    seen = seen_late = None
    if mask is not None:
        whole = np.broadcast_to(must_broadcast(mask, (*Q.shape[:-1], m)), (*Q.shape[:-1], m))
        seen = whole[..., :early, :known]
        of_all = np.broadcast_to(places, (*whole.shape[:-2], *places.shape))
        seen_late = alone(np.take_along_axis(whole[..., early:, :], of_all, -1))
    Y, soon = attend(
        encoding, params, Q[..., :early, :], K[..., :known, :], V[..., :known, :], causal=True, mask=seen, scale=scale
    )
    caches = (np.ascontiguousarray(X[..., places, :].swapaxes(-3, -4)) for X in (K, V))
    queries = np.ascontiguousarray(alone(Q[..., early:, :]))
    Y_late, later = attend(encoding, params, queries, *caches, causal=True, mask=seen_late, scale=scale)
    Y = np.concatenate([Y, Y_late[..., 0, :].swapaxes(-2, -3)], -2)
    return Y, CachesPullback(soon, later, places, first, (K.shape, V.shape))


@checked
def sink_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared m d"],
    V: Float[Array, "*shared m dv"],
    *,
    first: NonNegative = 4,
    last: int = 64,
    rotate: Any = None,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: Encoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Causal attention to the first a keys and the last w, turned by where they stand among those a + w.

        S_ij = ⟨R_i q_i, R_j k_j⟩ / √d              j > i − w, in the window
        S_ij = ⟨R_{min(i, a+w−1)} q_i, R_j k_j⟩ / √d     j < a, a sink

    The two products are one: a query becomes [R_i q_i, R_{min(i, a+w−1)} q_i], a sink [0, R_j k_j], any other key [R_j k_j, 0].

    first, last   a and w; with m ≤ a + w it is dense attention. K, V, mask: as in `dot_product_attention`
    scale         1/√d by default, or that of the encoding, as in `attend`
    rotate        an encoding with `turn` (positions/rope.py); None for the same without any R
    encoding      an encoding of positions in the scores, and params, instead of `rotate`: the cache is a text of a + w positions
    source        Xiao et al. 2024, in whose code the cache is turned anew for every token
    cost          O(n (a + w) d) time, and as much memory with an encoding. Always causal
    returns       Y and a pullback: dQ, dK, dV = pullback(dY), after dparams if there is an encoding
    raises        TypeError for a wrong shape or dtype, or a `rotate` without `turn`; ValueError for a < 0, w < 1, n > m, an
                  encoding beside `rotate`, or a scale beside an encoding that has its own
    """
    n, m = Q.shape[-2], K.shape[-2]
    refuse_more_queries(n, m)
    if encoding is not None:
        if rotate is not None:
            raise ValueError("rotate: positions can act on queries and keys, or on scores by an encoding, not on both")
        return in_caches(encoding, params, Q, K, V, mask, first, last, scale)
    if rotate is not None and not hasattr(rotate, "turn"):
        raise TypeError(f"rotate: {type(rotate).__name__} turns nothing; RoPE does")
    pattern = Window(last - 1, global_tokens=first)(n, m, causal=True)
    if rotate is None:
        return block_sparse_attention(Q, K, V, pattern, causal=True, mask=mask, scale=scale)
    cap = first + last - 1
    late = min(max(cap - (m - n), 0), n)
    near, q = rotate.turn(Q, first=m - n, length=m)
    far, far_turn = rotate.turn(Q[..., late:, None, :], first=cap, length=max(m, cap + 1))
    turned, k = rotate.turn(K, length=m)
    keys = np.zeros((*K.shape[:-1], 2 * K.shape[-1]), K.dtype)
    keys[..., first:, : K.shape[-1]], keys[..., :first, K.shape[-1] :] = turned[..., first:, :], turned[..., :first, :]
    queries = np.concatenate([near, np.concatenate([near[..., :late, :], far[..., 0, :]], -2)], -1)
    scale = scale_for(Q.shape[-1], scale)
    Y, attention = block_sparse_attention(queries, keys, V, pattern, causal=True, mask=mask, scale=scale)
    return Y, SinksPullback(attention, q, far_turn, k, first, late)


@frozen
class Sinks(Core):
    """Causal attention to the first few tokens and the last ones; positions are counted among these alone.

    first    a, the sinks
    last     w, keys of the window, the query's own among them
    rotate   a rotary encoding, and `encoding` one that changes the scores; the model puts one of them there
    source   Xiao et al. 2024
    cost     O(n (a + w) d); while it writes, memory for a + w keys, however long the text
    """

    first: NonNegative = 4
    last: int = 64
    rotate: Any = None
    encoding: Encoding | None = None

    stage = "pattern"
    causal = "always"
    cost = "O(n last)"
    turns = True
    groups = True

    @property
    def remembers(self) -> str:  # type: ignore[override]
        """The first a and the last w keys and values, the keys before they are turned."""
        return f"the first {self.first} and the last {self.last} keys and values"

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV)."""
        self.refuse(causal=causal)
        Y, attention = sink_attention(Q, K, V, **self._options(params), mask=mask)
        return Y, NothingLearnedPullback(attention) if self.encoding is None else attention

    @cached_property
    def pattern(self) -> Window:
        """Who sees whom: the window, and the sinks."""
        return Window(self.last - 1, global_tokens=self.first)

    def _options(self, params: Tree) -> dict[str, Any]:
        positions = {"rotate": self.rotate, "encoding": self.encoding, "params": params}
        return {"first": self.first, "last": self.last, **positions}

    def step(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, state: Recent | None = None
    ) -> tuple[Array, Recent]:
        """Y of the last rows of a text that is the cache and the new tokens, and the longer state. O((a + w) d) for one token.

        One token sees all of that text, which is no longer than the cache.
        """
        if state is None:
            seen, longer = (K, V), Recent.of(K, V, Kept(self.first, self.last))
        else:
            seen = np.concatenate([state.keys, K], -2), np.concatenate([state.values, V], -2)
            longer = state.extended(K, V)
        if Q.shape[-2] == 1:
            return attend(self.encoding or self.rotate, params, Q, *seen, causal=True)[0], longer
        Y, _ = sink_attention(Q, *seen, **self._options(params))
        return Y, longer
