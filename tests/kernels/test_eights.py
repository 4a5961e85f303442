"""Rows become columns, in eights and what is left, and nothing beside them is written."""

import numpy as np
import pytest

from minitransformer.backend import available


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_matrix_is_turned_in_eights_and_what_is_left(dtype):
    import numba

    from minitransformer.kernels.tiles import LANES, transpose_into, turn

    turned = numba.njit(lambda X, factors, XT: turn(X, factors, XT))
    into = numba.njit(lambda XT, X, factor: transpose_into(XT, X, factor))
    rng = np.random.default_rng(0)
    for rows, columns in ((1, 1), (7, 9), (8, 8), (8, 20), (20, 8), (64, 64), (37, 51)):
        X, factors = rng.standard_normal((rows, columns + 3)).astype(dtype), rng.standard_normal(columns).astype(dtype)
        room = np.full((columns + 2, rows), 7, dtype)
        turned(X, factors, room[:columns])
        np.testing.assert_array_equal(room[:columns], (X[:, :columns] * factors).T)
        assert (room[columns:] == 7).all()
        XT = np.full((columns, LANES), 7, dtype)
        into(XT, X[:, :columns].copy(), dtype(3))
        np.testing.assert_array_equal(XT[:, :rows], (X[:, :columns] * dtype(3)).T)
        assert (XT[:, rows:] == 0).all()
