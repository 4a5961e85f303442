"""Parts of attention put together: the same as all at once, in any order, values and gradients."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, merge, partial_attention

N, M, D, DV = 9, 21, 4, 3
PARTS = (slice(0, 8), slice(8, 9), slice(9, 21))


def arrays(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, rows, width)) for rows, width in ((n, D), (M, D), (M, DV))]


def some_pairs(n=N):
    """Of row 2 nothing is seen, of row 3 nothing in the second part, of row 4 only that."""
    mask = np.random.default_rng(1).random((n, M)) < 0.7
    mask[2], mask[3, 8], mask[4] = False, False, np.arange(M) == 8
    return mask


def in_parts(Q, K, V, order=(0, 1, 2)):
    """[(Y, L) of each part], and their pullbacks."""
    mask = some_pairs(Q.shape[-2])
    return [partial_attention(Q, K[:, p], V[:, p], mask=mask[:, p]) for p in (PARTS[k] for k in order)]


def together(parts):
    return merge(np.stack([Y for Y, _ in parts]), np.stack([L for _, L in parts]))


@pytest.mark.parametrize("n", [6, N])
def test_a_part_knows_how_much_it_weighs(n, tier):
    Q, K, V = arrays(n=n)
    (Y, L), _ = partial_attention(Q, K, V, mask=some_pairs(n), scale=0.3)
    same, _ = dot_product_attention(Q, K, V, mask=some_pairs(n), scale=0.3)
    np.testing.assert_array_equal(Y, same)
    for b, i in np.ndindex(2, n):
        weights = [math.exp(0.3 * (Q[b, i] @ K[b, j])) for j in range(M) if some_pairs(n)[i, j]]
        assert L[b, i] == pytest.approx(math.log(sum(weights)), rel=1e-12) if weights else L[b, i] == -np.inf


def test_parts_in_any_order_and_bracket_are_the_whole(tier):
    Q, K, V = arrays()
    whole, _ = dot_product_attention(Q, K, V, mask=some_pairs())
    for order in ((0, 1, 2), (2, 0, 1), (1, 0, 2)):
        parts = [part for part, _ in in_parts(Q, K, V, order)]
        left, _ = together([together(parts[:2])[0], parts[2]])
        right, _ = together([parts[0], together(parts[1:])[0]])
        for Y, L in (together(parts)[0], left, right):
            np.testing.assert_allclose(Y, whole, rtol=1e-12, atol=1e-14)
            assert (L[:, 2] == -np.inf).all()
            assert not Y[:, 2].any()


def test_the_gradient_of_the_whole_comes_back_through_the_parts(tier):
    Q, K, V = arrays()
    Y, pullback = dot_product_attention(Q, K, V, mask=some_pairs())
    dY = np.random.default_rng(2).standard_normal(Y.shape)
    want = pullback(dY)
    pairs = in_parts(Q, K, V)
    _, merged = together([part for part, _ in pairs])
    dQ, dKs, dVs = 0, [], []
    for dY_r, dL_r, (_, part) in zip(*merged((dY, np.zeros(dY.shape[:-1]))), pairs, strict=True):
        dQ_r, dK_r, dV_r = part((dY_r, dL_r))
        dQ, dKs, dVs = dQ + dQ_r, [*dKs, dK_r], [*dVs, dV_r]
    for found, known in zip((dQ, np.concatenate(dKs, 1), np.concatenate(dVs, 1)), want, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-10, atol=1e-13)


def test_gradients(tier):
    seen = np.random.default_rng(3).random((N, M)) < 0.7
    check_pullback(partial(partial_attention, mask=seen), *arrays(), entries=15)
    rng = np.random.default_rng(4)
    check_pullback(merge, rng.standard_normal((3, 2, 5, 4)), rng.standard_normal((3, 2, 5)))


def test_weights_too_large_for_exp():
    """Only differences of the L count."""
    Y, L = np.array([[[1.0]], [[3.0]]]), np.array([[1000.0], [1000.0]])
    (merged, whole), _ = merge(Y, L)
    assert merged == pytest.approx(2)
    assert whole == pytest.approx(1000 + math.log(2))


def test_nothing_at_all():
    """Of no part, and of parts that saw nothing: no NaN, and nothing goes back."""
    (Y, L), pullback = merge(np.ones((2, 3, 4)), np.full((2, 3), -np.inf))
    assert not Y.any()
    assert (L == -np.inf).all()
    dY, dL = pullback((np.ones_like(Y), np.ones_like(L)))
    assert not dY.any()
    assert not dL.any()
    (Y, L), _ = merge(np.ones((0, 3, 4)), np.ones((0, 3)))
    assert not Y.any()
    assert (L == -np.inf).all()
