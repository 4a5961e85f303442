"""Sinkhorn attention: normalisation and mixing in loops, the orders it can and can't find, its limiting cases."""

import itertools
import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.selected import Sinkhorn, sinkhorn, sinkhorn_attention
from minitransformer.models import LanguageModel

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV, BLOCK = 2, 2, 11, 4, 3, 3
BLOCKS = 4


def heads(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, *shape)) for shape in ((n, D), (n, D), (n, DV), (-(-n // BLOCK),) * 2)]


def test_how_the_network_starts(rng):
    """Weights uniform on ±√(3/d), which have the variance 1/d, for each of ⌈longest/block⌉ blocks; b_1 = 0."""
    W_1, b_1, W_2 = Sinkhorn(2, 48, 100, block=3).init(rng, np.float64)
    assert W_2.shape == (2, 48, 34)
    assert not b_1.any()
    for W in (W_1, W_2):
        assert 0.99 < np.abs(W).max() / math.sqrt(3 / 48) <= 1
        assert W.var() == pytest.approx(1 / 48, rel=0.1)


@pytest.mark.parametrize("cut", [None, 2])
def test_the_scale_is_that_of_the_scores(cut):
    Q, K, V, R = heads()
    Y, _ = sinkhorn_attention(Q, K, V, R, block=BLOCK, cut=cut, scale=3 / math.sqrt(D))
    np.testing.assert_allclose(Y, sinkhorn_attention(3 * Q, K, V, R, block=BLOCK, cut=cut)[0], rtol=1e-12)


def test_a_block_longer_than_the_text_is_dense():
    """Sorted, it is itself, so that each key is there twice; what fills it up is no key."""
    Q, K, V, _ = heads()
    Y, _ = sinkhorn_attention(Q, K, V, np.ones((B, H, 1, 1)), block=N + 5)
    np.testing.assert_allclose(Y, dot_product_attention(Q, K, V)[0], rtol=1e-10, atol=1e-13)


def test_with_noise_float32_stays():
    arrays = [X.astype(np.float32) for X in heads()]
    Y, pullback = sinkhorn_attention(*arrays, block=BLOCK, rng=np.random.default_rng(0))
    assert {X.dtype for X in (Y, *pullback(Y))} == {np.dtype(np.float32)}


# ------------------------------------------------------------------------------------------------ the order


def test_rows_and_columns_in_turn():
    R = np.random.default_rng(0).standard_normal((4, 4))
    S = np.exp(R)
    for iterations in range(1, 4):
        for u in range(4):
            S[u] /= sum(S[u])
        for v in range(4):
            S[:, v] /= sum(S[:, v])
        np.testing.assert_allclose(sinkhorn(R, iterations=iterations)[0], S, rtol=1e-12)


def test_it_converges_to_rows_and_columns_that_sum_to_one():
    R = np.random.default_rng(1).standard_normal((3, 6, 6))
    far = []
    for iterations in (1, 2, 4, 8, 30):
        S, _ = sinkhorn(R, iterations=iterations)
        np.testing.assert_allclose(S.sum(-2), 1, rtol=1e-12)
        far.append(np.abs(S.sum(-1) - 1).max())
    assert all(a > b for a, b in itertools.pairwise(far))
    assert far[-1] < 1e-10


def test_hot_it_is_a_mean_and_cold_a_permutation():
    """τ → ∞: 1/N everywhere. τ → 0: the permutation with the largest sum of R."""
    R = np.random.default_rng(2).standard_normal((5, 5))
    np.testing.assert_allclose(sinkhorn(R / 1e9)[0], 1 / 5, rtol=1e-6)
    order = np.array([3, 1, 4, 0, 2])
    target = np.eye(5)[order] + 0.2 * np.random.default_rng(3).random((5, 5))
    S, _ = sinkhorn(target / 0.02, iterations=50)
    np.testing.assert_allclose(S, np.eye(5)[order], atol=1e-6)


def test_what_takes_no_part_is_as_if_it_were_not_there():
    R = np.random.default_rng(4).standard_normal((5, 5))
    there = np.array([True, False, True, True, False])
    S, pullback = sinkhorn(R, there=there)
    np.testing.assert_allclose(S[np.ix_(there, there)], sinkhorn(R[np.ix_(there, there)])[0], rtol=1e-12)
    assert not S[~there].any()
    assert not S[:, ~there].any()
    dR = pullback(R)
    assert np.isfinite(dR).all()
    assert not dR[~there].any()
    assert not sinkhorn(R, there=np.zeros(5, bool))[0].any()


def test_gradient_of_the_order():
    rng = np.random.default_rng(5)
    for iterations in (1, 5):
        check_pullback(partial(sinkhorn, iterations=iterations), rng.standard_normal((2, 4, 4)))


def test_logits_of_any_size():
    """In logarithms nothing overflows: e^1000 is infinite."""
    S, _ = sinkhorn(1000 * np.random.default_rng(6).standard_normal((4, 4)))
    assert np.isfinite(S).all()
    np.testing.assert_allclose(S.sum(-2), 1, rtol=1e-9)


# -------------------------------------------------------------------------------------------- the attention


def loops(Q, K, V, S, there, cut=None):
    """S mixes the blocks position by position; then one softmax over the sorted and the own block, or over the first few."""
    n, blocks = len(Q), len(S)
    at = [[v * BLOCK + t for v in range(blocks)] for t in range(BLOCK)]  # the t-th row of each block
    mixed = {}
    for u in range(blocks):
        for t in range(BLOCK):
            real = [(S[u, v], j) for v, j in enumerate(at[t]) if j < n and there[j]]
            if real and any(there[j] for j in range(u * BLOCK, min((u + 1) * BLOCK, n))):
                mixed[u, t] = sum(s * K[j] for s, j in real), sum(s * V[j] for s, j in real)
    Y = np.zeros((n, DV))
    for i in range(n):
        u = i // BLOCK
        pairs = [pair for (w, _), pair in mixed.items() if (w == u if cut is None else w < cut)]
        if cut is None:
            pairs += [(K[j], V[j]) for j in range(u * BLOCK, min((u + 1) * BLOCK, n)) if there[j]]
        weights = [math.exp(Q[i] @ k / math.sqrt(D)) for k, _ in pairs]
        if pairs:
            Y[i] = sum(a * v for a, (_, v) in zip(weights, pairs, strict=True)) / sum(weights)
    return Y


@pytest.mark.parametrize("cut", [None, 2, 9])
@pytest.mark.parametrize("hidden", [False, True])
def test_against_loops(cut, hidden, tier):
    Q, K, V, R = heads()
    there = np.ones(N, bool) if not hidden else ~np.isin(np.arange(N), [1, 6, 7, 8])  # all of block 2
    blocks = np.array([there[k : k + BLOCK].any() for k in range(0, N, BLOCK)])
    Y, _ = sinkhorn_attention(Q, K, V, R, block=BLOCK, temperature=0.5, cut=cut, mask=there[None])
    S, _ = sinkhorn(R / 0.5, there=blocks)
    for b, h in np.ndindex(B, H):
        np.testing.assert_allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], S[b, h], there, cut), rtol=1e-10)


