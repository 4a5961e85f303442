"""Sinusoids and learned tables."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitransformer import check_pullback
from minitransformer.positions import LearnedPositions, SinusoidalPositions, sinusoids
from minitransformer.positions.absolute import LearnedPositionParams, NoPositionParams

fixed = np.random.default_rng(0)
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=50)
X = fixed.standard_normal((2, 3, 4))
TABLE = LearnedPositionParams(fixed.standard_normal((6, 4)))


@pytest.fixture
def rng():
    """A generator of its own for each test: the order of tests does not matter."""
    return np.random.default_rng(1)


@EXAMPLES
@given(st.integers(0, 9), st.integers(1, 8), st.integers(-5, 200))
def test_sinusoids_entry_by_entry(n, pairs, first):
    """Even channels are sines, odd ones cosines, of ω_f i with ω_f = 10000^(−2f/D)."""
    D = 2 * pairs
    table = sinusoids(n, D, first=first)
    assert table.shape == (n, D)
    assert table.dtype == np.float64
    for row, f in np.ndindex(n, pairs):
        angle = (first + row) / 10000 ** (2 * f / D)
        assert math.isclose(table[row, 2 * f], math.sin(angle), rel_tol=1e-9, abs_tol=1e-12)
        assert math.isclose(table[row, 2 * f + 1], math.cos(angle), rel_tol=1e-9, abs_tol=1e-12)


def test_dot_products_of_sinusoids_depend_on_the_distance_only():
    """Π_i · Π_j = Σ_f cos(ω_f (i − j)), symmetric, and D/2 on the diagonal."""
    table = sinusoids(20, 16)
    gram = table @ table.T
    omega = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    for i, j in np.ndindex(20, 20):
        assert math.isclose(gram[i, j], np.cos(omega * (i - j)).sum(), rel_tol=1e-9, abs_tol=1e-9)
    assert np.allclose(np.diag(gram), 8)


def test_positions_start_at_zero_and_layers_are_frozen():
    for layer, params in ((SinusoidalPositions(4), NoPositionParams()), (LearnedPositions(4, 6), TABLE)):
        assert np.array_equal(layer(params, X)[0], layer(params, X, first=0)[0])
        with pytest.raises(AttributeError):
            layer.width = 6


def test_a_part_of_the_table():
    assert np.array_equal(sinusoids(3, 4, first=2), sinusoids(5, 4)[2:])


@pytest.mark.parametrize("width", [0, 1, 7, -2])
def test_sinusoids_come_in_pairs(width):
    for make in (lambda: sinusoids(3, width), lambda: SinusoidalPositions(width)):
        with pytest.raises(ValueError, match=f"width: sines and cosines come in pairs, and {width} is not"):
            make()


def test_a_table_of_negative_length_is_refused():
    with pytest.raises(ValueError, match="n: a table of -1 rows"):
        sinusoids(-1, 4)


@pytest.mark.parametrize("first", [0, 3])
def test_sinusoidal_positions_are_added(first, rng):
    layer = SinusoidalPositions(4)
    Y, pullback = layer(layer.init(rng), X, first=first)
    assert np.array_equal(Y, X + sinusoids(first + 3, 4)[first:])
    assert pullback(X) == (NoPositionParams(), X)
    check_pullback(partial(layer, first=first), NoPositionParams(), X)


@pytest.mark.parametrize("first", [0, 1, 3])
def test_learned_positions_gradient(first):
    """Each row of the table was used by every sample; rows that were not used get zero."""
    layer = LearnedPositions(4, 6)
    check_pullback(partial(layer, first=first), TABLE, X, entries=24)
    dparams, dX = layer(TABLE, X, first=first)[1](X)
    used = np.zeros(6, bool)
    used[first : first + 3] = True
    assert np.array_equal(dparams.table.any(-1), used)
    assert np.allclose(dparams.table[used], X.sum(0))
    assert np.array_equal(dX, X)


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 2, 4), (0, 4), (2, 0, 4)])
def test_learned_positions_with_any_batch(shape, rng):
    layer, X = LearnedPositions(4, 6), rng.standard_normal(shape)
    Y, pullback = layer(TABLE, X)
    assert np.array_equal(Y, X + TABLE.table[: shape[-2]])
    assert pullback(X)[0].table.shape == (6, 4)


@pytest.mark.parametrize(("n", "first", "position"), [(7, 0, 6), (3, 4, 6), (1, 6, 6), (1, 100, 100)])
def test_there_is_no_position_beyond_the_learned_table(n, first, position, rng):
    with pytest.raises(ValueError, match=f"X: position {position} is beyond the learned table, which ends at 5"):
        LearnedPositions(4, 6)(TABLE, rng.standard_normal((n, 4)), first=first)


def test_nor_before_it():
    """A negative index would silently count from the end."""
    with pytest.raises(ValueError, match="first: there is no position -2"):
        LearnedPositions(4, 6)(TABLE, X[:, :1], first=-2)


@pytest.mark.parametrize(("width", "longest"), [(0, 3), (4, 0), (-4, 3)])
def test_an_empty_table_is_refused(width, longest):
    with pytest.raises(ValueError, match=f"width and longest must be at least 1, got {width} and {longest}"):
        LearnedPositions(width, longest)


def test_dtypes(rng):
    """A table of float64 sinusoids does not make a float32 model float64; the learned table has the model's type."""
    assert SinusoidalPositions(4)(NoPositionParams(), X.astype(np.float32))[0].dtype == np.float32
    assert LearnedPositions(4, 6).init(rng).table.dtype == np.float32
    with pytest.raises(TypeError, match="table, X: should have one dtype, got float64, float32"):
        LearnedPositions(4, 6)(TABLE, X.astype(np.float32))


def test_initial_table():
    table = LearnedPositions(50, 400).init(np.random.default_rng(0), np.float64).table
    assert abs(table.std() - 0.02) < 5 * 0.02 / math.sqrt(2 * table.size)


def test_wrong_width_is_refused():
    for layer, params in ((LearnedPositions(4, 6), TABLE), (SinusoidalPositions(4), NoPositionParams())):
        with pytest.raises(TypeError, match=r"(?s)parameter 'X'.*f64\[2,3,3\]"):
            layer(params, X[..., :3])
