"""A pattern as a list of tiles is the same as its mask; attention over the list is dense attention under the mask."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import (
    bigbird_pattern,
    block_pattern,
    block_sparse_attention,
    causal_mask,
    dot_product_attention,
    strided_pattern,
    window_pattern,
)
from minitransformer.backend import available

TOLERANCE = {"float32": 5e-6, "float64": 2e-14}


@pytest.fixture(params=["numpy", "numba", "micro"])
def tier(request):
    if request.param not in available():
        pytest.skip(f"this machine has no tier {request.param!r}")
    with mt.backend(request.param):
        yield request.param


def random_inputs(seed, batch, n, m, d, dv, dtype="float64"):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*batch, *s)).astype(dtype) for s in ((n, d), (m, d), (m, dv), (n, dv))]


def loops(n, sees):
    """The mask, pair by pair."""
    return np.array([[bool(sees(i, j)) for j in range(n)] for i in range(n)]).reshape(n, n)


# ---------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize("n", [1, 63, 64, 65, 150, 200])
def test_patterns_pair_by_pair(n):
    def near(i, j):
        return abs(i - j) <= 20

    np.testing.assert_array_equal(window_pattern(n, 20).mask, loops(n, near))
    np.testing.assert_array_equal(window_pattern(n, 20, causal=True).mask, loops(n, lambda i, j: near(i, j) and j <= i))
    dilated = window_pattern(n, 9, step=7).mask
    np.testing.assert_array_equal(dilated, loops(n, lambda i, j: abs(i - j) <= 63 and (i - j) % 7 == 0))
    longformer = window_pattern(n, 20, globals_=3).mask
    np.testing.assert_array_equal(longformer, loops(n, lambda i, j: near(i, j) or i < 3 or j < 3))
    strided = strided_pattern(n, 11).mask
    np.testing.assert_array_equal(strided, loops(n, lambda i, j: j <= i and (i - j < 11 or (i - j) % 11 == 0)))


def test_bigbird_sees_neighbours_ends_and_some_others():
    n = 64 * 12 - 5
    pattern = bigbird_pattern(n, np.random.default_rng(0), window=1, globals_=1, random=2)
    blocks = pattern.mask[::64, ::64]
    tile = np.arange(12)
    assert blocks[np.abs(tile[:, None] - tile) <= 1].all()
    assert blocks[[0, -1]].all()
    assert blocks[:, [0, -1]].all()
    inner = blocks[1:-1, 1:-1]
    assert (inner.sum(1) <= 3 + 2).all()
    assert inner.sum() > 28  # more than neighbours alone
    np.testing.assert_array_equal(pattern.mask, np.kron(blocks, np.ones((64, 64), bool))[:n, :n])


def test_a_window_has_few_masks_and_work_that_grows_with_n():
    small, large = window_pattern(64 * 20, 100), window_pattern(64 * 40, 100)
    assert len(large.masks) == len(small.masks) <= 5
    assert large.pairs < 2.2 * small.pairs
    assert window_pattern(64 * 8, 64 * 8).which.max() == -1  # every pair of every tile: no mask at all


def test_any_boolean_matrix_is_a_pattern():
    mask = np.random.default_rng(0).random((130, 200)) < 0.02
    padded = np.pad(mask, ((0, 62), (0, 56)))
    pattern = block_pattern(130, 200, lambda i, j: padded[i - 70, j])  # the queries stand at the last of the positions
    np.testing.assert_array_equal(pattern.mask, mask)


def test_causal_with_more_keys_than_queries():
    pattern = block_pattern(70, 100, lambda i, j: np.True_, causal=True)
    np.testing.assert_array_equal(pattern.mask, causal_mask(70, 100))


# --------------------------------------------------------------------------------------------- attention


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(1, 70) | st.sampled_from([128, 190]),
    st.integers(1, 70) | st.sampled_from([128, 190]),
    st.sampled_from([1, 5, 16, 33, 64, 80]),
    st.sampled_from([0, 0.01, 0.3, 1]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["numba", "micro"]),
)
def test_it_is_dense_attention_under_the_mask(n, m, d, density, dtype, fast):
    if fast not in available():
        return
    rng = np.random.default_rng(n)
    mask = np.pad(rng.random((n, m)) < density, ((0, 63), (0, 63)))
    pattern = block_pattern(n, m, lambda i, j: mask[i - (m - n), j])
    Q, K, V, dY = random_inputs(m, (2, 3), n, m, d, 7, dtype)
    with mt.backend("numpy"):
        exact = [X.astype("float64") for X in (Q, K, V, dY)]
        Y, pullback = dot_product_attention(*exact[:3], mask=pattern.mask)
        want = {"Y": Y, "A": pullback.A} | dict(zip(["dQ", "dK", "dV"], pullback(exact[3]), strict=True))
    with mt.backend(fast):
        Y, pullback = block_sparse_attention(Q, K, V, pattern)
        have = {"Y": Y, "A": pullback.A} | dict(zip(["dQ", "dK", "dV"], pullback(dY), strict=True))
    for name, w in want.items():
        assert have[name].shape == w.shape
        assert have[name].dtype == dtype
        assert np.abs(have[name] - w).max() <= TOLERANCE[dtype] * (1 + np.abs(w).max()), name


@pytest.mark.parametrize("seen", ["window", "global"])
def test_the_pullback_is_the_derivative(tier, seen):
    pattern = window_pattern(70, 5) if seen == "window" else window_pattern(70, 2, step=3, globals_=2, causal=True)
    Q, K, V, _ = random_inputs(1, (2, 2), 70, 70, 3, 2)
    assert mt.check_pullback(lambda Q, K, V: block_sparse_attention(Q, K, V, pattern, scale=0.7), Q, K, V).error < 1e-6


def test_a_query_that_sees_nothing_gives_zeros(tier):
    pattern = block_pattern(130, 130, lambda i, j: (i % 50 != 7) & (i < 64) & (j > 3))
    Q, K, V, dY = random_inputs(2, (2,), 130, 130, 4, 3)
    Y, pullback = block_sparse_attention(Q, K, V, pattern)
    dQ, dK, dV = pullback(dY)
    blind = ~pattern.mask.any(1)
    assert blind[[7, 57, 64, 129]].all()
    for a in (Y, dQ):
        assert not a[:, blind].any()
        assert a[:, ~blind].all()
    for a in (dK, dV):
        assert not a[:, :4].any()
        assert np.isfinite(a).all()


def test_a_pattern_of_another_length_and_mixed_dtypes_are_refused(tier):
    Q, K, V, _ = random_inputs(3, (2,), 70, 70, 4, 3)
    with pytest.raises(ValueError, match="it is for 64 queries and 64 keys, not 70 and 70"):
        block_sparse_attention(Q, K, V, window_pattern(64, 3))
    with pytest.raises(TypeError, match="one dtype"):
        block_sparse_attention(Q, K, V.astype("float32"), window_pattern(70, 3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: window_pattern(10, -1), "radius"),
        (lambda: window_pattern(10, 1, step=0), "step"),
        (lambda: strided_pattern(10, 0), "stride"),
        (lambda: block_pattern(70, 70, lambda i, j: i == j, np.ones((1, 2), bool)), r"blocks: shape \(1, 2\)"),
    ],
)
def test_wrong_patterns_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
