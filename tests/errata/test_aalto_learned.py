"""Where the Aalto thesis slips on spans and on Reformer: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention.selected import Reformer, adaptive_span_attention, lsh_attention
from minitransformer.attention.selected.reformer import hash_buckets, sort_in_rounds


def test_E50_scores_of_a_span_are_divided_by_the_root_of_d():
    """Aalto, (8).

    printed  s_tr = x_tᵀ W_qᵀ (W_k x_r + p_{t−r}): d products, divided by nothing.
    wrong    At d = 256 and p = 0 the softmax of (7) is nearly an argmax: the largest of 64 weights is above 0.85 on average.
    holds    s_tr/√d, as the authors' code has it: below 0.15.
    """
    rng = np.random.default_rng(0)
    d, n = 256, 65
    Q, K, V = rng.standard_normal((3, 1, 50, n, d))
    Q, K, V = (X.swapaxes(0, 1) for X in (Q, K, V))  # fifty samples of one head
    z = np.array([float(n)])

    largest = {}
    for name, scale in (("printed", 1.0), ("used", None)):
        _, pullback = adaptive_span_attention(Q, K, V, z, scale=scale)
        largest[name] = pullback.A[:, 0, -1].max(-1).mean()
    assert largest["printed"] > 0.85
    assert largest["used"] < 0.15


def test_E50_the_mask_of_the_code_is_one_step_wider():
    """(6) is (R + z − x)/R. The authors' template gives (R + z + 1 − x)/R: the same with z + 1.

    With z = 2, R = 2, and x = 1 … 5: printed 1, 1, 1/2, 0, 0; in the code 1, 1, 1, 1/2, 0.
    """
    Q, K = np.zeros((2, 1, 6, 1))
    V = np.eye(6)[None]
    for z, soft in ((2.0, [1, 1, 0.5, 0, 0]), (3.0, [1, 1, 1, 0.5, 0])):
        Y, _ = adaptive_span_attention(Q, K, V, np.array([z]), ramp=2)
        np.testing.assert_allclose(Y[0, 5, 4::-1], np.array(soft) / sum(soft), atol=1e-15)
        assert Y[0, 5, 5] == 0, "the sum of (7) ends at t − 1: a token does not see itself"


def test_E51_the_rotation_has_as_many_rows_as_a_key():
    """Before (9): a random matrix R of size k × b/2, and no k. It multiplies a vector of width d_k: k is d_k."""
    x = np.random.default_rng(0).standard_normal((5, 6))  # five keys of width 6
    b = 8
    with pytest.raises((ValueError, TypeError)):
        hash_buckets(x, np.ones((1, b, b // 2)))
    buckets = hash_buckets(x, np.random.default_rng(1).standard_normal((1, 6, b // 2)))
    assert buckets.shape == (1, 5)
    assert 0 <= buckets.min() <= buckets.max() < b


def test_E52_neither_the_bucket_nor_its_neighbour_but_the_chunk():
    """Aalto, 3.2.1.

    printed  "the same bucket in its own chunk and previous chunk"; then "in the same bucket or an adjacent bucket".
    wrong    Ten tokens, chunks of two. Bucket 0 has 7 tokens, four chunks of which one is shared with bucket 1: the
             fourth chunk can't look back to the first, though it is the same bucket; and nobody looks into an
             adjacent bucket.
    holds    The rule of chunks, which is the first.
    """
    bucket = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1])
    known = sort_in_rounds(bucket[None], 2, causal=False)
    sees = set()
    for c, a, side in zip(*np.nonzero(known.sees[0]), strict=True):
        sees.add((int(known.order[0, c, a]), int(known.order[0, c - 1 + side // 2, side % 2])))
    own_bucket = {(i, j) for i in range(10) for j in range(10) if i != j and bucket[i] == bucket[j]}
    adjacent = {(i, j) for i in range(10) for j in range(10) if i != j and abs(bucket[i] - bucket[j]) <= 1}
    chunks = {(i, j) for i, j in own_bucket if i // 2 - j // 2 in (0, 1)}

    assert sees != own_bucket
    assert sees != adjacent
    assert sees == chunks | {(7, 7)}, "the first of bucket 1 is alone in its two chunks, and sees itself"


def test_E53_a_key_that_is_its_own_query_would_win():
    """Aalto, 3.2.1.

    printed  Queries that are keys, the exclusion of oneself, several rounds and reversible layers are all left out.
    wrong    A query's best match is itself: without the exclusion it has more than 0.5 of its own weight, in every
             row.
    holds    A token sees itself only where it sees nobody else: here the weight on itself is 0.
    """
    rng = np.random.default_rng(0)
    Q, V = 8 * rng.standard_normal((2, 1, 1, 32, 16))
    _, pullback = lsh_attention(Q, V, rotations=rng.standard_normal((8, 16, 1)), chunk=32)
    K = Q / np.linalg.norm(Q, axis=-1, keepdims=True)
    S = Q @ K.mT / math.sqrt(16)
    A = np.exp(S - S.max(-1, keepdims=True))
    A /= A.sum(-1, keepdims=True)

    assert np.diagonal(A, axis1=-2, axis2=-1).min() > 0.5, "as printed"
    assert not np.diagonal(pullback.A, axis1=-2, axis2=-1).any()
    assert Reformer().rounds > 1, "and several rounds, which the thesis leaves out as well"


def test_E78_a_hash_is_drawn_and_not_trained():
    """Aalto, 2.3.2.

    printed  "the similarity function is trained end-to-end jointly with the network", after "Reformer belongs to this class".
    wrong    The rotations of Reformer are drawn. They are no parameter that a gradient moves, and could not be: moved a
             little, they leave every bucket as it is, and so the output, bit for bit.
    holds    What is hashed is trained: the output moves with the queries, in the same buckets.
    """
    rng = np.random.default_rng(78)
    Q, V = rng.standard_normal((2, 1, 32, 8))
    R = rng.standard_normal((2, 8, 2))
    Y, _ = lsh_attention(Q, V, rotations=R, chunk=8)
    for c in range(8):
        moved = R.copy()
        moved[0, c, 0] += 1e-6
        assert np.array_equal(lsh_attention(Q, V, rotations=moved, chunk=8)[0], Y)
    other = Q + 1e-6
    assert np.array_equal(hash_buckets(other[0], R), hash_buckets(Q[0], R))
    assert not np.array_equal(lsh_attention(other, V, rotations=R, chunk=8)[0], Y)
    assert mt.tree_size(Reformer().init(rng)) == 0, "nothing of it is learned"
