"""Absolute positions, added to the embeddings: a fixed table of sinusoids, or a learned one.

    Y_i = X_i + Π_i

Part I of the book is about everything else that one can do. A model needs one of these two to start with.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minitransformer.functional import one_dtype
from minitransformer.positions.encoding import NoPositionParams
from minitransformer.typing import Array, Float, checked


@checked
def sinusoids(n: int, width: int, *, first: int = 0) -> Float[Array, "n width"]:
    """The table Π of positions first … first + n − 1, in float64.

        Π[i, 2f] = sin(ω_f i),   Π[i, 2f+1] = cos(ω_f i),   ω_f = 10000^(−2f/D)

    source   Borealis II (3); Aalto (1), (2), where the "even i" that gets the sine is the channel, not the position (E60)
    raises   ValueError for an odd width, or a negative n
    """
    if width < 1 or width % 2:
        raise ValueError(f"width: sines and cosines come in pairs, and {width} is not an even number of columns")
    if n < 0:
        raise ValueError(f"n: a table of {n} rows is not possible")
    angles = np.arange(first, first + n)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, width)


class SinusoidalPullback(NamedTuple):
    """A constant was added: dX = dY."""

    def __call__(self, dY: Array) -> tuple[NoPositionParams, Array]:
        return NoPositionParams(), dY


@dataclass(frozen=True)
class SinusoidalPositions:
    """Add the table of sinusoids. Works for any length; whether it works well is measured in Part I."""

    width: int

    def __post_init__(self) -> None:
        sinusoids(0, self.width)  # refuses what it can't do

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NoPositionParams:
        """Nothing to learn."""
        return NoPositionParams()

    @checked
    def __call__(self, params: NoPositionParams, X: Float[Array, "*batch n {self.width}"], *, first: int = 0):
        """Y = X + Π, where row 0 of X stands at position `first`."""
        return X + sinusoids(X.shape[-2], self.width, first=first).astype(X.dtype), SinusoidalPullback()


class LearnedPositionParams(NamedTuple):
    """The table Π, (longest, D)."""

    table: Array


class LearnedPullback(NamedTuple):
    """Row i of the table was added to every sample at position i: dΠ_i sums them; rows not used get zero."""

    first: int
    longest: int

    def __call__(self, dY: Array) -> tuple[LearnedPositionParams, Array]:
        dtable = np.zeros((self.longest, dY.shape[-1]), dY.dtype)
        dtable[self.first : self.first + dY.shape[-2]] = dY.sum(tuple(range(dY.ndim - 2)))
        return LearnedPositionParams(dtable), dY


@dataclass(frozen=True)
class LearnedPositions:
    """Add row i of a learned table at position i. There is no row beyond `longest` − 1, and so no longer sequence.

    source   Borealis II, learned absolute position embeddings
    """

    width: int
    longest: int

    def __post_init__(self) -> None:
        if self.width < 1 or self.longest < 1:
            raise ValueError(f"width and longest must be at least 1, got {self.width} and {self.longest}")

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LearnedPositionParams:
        """Small random rows, of standard deviation 0.02."""
        return LearnedPositionParams((0.02 * rng.standard_normal((self.longest, self.width))).astype(dtype))

    @checked
    def __call__(self, params: LearnedPositionParams, X: Float[Array, "*batch n {self.width}"], *, first: int = 0):
        """Y = X + Π[first : first + n]. Raises ValueError beyond the ends of the table."""
        n = X.shape[-2]
        one_dtype(table=params.table, X=X)
        if first < 0:
            raise ValueError(f"first: there is no position {first}")
        if first + n > self.longest:
            raise ValueError(
                f"X: position {first + n - 1} is beyond the learned table, which ends at {self.longest - 1}"
            )
        return X + params.table[first : first + n], LearnedPullback(first, self.longest)
