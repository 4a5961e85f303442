"""T5's buckets and its bias, and the plainer form with one number for each offset."""

import numpy as np
import pytest

from minitransformer.attention import attend, causal_mask, dot_product_attention, scores
from minitransformer.functional import softmax
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars, T5Bias, T5Params, t5_buckets
from minitransformer.pullback import random_like

H, n, m, d, dv = 3, 5, 7, 4, 2

# The nearest and the farthest distance of each bucket, as T5Attention._relative_position_bucket in transformers 5.23
# gives them for 32 buckets and distances up to 3000. Both ways: j ≤ i has buckets 0 … 15; ahead, distance t has 16 more.
BOTH_WAYS = [
    *((t, t) for t in range(8)),
    (8, 11),
    (12, 15),
    (16, 22),
    (23, 31),
    (32, 45),
    (46, 63),
    (64, 90),
    (91, 3000),
]
CAUSAL = [*((t, t) for t in range(16)), (16, 18), (19, 20), (21, 23), (24, 26), (27, 30), (31, 34), (35, 39), (40, 45)]
CAUSAL += [(46, 51), (52, 58), (59, 66), (67, 76), (77, 86), (87, 98), (99, 112), (113, 3000)]


def test_buckets_are_those_of_the_published_code():
    distance = np.arange(3001)
    for bounds, causal in ((BOTH_WAYS, False), (CAUSAL, True)):
        behind = t5_buckets(-distance, causal=causal)
        found = [(distance[behind == k].min(), distance[behind == k].max()) for k in np.unique(behind)]
        assert found == bounds
        ahead = t5_buckets(distance, causal=causal)
        np.testing.assert_array_equal(ahead, 0 if causal else np.where(distance > 0, behind + 16, 0))


def test_bucket_16_is_never_used():
    """The first bucket of what is ahead is for distance 0."""
    assert set(range(32)) - set(t5_buckets(np.arange(-3000, 3001), causal=False)) == {16}
    assert set(range(32)) == set(t5_buckets(np.arange(-3000, 3001), causal=True))


