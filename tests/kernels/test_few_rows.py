"""A few rows go a short way, and only where everything fits."""

import numpy as np
import pytest

from minitransformer.backend import available


@pytest.mark.skipif("numba" not in available(), reason="needs Numba")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_few_rows_go_the_short_way_and_others_the_usual_one(dtype):
    from minitransformer.kernels.few_rows import FEW, normed

    one, other = np.ones(8, dtype), np.float64 if dtype is np.float32 else np.float32
    few = np.random.default_rng(0).standard_normal((FEW, 8)).astype(dtype)
    assert normed(few, one, one, 1e-5) is not None
    for X, gamma in ((np.ones((FEW + 1, 8), dtype), one), (few, one.astype(other)), (few, np.ones(1, dtype))):
        assert normed(X, gamma, one, 1e-5) is None
