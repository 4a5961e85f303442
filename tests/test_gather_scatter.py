"""Sums over the places where one number was used."""

import numpy as np
import pytest

from minitransformer.gather_scatter import by_offset, refuse_other_heads, split_heads, sum_by_index, sum_by_offset


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3), (1, 1), (0, 4), (4, 0), (0, 0)])
def test_by_offset_and_its_gradient(n, m, rng):
    """B_ij = bias_{j − i + n − 1}, and ⟨dB, B⟩ = ⟨sum_by_offset(dB), bias⟩; batch axes are kept, also of nothing."""
    bias, dB = rng.standard_normal((2, 3, max(n + m - 1, 0))), rng.standard_normal((2, 3, n, m))
    B, dbias = by_offset(bias, n, m), sum_by_offset(dB)
    assert (B.shape, dbias.shape) == (dB.shape, bias.shape)
    for i, j in np.ndindex(n, m):
        np.testing.assert_array_equal(B[..., i, j], bias[..., j - i + n - 1])
    np.testing.assert_allclose(np.vdot(dB, B), np.vdot(dbias, bias), rtol=1e-12)


def test_sum_by_index_is_the_gradient_of_looking_up(rng):
    """⟨dX, table[…, index]⟩ = ⟨sum_by_index(dX), table⟩ for a vector and a matrix of indices, batch axes kept."""
    for shape in ((7,), (4, 5)):
        index = rng.integers(0, 6, shape)
        dX, table = rng.standard_normal((2, 3, *shape)), rng.standard_normal((2, 3, 9))
        dtable = sum_by_index(dX, index, 9)
        assert dtable.shape == table.shape
        np.testing.assert_allclose(np.vdot(dX, table[..., index]), np.vdot(dtable, table), rtol=1e-12)
        np.testing.assert_array_equal(dtable[..., 6:], 0)  # never looked up


def test_sum_by_index_entry_by_entry(rng):
    index, dX = rng.integers(0, 3, (4, 5)), rng.standard_normal((2, 4, 5))
    loops = np.zeros((2, 3))
    for b, i, j in np.ndindex(dX.shape):
        loops[b, index[i, j]] += dX[b, i, j]
    np.testing.assert_allclose(sum_by_index(dX, index, 3), loops, rtol=0, atol=1e-14)


def test_a_table_for_each_row(rng):
    """What the docstring says: an index into the tables of all rows, one after another."""
    n, m, size = 4, 5, 3
    index, dX = rng.integers(0, size, (n, m)), rng.standard_normal((2, n, m))
    rows = index + size * np.arange(n)[:, None]
    dtables = sum_by_index(dX, rows, n * size).reshape(2, n, size)
    for i in range(n):
        np.testing.assert_allclose(dtables[:, i], sum_by_index(dX[:, i], index[i], size), rtol=0, atol=1e-14)


def test_sum_by_index_without_batch_nothing_to_sum_and_float32(rng):
    assert sum_by_index(rng.standard_normal(5), np.zeros(5, int), 2).shape == (2,)
    np.testing.assert_array_equal(sum_by_index(np.ones((2, 0)), np.zeros(0, int), 3), np.zeros((2, 3)))
    assert sum_by_index(np.ones((0, 4)), np.zeros(4, int), 3).shape == (0, 3)
    assert sum_by_index(np.ones((2, 4), np.float32), np.zeros(4, int), 1).dtype == np.float32


def test_columns_that_heads_do_not_divide():
    with pytest.raises(ValueError, match="heads: 8 columns can't be divided into 3 heads"):
        split_heads(np.zeros((2, 8)), 3)


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4), (3, 2, 5, 4)])
def test_refuse_other_heads(shape):
    refuse_other_heads(np.zeros((3, 5, 4)), 3)
    with pytest.raises(ValueError, match=r"Q: shape .* should be \(…, 3, n, d\), with 3 heads"):
        refuse_other_heads(np.zeros(shape), 3)
    with pytest.raises(ValueError, match=r"with 1 head$"):
        refuse_other_heads(np.zeros(shape), 1)
