"""Reformer's attention: hash, sort, chunk, in plain loops; its limiting case; rounds; and what its causal form lets through."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.delta_rule import unit
from minitransformer.attention.linear import gated_delta_net
from minitransformer.attention.selected import Reformer, lsh_attention, reformer
from minitransformer.attention.selected.reformer import hash_buckets, sort_in_rounds
from minitransformer.positions import ALiBi
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV = 2, 2, 21, 4, 3

causal_or_not = pytest.mark.parametrize("causal", [False, True])


def heads(seed=0, n=N):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, H, n, D)), rng.standard_normal((B, H, n, DV))


def rotated(rounds, half=2, seed=1):
    return np.random.default_rng(seed).standard_normal((rounds, D, half))


def pairs_of_a_round(Q, R, chunk, causal, there, other_buckets=False):
    """Who sees whom, not counting oneself, by the words of the rule: sort, cut, look at your chunk and the one before."""
    n = len(Q)
    bucket = [int(np.argmax([*(q @ R), *(-q @ R)])) for q in Q]
    order = sorted((i for i in range(n) if there[i]), key=lambda i: (bucket[i], i))
    chunk_of = {i: place // chunk for place, i in enumerate(order)}
    return {
        (i, j)
        for i in order
        for j in order
        if i != j
        and chunk_of[j] in (chunk_of[i], chunk_of[i] - 1)
        and (other_buckets or bucket[i] == bucket[j])
        and not (causal and j > i)
    }


def loops(Q, V, rotations, chunk, causal, there=None, seen=None, other_buckets=False):
    """The paper's: z over all rounds, ln N_ij subtracted, 10⁵ from the score of oneself."""
    n, there = len(Q), np.ones(len(Q), bool) if there is None else there
    rounds = [pairs_of_a_round(Q, R, chunk, causal, there, other_buckets) for R in rotations]
    Y = np.zeros((n, V.shape[1]))
    for i in range(n):
        terms = []  # score and value, of every pair in every round
        for pairs in rounds:
            for j in range(n):
                if j == i and there[i]:
                    terms.append((Q[i] @ key(Q[i]) / math.sqrt(D) - 1e5, V[i]))
                elif (i, j) in pairs and (seen is None or seen[i, j]):
                    N_ij = sum((i, j) in other for other in rounds)
                    terms.append((Q[i] @ key(Q[j]) / math.sqrt(D) - math.log(N_ij), V[j]))
        if terms:
            top = max(score for score, _ in terms)
            weights = [math.exp(score - top) for score, _ in terms]
            Y[i] = sum(w * v for w, (_, v) in zip(weights, terms, strict=True)) / sum(weights)
    return Y


def key(q):
    return q / math.sqrt(q @ q + D * 1e-6)


