"""The products of a linear layer in tiles give what NumPy gives, for every shape and memory order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.backend import available
from minitransformer.functional import linear

pytestmark = pytest.mark.skipif("micro" not in available(), reason="needs the micro-kernel")

TOLERANCE = {"float32": 2e-6, "float64": 1e-14}
sizes = st.integers(1, 70) | st.sampled_from([4, 32, 63, 64, 96, 128, 130, 200])


@pytest.fixture(autouse=True)
def tier():
    with mt.backend("micro"):
        yield


def layer(X, W, b, dY):
    """Y, dX, dW and db."""
    Y, pullback = linear(X, W, b)
    return Y, *pullback(dY)


@given(
    st.sampled_from([64, 65, 66, 127, 128, 300]), sizes, sizes, st.booleans(), st.sampled_from(["float32", "float64"])
)
def test_the_tiers_agree(rows, D, E, turned, dtype):
    rng = np.random.default_rng(rows + D + E)
    X, W, b, dY = (rng.standard_normal(shape) for shape in ((rows, D), (D, E), (E,), (rows, E)))
    with mt.backend("numpy"):
        want = layer(X, W, b, dY)
    arrays = [np.asfortranarray(a.astype(dtype)) if turned else a.astype(dtype) for a in (X, W, b, dY)]
    before = [a.copy() for a in arrays]
    for h, w, inner in zip(layer(*arrays), want, (D, E, rows, rows), strict=True):
        assert h.shape == w.shape
        assert h.dtype == dtype
        assert np.abs(h - w).max() <= TOLERANCE[dtype] * np.sqrt(inner) * (1 + np.abs(w).max())
    for old, new in zip(before, arrays, strict=True):
        np.testing.assert_array_equal(old, new)


def test_no_inner_length_and_no_columns():
    Y, pullback = linear(np.zeros((70, 0), np.float32), np.zeros((0, 5), np.float32), np.arange(5, dtype=np.float32))
    np.testing.assert_array_equal(Y, np.tile(np.arange(5), (70, 1)))
    assert [g.shape for g in pullback(Y)] == [(70, 0), (0, 5), (5,)]
    Y, pullback = linear(np.ones((70, 5), np.float32), np.zeros((5, 0), np.float32))
    assert [g.shape for g in (Y, *pullback(Y))] == [(70, 0), (70, 5), (5, 0)]


def test_the_same_bits_with_any_number_of_threads():
    from minitransformer.kernels.threads import limit

    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype("float32") for s in ((333, 96), (96, 160), (160,), (333, 160))]
    with limit(3):
        want = layer(*arrays)
    with limit(1):
        have = layer(*arrays)
    for h, w in zip(have, want, strict=True):
        np.testing.assert_array_equal(h, w)


def test_where_a_panel_has_no_column_there_are_zeros():
    """Not what stood in that memory before: a processor may take long to multiply it, though nobody sees the product."""
    from minitransformer.kernels.matmul import panels_with_bias

    W, b = np.full((5, 70), 2.0), np.full(70, 3.0)
    want = np.zeros((2, 6, 64))
    want[0], want[1, :, :6] = W[0, 0], W[0, 0]
    want[0, 5], want[1, 5, :6] = b[0], b[0]
    room = 8 * (want.size + 512)
    before = [np.full(size, 1, np.uint8) for size in range(room - 4096, room + 4096, 16)]
    del before  # that memory is full of ones when the panels are made
    np.testing.assert_array_equal(panels_with_bias(W, b), want)
