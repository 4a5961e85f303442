"""What the layers of pooled attention have in common: rows that are key and value at once, and where rows of blocks stand."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from minitransformer.arrays import refuse_indivisible, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.attention.multi_head import HeadsPullback
from minitransformer.attention.projected import Projected, Projection
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear, rms_norm
from minitransformer.gather_scatter import split_heads
from minitransformer.positions.rope import RoPE, RotatePullback
from minitransformer.pullback import Pullback
from minitransformer.ranges import PositiveNumber
from minitransformer.typing import Array

Pool = Callable[..., tuple[Array, Pullback]]  # pool(C, Z, beta, mask=seen): a row for each complete block


class BlocksPullback(Pullback):
    """Back through the turn, the norm and the pooling of blocks to both projections: dE to (dX, dW_e, dW_z, dbeta, dgamma)."""

    e: LinearPullback
    z: LinearPullback
    pool: Pullback
    norm: Pullback
    turn: Pullback

    def __call__(self, dE: Array) -> tuple[Array, ...]:
        dE, dgamma = self.norm(self.turn(dE))
        dC, dZ, dbeta = self.pool(dE)
        (dX_e, dW_e), (dX_z, dW_z) = self.e(dC), self.z(dZ)
        return dX_e + dX_z, dW_e, dW_z, dbeta, dgamma


class PooledLayerPullback(AroundAttention, named=False):
    """What comes back to X in both layers: combine, turn forward again what was turned back, attend, and on three ways to X."""

    def to_rows(self, dY: Array) -> tuple[tuple[Array, ...], Array]:
        """dY to the gradients of the fields of `PooledParams`, and dX."""
        dheads, dW_o = self.o(dY)
        dQ, dC, dE, dsink = self.attention(self.turn(split_heads(dheads, self.heads)))
        dX_q, dW_q, _, dgamma_q = self.q(dQ)
        dX_c, dW_c, _, dgamma_c = self.c(dC[..., None, :, :])
        dX_e, *dblocks = self.blocks(dE)
        return (dW_q, dgamma_q, dW_c, dgamma_c, *dblocks, dsink, dW_o), dX_q + dX_c + dX_e


def turns(rotate: RoPE, places: slice, dtype: np.dtype) -> tuple[RotatePullback, RotatePullback]:
    """Turns of rows at these places, by the opposites of their angles and by these: each is the gradient of the other."""
    cos, sin = (table[places] for table in rotate.table(places.stop, dtype))
    return RotatePullback(cos, sin, rotate.layout), RotatePullback(cos, -sin, rotate.layout)


@frozen
class PooledLayer(Projected):
    """What `Pooled` and `PooledIndexer` have in common: their sizes, the rows of tokens, and where rows of blocks stand."""

    width: int
    heads: int
    block: int = 16
    window: int = 32
    head_width: int | None = None
    rotary: int | None = None
    base: PositiveNumber = 10000.0

    stage = "project, pattern"
    causal = "always"

    unplaced = "has no queries and keys that it could act on: it turns its own, and turns back what they find"

    def __post_init__(self) -> None:
        if self.head_width is None:
            refuse_indivisible(self.width, self.heads)
        if self.d < 2:
            name = "width, heads" if self.head_width is None else "head_width"
            raise ValueError(
                f"{name}: heads of width {self.d} should have at least 2 channels, which are turned in pairs"
            )
        if self._rotary % 2 or not 2 <= self._rotary <= self.d:
            raise ValueError(
                f"rotary: {self._rotary} should be even, and from 2 to {self.d}: channels are turned in pairs"
            )

    @property
    def d(self) -> int:
        """The width of a row, and of a head."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def _rotary(self) -> int:
        return max(self.d // 4 * 2, 2) if self.rotary is None else self.rotary

    @cached_property
    def rotate(self) -> RoPE:
        """What turns a part of the queries and of the rows."""
        return RoPE(self.d, self.base, part=self._rotary)

    def _drawn(self, rng: np.random.Generator, dtype: type, blocks: int = 1) -> list[Array]:
        """The fields of `PooledParams`, for rows that are pooled from this many blocks."""
        D, d, inner = self.width, self.d, self.heads * self.d
        gamma_q, gamma_c, gamma_e = (np.ones(d, dtype) for _ in range(3))
        W_q, W_c, W_e, W_z = (uniform(rng, (D, columns), dtype) for columns in (inner, d, blocks * d, blocks * d))
        beta, sink = np.zeros((blocks * self.block, d), dtype), np.zeros(self.heads, dtype)
        return [W_q, gamma_q, W_c, gamma_c, W_e, W_z, beta, gamma_e, sink, uniform(rng, (inner, D), dtype)]

    def _rows(self, X: Array, W: Array, gamma: Array, heads: int) -> tuple[Array, HeadsPullback]:
        """RMS(X W) γ in heads, turned."""
        Y, projection = linear(X, W)
        Y, norm = rms_norm(split_heads(Y, heads), gamma)
        Y, turn = self.rotate.turn(Y, length=X.shape[-2])
        return Y, HeadsPullback(projection, heads, turn, norm=norm)

    def _blocks(
        self, pool: Pool, X: Array, W_e: Array, W_z: Array, beta: Array, gamma: Array, rotate: RoPE, seen: Array | None
    ) -> tuple[Array, BlocksPullback]:
        """A row for each complete block, pooled from X in one of two ways; and a pullback: dX, dW_e, dW_z, dbeta, dgamma."""
        (rows, e), (Z, z) = linear(X, W_e), linear(X, W_z)
        E, pooling = pool(rows, Z, beta, mask=seen)
        E, after = self._placed(E, gamma, rotate, 0)
        return E, BlocksPullback(e, z, pooling, *after)

    def _placed(self, E: Array, gamma: Array, rotate: RoPE, first: int) -> tuple[Array, tuple[Pullback, Pullback]]:
        """Rows of blocks, normed, and turned as the first tokens of these blocks; the first block begins at position `first`."""
        E, norm = rms_norm(E, gamma)
        back, turn = turns(rotate, slice(first, first + E.shape[-2] * self.block, self.block), E.dtype)
        return turn(E), (norm, back)

    def projections(self, params: Any) -> list[Projection]:
        """The queries and the row of a token, normed and turned; what a block is pooled from, and by which weights."""
        W_q, gamma_q, W_c, gamma_c, W_e, W_z, *_ = params
        own = Projection(W_q, None, self.heads, self.d, gamma_q, True), Projection(W_c, None, 1, self.d, gamma_c, True)
        return [*own, *(Projection(W, None, None, W.shape[1]) for W in (W_e, W_z))]

    def _output(self, params: Any) -> tuple[Array, None]:
        return params.W_o, None

    @property
    def mixed(self) -> int:
        """H d, the heads side by side."""
        return self.heads * self.d