@causal_or_not
@pytest.mark.parametrize(("rounds", "chunk"), [(1, 4), (3, 4), (2, 6), (2, 64)])
@pytest.mark.parametrize("other_buckets", [False, True])
def test_against_loops(rounds, chunk, causal, tier, other_buckets):
    Q, V = heads()
    rotations = rotated(rounds)
    options = {"chunk": chunk, "causal": causal, "other_buckets": other_buckets}
    Y, _ = lsh_attention(Q, V, rotations=rotations, **options)
    for b, h in np.ndindex(B, H):
        want = loops(Q[b, h], V[b, h], rotations, chunk, causal, other_buckets=other_buckets)
        np.testing.assert_allclose(Y[b, h], want, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("encoding", [None, ALiBi(H)])
def test_the_scale_is_that_of_the_scores(encoding):
    """Keys have norm one and buckets know no lengths: queries of twice the size are twice the scale, but for 10⁻⁶ d."""
    Q, V = heads()
    options = {"rotations": rotated(2), "chunk": 4, "encoding": encoding, "params": NoParams()}
    Y, _ = lsh_attention(Q, V, scale=2 / math.sqrt(D), **options)
    np.testing.assert_allclose(Y, lsh_attention(2 * Q, V, **options)[0], rtol=1e-4, atol=1e-5)
    assert np.abs(Y - lsh_attention(Q, V, **options)[0]).max() > 0.1


@pytest.mark.parametrize("d", [16, 64, 256])
def test_products_with_keys_of_norm_one_need_no_division(d):
    """As they are, in google/trax (8e10d6a), or over √d, in lucidrains/reformer-pytorch (0f43aab) and here: chapter 09.

    Of random queries the first have deviation 1 and the second 1/√d; and with queries √d times as long the second are the first.
    """
    Q = np.random.default_rng(d).standard_normal((64, d))
    products, others = Q @ unit(Q)[0].T, ~np.eye(64, dtype=bool)
    assert products[others].std() == pytest.approx(1, rel=0.05)
    rotations = np.random.default_rng(1).standard_normal((2, d, 2))
    as_they_are, _ = lsh_attention(Q, Q, rotations=rotations, chunk=8, scale=1.0)
    divided, _ = lsh_attention(math.sqrt(d) * Q, Q, rotations=rotations, chunk=8)
    np.testing.assert_allclose(divided, as_they_are, rtol=0, atol=1e-5)


@causal_or_not
@pytest.mark.parametrize("other_buckets", [False, True])
def test_masks_of_keys_and_of_pairs_against_loops(causal, other_buckets):
    Q, V = heads()
    rotations, there = rotated(2), np.arange(N) % 5 != 1
    pairs = np.random.default_rng(3).random((N, N)) < 0.6
    pairs |= np.eye(N, dtype=bool)
    for mask, known in ((there[None], {"there": there}), (pairs, {"seen": pairs})):
        options = {"causal": causal, "other_buckets": other_buckets}
        Y, _ = lsh_attention(Q, V, rotations=rotations, chunk=4, mask=mask, **options)
        for b, h in np.ndindex(B, H):
            want = loops(Q[b, h], V[b, h], rotations, 4, **options, **known)
            np.testing.assert_allclose(Y[b, h], want, rtol=1e-10, atol=1e-13)


@causal_or_not
def test_gradient(causal, tier):
    mask = padding_mask(np.array([N, 15]), N)[:, None]

    def attend(Q, V, rounds, **options):
        return lsh_attention(Q, V, rotations=rotated(rounds).astype(Q.dtype), chunk=4, causal=causal, **options)

    check_pullback(partial(attend, rounds=3), *heads(), entries=25)
    check_pullback(partial(attend, rounds=2, mask=mask), *heads(), entries=15)


@causal_or_not
def test_one_bucket_and_one_chunk_is_dense_attention_without_oneself(causal, tier):
    """All first coordinates are positive, and R asks for nothing else: one bucket."""
    Q, V = heads()
    Q[..., 0] = np.abs(Q[..., 0])
    R = np.eye(D)[None, :, :1]
    assert not hash_buckets(Q, R).any()
    alone = np.zeros((N, N), bool)
    alone[0, 0] = causal  # the first sees nobody else
    Y, pullback = lsh_attention(Q, V, rotations=R, chunk=N, causal=causal)
    K, back = unit(Q)
    want, dense = dot_product_attention(Q, K, V, causal=causal, mask=~np.eye(N, dtype=bool) | alone)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(pullback.A, dense.A, rtol=1e-10, atol=1e-13)
    dQ, dK, dV = dense(want)
    for found, known in zip(pullback(want), (dQ + back(dK), dV), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)


def test_the_matrix_is_that_of_all_rounds_together():
    Q, V = heads()
    Y, pullback = lsh_attention(Q, V, rotations=rotated(3), chunk=4)
    np.testing.assert_allclose(pullback.A @ V, Y, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(pullback.A.sum(-1), 1, rtol=1e-12)
    S = np.where(pullback.A > 0, Q @ unit(Q)[0].mT / math.sqrt(D), -np.inf)
    A = np.exp(S - S.max(-1, keepdims=True))
    np.testing.assert_allclose(pullback.A, A / A.sum(-1, keepdims=True), rtol=1e-9, atol=1e-13)


def test_what_the_length_of_a_vector_does_not_change():
    Q, _ = heads()
    stretched = Q * np.random.default_rng(4).uniform(0.1, 9, (B, H, N, 1))
    np.testing.assert_array_equal(hash_buckets(Q, rotated(3)), hash_buckets(stretched, rotated(3)))


def test_the_first_chunk_looks_back_at_nothing():
    """A roll would show it the last chunk. All in one bucket, so that nothing else hides it."""
    known = sort_in_rounds(np.zeros((1, 8), int), 2, causal=False)
    sees = np.zeros((8, 8), bool)
    sees[known.order[0].ravel()[:, None], np.arange(8)] = [
        [any(known.order[0, c - 1 + side // 2, side % 2] == j and known.sees[0, c, a, side]
             for side in range(4) if c or side > 1) for j in range(8)] for c in range(4) for a in range(2)
    ]  # fmt: skip
    i, j = np.arange(8)[:, None], np.arange(8)
    np.testing.assert_array_equal(sees, ((i // 2 == j // 2) | (i // 2 == j // 2 + 1)) & (i != j))
    assert not known.sees[0, 0, :, :2].any()


def test_more_rounds_find_more_of_the_neighbours():
    """Two vectors meet in a round with probability p, in one of R rounds with 1 − (1 − p)^R."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(16)
    y = x + 0.6 * rng.standard_normal(16)
    met = np.diff(hash_buckets(np.stack([x, y]), rng.standard_normal((40_000, 16, 4))), axis=-1)[:, 0] == 0
    p = met.mean()
    assert 0.2 < p < 0.8
    for R in (2, 4, 8):
        assert abs(met.reshape(-1, R).any(1).mean() - (1 - (1 - p) ** R)) < 0.02


# ------------------------------------------------------------------------------------- what its causal form is


def visible(buckets, chunk, **options):
    """Who sees whom, (n, n)."""
    known = sort_in_rounds(buckets[None], chunk, causal=True, **options)
    sees = np.zeros((len(buckets), len(buckets)), bool)
    for c, a in np.ndindex(known.order.shape[1:]):
        before = known.order[0, c - 1] if c else np.full(chunk, -1)
        for j, seen in zip((*before, *known.order[0, c]), known.sees[0, c, a], strict=True):
            if seen:
                sees[known.order[0, c, a], j] = True
    return sees


@pytest.mark.parametrize(("other_buckets", "share"), [(False, 0.12), (True, 0.85)])
def test_what_is_seen_is_causal_and_whether_it_is_seen_is_not(other_buckets, share):
    """Only the last of 16 tokens changes, and with it which *past* tokens some earlier one sees."""
    rng = np.random.default_rng(6)
    leaks = 0
    for _ in range(1000):
        before = rng.integers(0, 4, 16)
        after = before.copy()
        after[-1] = (after[-1] + rng.integers(1, 4)) % 4
        old, new = (visible(buckets, 4, other_buckets=other_buckets) for buckets in (before, after))
        assert not np.triu(old, 1).any()
        leaks += (old[:-1] != new[:-1]).any()
    assert abs(leaks / 1000 - share) < 0.05
    # in one chunk all of one's bucket is seen, and only the last row changes
    old, new = visible(before, 16), visible(after, 16)
    np.testing.assert_array_equal(old[:-1], new[:-1])


def test_a_later_token_changes_an_earlier_output():
    """The same, seen from outside: nothing of the later value comes through, and yet the output is another."""
    Q, V = heads()
    rotations = rotated(1)
    Y, pullback = lsh_attention(Q, V, rotations=rotations, chunk=4, causal=True)
    assert not np.triu(pullback.A, 1).any()
    changed = Q.copy()
    changed[..., -1, :] *= -1
    Z, other = lsh_attention(changed, V, rotations=rotations, chunk=4, causal=True)
    assert (Y[..., :-1, :] != Z[..., :-1, :]).any()
    assert ((pullback.A > 0) != (other.A > 0))[..., :-1, :].any()
    V[..., -1, :] += 9
    same, _ = lsh_attention(Q, V, rotations=rotations, chunk=4, causal=True)
    np.testing.assert_array_equal(same[..., :-1, :], Y[..., :-1, :])


# ---------------------------------------------------------------------------------------------------- the core


def test_the_core_draws_rotations_from_its_seed_or_from_a_generator():
    Q, V = heads()
    core = Reformer(2, 4, 4, seed=3)
    Y, _ = core(NoParams(), Q, Q, V)
    rotations = np.random.default_rng(3).standard_normal((2, D, 2))
    np.testing.assert_array_equal(Y, lsh_attention(Q, V, rotations=rotations, chunk=4)[0])
    Z, _ = core(NoParams(), Q, Q, V, rng=np.random.default_rng(3))
    np.testing.assert_array_equal(Y, Z)
    assert not np.array_equal(Y, core(NoParams(), Q, Q, V, rng=np.random.default_rng(4))[0])
    assert core.looks_ahead


def test_what_is_hidden_takes_no_part():
    """Wherever it stands, and be it NaN: as if it had not been there."""
    Q, V = heads()
    there = np.arange(N) % 4 != 2
    core = Reformer(2, 4, 4)
    Y, pullback = core(NoParams(), Q, Q, V, causal=True, mask=there[None])
    without, _ = core(NoParams(), Q[..., there, :], Q[..., there, :], V[..., there, :], causal=True)
    np.testing.assert_allclose(Y[..., there, :], without, rtol=1e-11, atol=1e-14)
    assert not Y[..., ~there, :].any()
    Q, V = Q.copy(), V.copy()
    Q[..., ~there, :], V[..., ~there, :] = np.nan, np.nan
    Z, again = core(NoParams(), Q, Q, V, causal=True, mask=there[None])
    np.testing.assert_array_equal(Y, Z)
    dY = np.ones_like(Y)
    for a, b in zip(pullback(dY)[1:], again(dY)[1:], strict=True):
        np.testing.assert_array_equal(a, b)
        assert not b[..., ~there, :].any()


def test_what_is_refused():
    Q, V = heads()
    with pytest.raises(ValueError, match="mask: shape"):
        lsh_attention(Q, V, rotations=rotated(1), mask=np.ones((N, 5), bool))
    with pytest.raises(TypeError, match="rotations"):
        lsh_attention(Q, V, rotations=rotated(1)[:, :3])
    with pytest.raises(ValueError, match=r"rotations: shape \(0, .*; a hash needs at least one round"):
        lsh_attention(Q, V, rotations=rotated(1)[:0])
    with pytest.raises(ValueError, match=r"^buckets: 3 should be even"):
        Reformer(buckets=3)


def test_as_many_keys_as_queries():
    """They are the same; only the values of the last ones would be looked at."""
    core, X = Reformer(), np.random.default_rng(0).standard_normal((1, 2, 9, 4))
    for n, m in ((5, 9), (9, 5)):
        with pytest.raises(ValueError, match=f"K: {m} keys for {n} queries should be as many: queries are the keys"):
            core(NoParams(), X[:, :, :n], X[:, :, :m], X[:, :, :m])


@pytest.mark.parametrize("size", [0.0, 1e-4, 1e-3, 1.0])
def test_keys_have_norm_one_less_what_keeps_them_from_infinity(size):
    """k = q/√(‖q‖² + 10⁻⁶ d), as it is said: for queries of norm 10⁻³ half of norm one is left."""
    q = size * np.array([[0.6, 0.0, -0.8, 0.0]])
    k, _ = unit(q)
    np.testing.assert_allclose(k, q / np.sqrt(size**2 + 4e-6), atol=1e-15)
    for said in (reformer, lsh_attention, reformer.LSHPullback):
        assert "‖² + 10⁻⁶ d)" in said.__doc__
    assert "√(‖x‖² + 10⁻⁶)" in gated_delta_net.__doc__
    assert "√(‖x‖² + d ε)" in unit.__doc__
