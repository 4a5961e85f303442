"""Sinusoids and learned tables."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import check_pullback
from minitransformer.positions import LearnedPositions, SinusoidalPositions, sinusoids
from minitransformer.positions.absolute import (
    LearnableSinusoidParams,
    LearnableSinusoids,
    LearnedPositionParams,
    NoParams,
    angular_frequencies,
    shift_matrix,
)

LAYOUTS = ("interleaved", "halves")
fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 3, 4))
TABLE = LearnedPositionParams(fixed.standard_normal((6, 4)))


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
    for layer, params in ((SinusoidalPositions(4), NoParams()), (LearnedPositions(4, 6), TABLE)):
        assert np.array_equal(layer(params, X)[0], layer(params, X, first=0)[0])
        with pytest.raises(AttributeError):
            layer.width = 6


def test_a_part_of_the_table():
    assert np.array_equal(sinusoids(3, 4, first=2), sinusoids(5, 4)[2:])


@pytest.mark.parametrize("width", [0, 1, 7, -2])
def test_sinusoids_come_in_pairs(width):
    for make in (lambda: sinusoids(3, width), lambda: SinusoidalPositions(width)):
        with pytest.raises(ValueError, match=f"width: .*{width} (is not an even|should be at least 1)"):
            make()


@pytest.mark.parametrize("first", [0, 3, -2, -70])
def test_sinusoidal_positions_are_added(first, rng):
    layer = SinusoidalPositions(4)
    Y, pullback = layer(layer.init(rng), X, first=first)
    assert np.array_equal(Y, X + sinusoids(3, 4, first=first))
    assert pullback(X) == (NoParams(), X)
    check_pullback(partial(layer, first=first), NoParams(), X)


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


def test_dtypes(rng):
    """A table of float64 sinusoids does not make a float32 model float64; the learned table has the model's type."""
    assert SinusoidalPositions(4)(NoParams(), X.astype(np.float32))[0].dtype == np.float32
    assert LearnedPositions(4, 6).init(rng).table.dtype == np.float32
    with pytest.raises(TypeError, match="X, table: should have one dtype, got float32, float64"):
        LearnedPositions(4, 6)(TABLE, X.astype(np.float32))


def test_initial_table():
    table = LearnedPositions(50, 400).init(np.random.default_rng(0), np.float64).table
    assert abs(table.std() - 0.02) < 5 * 0.02 / math.sqrt(2 * table.size)


def test_wrong_width_is_refused():
    for layer, params in ((LearnedPositions(4, 6), TABLE), (SinusoidalPositions(4), NoParams())):
        with pytest.raises(TypeError, match=r"(?s)parameter 'X'.*f64\[2,3,3\]"):
            layer(params, X[..., :3])


# ------------------------------------------------------------------------------------- layouts and bases


@given(st.integers(0, 9), st.integers(1, 8), st.integers(-5, 200), st.sampled_from([10000.0, 100.0, 0.5]))
def test_halves_entry_by_entry(n, pairs, first, base):
    """tensor2tensor: all sines, then all cosines, and the exponent −f/(D/2 − 1), where one pair alone has frequency 1."""
    table = sinusoids(n, 2 * pairs, first=first, layout="halves", base=base)
    for row, f in np.ndindex(n, pairs):
        angle = (first + row) * base ** (-f / max(pairs - 1, 1))
        assert math.isclose(table[row, f], math.sin(angle), rel_tol=1e-9, abs_tol=1e-11)
        assert math.isclose(table[row, pairs + f], math.cos(angle), rel_tol=1e-9, abs_tol=1e-11)


def test_the_slowest_wave():
    """2π · 10000^(1 − 2/D) in the paper's formula, 2π · 10000 in tensor2tensor's code."""
    for width in (4, 64, 768):
        paper, code = (angular_frequencies(width, layout=layout) for layout in LAYOUTS)
        assert paper[0] == code[0] == 1
        assert 1 / paper[-1] == pytest.approx(10000 ** (1 - 2 / width), rel=1e-12)
        assert 1 / code[-1] == pytest.approx(10000, rel=1e-12)


