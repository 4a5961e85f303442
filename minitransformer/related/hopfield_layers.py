"""Layers of modern Hopfield networks: two sets that look for each other, and one of them may be learned.

    association    states R (n, D) look among stored patterns Z (m, D), and read from T (m, D): all three are given
    pooling        the states are learned, and the patterns are the tokens: a set becomes `count` rows
    lookup         patterns and what is read are learned, and the states are the tokens: a table with a soft look-up

With R = Z = T the association is multi-head attention around the core `hopfield`. The published layers put a LayerNorm in front
of every argument; here a block has those.
"""

from typing import Any, NamedTuple

import numpy as np

from minitransformer.arrays import refuse_indivisible, uniform
from minitransformer.attention.around import AroundAttention
from minitransformer.checks import frozen
from minitransformer.functional import LinearPullback, linear
from minitransformer.gather_scatter import merge_heads, split_heads, unbroadcast
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Repeats
from minitransformer.related.modern_hopfield import Hopfield
from minitransformer.typing import Array, Bool, Float, checked

HOPFIELD = Hopfield()


class AssociationParams(NamedTuple):
    """Four matrices (D, D): states, patterns and values are projected into heads, and the heads are combined."""

    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array


class AssociationPullback(AroundAttention):
    """Backwards: combine, retrieve, project; R is reached through the queries, Z through the keys, T through the values."""

    q: LinearPullback
    k: LinearPullback
    v: LinearPullback
    core: Pullback
    o: LinearPullback
    heads: int
    inside = "core"  # A is (*batch, H, n, m)

    def __call__(self, dY: Array) -> tuple[AssociationParams, Array, Array, Array]:
        dheads, dW_o = self.o(dY)
        _, *dheads = self.core(split_heads(dheads, self.heads))
        (dR, dW_q), (dZ, dW_k), (dT, dW_v) = (
            back(merge_heads(dX)) for back, dX in zip((self.q, self.k, self.v), dheads, strict=True)
        )
        return AssociationParams(dW_q, dW_k, dW_v, dW_o), dR, dZ, dT


