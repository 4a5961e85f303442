"""Every stair of chapter 17 computes the definition."""

import numpy as np
import pytest

from minitransformer import backend
from minitransformer.attention import dot_product_attention
from minitransformer.backend import available

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")
STAIRS = ("three_loops", "dot_order", "saxpy_order", "tiles_in_numpy", "tiles_by_rows", "tiles_by_lanes")


@pytest.fixture(scope="module")
def lower():
    from minitransformer.kernels import staircase

    return staircase


def inputs(n, m, d, dv, dtype):
    rng = np.random.default_rng(n)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((n, d), (m, d), (m, dv)))


def defined(Q, K, V):
    with backend("numpy"):
        return dot_product_attention(*(X.astype(np.float64) for X in (Q, K, V)))[0]


@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 1e-13), (np.float32, 2e-6)])
@pytest.mark.parametrize("name", STAIRS)
def test_a_stair_is_the_definition(lower, name, dtype, error):
    Q, K, V = inputs(64, 192, 12, 64, dtype)
    kept = [X.copy() for X in (Q, K, V)]
    Y = getattr(lower, name)(Q, K, V)
    assert Y.dtype == dtype
    assert np.abs(Y - defined(Q, K, V)).max() < error
    assert all(np.array_equal(X, before) for X, before in zip((Q, K, V), kept, strict=True))


@pytest.mark.parametrize("name", STAIRS[:4])
def test_stairs_without_compiled_tiles_take_any_shape(lower, name):
    Q, K, V = inputs(5, 7, 3, 2, np.float64)
    assert np.abs(getattr(lower, name)(Q, K, V) - defined(Q, K, V)).max() < 1e-14


@pytest.mark.parametrize("name", STAIRS)
def test_large_scores_do_not_overflow(lower, name):
    Q, K, V = inputs(64, 64, 8, 64, np.float32)
    Y = getattr(lower, name)(200 * Q, K, V)
    assert np.isfinite(Y).all()
    assert np.abs(Y - defined(200 * Q, K, V)).max() < 2e-3  # scores of 500 in float32: an error of 3e-5 in the exponent


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (3, 7), (64, 5), (1000, 1000)])
def test_the_cut_into_tiles_does_not_matter(lower, rows, keys):
    Q, K, V = inputs(20, 33, 4, 6, np.float64)
    assert np.abs(lower.tiles_in_numpy(Q, K, V, rows, keys) - defined(Q, K, V)).max() < 1e-14


@pytest.mark.parametrize("loops", [None, True])
def test_the_ceilings_do_what_they_are_timed_for(lower, loops):
    if loops is None and "micro" not in available():
        pytest.skip("needs the micro-kernel")
    A, B = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
    C = np.zeros((2, 12, 64), np.float32)
    lower.multiply_adds(A[:12], B, C, 3, loops)
    assert np.allclose(C, 3 * A[:12] @ B, rtol=1e-4, atol=1e-4)
    X, Y = np.arange(12.0), np.zeros(12)
    lower.copy(X, Y, 3)
    assert np.array_equal(X, Y)