def test_the_layouts_are_not_interchangeable():
    """Sorting the columns is not enough: the frequencies differ too."""
    paper, code = sinusoids(9, 8), sinusoids(9, 8, layout="halves")
    in_halves = np.concatenate([paper[:, ::2], paper[:, 1::2]], axis=1)
    assert np.allclose(in_halves[:, [0, 4]], code[:, [0, 4]])
    assert np.abs(in_halves - code).max() > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10000.0, 50.0])
def test_dot_products_of_either_layout_depend_on_the_distance_only(layout, base):
    n, D = 30, 16
    table = sinusoids(n, D, layout=layout, base=base)
    gram, omega = table @ table.T, angular_frequencies(D, layout=layout, base=base)
    expected = np.cos(omega * (np.arange(n)[:, None] - np.arange(n))[..., None]).sum(-1)
    np.testing.assert_allclose(gram, expected, rtol=0, atol=1e-12)
    assert max(np.ptp(np.diagonal(gram, o)) for o in range(n)) < 1e-12


def test_the_base_is_10000():
    assert np.array_equal(sinusoids(5, 6), sinusoids(5, 6, layout="interleaved", base=10000.0))
    assert np.abs(sinusoids(5, 6) - sinusoids(5, 6, base=100.0)).max() > 0.1


@pytest.mark.parametrize("base", [0.0, -1.0, float("inf"), float("nan")])
def test_a_base_has_to_be_positive(base):
    for make in (sinusoids, shift_matrix):
        with pytest.raises(ValueError, match=f"base: {base} should be (above 0|a number)"):
            make(4, 4, base=base)


def test_other_layouts_are_refused():
    for make in (partial(sinusoids, 3, 4), partial(shift_matrix, 4, 1), partial(angular_frequencies, 4)):
        with pytest.raises(ValueError, match=r"^layout: no 'thirds'; there are interleaved, halves"):
            make(layout="thirds")


# ---------------------------------------------------------------------------------------------- shifting


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 1, 7, -3])
def test_the_shift_matrix_moves_every_row(layout, offset):
    """M_o π_i = π_{i+o}: for all rows at once, Π M_oᵀ, also before position 0."""
    n, D = 12, 10
    M = shift_matrix(D, offset, layout=layout, base=300.0)
    moved = sinusoids(n, D, first=offset, layout=layout, base=300.0)
    np.testing.assert_allclose(sinusoids(n, D, layout=layout, base=300.0) @ M.T, moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shift_matrices_are_a_group_of_rotations(layout):
    """M_0 = 1, M_a M_b = M_{a+b} = M_b M_a, and the transpose goes back."""
    D = 8
    M = {j: shift_matrix(D, j, layout=layout) for j in (-5, 0, 2, 3, 5)}
    close = {"rtol": 0, "atol": 1e-14}
    assert np.array_equal(M[0], np.eye(D))
    np.testing.assert_allclose(M[2] @ M[3], M[5], **close)
    np.testing.assert_allclose(M[3] @ M[2], M[5], **close)
    np.testing.assert_allclose(M[5].T, M[-5], **close)
    np.testing.assert_allclose(M[5] @ M[5].T, np.eye(D), **close)
    assert np.linalg.det(M[5]) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [-6, 0, 1, 5])
def test_the_peak_moves_from_0_to_the_offset(layout, offset):
    n, D = 40, 32
    table = sinusoids(n, D, layout=layout)
    gram = table @ shift_matrix(D, offset, layout=layout).T @ table.T  # ⟨M_o π_i, π_j⟩
    i = np.arange(max(-offset, 0), n - max(offset, 0))
    assert np.array_equal(gram[i].argmax(1), i + offset)


def test_the_shift_of_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="width: sines and cosines come in pairs, and 5 is not"):
        shift_matrix(5, 1)


# ------------------------------------------------------------------------------------ learned frequencies


