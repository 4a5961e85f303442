"""The fast 2ˣ and tanh: as exact as the type allows, and right at the edges that attention leans on."""

import numpy as np
import pytest

from minitransformer.backend import available

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")


def both(function):
    """The function as plain Python, and a compiled loop around it."""
    from numba import njit

    from minitransformer.kernels.compiling import CONTRACT

    @njit(fastmath=CONTRACT)
    def compiled(x):
        y = np.empty_like(x)
        for i in range(len(x)):
            y[i] = function(x[i])
        return y

    def plain(x):
        return np.array([function(x_i) for x_i in x], x.dtype)

    return {"compiled": compiled, "plain": plain}


@pytest.fixture(scope="module")
def tiers():
    from minitransformer.kernels.exp2 import exp2

    return both(exp2)


@pytest.fixture(scope="module")
def tanh():
    from minitransformer.kernels.exp2 import tanh

    return both(tanh)


@pytest.mark.parametrize("how", ["compiled", "plain"])
@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -126), (np.float64, -1022)])
def test_it_is_exact_to_the_last_bit_or_so(tiers, how, dtype, lowest):
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(lowest, 0, 5000), rng.uniform(-1, 0, 5000), np.arange(lowest, 1.0)]).astype(dtype)
    y = tiers[how](x)
    want = np.exp2(x.astype(np.longdouble))
    assert np.abs(y / want - 1).max() < 1.5 * np.finfo(dtype).eps


@pytest.mark.parametrize("how", ["compiled", "plain"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_edges(tiers, how, dtype):
    x = np.array([0, -0.0, -1, -2, -1100, -1e30, -np.inf, np.nan], dtype)
    np.testing.assert_array_equal(tiers[how](x), np.array([1, 1, 0.5, 0.25, 0, 0, 0, np.nan], dtype))


@pytest.mark.parametrize("how", ["compiled", "plain"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_nan_stays_one(tiers, how, dtype):
    """Also with other bits set than NumPy's: R's "not available" is a NaN with 1954 in it."""
    bits, whole = (np.uint32, 0x7F800000) if dtype == np.float32 else (np.uint64, 0x7FF0000000000000)
    last = 2 ** (23 if dtype == np.float32 else 52)
    notes = [1, 1954, last // 2, last // 2 + 1954, last - 1, *np.random.default_rng(2).integers(1, last, 500).tolist()]
    sign = np.iinfo(bits).max // 2 + 1
    x = np.array([whole + note for note in notes] + [sign + whole + note for note in notes], bits).view(dtype)
    assert np.isnan(x).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(tiers[how](x)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_and_plain_agree(tiers, dtype):
    x = -np.random.default_rng(1).exponential(10, 2000).astype(dtype)
    np.testing.assert_allclose(tiers["compiled"](x), tiers["plain"](x), rtol=3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("how", ["compiled", "plain"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tanh_keeps_its_digits_where_it_is_small(tanh, how, dtype):
    """A cap of 10⁴ would multiply an error of the last digit of 1 by 10⁴: it has to be one of the last digit of tanh."""
    rng = np.random.default_rng(3)
    x = np.concatenate([np.geomspace(1e-30, 1e30, 4000), rng.uniform(0, 3, 4000)])
    x = np.concatenate([x, -x]).astype(dtype)
    y, want = tanh[how](x), np.tanh(x.astype(np.longdouble))
    assert y.dtype == dtype
    assert np.abs(y / want - 1).max() < 3 * np.finfo(dtype).eps
    edges = np.array([0, np.inf, -np.inf, np.nan], dtype)
    np.testing.assert_array_equal(tanh[how](edges), np.array([0, 1, -1, np.nan], dtype))
