"""Adaptive attention span: every head learns how far back it looks. Replaces the stage "pattern (which pairs)".

A head sees the last z positions in full and those before them, nearer than z + ρ, less and less. Since m · exp S =
exp(S + ln m), the soft edge is a bias for each offset, ln m, and what is beyond it is left out of the list of tiles.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import FEW, must_broadcast, one_dtype
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.attend import attend
from minitransformer.attention.block_sparse import BlockPattern, block_sparse_attention, one_pattern
from minitransformer.attention.cache.keys_values import KeysValues
from minitransformer.attention.core import Core
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.attention.sparse.pattern import TILE, Pattern
from minitransformer.checks import frozen
from minitransformer.gather_scatter import unbroadcast
from minitransformer.positions.encoding import Encoding, OffsetBias, bias_for, queries_last
from minitransformer.pullback import NoParams, Pullback, Tree
from minitransformer.ranges import NonNegative, NonNegativeNumber
from minitransformer.typing import Array, Bool, Float, checked


class LogRampPullback(Pullback):
    """b = ln m, and on the ramp m = (ρ + z − x)/ρ: ∂b/∂z = 1/(ρ m) there, and 0 where m is 1 or nothing is seen."""

    slope: Array

    def __call__(self, db: Array) -> Array:
        return (db * self.slope).sum(-1)


def log_ramp(z: Array, ramp: int, longest: int, n: int, m: int) -> tuple[Array, tuple[int, ...], LogRampPullback]:
    """b = ln m_z for each offset j − i, (H, n + m − 1), 0 where nothing is seen; how far back each head sees; and a pullback."""
    x = (m - 1) - np.arange(n + m - 1)  # the distance i − j of each offset
    soft = np.clip((ramp + z[:, None] - x.astype(z.dtype)) / z.dtype.type(ramp), 0, 1)
    seen = (1 <= x) & (x <= longest) & (soft > 0)
    soft = np.where(seen, soft, z.dtype.type(1))
    slope = np.where(soft < 1, 1 / (ramp * soft), z.dtype.type(0))
    reach = tuple(np.where(seen, x, 0).max(-1, initial=0).tolist())
    return np.log(soft), reach, LogRampPullback(slope)


@functools.lru_cache(maxsize=64)
def seen_by_last(z: tuple[float, ...], dtype: str, ramp: int, longest: int, n: int, m: int) -> tuple[Array, Array]:
    """ln m_z for each offset, as in `log_ramp`, and which pairs count, (H, n, m). Cached: in generation spans don't change."""
    b, reach, _ = log_ramp(np.array(z, dtype), ramp, longest, n, m)
    x = np.arange(m - n, m)[:, None] - np.arange(m)
    return b, (1 <= x) & (x <= np.array(reach)[:, None, None])


@frozen
class Before(Pattern):
    """The `reach` positions before a query, and not the query's own."""

    reach: NonNegative

    def sees(self, i: Array, j: Array, m: int, *, causal: bool) -> Array:
        """Whether j is one of the `reach` positions before i."""
        return (j < i) & (i - j <= self.reach)

    def near(self, t: Array, k: Array, m: int, *, causal: bool) -> Array:
        """Tiles that hold such a pair."""
        return (k <= t) & ((t - k) * TILE - (TILE - 1) <= self.reach)


@functools.lru_cache(maxsize=64)
def tiles(reach: tuple[int, ...], n: int, m: int) -> BlockPattern:
    """The pattern in which head h sees the reach_h positions before a query."""
    return one_pattern([Before(r)(n, m, causal=True) for r in reach])


class AdaptiveSpanPullback(AroundAttention):
    """Back through attention with a bias for each offset, whose gradient goes on to z; and to another bias, if there is one."""

    attention: Pullback
    ramp: LogRampPullback
    bias_shape: tuple[int, ...] | None

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dQ, dK, dV, db = self.attention(dY)
        dbias = () if self.bias_shape is None else (unbroadcast(db, self.bias_shape),)
        return dQ, dK, dV, self.ramp(db), *dbias