def test_learnable_sinusoids_begin_as_the_fixed_ones(rng):
    layer = LearnableSinusoids(4)
    for first in (0, 9):
        Y, _ = layer(layer.init(rng, np.float64), X, first=first)
        np.testing.assert_allclose(Y, SinusoidalPositions(4)(NoParams(), X, first=first)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("first", [0, 1, 30])
def test_learnable_sinusoids_gradient(first, rng):
    """Σ_i i (cos(ω_f i) g_{i,2f} − sin(ω_f i) g_{i,2f+1}) for ω_f, times ω_f for its logarithm."""
    params = LearnableSinusoidParams(np.array([-0.3, -1.9]))
    layer = LearnableSinusoids(4)
    check_pullback(partial(layer, first=first), params, X)
    dY = rng.standard_normal(X.shape)
    dparams, dX = layer(params, X, first=first)[1](dY)
    assert np.array_equal(dX, dY)
    for f, omega in enumerate(np.exp(params.log_omega)):
        total = sum(
            (first + i)
            * (math.cos(omega * (first + i)) * g[i, 2 * f] - math.sin(omega * (first + i)) * g[i, 2 * f + 1])
            for g in dY
            for i in range(3)
        )
        assert dparams.log_omega[f] == pytest.approx(omega * total, rel=1e-10)


def test_learnable_sinusoids_find_a_frequency(rng):
    """Gradient descent on ‖Π(ω) − Π(ω*)‖², from 5 % away."""
    layer, zeros = LearnableSinusoids(2), np.zeros((40, 2))
    wanted, _ = layer(LearnableSinusoidParams(np.log([0.1])), zeros)
    params = LearnableSinusoidParams(np.log([0.105]))
    for _ in range(200):
        Y, pullback = layer(params, zeros)
        dparams, _ = pullback(2 * (Y - wanted))
        params = LearnableSinusoidParams(params.log_omega - 1e-3 * dparams.log_omega)
    assert np.exp(params.log_omega[0]) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 2, 4), (0, 4), (2, 0, 4)])
def test_learnable_sinusoids_with_any_batch(shape, rng):
    layer, X = LearnableSinusoids(4), rng.standard_normal(shape)
    params = layer.init(rng, np.float64)
    Y, pullback = layer(params, X)
    np.testing.assert_allclose(Y, X + sinusoids(shape[-2], 4), rtol=0, atol=1e-13)
    assert pullback(X)[0].log_omega.shape == (2,)


def test_learnable_sinusoids_refuse(rng):
    layer = LearnableSinusoids(4)
    with pytest.raises(ValueError, match="width: sines and cosines come in pairs, and 3 is not"):
        LearnableSinusoids(3)
    with pytest.raises(TypeError, match=r"(?s)parameter 'X'.*f64\[2,3,3\]"):
        layer(layer.init(rng, np.float64), X[..., :3])
    Y, pullback = layer(layer.init(rng), X.astype(np.float32))
    assert Y.dtype == pullback(Y)[0].log_omega.dtype == np.float32


def test_learnable_sinusoids_are_exact_far_out(rng):
    """Angles are made in float64: at position 100,000 an angle of float32 would be off by 0.004."""
    layer = LearnableSinusoids(2)  # ω = 1
    Y, _ = layer(layer.init(rng), np.zeros((1, 2), np.float32), first=100_003)
    np.testing.assert_allclose(Y, sinusoids(1, 2, first=100_003), rtol=0, atol=1e-7)


def test_learnable_sinusoids_far_out_in_float32():
    encoding = LearnableSinusoids(8)
    params = encoding.init(np.random.default_rng(0))
    Y, _ = encoding(params, np.zeros((4, 8), np.float32), first=20_000)
    angles = np.arange(20_000, 20_004)[:, None] * np.exp(params.log_omega.astype(float))
    assert np.allclose(Y, np.stack([np.sin(angles), np.cos(angles)], -1).reshape(4, 8), atol=1e-6)