@pytest.mark.parametrize("cut", [None, 1, 4])
def test_gradient(cut, tier):
    mask = padding_mask(np.array([N, 7]), N)[:, None]
    attend = partial(sinkhorn_attention, block=BLOCK, iterations=3, temperature=0.7, cut=cut)
    check_pullback(attend, *heads(), entries=20)
    check_pullback(partial(attend, mask=mask), *heads(), entries=20)


def test_an_order_that_changes_nothing_is_local_attention(tier):
    """With S = I each key stands there twice, which changes no average. The blocks are full."""
    n = 12
    Q, K, V, _ = heads(n=n)
    own = np.arange(n)[:, None] // BLOCK == np.arange(n) // BLOCK
    Y, pullback = sinkhorn_attention(Q, K, V, np.full((B, H, 4, 4), 1e4) * np.eye(4), block=BLOCK)
    want, local = dot_product_attention(Q, K, V, mask=own)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    for found, known in zip(pullback(want)[:3], local(want), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)


def test_a_permutation_shows_each_block_another_one():
    """Blocks in the order 1, 2, 0: the queries of block 0 see blocks 0 and 1, and no other."""
    n, order = 9, np.array([1, 2, 0])
    Q, K, _, _ = heads(n=n)
    V = np.broadcast_to(np.eye(n), (B, H, n, n)).copy()
    Y, _ = sinkhorn_attention(Q, K, V, np.full((B, H, 3, 3), 1e4) * np.eye(3)[order], block=BLOCK)
    block = np.arange(n) // BLOCK
    sees = (block[:, None] == block) | (order[block][:, None] == block)
    np.testing.assert_array_equal(Y > 1e-12, np.broadcast_to(sees, Y.shape))


