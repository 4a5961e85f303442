"""TUPE: positions with queries and keys of their own, and [CLS], which has no place."""

import math

import numpy as np
import pytest

from minitransformer.attention import attend, dot_product_attention
from minitransformer.attention.multi_head import split_heads
from minitransformer.functional import layer_norm, softmax
from minitransformer.positions.t5 import t5_buckets
from minitransformer.positions.tupe import TUPE, tupe_buckets
from minitransformer.pullback import random_like, tree_leaves

H, n, m, d = 3, 5, 7, 4
D = H * d


def parameters(encoding, rng):
    return random_like(encoding.init(rng, np.float64), rng)


@pytest.mark.parametrize("queries", [n, m])
@pytest.mark.parametrize("cls", [False, True])
@pytest.mark.parametrize("buckets", [None, 8])
def test_pair_by_pair(queries, cls, buckets, K, V, rng):
    """The column of [CLS], then its row, so that θ_1 stands in the corner; and buckets of its own."""
    encoding = TUPE(D, H, longest=9, cls=cls, buckets=buckets, distance=5)
    params = parameters(encoding, rng)
    Q = rng.standard_normal((2, H, queries, d))
    Y, pullback = attend(encoding, params, Q, K, V)

    p, _ = layer_norm(params.table, params.gamma, params.beta)
    S = np.zeros((2, H, queries, m))
    for b, h, i, j in np.ndindex(S.shape):
        position = i + m - queries
        head = slice(h * d, (h + 1) * d)
        placed = (p[position] @ params.U_q[:, head]) @ (p[j] @ params.U_k[:, head]) / math.sqrt(2 * d)
        if buckets:
            bucket = t5_buckets(np.array([j - position]), buckets=buckets, distance=5, causal=False)[0]
        if cls and j == 0:
            placed, bucket = params.theta[1, h], 8
        if cls and position == 0:
            placed, bucket = params.theta[0, h], 4
        S[b, h, i, j] = Q[b, h, i] @ K[b, h, j] / math.sqrt(2 * d) + placed + (params.bias[h, bucket] if buckets else 0)
    A, _ = softmax(S)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-13)


def test_without_queries_of_positions_it_is_dense(K, V, rng):
    """U_q = 0: attention scaled by 1/√(2d)."""
    encoding = TUPE(D, H, longest=9, cls=False)
    params = parameters(encoding, rng)
    Q = rng.standard_normal(K.shape)
    Y, _ = attend(encoding, params._replace(U_q=np.zeros((D, D))), Q, K, V)
    dense, _ = dot_product_attention(Q, K, V, scale=1 / math.sqrt(2 * d))
    np.testing.assert_allclose(Y, dense, rtol=0, atol=1e-13)


def test_it_is_dense_attention_with_positions_side_by_side(K, V, rng):
    """Not added to the contents but next to them: ⟨[q, p U_q], [k, p U_k]⟩ over the root of the width, which is 2d."""
    encoding = TUPE(D, H, longest=9, cls=False)
    params = parameters(encoding, rng)
    Q = rng.standard_normal((2, H, n, d))
    Y, _ = attend(encoding, params, Q, K, V)
    p, _ = layer_norm(params.table[:m], params.gamma, params.beta)
    P_q, P_k = (np.broadcast_to(split_heads(p @ U, H), K.shape) for U in (params.U_q, params.U_k))
    dense, _ = dot_product_attention(np.concatenate([Q, P_q[:, :, m - n :]], -1), np.concatenate([K, P_k], -1), V)
    np.testing.assert_allclose(Y, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", [False, True])
def test_the_scores_of_positions_do_not_depend_on_contents(cls, K, rng):
    encoding = TUPE(D, H, longest=9, cls=cls, buckets=8)
    params = parameters(encoding, rng)
    found = []
    for _ in range(2):
        Q, Z = rng.standard_normal((2, 2, H, m, d))
        S, _ = encoding.scores(params, Q, Z)
        found.append(S - Q @ Z.mT * encoding.scale)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[0][0], found[0][1], rtol=0, atol=1e-12)  # of one sample and another


