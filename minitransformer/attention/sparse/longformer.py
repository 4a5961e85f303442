"""Longformer: a window, and a few tokens that see and are seen by all, with projections of their own.

    y_i = softmax over j near i or global  of ⟨q_i, k_j⟩ / √d,  times v_j             i not global
    y_i = softmax over all j               of ⟨q′_i, k′_j⟩ / √d,  times v′_j          i global

A row that is not global has one softmax, over its window and the global keys together; a global key in the window counts
once. A global token looks for something else than its neighbours do (an answer to the whole text, a class), so
for these rows there is a second set of projections. It starts as a copy of the first.

Replaces the stages "project" and "pattern (which pairs)".
"""

from typing import Annotated, Any

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype, refuse_other_lengths
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import block_sparse_attention
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import dot_product_attention
from minitransformer.attention.sparse.window import Window
from minitransformer.checks import frozen
from minitransformer.positions.encoding import Encoding
from minitransformer.pullback import NoParams, Pullback, Tree, tree_add
from minitransformer.ranges import NonNegative, Range
from minitransformer.typing import Array, Bool, Float, checked


class LongformerPullback(Pullback):
    """Rows of Y come from one of two attentions, so each gets its rows of dY: dQ_g ends where the global rows do, dQ begins."""

    everything: Pullback
    near: Pullback
    g: int

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK, dV = self.near(dY[..., self.g :, :])
        dQ_g, dK_g, dV_g = self.everything(dY[..., : self.g, :])
        before, after = (np.zeros((*dY.shape[:-2], rows, dQ.shape[-1]), dQ.dtype) for rows in (self.g, dQ.shape[-2]))
        return np.concatenate([before, dQ], -2), dK, dV, np.concatenate([dQ_g, after], -2), dK_g, dV_g


class EncodedLongformerPullback(Pullback):
    """As `LongformerPullback`, where both attentions have an encoding of positions: its parameters get the sum."""

    everything: Pullback
    near: Pullback
    g: int

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        dparams, dQ, dK, dV = self.near(dY[..., self.g :, :])
        of_globals = np.where(np.arange(dY.shape[-2])[:, None] < self.g, dY, dY.dtype.type(0))
        dparams_g, dQ_g, dK_g, dV_g = self.everything(of_globals)
        dQ = np.concatenate([np.zeros_like(dQ_g[..., : self.g, :]), dQ], -2)
        return tree_add(dparams, dparams_g), dQ, dK, dV, dQ_g, dK_g, dV_g


@checked
def longformer_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*shared n d"],
    V: Float[Array, "*shared n dv"],
    Q_g: Float[Array, "*batch n d"],
    K_g: Float[Array, "*batch n d"],
    V_g: Float[Array, "*batch n dv"],
    *,
    radius: NonNegative = 32,
    dilation: int = 1,
    global_tokens: NonNegative = 1,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    encoding: Encoding | None = None,
    params: Any = None,
) -> tuple[Float[Array, "*batch n dv"], Pullback]:
    """Attention to a window and to the first `global_tokens` tokens, which see everything by projections of their own.

    radius         of the window, half of the "attention_window" in published configs; dilation: as in `Window`
    mask           True where query i sees key j; must broadcast to (*batch, n, n)
    scale          1/√d by default, or that of the encoding, as in `attend`; for both kinds of queries
    encoding       an encoding of positions in all scores, and params, its parameters
    source         Borealis II, figure 9a; Aalto 3.1.2. Beltagy et al. 2020
    cost           O(n (radius + global_tokens) d), O(n² d) with an encoding. Global rows see what comes later: never causal
    returns        Y and a pullback: dQ, dK, dV, dQ_g, dK_g, dV_g = pullback(dY), after dparams if there is an encoding. Of Q only
                   the rows that are not global have a gradient, of Q_g only those that are
    raises         TypeError for a wrong shape or dtype, ValueError for a radius or global_tokens below 0, a mask that does not
                   fit, or a scale beside an encoding that has its own
    """
    one_dtype(Q=Q, K=K, V=V, Q_g=Q_g, K_g=K_g, V_g=V_g)
    n = Q.shape[-2]
    g = min(global_tokens, n)
    if mask is not None:
        must_broadcast(mask, (*Q.shape[:-1], n))
    above, below = (mask, mask) if mask is None or mask.shape[-2:-1] in ((), (1,)) else np.split(mask, [g], -2)
    # the rows that are not global are the last of n positions
    pattern = Window(radius, dilation, global_tokens)(n - g, n, causal=False)
    # the queries of an encoding are the last positions, which the global ones are not: so all rows are queries
    if encoding is not None:
        first = np.arange(n)[:, None] < g
        Y, everything = attend(
            encoding, params, Q_g, K_g, V_g, mask=first if mask is None else first & mask, scale=scale
        )
        Y_local, near = attend(encoding, params, Q[..., g:, :], K, V, mask=below, pattern=pattern, scale=scale)
        return np.concatenate([Y[..., :g, :], Y_local], -2), EncodedLongformerPullback(everything, near, g)
    Y_global, everything = dot_product_attention(Q_g[..., :g, :], K_g, V_g, mask=above, scale=scale)
    Y_local, near = block_sparse_attention(Q[..., g:, :], K, V, pattern, mask=below, scale=scale)
    return np.concatenate([Y_global, Y_local], -2), LongformerPullback(everything, near, g)


