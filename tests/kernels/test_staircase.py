"""Every stair of chapter 17 computes the definition."""

from importlib import import_module

import numpy as np
import pytest

from minitransformer import backend
from minitransformer.attention import dot_product_attention
from minitransformer.backend import available
from minitransformer.kernels.staircase import three_loops, tiles_in_numpy

needs_numba = pytest.mark.skipif("numba" not in available(), reason="needs Numba")
ANY_SHAPE = [
    "three_loops",
    "tiles_in_numpy",
    *(pytest.param(x, marks=needs_numba) for x in ("dot_order", "saxpy_order")),
]
ALL = [*ANY_SHAPE, *(pytest.param(x, marks=needs_numba) for x in ("tiles_by_rows", "tiles_by_lanes"))]


def stair(name):
    plain = {"three_loops": three_loops, "tiles_in_numpy": tiles_in_numpy}
    return plain.get(name) or getattr(import_module("minitransformer.kernels.compiled_stairs"), name)


def inputs(n, m, d, dv, dtype):
    rng = np.random.default_rng(n)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((n, d), (m, d), (m, dv)))


def defined(Q, K, V):
    with backend("numpy"):
        return dot_product_attention(*(X.astype(np.float64) for X in (Q, K, V)))[0]


def check(name, dtype, error):
    Q, K, V = inputs(64, 192, 12, 64, dtype)
    kept = [X.copy() for X in (Q, K, V)]
    Y = stair(name)(Q, K, V)
    assert Y.dtype == dtype
    assert np.abs(Y - defined(Q, K, V)).max() < error
    assert all(np.array_equal(X, before) for X, before in zip((Q, K, V), kept, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_a_stair_is_the_definition(name):
    check(name, np.float32, 2e-6)


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_a_stair_is_the_definition_in_float64(name):
    check(name, np.float64, 1e-13)


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_stairs_without_compiled_tiles_take_any_shape(name):
    Q, K, V = inputs(5, 7, 3, 2, np.float64)
    assert np.abs(stair(name)(Q, K, V) - defined(Q, K, V)).max() < 1e-14


@pytest.mark.parametrize("name", ALL)
def test_large_scores_do_not_overflow(name):
    Q, K, V = inputs(64, 64, 8, 64, np.float32)
    Y = stair(name)(200 * Q, K, V)
    assert np.isfinite(Y).all()
    assert np.abs(Y - defined(200 * Q, K, V)).max() < 2e-3  # scores of 500 in float32: an error of 3e-5 in the exponent


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (3, 7), (64, 5), (1000, 1000)])
def test_the_cut_into_tiles_does_not_matter(rows, keys):
    Q, K, V = inputs(20, 33, 4, 6, np.float64)
    assert np.abs(tiles_in_numpy(Q, K, V, rows, keys) - defined(Q, K, V)).max() < 1e-14


@needs_numba
def test_the_second_stair_is_the_first():
    dot_order = stair("dot_order")
    assert getattr(dot_order, "py_func", dot_order) is three_loops


@needs_numba
@pytest.mark.parametrize("loops", [None, True])
def test_the_ceilings_do_what_they_are_timed_for(loops):
    if loops is None and "micro" not in available():
        pytest.skip("needs the micro-kernel")
    A, B = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    C = np.zeros((2, 12, 64), np.float32)
    stair("multiply_adds")(A[:12], B, 3, loops, C, np.array([0, 1]))
    assert np.allclose(C, 3 * A[:12] @ B, rtol=1e-4, atol=1e-4)
    X, Y = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    stair("copy")(X, Y, np.array([0, 3]))
    assert np.array_equal(X, Y)
