"""Absolute positions, added to the embeddings: a table of sinusoids, sinusoids that learn, or a table that is learned.

    Y_i = X_i + Π_i

Row i says where a token stands, and nothing else in a layer of attention does. A row of sinusoids can also be moved: the
matrix M_o turns the row of position i into that of position i + o.
"""

import functools
from typing import Literal, NamedTuple

import numpy as np

from minitransformer.arrays import one_dtype
from minitransformer.checks import frozen
from minitransformer.positions.none import FixedPositionsPullback
from minitransformer.pullback import NoParams, Pullback
from minitransformer.ranges import Integer, NonNegative, PositiveNumber
from minitransformer.typing import Array, Float, checked

Layout = Literal["interleaved", "halves"]


def must_be_even(width: int, name: str = "width") -> None:
    """Raise ValueError for a width of this name that leaves a sine without its cosine."""
    if width % 2:
        raise ValueError(f"{name}: sines and cosines come in pairs, and {width} is not an even number of columns")


@checked
def angular_frequencies(width: int, *, layout: Layout = "interleaved", base: PositiveNumber = 10000.0) -> Array:
    """ω_f, (D/2,), from 1 downwards in equal steps of the logarithm.

        interleaved   ω_f = base^(−2f/D)             the wavelength of the last pair is 2π · base^(1 − 2/D)
        halves        ω_f = base^(−f / (D/2 − 1))    it is 2π · base

    raises   ValueError for an odd width, a base that is not positive, or another layout
    """
    must_be_even(width)
    pairs = width // 2
    steps = pairs if layout == "interleaved" else max(pairs - 1, 1)
    return base ** (-np.arange(pairs) / steps)


@checked
def sinusoids(
    n: NonNegative, width: int, *, first: Integer = 0, layout: Layout = "interleaved", base: PositiveNumber = 10000.0
) -> Float[Array, "n width"]:
    """The table Π of positions first … first + n − 1, in float64.

        interleaved   Π[i, 2f] = sin(ω_f i),   Π[i, 2f+1] = cos(ω_f i),      ω_f = base^(−2f/D)
        halves        Π[i, f] = sin(ω_f i),    Π[i, D/2 + f] = cos(ω_f i),   ω_f = base^(−f/(D/2 − 1))

    The two differ in the order of the columns, which a linear layer does not notice, and in the frequencies, which it
    does: a model trained with one table can't be given the other.
    source   Borealis II (3); Aalto (1), (2), where the "even i" that gets the sine is the channel, not the position (E60);
             halves: `get_timing_signal_1d` of tensor2tensor
    raises   ValueError for an odd width, a negative n, a base that is not positive
    """
    omega = angular_frequencies(width, layout=layout, base=base)
    angles = np.arange(first, first + n)[:, None] * omega
    return _in_columns(np.sin(angles), np.cos(angles), layout)


def _in_columns(sines: Array, cosines: Array, layout: Layout) -> Array:
    """Sines and cosines (n, D/2) as one table (n, D): in turns, or one half beside the other."""
    pairs = np.stack([sines, cosines], axis=-1 if layout == "interleaved" else -2)
    return pairs.reshape(len(sines), 2 * sines.shape[-1])


@checked
def shift_matrix(
    width: int, offset: Integer, *, layout: Layout = "interleaved", base: PositiveNumber = 10000.0
) -> Float[Array, "width width"]:
    """M_o, which moves every sinusoid by o: M_o π_i = π_{i+o}, or for all rows at once Π M_oᵀ.

        M_o = blockdiag_f [  cos(ω_f o)   sin(ω_f o) ]         M_0 = I,   M_a M_b = M_{a+b},   M_oᵀ = M_{−o} = M_o⁻¹
                          [ −sin(ω_f o)   cos(ω_f o) ]

    A rotation in each pair of channels. So ⟨M_o π_i, π_j⟩ is largest at j = i + o.
    source   Borealis II (4)
    """
    omega = angular_frequencies(width, layout=layout, base=base)
    s, c = np.sin(omega * offset), np.cos(omega * offset)
    f = np.arange(len(omega))
    M = np.zeros((len(f), 2, len(f), 2))
    M[f, :, f, :] = np.array([[c, s], [-s, c]]).transpose(2, 0, 1)
    if layout == "halves":
        M = M.transpose(1, 0, 3, 2)
    return M.reshape(width, width)


@functools.lru_cache(maxsize=64)
def _table(width: int, n: int, dtype: np.dtype) -> Array:
    """The first n rows of Π in this dtype, read-only: they are cached for all calls."""
    table = sinusoids(n, width).astype(dtype)
    table.flags.writeable = False
    return table