@frozen
class HopfieldAssociation:
    """States look among stored patterns in H heads, and read what belongs to those that they find.

        Y = [heads] W_o,   each head: hopfield_attention(R W_q, Z W_k, T W_v)

    width      D
    heads      H, must divide D
    hopfield   steps, tolerance, gradient and β
    source     Ramsauer et al. 2021, their layer Hopfield
    cost       O((n + m) D²) besides T n m D of the core
    raises     ValueError if D is not divisible by H
    """

    width: int
    heads: int
    hopfield: Hopfield = HOPFIELD

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> AssociationParams:
        """Uniform on ±√(3/D), which keeps the variance of a row."""
        return AssociationParams(*(uniform(rng, (self.width, self.width), dtype) for _ in range(4)))

    @checked
    def __call__(
        self,
        params: AssociationParams,
        R: Float[Array, "*batch n {self.width}"],
        Z: Float[Array, "*batch m {self.width}"],
        T: Float[Array, "*batch m {self.width}"],
        *,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*batch n {self.width}"], AssociationPullback]:
        """Pullback: dY to (dparams, dR, dZ, dT).

        mask   True where state i sees pattern j; broadcasts to (*batch, H, n, m)
        """
        Q, q = linear(R, params.W_q)
        K, k = linear(Z, params.W_k)
        V, v = linear(T, params.W_v)
        Y, core = self.hopfield(NoParams(), *(split_heads(X, self.heads) for X in (Q, K, V)), mask=mask)
        Y, o = linear(merge_heads(Y), params.W_o)
        return Y, AssociationPullback(q, k, v, core, o, self.heads)


class PoolingParams(NamedTuple):
    """The states that look, (count, D); and the association."""

    R: Array
    association: AssociationParams


class PoolingPullback(AroundAttention):
    """The tokens were patterns and values; the states were the same for every sample, so they get the sum."""

    association: AssociationPullback
    inside = "association"  # A is (*batch, H, count, n)

    def __call__(self, dY: Array) -> tuple[PoolingParams, Array]:
        dparams, dR, dZ, dT = self.association(dY)
        return PoolingParams(unbroadcast(dR, dR.shape[-2:]), dparams), dZ + dT


@frozen
class HopfieldPooling:
    """A set of any length becomes `count` rows: as many learned states look among its tokens.

    width, heads, hopfield   as in `HopfieldAssociation`
    count                    learned states
    source                   Ramsauer et al. 2021, their layer HopfieldPooling
    cost                     O((n + count) D²) besides T n count D of the core
    raises                   ValueError if D is not divisible by H
    """

    width: int
    heads: int
    count: Repeats = 1
    hopfield: Hopfield = HOPFIELD

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    @property
    def association(self) -> HopfieldAssociation:
        """How the learned states look among the tokens."""
        return HopfieldAssociation(self.width, self.heads, self.hopfield)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> PoolingParams:
        """States of deviation 0.02, as published."""
        return PoolingParams(_small(rng, (self.count, self.width), dtype), self.association.init(rng, dtype))

    @checked
    def __call__(
        self, params: PoolingParams, X: Float[Array, "*batch n {self.width}"], *, mask: Bool[Array, "..."] | None = None
    ) -> tuple[Float[Array, "*batch {self.count} {self.width}"], PoolingPullback]:
        """Pullback: dY to (dparams, dX). The mask is True where a state sees a token, and broadcasts to (*batch, H, count, n)."""
        R = np.broadcast_to(params.R, (*X.shape[:-2], *params.R.shape))
        Y, association = self.association(params.association, R, X, X, mask=mask)
        return Y, PoolingPullback(association)


class LookupParams(NamedTuple):
    """The table: patterns Z and what is read of them, T, both (count, D); and the association."""

    Z: Array
    T: Array
    association: AssociationParams


class LookupPullback(AroundAttention):
    """All tokens of all samples asked one table, as if they were one long set."""

    association: AssociationPullback
    shape: tuple[int, ...]
    inside = "association"  # A is (H, tokens of all samples, count)

    def __call__(self, dY: Array) -> tuple[LookupParams, Array]:
        dparams, dX, dZ, dT = self.association(dY.reshape(-1, dY.shape[-1]))
        return LookupParams(dZ, dT, dparams), dX.reshape(self.shape)


@frozen
class HopfieldLookup:
    """A learned table of `count` patterns, in which every token looks for what belongs to it, and nowhere else.

    width, heads, hopfield   as in `HopfieldAssociation`
    count                    learned patterns
    source                   Ramsauer et al. 2021, their layer HopfieldLayer
    cost                     O((n + count) D²) besides T n count D of the core; tokens don't see each other
    raises                   ValueError if D is not divisible by H
    """

    width: int
    heads: int
    count: Repeats = 64
    hopfield: Hopfield = HOPFIELD

    def __post_init__(self) -> None:
        refuse_indivisible(self.width, self.heads)

    @property
    def association(self) -> HopfieldAssociation:
        """How the tokens look among the learned patterns."""
        return HopfieldAssociation(self.width, self.heads, self.hopfield)

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LookupParams:
        """Patterns and values of deviation 0.02, as published."""
        Z, T = (_small(rng, (self.count, self.width), dtype) for _ in range(2))
        return LookupParams(Z, T, self.association.init(rng, dtype))

    @checked
    def __call__(
        self, params: LookupParams, X: Float[Array, "*batch n {self.width}"]
    ) -> tuple[Float[Array, "*batch n {self.width}"], LookupPullback]:
        """Pullback: dY to (dparams, dX)."""
        rows = X.reshape(-1, self.width)
        Y, association = self.association(params.association, rows, params.Z, params.T)
        return Y.reshape(X.shape), LookupPullback(association, X.shape)


def _small(rng: Any, shape: tuple[int, ...], dtype: type) -> Array:
    return 0.02 * rng.standard_normal(shape).astype(dtype)
