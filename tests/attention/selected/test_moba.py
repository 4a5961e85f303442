"""MoBA: the rule in plain loops, its limiting cases, a choice that is causal bit for bit, and one that would not be."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.selected import moba_attention
from minitransformer.attention.selected.chosen import block_means, largest

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV, BLOCK = 2, 2, 15, 4, 3, 4

causal_or_not = pytest.mark.parametrize("causal", [False, True])


def heads(seed=0, n=N, m=N):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, rows, width)) for rows, width in ((n, D), (m, D), (m, DV))]


def chosen_blocks(q, K, i, k, causal, there):
    """The own block of position i, and the k − 1 best of the others."""
    blocks = [range(c, min(c + BLOCK, len(K))) for c in range(0, len(K), BLOCK)]
    own, liked = i // BLOCK, {}
    for c, rows in enumerate(blocks):
        keys = [K[j] for j in rows if there[j]]
        if keys and (c < own if causal else c != own):
            liked[c] = q @ (sum(keys) / len(keys))
    return {own, *sorted(liked, key=lambda c: -liked[c])[: k - 1]}


def loops(Q, K, V, k, causal, sees=None):
    n, m = len(Q), len(K)
    sees = np.ones((n, m), bool) if sees is None else sees
    Y = np.zeros((n, DV))
    for row in range(n):
        i = m - n + row
        blocks = chosen_blocks(Q[row], K, i, k, causal, sees.any(0))
        mine = [j for j in range(m) if j // BLOCK in blocks and sees[row, j] and not (causal and j > i)]
        weights = [math.exp(Q[row] @ K[j] / math.sqrt(D)) for j in mine]
        if mine:
            Y[row] = sum(a * V[j] for a, j in zip(weights, mine, strict=True)) / sum(weights)
    return Y


@causal_or_not
def test_the_scale_is_that_of_the_scores(causal):
    """It has no say in the choice."""
    Q, K, V = heads()
    options = {"block": BLOCK, "chosen": 2, "causal": causal}
    Y, _ = moba_attention(Q, K, V, scale=3 / math.sqrt(D), **options)
    np.testing.assert_allclose(Y, moba_attention(3 * Q, K, V, **options)[0], rtol=1e-12)


@causal_or_not
@pytest.mark.parametrize(("n", "k"), [(N, 1), (N, 2), (N, 3), (6, 2), (N, 9)])
def test_against_loops(n, k, causal, tier):
    Q, K, V = heads(n=n)
    Y, _ = moba_attention(Q, K, V, block=BLOCK, chosen=k, causal=causal)
    for b, h in np.ndindex(B, H):
        np.testing.assert_allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], k, causal), rtol=1e-10, atol=1e-13)


@causal_or_not
def test_masks_against_loops(causal, tier):
    """Of keys, with a block that is hidden whole, and of pairs."""
    Q, K, V = heads()
    for mask in (~np.isin(np.arange(N), [1, 4, 5, 6, 7])[None], np.random.default_rng(2).random((N, N)) < 0.6):
        Y, _ = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=causal, mask=mask)
        sees = np.broadcast_to(mask, (N, N))
        for b, h in np.ndindex(B, H):
            want = loops(Q[b, h], K[b, h], V[b, h], 2, causal, sees)
            np.testing.assert_allclose(Y[b, h], want, rtol=1e-10, atol=1e-13)


@causal_or_not
def test_gradient(causal, tier):
    mask = padding_mask(np.array([N, 9]), N)[:, None]
    attend = partial(moba_attention, block=BLOCK, chosen=2, causal=causal)
    check_pullback(attend, *heads(), entries=20)
    check_pullback(partial(attend, mask=mask), *heads(n=7), entries=15)


@causal_or_not
def test_all_blocks_are_dense_attention_and_one_is_local(causal, tier):
    Q, K, V = heads()
    want, _ = dot_product_attention(Q, K, V, causal=causal)
    np.testing.assert_allclose(moba_attention(Q, K, V, block=BLOCK, chosen=4, causal=causal)[0], want, rtol=1e-11)
    own = np.arange(N)[:, None] // BLOCK == np.arange(N) // BLOCK
    want, _ = dot_product_attention(Q, K, V, causal=causal, mask=own)
    np.testing.assert_allclose(moba_attention(Q, K, V, block=BLOCK, chosen=1, causal=causal)[0], want, rtol=1e-11)


def test_outputs_and_choice_are_causal_bit_for_bit(tier):
    """Every token in turn, by so much that every mean it is in changes."""
    Q, K, V = heads()
    Y, known = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=True)
    for t in range(N):
        changed = [X.copy() for X in (Q, K, V)]
        for X in changed:
            X[..., t, :] -= 9
        Z, other = moba_attention(*changed, block=BLOCK, chosen=2, causal=True)
        np.testing.assert_array_equal(Z[..., :t, :], Y[..., :t, :])
        np.testing.assert_array_equal(other.blocks[..., :t, :], known.blocks[..., :t, :])


def test_ranking_blocks_that_are_not_complete_would_leak():
    """A rule that ranks all blocks and hides what is ahead afterwards: token 6 decides whether query 4 sees block 0."""
    Q, K, _ = (X[0, 0] for X in heads())
    K[8:] = 5 * Q[4]  # two later blocks that query 4 likes
    seen = []
    for sign in (50, -50):
        K[6] = sign * Q[4]
        means, _ = block_means(K, np.ones(N, bool), BLOCK)
        liked = largest(Q @ means.mT, 3, np.ones((N, 4), bool))
        seen.append(liked[4])
    assert seen[0][0] != seen[1][0]


def test_no_gradient_goes_through_the_choice():
    """Keys of a block that nobody has chosen get exactly none, though their mean was compared."""
    Q, K, V = heads()
    Y, pullback = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=True)
    dY = np.zeros_like(Y)
    dY[..., -1, :] = 1
    _, dK, dV = pullback(dY)
    unseen = ~np.repeat(pullback.blocks[..., -1, :], BLOCK, -1)[..., :N]
    assert unseen.sum() >= 2 * BLOCK * B * H - BLOCK
    assert not dK[unseen].any()
    assert not dV[unseen].any()


def test_what_is_lost_is_the_mass_of_what_was_left_out():
    """Y − Y_seen = (1 − m) (Y_rest − Y_seen), where m is the weight that dense attention gives to what was seen."""
    Q, K, V = heads()
    Y, pullback = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=True)
    dense, full = dot_product_attention(Q, K, V, causal=True)
    seen = pullback.A > 0
    mass = np.where(seen, full.A, 0).sum(-1, keepdims=True)
    rest, _ = dot_product_attention(Q, K, V, causal=True, mask=~seen)
    assert mass.min() < 0.9
    np.testing.assert_allclose(dense - Y, (1 - mass) * (rest - Y), rtol=1e-9, atol=1e-12)


def test_means_of_blocks():
    X = np.arange(14.0).reshape(7, 2)
    there = np.array([True, True, False, True, False, False, True])
    means, pullback = block_means(X, there, 3)
    np.testing.assert_array_equal(means, [X[:2].mean(0), X[3], X[6]])
    np.testing.assert_array_equal(block_means(X, ~there, 3)[0], [X[2], X[4:6].mean(0), [0, 0]])
    check_pullback(lambda X: block_means(X, there, 3), X)
    assert not pullback(np.ones((3, 2)))[~there].any()


def test_what_is_hidden_does_not_matter():
    """A NaN in it goes nowhere: not into a mean, and not into a choice."""
    Q, K, V = heads()
    there = np.arange(N) % 4 != 2
    Y, _ = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=True, mask=there[None])
    K[..., ~there, :], V[..., ~there, :] = np.nan, np.nan
    Z, pullback = moba_attention(Q, K, V, block=BLOCK, chosen=2, causal=True, mask=there[None])
    np.testing.assert_array_equal(Y, Z)
    for d in pullback(np.ones_like(Y)):
        assert np.isfinite(d).all()


def test_what_is_refused():
    Q, K, V = heads()
    with pytest.raises(ValueError, match=f"^Q: {N} queries"):
        moba_attention(Q, K[..., :5, :], V[..., :5, :])
    with pytest.raises(ValueError, match="mask: shape"):
        moba_attention(Q, K, V, mask=np.ones((N, 5), bool))