@frozen
class SinusoidalPositions:
    """Add the table of sinusoids, which can be computed for any length."""

    width: int

    def __post_init__(self) -> None:
        angular_frequencies(self.width)  # refuses what it can't do

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> NoParams:
        """There is nothing to learn."""
        return NoParams()

    @checked
    def __call__(self, params: NoParams, X: Float[Array, "*batch n {self.width}"], *, first: Integer = 0):
        """Y = X + Π, where row 0 of X stands at position `first`."""
        last = first + X.shape[-2]
        if first < 0:
            return X + sinusoids(X.shape[-2], self.width, first=first).astype(X.dtype), FixedPositionsPullback()
        table = _table(self.width, max(64, 1 << (last - 1).bit_length()), X.dtype)  # one serves many lengths
        return X + table[first:last], FixedPositionsPullback()


class LearnableSinusoidParams(NamedTuple):
    """The logarithms of the frequencies, ln ω (D/2,)."""

    log_omega: Array


class LearnableSinusoidPullback(Pullback):
    """δΠ_i = i δω_f · (cos(ω_f i), −sin(ω_f i)) in pair f, and δω_f = ω_f δ ln ω_f, so with g the gradient summed over samples

    d ln ω_f = ω_f Σ_i i (cos(ω_f i) g_{i,2f} − sin(ω_f i) g_{i,2f+1})
    """

    omega: Array  # (D/2,)
    i: Array  # (n,), the positions
    table: Array  # (n, D)

    def __call__(self, dY: Array) -> tuple[LearnableSinusoidParams, Array]:
        g = dY.sum(tuple(range(dY.ndim - 2)))
        slope = self.table[:, 1::2] * g[:, ::2] - self.table[:, ::2] * g[:, 1::2]
        dlog_omega = self.omega * (self.i @ slope)
        return LearnableSinusoidParams(dlog_omega.astype(dY.dtype)), dY


@frozen
class LearnableSinusoids:
    """Add sinusoids whose frequencies are learned, beginning with those of the fixed table. Works for any length.

    What is learned is ln ω: a frequency stays positive, and a step of the optimiser changes fast and slow ones by the
    same factor. The gradient for ω itself grows with the position, and for the slow ones it is far too large.
    source   Borealis II, figure 4 (Wang et al. 2021); the caption speaks of a learned base, which is one way to move all ω_f
    cost     O(n D), and D/2 parameters
    """

    width: int

    def __post_init__(self) -> None:
        angular_frequencies(self.width)  # refuses what it can't do

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LearnableSinusoidParams:
        """The logarithms of ω_f = 10000^(−2f/D)."""
        return LearnableSinusoidParams(np.log(angular_frequencies(self.width)).astype(dtype))

    @checked
    def __call__(
        self, params: LearnableSinusoidParams, X: Float[Array, "*batch n {self.width}"], *, first: Integer = 0
    ):
        """Y = X + Π, where row 0 of X stands at position `first`. Pullback: dY to (dparams, dX)."""
        one_dtype(X=X, log_omega=params.log_omega)
        omega = np.exp(params.log_omega.astype(np.float64))  # an angle of float32 is off by 10⁻⁴ at position 1000
        i = np.arange(first, first + X.shape[-2])
        angles = i[:, None] * omega
        table = _in_columns(np.sin(angles), np.cos(angles), "interleaved").astype(X.dtype)
        return X + table, LearnableSinusoidPullback(omega, i, table)


class LearnedPositionParams(NamedTuple):
    """The table Π, (longest, D)."""

    table: Array


class LearnedPullback(Pullback):
    """Row i of the table was added to every sample at position i: dΠ_i sums them; rows not used get zero."""

    first: int
    longest: int

    def __call__(self, dY: Array) -> tuple[LearnedPositionParams, Array]:
        dtable = np.zeros((self.longest, dY.shape[-1]), dY.dtype)
        dtable[self.first : self.first + dY.shape[-2]] = dY.sum(tuple(range(dY.ndim - 2)))
        return LearnedPositionParams(dtable), dY


@frozen
class LearnedPositions:
    """Add row i of a learned table at position i. There is no row beyond `longest` − 1, and so no longer sequence.

    source   Borealis II, learned absolute position embeddings
    """

    width: int
    longest: int

    def init(self, rng: np.random.Generator, dtype: type = np.float32) -> LearnedPositionParams:
        """Small random rows, of standard deviation 0.02."""
        return LearnedPositionParams((0.02 * rng.standard_normal((self.longest, self.width))).astype(dtype))

    @checked
    def __call__(self, params: LearnedPositionParams, X: Float[Array, "*batch n {self.width}"], *, first: Integer = 0):
        """Y = X + Π[first : first + n]. Raises ValueError beyond the ends of the table."""
        last = first + X.shape[-2] - 1
        one_dtype(X=X, table=params.table)
        if first < 0:
            raise ValueError(f"first: there is no position {first}")
        if last >= self.longest:
            raise ValueError(f"X: position {last} is beyond the learned table, which ends at {self.longest - 1}")
        return X + params.table[first : last + 1], LearnedPullback(first, self.longest)