class LongformerCorePullback(Pullback):
    """dY to (dparams, dQ, dK, dV, dQ_g, dK_g, dV_g); what was turned is turned back."""

    attention: Pullback
    turns: tuple[Pullback, ...]

    def __call__(self, dY: Array) -> tuple[Any, ...]:
        *dparams, dQ, dK, dV, dQ_g, dK_g, dV_g = self.attention(dY)
        if self.turns:
            dQ, dK, dQ_g, dK_g = (back(d) for back, d in zip(self.turns, (dQ, dK, dQ_g, dK_g), strict=True))
        return *(dparams or [NoParams()]), dQ, dK, dV, dQ_g, dK_g, dV_g


@frozen
class Longformer(Core):
    """A window, and tokens that see and are seen by all through a second set of projections.

    d             width of a head; the model fills it in
    radius        of the window
    dilation      as in `Window`: of the tokens around it sees every dilation-th
    global_tokens G, how many of the first tokens are global
    rotate        a rotary encoding, which turns both kinds of queries and keys; the model puts it there
    encoding      of positions in all scores; the model puts its own there
    source        Beltagy et al. 2020; Borealis II, figure 9a
    cost          O(n (radius + G) d), and 3 D² parameters more than a window has
    raises        ValueError for 0 global tokens: that is a window
    """

    d: int
    radius: NonNegative = 32
    dilation: int = 1
    global_tokens: Annotated[int, Range("at least 1; without a global token it is a Window", lambda g: g >= 1)] = 1
    rotate: Any = None
    encoding: Encoding | None = None

    stage = "project, pattern"
    causal = "never"
    cost = "O(n radius)"
    remembers = None
    needs = "3 projections more"
    turns = True
    groups = True
    one_width = True  # as wide as v_g, beside which they stand
    starts_as = {"q_g": "q", "k_g": "k", "v_g": "v"}  # noqa: RUF012  (as it is declared)

    @property
    def streams(self) -> dict[str, int]:  # type: ignore[override]
        """Queries, keys and values for the global rows."""
        return dict.fromkeys(self.starts_as, self.d)

    def __call__(
        self, params: Tree, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = False,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, Pullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV, dQ_g, dK_g, dV_g).

        raises   ValueError for keys that have no queries, such as those of a memory: they have no k_g
        """
        self.refuse(causal=causal)
        Q_g, K_g, V_g = streams
        refuse_other_lengths(Q, K, "in Longformer each token has both")
        turns: tuple[Pullback, ...] = ()
        if self.rotate is not None:
            (Q, q), (K, k), (Q_g, q_g), (K_g, k_g) = (self.rotate.turn(X, length=Q.shape[-2]) for X in (Q, K, Q_g, K_g))
            turns = q, k, q_g, k_g
        window: dict[str, Any] = {"radius": self.radius, "dilation": self.dilation, "global_tokens": self.global_tokens}
        positions: dict[str, Any] = {"encoding": self.encoding, "params": params}
        Y, attention = longformer_attention(Q, K, V, Q_g, K_g, V_g, **window, **positions, mask=mask)
        return Y, LongformerCorePullback(attention, turns)