@checked
def adaptive_span_attention(
    Q: Float[Array, "*batch heads n d"],
    K: Float[Array, "*batch groups m d"],
    V: Float[Array, "*batch groups m dv"],
    z: Float[Array, "heads"],
    bias: Float[Array, "*some o"] | None = None,
    *,
    ramp: int = 32,
    longest: int | None = None,
    mask: Bool[Array, "..."] | None = None,
    scale: float | None = None,
) -> tuple[Float[Array, "*batch heads n dv"], AdaptiveSpanPullback]:
    """Attention to the positions before a query, of which head h sees about z_h.

        A_tr = m_z(t − r) exp S_tr / Σ_q m_z(t − q) exp S_tq,      r and q from t − s_max to t − 1
        m_z(x) = min(max((ρ + z − x)/ρ, 0), 1)

    The sum does not hold t itself: the first row sees nothing and is zero, and so is a head with z + ρ ≤ 1.

    z        span of each head, in positions; beyond it m falls to 0 within `ramp` positions, ρ
    longest  s_max; all positions before the query if None
    bias     one number for each offset, as in `dot_product_attention`; (8) has ⟨q_t, p_{t−r}⟩ in its scores, which is an
             encoding of positions (`positions/shaw.py`)
    mask     True where query i sees key j; must broadcast to (*batch, H, n, m)
    scale    1/√d by default, as in the authors' code; (8) prints none
    source   Aalto (6) to (8); Sukhbaatar et al. 2019. Their code masks after softmax and divides by the sum + 10⁻⁸, with
             x smaller by one
    cost     O(n (max z + ρ) d) time, O(n) memory. Always causal: with n < m the queries are the last n of the m positions
    returns  Y and a pullback: dQ, dK, dV, dz = pullback(dY), and dbias if there is a bias
    raises   TypeError for a wrong shape or dtype, ValueError for more queries than keys, or a bias or a mask that does not fit
    """
    one_dtype(Q=Q, K=K, V=V, z=z, bias=bias)
    n, m = queries_last(Q, K)
    b, reach, pullback = log_ramp(z, ramp, m if longest is None else longest, n, m)
    if bias is not None:
        b = b + must_broadcast(bias, (*Q.shape[:-2], b.shape[-1]), "bias", "one number for each offset")
    Y, attention = block_sparse_attention(Q, K, V, tiles(reach, n, m), b, causal=True, mask=mask, scale=scale)
    return Y, AdaptiveSpanPullback(attention, pullback, None if bias is None else bias.shape)


# --------------------------------------------------------------------------------------------- the core


class SpanParams(NamedTuple):
    """span (H,): z/s_max of each head, from 0 to 1; and the parameters of an encoding of positions."""

    span: Array
    encoding: Tree = NoParams()


class SpanCorePullback(AroundAttention):
    """z = s_max · span, and the penalty λ/H Σ_h z_h is added to the loss: dspan = s_max (dz + λ/H · dadded)."""

    attention: Pullback
    ramp: LogRampPullback
    limit: int
    rate: float
    added: float
    dadded: float = 0.0

    def __call__(self, dY: Array) -> tuple[SpanParams, Array, Array, Array]:
        dencoding, dQ, dK, dV, db = self.attention(dY)
        dz = self.ramp(db)
        dspan = self.limit * (dz + dz.dtype.type(self.rate * self.dadded))
        return SpanParams(dspan, dencoding), dQ, dK, dV


