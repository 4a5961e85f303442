"""ALiBi: slopes, and what softmax sees of them."""

import numpy as np
import pytest

from minitransformer.attention import attend, causal_mask, dot_product_attention, scores
from minitransformer.functional import softmax
from minitransformer.positions import ALiBi, NoParams, alibi_slopes

H, n, m, d, dv = 3, 5, 7, 4, 2
NONE = NoParams()


def test_slopes_of_the_paper():
    """8 heads: 1/2, 1/4 … 1/256. Another number: those of the power of two below, and every second one of the next."""
    np.testing.assert_array_equal(alibi_slopes(8), [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256])
    np.testing.assert_array_equal(alibi_slopes(6), [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])
    np.testing.assert_allclose(alibi_slopes(12), [*alibi_slopes(8), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-15)
    np.testing.assert_array_equal(alibi_slopes(1), [1 / 256])
    assert [len(alibi_slopes(H)) for H in range(1, 20)] == list(range(1, 20))


@pytest.mark.parametrize("causal", [False, True])
def test_pair_by_pair(Q, K, V, mask, causal):
    """Query i of n stands at position i + m − n."""
    Y, pullback = attend(ALiBi(H), NONE, Q, K, V, causal=causal, mask=mask)
    S = np.full((2, H, n, m), -np.inf)
    for b, h, i, j in np.ndindex(S.shape):
        position = i + m - n
        if mask[b, h, i, j] and (j <= position or not causal):
            S[b, h, i, j] = Q[b, h, i] @ K[b, h, j] / np.sqrt(d) - alibi_slopes(H)[h] * abs(position - j)
    A, _ = softmax(S)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(Y[0, 1, 2], 0)  # saw no key


def test_a_shift_of_a_row_is_not_seen(rng):
    """−m (i − j) = −m i + m j, and softmax does not see the −m i of a row: causally the bias may as well be +m j."""
    Q, K = rng.standard_normal((2, 2, H, m, d))
    _, pullback = attend(ALiBi(H), NONE, Q, K, K, causal=True)
    S, _ = scores(Q, K)
    slopes = alibi_slopes(H)[:, None, None]
    A, _ = softmax(S + slopes * np.arange(m), mask=causal_mask(m))
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)

    _, both_ways = attend(ALiBi(H), NONE, Q, K, K)
    A, _ = softmax(S + slopes * np.arange(m))
    assert np.abs(both_ways.A - A).max() > 0.1  # with |i − j| it is another bias


def test_steeper_heads_look_less_far(rng):
    """With equal scores, the mean distance that a head looks back grows as its slope falls."""
    Q = np.zeros((8, 200, d))
    _, pullback = attend(ALiBi(8), NONE, Q, Q, Q, causal=True)
    mean = pullback.A[:, -1] @ np.arange(199, -1, -1.0)
    assert (np.diff(mean) > 0).all()
    _, plain = dot_product_attention(Q, Q, Q, causal=True)
    assert mean[-1] < plain.A[-1, -1] @ np.arange(199, -1, -1.0)


def test_refusals(Q, K, V):
    with pytest.raises(ValueError, match="heads: 0 should be at least 1"):
        ALiBi(0)
    with pytest.raises(ValueError, match=r"Q: shape .* with 4 heads"):
        attend(ALiBi(4), NONE, Q, K, V)
    with pytest.raises(ValueError, match="Q: 7 queries for 5 keys"):
        attend(ALiBi(H), NONE, K, Q, Q)