@pytest.mark.parametrize(("buckets", "longest"), [(8, 20), (6, 10), (20, 100), (64, 256), (4, 16)])
@pytest.mark.parametrize("causal", [False, True])
def test_buckets_of_other_sizes(buckets, longest, causal):
    """They never go back, one apart at first; the last begins before `longest`, and none lies beyond it."""
    r = buckets if causal else buckets // 2
    behind = t5_buckets(-np.arange(1000), buckets=buckets, distance=longest, causal=causal)
    assert (np.diff(behind) >= 0).all()
    np.testing.assert_array_equal(behind[: r // 2], np.arange(r // 2))
    np.testing.assert_array_equal(behind[longest:], r - 1)


@pytest.mark.parametrize("causal", [False, True])
def test_pair_by_pair(Q, K, V, causal, rng):
    """Not divided by √d, and the bucket of j − i, where query i of n stands at position i + m − n."""
    encoding = T5Bias(H, buckets=8, distance=6)
    params = random_like(encoding.init(rng, np.float64), rng)
    Y, pullback = attend(encoding, params, Q, K, V, causal=causal)
    S = np.full((2, H, n, m), -np.inf)
    for b, h, i, j in np.ndindex(S.shape):
        offset = j - (i + m - n)
        if offset <= 0 or not causal:
            bucket = t5_buckets(np.array([offset]), buckets=8, distance=6, causal=causal)[0]
            S[b, h, i, j] = Q[b, h, i] @ K[b, h, j] + params.table[h, bucket]
    A, _ = softmax(S)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-13)


def test_a_gradient_for_each_bucket(Q, K, V, rng):
    """db_k = Σ dS_ij over the batch and the pairs of bucket k; a bucket that no pair is in gets nothing."""
    encoding = T5Bias(H, buckets=12, distance=8)
    params = random_like(encoding.init(rng, np.float64), rng)
    Y, pullback = attend(encoding, params, Q, K, V)
    dY = rng.standard_normal(Y.shape)
    dA, A = dY @ V.mT, pullback.A
    dS = A * (dA - (A * dA).sum(-1, keepdims=True))
    bucket = t5_buckets(np.arange(m) - np.arange(m - n, m)[:, None], buckets=12, distance=8, causal=False)
    dtable = np.zeros((H, 12))
    for b, h, i, j in np.ndindex(dS.shape):
        dtable[h, bucket[i, j]] += dS[b, h, i, j]
    np.testing.assert_allclose(pullback(dY)[0].table, dtable, rtol=0, atol=1e-13)
    np.testing.assert_array_equal(pullback(dY)[0].table[:, 6], 0)  # the bucket for "ahead by 0"


def test_equal_numbers_are_attention_without_a_scale(Q, K, V):
    """Softmax does not see a constant."""
    Y, _ = attend(T5Bias(H), T5Params(np.full((H, 32), 1.7)), Q, K, V)
    plain, _ = dot_product_attention(Q, K, V, scale=1.0)
    np.testing.assert_allclose(Y, plain, rtol=0, atol=1e-13)


def test_very_negative_numbers_are_a_window(rng):
    """−10⁴ for every bucket of 4 and more, 0 for 0 to 3: causal attention to the last four positions."""
    Q, K, V = rng.standard_normal((3, 2, H, 20, d))
    table = np.where(np.arange(32) < 4, 0.0, -1e4) * np.ones((H, 1))
    Y, _ = attend(T5Bias(H), T5Params(table), Q, K, V, causal=True)
    window = causal_mask(20) & ~np.tri(20, k=-4, dtype=bool)
    masked, _ = dot_product_attention(Q, K, V, mask=window, scale=1.0)
    np.testing.assert_allclose(Y, masked, rtol=0, atol=1e-13)


def test_a_number_for_each_offset_that_agrees_in_every_bucket_is_t5(Q, K, V, rng):
    params = random_like(T5Bias(H, 8, 6).init(rng, np.float64), rng)
    T5, _ = attend(T5Bias(H, 8, 6), params, Q, K, V)
    bucket = t5_buckets(np.arange(-8, 9), buckets=8, distance=6, causal=False)
    Y, _ = attend(OffsetScalars(H, 9), OffsetScalarParams(params.table[:, bucket]), Q, K, V)
    np.testing.assert_allclose(Y, T5, rtol=0, atol=1e-13)


def test_scores_start_at_one_if_the_queries_are_drawn_for_it(rng):
    """What the docstring says of W_q: standard deviation (D d)^−½ gives scores of variance 1, unscaled; D^−½ gives d."""
    D, d, rows = 256, 64, 400
    X = rng.standard_normal((rows, D))
    W_q, W_k = rng.standard_normal((2, D, d)) * D**-0.5
    as_usual, _ = scores(X @ W_q, X @ W_k, scale=1.0)
    as_in_t5, _ = scores(X @ (W_q * d**-0.5), X @ W_k, scale=1.0)
    assert as_usual.std() == pytest.approx(8, rel=0.1)
    assert as_in_t5.std() == pytest.approx(1, rel=0.1)
    assert T5Bias(64).init(rng).table.std() == pytest.approx(0.02, rel=0.1)


def test_refusals(Q, K, V, rng):
    for encoding in (T5Bias, OffsetScalars):
        with pytest.raises(ValueError, match=r"heads.* at least 1"):
            encoding(0, 8)
    with pytest.raises(ValueError, match="longest: 0 should be at least 1"):
        OffsetScalars(H, 0)
    for buckets in (2, 9):
        with pytest.raises(ValueError, match=f"buckets: {buckets} should be even, and at least 4"):
            T5Bias(H, buckets=buckets)
    with pytest.raises(ValueError, match="buckets: 1 should be even, and at least 2"):
        t5_buckets(np.arange(3), buckets=1, causal=True)
    with pytest.raises(ValueError, match="distance: 16 should be more than the 16 distances"):
        T5Bias(H, distance=16)
    with pytest.raises(TypeError, match="offsets"):
        t5_buckets(np.arange(3.0), causal=True)
    short = OffsetScalars(H, longest=6)
    with pytest.raises(ValueError, match="K: 7 positions have offsets up to 6, and the table ends at 5"):
        attend(short, short.init(rng, np.float64), Q, K, V)