@frozen
class AdaptiveSpan(Core):
    """Every head learns how far back it looks, and pays for it. It does not see the current token.

    heads     H; it and `longest`, the longest sequence, are filled in by the model
    limit     s_max, the largest span; as the longest sequence if None
    ramp      ρ, over which the edge is soft
    penalty   λ: (λ/H) Σ_h z_h is added to the loss, for each layer
    encoding  of positions, which changes the scores; a model puts its own there

    After a step of the optimiser the spans are brought back into 0 … s_max.

    source    Aalto (6) to (8); Sukhbaatar et al. 2019, ρ = 32 and λ = 2 · 10⁻⁶ for their small models
    cost      O(n (max z + ρ) d) time, and for a new token O((max z + ρ) d). Always causal
    """

    heads: int
    longest: int
    limit: int | None = None
    ramp: int = 32
    penalty: NonNegativeNumber = 2e-6
    encoding: Encoding | None = None

    encoding_at = "encoding."
    stage = "pattern"
    cost = "O(n largest span)"
    causal = "always"
    groups = True
    moves = True
    adds_loss = True

    @property
    def largest(self) -> int:
        """s_max, the longest span that a head can have."""
        return self.longest if self.limit is None else self.limit

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> SpanParams:
        """Spans of 0: at first a head sees ρ − 1 positions, those where its ramp is above 0."""
        return SpanParams(np.zeros(self.heads, dtype), super().init(rng, dtype))

    def __call__(
        self, params: SpanParams, Q: Array, K: Array, V: Array, *streams: Array, causal: bool = True,
        mask: Array | None = None, rng: Any = None,
    ) -> tuple[Array, SpanCorePullback]:  # fmt: skip
        """Pullback: dY to (dparams, dQ, dK, dV). Raises ValueError for causal=False."""
        self.refuse(causal=causal)
        n, m = queries_last(Q, K)
        z = self.largest * params.span
        b, reach, ramp = log_ramp(z, self.ramp, self.largest, n, m)
        options: dict[str, Any] = {"causal": True, "mask": mask, "pattern": tiles(reach, n, m)}
        Y, attention = attend(self.encoding, params.encoding, Q, K, V, b, **options)
        added = float(self.penalty * z.mean())
        return Y, SpanCorePullback(attention, ramp, self.largest, self.penalty / self.heads, added)

    def after_step(self, params: SpanParams, observed: Tree, rng: np.random.Generator) -> SpanParams:
        """The parameters with spans brought back into 0 … s_max."""
        return params._replace(span=np.clip(params.span, 0, 1))

    def furthest(self, params: SpanParams) -> int:
        """No head sees what is further back than this."""
        return self.ramp + int(min(np.fmax.reduce(self.largest * params.span, initial=0), self.largest))

    def beside_scores(self, params: SpanParams, n: int, m: int, Q: Array) -> tuple[Array, dict[str, Any]]:
        """A bias for one query, the last of m positions, (H, m): ln m_z and that of an encoding, −∞ where nothing is seen."""
        z = self.largest * params.span
        b, seen = seen_by_last(tuple(z.tolist()), z.dtype.char, self.ramp, self.largest, n, m)
        if self.encoding is not None:
            b = b + bias_for(Q, self.encoding, params.encoding, n, m, causal=True)[0]
        return np.where(seen[:, -1], b, -np.inf).astype(Q.dtype), {}

    def step(
        self, params: SpanParams, Q: Array, K: Array, V: Array, *streams: Array, state: KeysValues | None = None
    ) -> tuple[Array, KeysValues]:
        """As any core with keys and values; of a few tokens only what the largest span reaches is read."""
        n = Q.shape[-2]
        if n > FEW or not (self.encoding is None or isinstance(self.encoding, OffsetBias)):
            return super().step(params, Q, K, V, state=state)
        state = KeysValues.of(K, V) if state is None else state.extended(K, V)
        z = self.largest * params.span
        near = min(n + self.furthest(params), state.length)
        b, mask = seen_by_last(tuple(z.tolist()), z.dtype.char, self.ramp, self.largest, n, near)
        if self.encoding is not None:
            b = b + bias_for(Q, self.encoding, params.encoding, n, near, causal=True)[0]
        last = slice(state.length - near, state.length)
        return attend_to_buffer(Q, state.K[..., last, :], state.V[..., last, :], near, b, mask, self.scale), state
