"""Mixers whose step has three parts, so that compiled loops can do the first and the last for all of them.

A₁, A₂, …  = X W + b                 the projections of each new token; normed and turned, where a mixer says so
Y, state  ← A₁, A₂, …, state         what the mixer makes of them and of the past
Y W_o + b_o                          or Y + b_o
"""

from typing import Any, NamedTuple

from minitransformer.arrays import one_dtype
from minitransformer.attention.core import Mixer
from minitransformer.functional import affine, rms_norm
from minitransformer.gather_scatter import merge_heads, split_heads
from minitransformer.pullback import Tree
from minitransformer.typing import Array, Float


class Projection(NamedTuple):
    """One projection of X: W (D, heads · width) and b, the gain if its rows are normalised, and whether they are turned.

    heads    None for rows, (*batch, n, width), that are not split into heads, (*batch, heads, n, width)
    """

    W: Array
    b: Array | None
    heads: int | None
    width: int
    gain: Array | None = None
    turned: bool = False

    @property
    def columns(self) -> int:
        """How many numbers it makes of a token."""
        return (self.heads or 1) * self.width

    def of(self, X: Array) -> Array:
        """X W + b, in heads if it has some."""
        Y = affine(X, self.W, self.b)
        return Y if self.heads is None else split_heads(Y, self.heads)


class Projected(Mixer):
    """A mixer that says its three parts; its step is made of them. `rotate` is what turns those projections that are turned."""

    rotate: Any = None

    def projections(self, params: Tree) -> list[Projection]:
        """How a step projects X."""
        raise TypeError(f"{type(self).__name__} does not say how it projects X")

    def _go_on(self, params: Tree, arrays: list[Array], state: Any) -> tuple[Array, Any]:
        """Y of new tokens in rows or in heads, from the arrays that they were projected to; and the longer state."""
        raise TypeError(f"{type(self).__name__} does not say how it goes on from a state")

    def _output(self, params: Tree) -> tuple[Array | None, Array | None]:
        """W_o and b_o; None for one that is missing."""
        raise TypeError(f"{type(self).__name__} does not say how its output is projected")

    @property
    def mixed(self) -> int:
        """How many numbers each row of Y has, before W_o."""
        return self.width

    def step(self, params: Tree, X: Float[Array, "*batch n {self.width}"], state: Any = None) -> tuple[Array, Any]:
        """Y of new tokens after those in the state, causally; and the longer state.

        cost   what the mixer needs besides O(D²); softmax O(m D) for one new token, instead of O(m² D) for all again
        """
        if self.rotate is not None and not self.rotate.fixed:
            raise TypeError(f"{type(self.rotate).__name__} keeps no state: the angles change with the length")
        projections = self.projections(params)
        one_dtype(X=X, W=projections[0].W)
        first = 0 if state is None else state.length
        Y, state = self._go_on(params, [self._projected(projection, X, first) for projection in projections], state)
        if Y.ndim > X.ndim:
            Y = merge_heads(Y)
        W_o, b_o = self._output(params)
        if W_o is not None:
            return affine(Y, W_o, b_o), state
        return Y if b_o is None else Y + b_o, state

    def _projected(self, projection: Projection, X: Array, first: int) -> Array:
        """X W + b in heads, normed and turned as it is said: row i stands at the position first + i."""
        Y = projection.of(X)
        if projection.gain is not None:
            Y, _ = rms_norm(Y, projection.gain)
        if not projection.turned:
            return Y
        return self.rotate.turn(Y, first=first, length=first + X.shape[-2])[0]
