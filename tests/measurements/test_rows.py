"""Rows of norm one, and how many keys a row of weights uses."""

import numpy as np
import pytest

from minitransformer.measurements.rows import in_use, unit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_uses_as_many_keys_as_share_its_weight(dtype):
    A = np.array([[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0.25, 0.25, 0.25, 0.25]], dtype)
    np.testing.assert_allclose(in_use(A), [1, 2, 4], rtol=1e-6)


def test_rows_get_norm_one_and_keep_their_direction(rng):
    X = rng.standard_normal((2, 3, 5))
    np.testing.assert_allclose((unit(X) ** 2).sum(-1), 1)
    np.testing.assert_allclose(unit(X) * np.linalg.norm(X, axis=-1)[..., None], X)