def test_cls_is_treated_alike_from_every_place(K, V, rng):
    """Its row of positional scores is θ_1 and its column θ_2, whatever the table says; row 0 of the table is not used."""
    encoding = TUPE(D, H, longest=9)
    params = parameters(encoding, rng)
    zeros = np.zeros_like(K)
    S, _ = encoding.scores(params, zeros, zeros)
    np.testing.assert_array_equal(S[:, :, 0, :], np.broadcast_to(params.theta[0][:, None], (2, H, m)))
    np.testing.assert_array_equal(S[:, :, 1:, 0], np.broadcast_to(params.theta[1][:, None], (2, H, m - 1)))
    _, pullback = attend(encoding, params, rng.standard_normal(K.shape), K, V)
    dparams, *_ = pullback(rng.standard_normal(V.shape))
    np.testing.assert_array_equal(dparams.table[0], 0)
    assert (dparams.table[1:m] != 0).all()
    np.testing.assert_array_equal(dparams.table[m:], 0)  # rows beyond the sequence


def test_the_row_of_cls_gives_theta_1_no_gradient(K, V, rng):
    """It adds the same number to a whole row, which softmax does not see. θ_1 is there, and learns nothing from it."""
    encoding = TUPE(D, H, longest=9)
    Y, pullback = attend(encoding, parameters(encoding, rng), rng.standard_normal(K.shape), K, V)
    dtheta = pullback(rng.standard_normal(Y.shape))[0].theta
    np.testing.assert_allclose(dtheta[0], 0, rtol=0, atol=1e-14)
    assert (np.abs(dtheta[1]) > 1e-3).all()


@pytest.mark.parametrize("keys", [0, m])
@pytest.mark.parametrize("buckets", [None, 8])
def test_without_a_query_nothing_is_learned(keys, buckets, rng):
    """Then [CLS] has no row, and without a key no column. So it is of the early queries of `Sinks` after a long memory."""
    encoding = TUPE(D, H, longest=9, buckets=buckets, distance=5)
    params = parameters(encoding, rng)
    S, pullback = encoding.scores(params, np.zeros((2, H, 0, d)), np.ones((2, H, keys, d)))
    dparams, dQ, dK = pullback(S)
    assert S.shape == (2, H, 0, keys)
    assert dQ.shape == (2, H, 0, d)
    assert not dK.any()
    for found, known in zip(tree_leaves(dparams), tree_leaves(params), strict=True):
        np.testing.assert_array_equal(found, np.zeros_like(known))


def test_buckets_of_cls():
    """32 buckets: others → [CLS] is number 32, [CLS] → all is 16, which T5 leaves free; the rest is T5's."""
    T5 = t5_buckets(np.arange(300) - np.arange(300)[:, None], causal=False)
    bucket = tupe_buckets(*T5.shape, buckets=32, distance=128, cls=True)
    np.testing.assert_array_equal(bucket[0], 16)
    np.testing.assert_array_equal(bucket[1:, 0], 32)
    np.testing.assert_array_equal(bucket[1:, 1:], T5[1:, 1:])
    assert 16 not in T5
    np.testing.assert_array_equal(tupe_buckets(300, 300, buckets=32, distance=128, cls=False), T5)
    np.testing.assert_array_equal(tupe_buckets(3, 300, buckets=32, distance=128, cls=True), bucket[-3:])


def test_parameters_that_are_there(rng):
    D_H = {"width": D, "heads": H, "longest": 9}
    for cls, buckets, theta, bias in [(False, None, None, None), (True, 8, (2, H), (H, 9)), (False, 8, None, (H, 8))]:
        params = TUPE(**D_H, cls=cls, buckets=buckets).init(rng)
        assert (None if params.theta is None else params.theta.shape) == theta
        assert not np.any(params.theta if cls else 0)  # [CLS] starts without a preference
        assert (None if params.bias is None else params.bias.shape) == bias
        assert params.table.shape == (9, D)
    assert params.U_q.std() == pytest.approx(D**-0.5, rel=0.2)


def test_refusals(K, V, rng):
    for width, heads in ((12, 5), (12, 0), (0, 3)):
        with pytest.raises(
            ValueError,
            match=f"width: {width} is not divisible into {heads} heads|(width|heads): 0 should be at least 1",
        ):
            TUPE(width, heads, 9)
    with pytest.raises(ValueError, match="longest: 0 should be at least 1"):
        TUPE(D, H, 0)
    with pytest.raises(ValueError, match="buckets: 7 should be even"):
        TUPE(D, H, 9, buckets=7)
    short = TUPE(D, H, longest=6)
    with pytest.raises(ValueError, match="K: position 6 is beyond the learned table, which ends at 5"):
        attend(short, short.init(rng, np.float64), K, K, V)
