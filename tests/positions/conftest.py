"""Queries, keys, values and a mask: 2 samples, 3 heads, 5 queries at the last of 7 positions, axes all different."""

import pytest

H, n, m, d, dv = 3, 5, 7, 4, 2


@pytest.fixture
def Q(rng):
    return rng.standard_normal((2, H, n, d))


@pytest.fixture
def K(rng):
    return rng.standard_normal((2, H, m, d))


@pytest.fixture
def V(rng):
    return rng.standard_normal((2, H, m, dv))


@pytest.fixture
def mask(rng):
    """Some pairs hidden, and every key of one query."""
    mask = rng.random((2, H, n, m)) < 0.8
    mask[0, 1, 2] = False
    return mask


def some(rng, n, m, heads=3, groups=None):
    """Of other lengths: queries, keys and values of two samples, and a mask that hides some keys, from one query all of them."""
    groups = groups or heads
    Q = rng.standard_normal((2, heads, n, d))
    K, V = rng.standard_normal((2, 2, groups, m, d))
    mask = rng.random((2, 1, n, m)) < 0.75
    mask[0, 0, n // 2] = False
    mask[1, 0, 0, 0] = True
    return Q, K, V, mask
