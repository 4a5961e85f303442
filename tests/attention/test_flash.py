"""FlashAttention: what was found in blocks of keys, joined; the same as all at once, forward and backward."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention import causal_mask, dot_product_attention, flash_attention, merge, ring_attention
from minitransformer.attention.flash import find, finish, join, nothing_found
from minitransformer.attention.ring import striped
from minitransformer.pullback import tree_bytes

N, M, D, DV = 9, 21, 4, 3


def arrays(n=N, m=M, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, rows, width)).astype(dtype) for rows, width in ((n, D), (m, D), (m, DV))]


def some_pairs(n=N):
    """Of row 2 nothing is seen, and of row 4 only one key."""
    mask = np.random.default_rng(1).random((n, M)) < 0.7
    mask[2], mask[4] = False, np.arange(M) == 8
    return mask


def in_loops(Q, K, V, block, scale):
    """The published form for one query: a running maximum, sum and average, block by block."""
    m, total, acc = -math.inf, 0.0, np.zeros(DV)
    for start in range(0, len(K), block):
        scores = [scale * sum(Q[a] * k[a] for a in range(D)) for k in K[start : start + block]]
        new = max(m, *scores)
        fade = math.exp(m - new)
        total = total * fade + sum(math.exp(s - new) for s in scores)
        acc = acc * fade + sum(math.exp(s - new) * v for s, v in zip(scores, V[start : start + block], strict=True))
        m = new
    return acc / total, m + math.log(total)


@pytest.mark.parametrize("block", [1, 4, 7, M, 100])
def test_in_loops(block):
    Q, K, V = arrays()
    Y, pullback = flash_attention(Q, K, V, block=block)
    for b, i in np.ndindex(2, N):
        y, L = in_loops(Q[b, i], K[b], V[b], block, 0.5)
        np.testing.assert_allclose(Y[b, i], y, atol=1e-14)
        assert pullback.L[b, i] == pytest.approx(L, rel=1e-14)


@pytest.mark.parametrize("block", [1, 7, 64, M])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_it_is_dense_attention_for_every_block_size(block, causal, masked):
    """Values and gradients; queries are the last of the keys; rows that see nothing are zero."""
    Q, K, V = arrays()
    options = {"causal": causal, "mask": some_pairs() if masked else None}
    with mt.backend("numpy"):
        want, dense = dot_product_attention(Q, K, V, **options)
    Y, pullback = flash_attention(Q, K, V, block=block, **options)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-14)
    dY = np.random.default_rng(2).standard_normal(Y.shape)
    for found, known in zip(pullback(dY), dense(dY), strict=True):
        np.testing.assert_allclose(found, known, rtol=0, atol=1e-13)
    if masked:
        assert not Y[:, 2].any()
        assert not pullback(dY)[0][:, 2].any()


def test_a_mask_of_one_column_is_that_of_all_keys():
    Q, K, V = arrays()
    rows = np.arange(N)[:, None] % 3 > 0
    Y, pullback = flash_attention(Q, K, V, block=5, mask=rows)
    want, known = flash_attention(Q, K, V, block=5, mask=np.broadcast_to(rows, (N, M)))
    for found, right in zip((Y, *pullback(Y)), (want, *known(Y)), strict=True):
        np.testing.assert_array_equal(found, right)


def test_padding_holds_what_it_likes():
    Q, K, V = arrays()
    keys = np.arange(M)[None] < 17
    Y, _ = flash_attention(Q, K, V, block=5, mask=keys)
    K[:, 17:], V[:, 17:] = 9, np.nan
    np.testing.assert_array_equal(flash_attention(Q, K, V, block=5, mask=keys)[0], Y)


@pytest.mark.parametrize(
    "attention", [partial(flash_attention, block=3), partial(ring_attention, owners=striped(7, 2))]
)
def test_a_nan_that_is_seen_comes_back(attention):
    """To the gradients of queries, keys and values, as from attention whose matrix is formed: it is no weight of zero."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, 2, 7, 4))
    K[0, 5, 3] = np.nan
    with np.errstate(invalid="ignore"):
        _, pullback = attention(Q, K, V)
        gradients = pullback(np.ones_like(V))
    for dX in gradients:
        assert np.isnan(dX[0]).all()
        assert np.isfinite(dX[1]).all()


@given(st.permutations(range(4)), st.integers(0, 2), st.integers(0, 99))
def test_joining_is_commutative_and_associative(order, bracket, seed):
    """Any order, any bracket, with a neutral part among them that found nothing."""
    Q, K, V = arrays(seed=seed)
    mask = some_pairs()
    edges = [0, 5, 6, 13, M]
    parts = [find(Q, K[:, a:b], V[:, a:b], mask[:, a:b], 0.5) for a, b in pairwise(edges)]
    a, b, c, d = (parts[k] for k in order)
    nothing = nothing_found(Q, V)
    whole = (
        lambda: join(join(a, b), join(c, d)),
        lambda: join(a, join(nothing, join(b, join(c, d)))),
        lambda: join(join(join(nothing, nothing), join(join(a, b), c)), d),
    )[bracket]()
    with mt.backend("numpy"):
        want, _ = dot_product_attention(Q, K, V, mask=mask)
    Y, L = finish(whole)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-14)
    assert (L[:, 2] == -np.inf).all()


def test_nothing_and_nothing_is_nothing():
    """−∞ − (−∞) is never formed; the form Y₁ − σ(L₂ − L₁)(Y₁ − Y₂), which some programs use, is not a number here."""
    Q, K, V = arrays()
    nothing = nothing_found(Q, V)
    with np.errstate(all="raise"):
        Y, L = finish(join(nothing, find(Q, K[:, :0], V[:, :0], None, 0.5)))
    assert not Y.any()
    assert (L == -np.inf).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(1 / (1 + np.exp(-(L - L)))).all()


def test_divided_or_not_it_is_the_same_algebra():
    """`merge` joins (Y, L)."""
    Q, K, V = arrays()
    halves = [find(Q, K[:, part], V[:, part], None, 0.5) for part in (slice(0, 8), slice(8, M))]
    Y, L = finish(join(*halves))
    (merged, whole), _ = merge(*(np.stack(both) for both in zip(*map(finish, halves), strict=True)))
    np.testing.assert_allclose(merged, Y, atol=1e-14)
    np.testing.assert_allclose(whole, L, atol=1e-14)


def test_scores_too_large_for_exp():
    Q, K, V = (100 * X for X in arrays())
    Y, _ = flash_attention(Q, K, V, block=3)
    assert np.isfinite(Y).all()


def test_what_it_remembers_has_no_square():
    """Of 512 queries and keys: the pullback holds the arrays it was given, Y and one number for each query."""
    Q, K, V = (np.ones((1, 512, 8), np.float32) for _ in range(3))
    _, pullback = flash_attention(Q, K, V)
    assert tree_bytes(pullback) < 5 * Q.nbytes
    assert pullback(Q)[0].dtype == np.float32


def test_bad_input_is_refused():
    Q, K, V = arrays()
    with pytest.raises(ValueError, match="mask: shape"):
        flash_attention(Q, K, V, mask=causal_mask(N, N))
    with pytest.raises(ValueError, match=r"sink: shape \(3,\) does not broadcast"):
        flash_attention(Q, K, V, np.ones(3))