def test_one_softmax_over_both_is_not_the_sum_of_two():
    """Rows of weights sum to one: 1 for values of 1, where two attentions of their own would give 2."""
    Q, K, V, R = heads(n=12)
    Y, _ = sinkhorn_attention(Q, K, np.ones_like(V), R, block=BLOCK, iterations=40)
    np.testing.assert_allclose(Y, 1, rtol=1e-8)


def test_noise_comes_from_a_generator_and_nowhere_else():
    Q, K, V, R = heads()
    attend = partial(sinkhorn_attention, Q, K, V, R, block=BLOCK)
    a, b, other = (attend(rng=np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert (a != other).any()
    noise = np.random.default_rng(1).gumbel(size=R.shape)
    np.testing.assert_array_equal(a, sinkhorn_attention(Q, K, V, R + noise, block=BLOCK)[0])


# ---------------------------------------------------------------------------------------------------- the core


def some(core):
    rng = np.random.default_rng(7)
    return random_like(core.init(rng, np.float64), rng)


@pytest.mark.parametrize("cut", [None, 2])
def test_the_core_makes_the_order_of_sums_of_keys(cut):
    own = {"block": BLOCK, "cut": cut, "iterations": 3, "temperature": 0.6}
    core = Sinkhorn(H, D, 20, **own)
    params = some(core)
    assert params.W_2.shape == (H, D, 7)
    Q, K, V, _ = heads()
    mask = padding_mask(np.array([N, 7]), N)[:, None]
    R = np.zeros((B, H, BLOCKS, BLOCKS))
    for b, h, u in np.ndindex(B, H, BLOCKS):
        x = sum(K[b, h, j] for j in range(u * BLOCK, min((u + 1) * BLOCK, (N, 7)[b]))) + np.zeros(D)
        hidden = [max(x @ params.W_1[h, :, a] + params.b_1[h, a], 0) for a in range(D)]
        R[b, h, u] = np.array(hidden) @ params.W_2[h, :, :BLOCKS]
    Y, _ = core(params, Q, K, V, mask=mask)
    want, _ = sinkhorn_attention(Q, K, V, R, mask=mask, **own)
    np.testing.assert_allclose(Y, want, rtol=1e-9, atol=1e-12)
    check_pullback(partial(core, mask=mask), params, Q, K, V, entries=15)


def test_noise_is_for_training_only():
    Q, K, V, _ = heads()
    for noise in (False, True):
        core = Sinkhorn(H, D, 20, block=BLOCK, noise=noise)
        params = some(core)._replace(W_2=0.1 * some(core).W_2)
        quiet, _ = core(params, Q, K, V)
        trained, _ = core(params, Q, K, V, rng=np.random.default_rng(0))
        assert (quiet != trained).any() == noise


def test_why_it_is_not_causal():
    """The columns of a past block are normalised over the rows of all blocks: the logits of the last row move the first."""
    R = np.random.default_rng(8).standard_normal((4, 4))
    later = R.copy()
    later[-1] += [2, 0, 0, 0]
    lower = np.tril(np.ones((4, 4), bool), -1)
    S, T = (sinkhorn(np.where(lower, X, -50), iterations=3)[0] for X in (R, later))
    assert np.abs(S - T)[1, 0] > 0.01
    with pytest.raises(ValueError, match=r"^attention: Sinkhorn can't be causal: the columns .* later blocks$"):
        LanguageModel(attention="sinkhorn")


def test_what_is_refused():
    Q, K, V, R = heads()
    with pytest.raises(ValueError, match=r"^temperature: 0\.0 should be above 0"):
        sinkhorn_attention(Q, K, V, R, temperature=0.0)
    with pytest.raises(ValueError, match="R: 4 blocks, but 11 rows in blocks of 4 are 3"):
        sinkhorn_attention(Q, K, V, R, block=4)
    with pytest.raises(ValueError, match="a mask can hide keys"):
        sinkhorn_attention(Q, K, V, R, block=BLOCK, mask=np.ones((N, N), bool))
    core = Sinkhorn(H, D, 10, block=BLOCK)
    with pytest.raises(ValueError, match="no more than 10"):
        core(some(core), Q, K, V)
    with pytest.raises(ValueError, match="5 keys for 11 queries"):
        core(some(core), Q, K[..., :5, :], V[..., :5, :])
