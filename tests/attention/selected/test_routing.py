"""Routing: clusters in plain loops, the limiting case, centroids that follow, and what the causal form lets through."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import MultiHeadAttention, dot_product_attention, padding_mask
from minitransformer.attention.selected import Routing, routing_attention
from minitransformer.attention.selected.routing import RoutingParams, members, normed
from minitransformer.positions import ALiBi, RoPE
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, DV, C, W = 2, 2, 17, 4, 3, 3, 5

causal_or_not = pytest.mark.parametrize("causal", [False, True])


def heads(seed=0, n=N, m=N):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, rows, width)) for rows, width in ((n, D), (m, D), (m, DV))]


def centroids(seed=1):
    mu = np.random.default_rng(seed).standard_normal((H, C, D))
    return 2 * mu / np.linalg.norm(mu, axis=-1, keepdims=True)


def length_root_d(x):
    x = x - sum(x) / len(x)
    return x / math.sqrt(sum(x**2) / len(x) + 1e-5)


def loops(Q, K, V, mu, w, causal, sees=None):
    n, m = len(Q), len(K)
    sees = np.ones((n, m), bool) if sees is None else sees
    there = [bool(sees[:, j].any()) for j in range(m)]
    q, k = [length_root_d(x) for x in Q], [length_root_d(x) for x in K]
    found = [[] for _ in range(n)]
    for centre in mu:
        queries = sorted((i for i in range(n) if there[m - n + i]), key=lambda i: -(q[i] @ centre))[:w]
        keys = sorted((j for j in range(m) if there[j]), key=lambda j: -(k[j] @ centre))[:w]
        for i in queries:
            mine = [j for j in keys if sees[i, j] and not (causal and j > i + m - n)]
            if mine:
                weights = [math.exp(q[i] @ k[j] / math.sqrt(D)) for j in mine]
                found[i].append(sum(a * V[j] for a, j in zip(weights, mine, strict=True)) / sum(weights))
    return np.array([sum(answers) / len(answers) if answers else np.zeros(DV) for answers in found])


@causal_or_not
@pytest.mark.parametrize(("n", "w"), [(N, W), (N, 1), (9, W), (N, 40)])
def test_against_loops(n, w, causal, tier):
    Q, K, V = heads(n=n)
    Y, _ = routing_attention(Q, K, V, centroids=centroids(), window=w, causal=causal)
    for b, h in np.ndindex(B, H):
        want = loops(Q[b, h], K[b, h], V[b, h], centroids()[h], w, causal)
        np.testing.assert_allclose(Y[b, h], want, rtol=1e-9, atol=1e-12)


@causal_or_not
def test_masks_of_keys_and_of_pairs_against_loops(causal):
    Q, K, V = heads()
    rng = np.random.default_rng(2)
    for mask in (rng.random((1, N)) < 0.6, rng.random((N, N)) < 0.6):
        Y, _ = routing_attention(Q, K, V, centroids=centroids(), window=W, causal=causal, mask=mask)
        sees = np.broadcast_to(mask, (N, N))
        for b, h in np.ndindex(B, H):
            want = loops(Q[b, h], K[b, h], V[b, h], centroids()[h], W, causal, sees)
            np.testing.assert_allclose(Y[b, h], want, rtol=1e-9, atol=1e-12)


@causal_or_not
def test_a_mask_of_keys_for_the_last_queries_against_loops(causal):
    """Nine of seventeen: whether a query takes part is what the mask says of its position, not of its row."""
    Q, K, V = heads(n=9)
    mask = np.random.default_rng(4).random((1, N)) < 0.6
    assert (mask[0, :9] != mask[0, N - 9 :]).any()
    Y, _ = routing_attention(Q, K, V, centroids=centroids(), window=W, causal=causal, mask=mask)
    for b, h in np.ndindex(B, H):
        sees = np.broadcast_to(mask, (9, N))
        want = loops(Q[b, h], K[b, h], V[b, h], centroids()[h], W, causal, sees)
        np.testing.assert_allclose(Y[b, h], want, rtol=1e-9, atol=1e-12)


@causal_or_not
def test_gradient(causal, tier):
    mask = padding_mask(np.array([N, 11]), N)[:, None]

    def attend(Q, K, V, **options):
        mu = centroids().astype(Q.dtype)
        return routing_attention(Q, K, V, centroids=mu, window=W, causal=causal, **options)

    check_pullback(attend, *heads(), entries=25)
    check_pullback(partial(attend, mask=mask), *heads(), entries=15)


@causal_or_not
def test_one_cluster_of_all_is_dense_attention_of_normed_queries_and_keys(causal, tier):
    Q, K, V = heads()
    (q, q_back), (k, k_back) = normed(Q), normed(K)
    Y, pullback = routing_attention(Q, K, V, centroids=centroids()[:, :1], window=N, causal=causal, scale=0.7)
    want, dense = dot_product_attention(q, k, V, causal=causal, scale=0.7)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    dQ, dK, dV = dense(want)
    for found, known in zip(pullback(want), (q_back(dQ), k_back(dK), dV), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)


def test_a_token_in_no_cluster_gives_zeros_and_one_in_several_their_mean():
    Q, K, V = heads()
    mu = np.repeat(centroids()[:, :1], 2, 1)  # both take the same
    Y, pullback = routing_attention(Q, K, V, centroids=mu, window=W)
    once, _ = routing_attention(Q, K, V, centroids=mu[:, :1], window=W)
    np.testing.assert_allclose(Y, once, rtol=1e-12)
    taken = (Y != 0).any(-1)
    assert (taken.sum(-1) == W).all()
    dQ, _, _ = pullback(np.ones_like(Y))
    assert not dQ[~taken].any()


def test_who_is_as_near_as_another_comes_by_position():
    np.testing.assert_array_equal(members(np.zeros((1, 6)), np.arange(6) != 1, 3), [[0, 2, 3]])
    np.testing.assert_array_equal(members(np.zeros((1, 3)), np.arange(3) == 1, 2), [[1, 3]])


# ------------------------------------------------------------------------------------- what its causal form is


def test_the_true_positions_are_compared_and_not_the_ranks():
    """Two queries and two keys in one cluster, all keys after all queries: nobody sees anybody, whatever the ranks say."""
    X = np.array([[1.0, 0, -1], [1, 0, -1], [-1, 0, 1], [-1, 0, 1]])
    mu = np.array([[1.0, 0, -1]])
    V = np.eye(4)
    late, _ = routing_attention(X, -X, V, centroids=mu, window=2, causal=True)
    assert not late.any()
    early, _ = routing_attention(-X, X, V, centroids=mu, window=2, causal=True)
    np.testing.assert_array_equal((early != 0).sum(-1), [0, 0, 2, 2])


def test_what_is_seen_is_causal_and_whether_it_is_seen_is_not():
    """Only the last token changes: nothing of its value comes through, but it takes a place, and another one is out."""
    Q, K, V = heads()
    options = {"centroids": centroids(), "window": W, "causal": True}
    Y, known = routing_attention(Q, K, V, **options)
    other = V.copy()
    other[..., -1, :] += 9
    np.testing.assert_array_equal(routing_attention(Q, K, other, **options)[0][..., :-1, :], Y[..., :-1, :])
    changed = K.copy()
    changed[..., -1, :] = 5 * centroids()[:, 0]  # as near to the first centroid as can be
    Z, after = routing_attention(Q, changed, V, **options)
    assert (Z[..., :-1, :] != Y[..., :-1, :]).any()
    before = known.keys[..., 0, :]
    assert ((before < N - 1).sum(-1) > (after.keys[..., 0, :] < N - 1).sum(-1)).any(), "an earlier key had to leave"


# ---------------------------------------------------------------------------------------------------- the core


def test_centroids_follow_the_mean_of_what_is_nearest():
    core = Routing(H, D, N, C, W, decay=0.9)
    params = RoutingParams(centroids())
    Q, K, V = heads()
    mask = padding_mask(np.array([N, 11]), N)[:, None]
    _, pullback = core(params, Q, K, V, mask=mask)
    observed = core.observe(pullback)
    moved = core.after_step(params, observed, np.random.default_rng(0))
    for h in range(H):
        groups = [[] for _ in range(C)]
        for b, n in ((0, N), (1, 11)):
            for x in [length_root_d(X[b, h, i]) for X in (Q, K) for i in range(n)]:
                groups[int(np.argmax(centroids()[h] @ x))].append(x)
        assert sorted(map(len, groups))[0] > 0
        for c in range(C):
            step = 0.9 * centroids()[h, c] + 0.1 * np.mean(groups[c], 0)
            want = step * math.sqrt(D) / np.linalg.norm(step)
            np.testing.assert_allclose(moved.centroids[h, c], want, rtol=1e-10)
    for parts in (2, 64):  # averaged over parts of a batch, until fewer than one is nearest
        shares = type(observed)(observed.sums / parts, observed.counts / parts)
        np.testing.assert_allclose(core.after_step(params, shares, np.random.default_rng(0)).centroids, moved.centroids)


def test_a_centroid_that_is_nearest_to_nobody_stays():
    core, params = Routing(H, D, N, C, W), RoutingParams(centroids())
    _, pullback = core(params, *heads())
    seen = core.observe(pullback)
    nobody = seen._replace(counts=np.zeros_like(seen.counts))
    np.testing.assert_array_equal(core.after_step(params, nobody, np.random.default_rng(0)).centroids, centroids())


def test_centroids_start_on_the_sphere_and_get_no_gradient():
    core = Routing(H, D, N, C)
    params = core.init(np.random.default_rng(0), np.float64)
    np.testing.assert_allclose(np.linalg.norm(params.centroids, axis=-1), math.sqrt(D))
    assert core.taken == 6
    Y, pullback = core(params, *heads())
    assert pullback(Y)[0].centroids is None
    assert MultiHeadAttention(H * D, H, core=core).untrained == ("core.centroids",)


def test_what_is_hidden_takes_no_part():
    Q, K, V = heads()
    there = np.arange(N) % 4 != 2
    core, params = Routing(H, D, N, C, W), RoutingParams(centroids())
    Y, _ = core(params, Q, K, V, mask=there[None])
    without, _ = core(params, *(X[..., there, :] for X in (Q, K, V)))
    np.testing.assert_allclose(Y[..., there, :], without, rtol=1e-10, atol=1e-13)
    assert not Y[..., ~there, :].any()
    for X in (Q, K, V):
        X[..., ~there, :] = np.nan
    Z, pullback = core(params, Q, K, V, mask=there[None])
    np.testing.assert_array_equal(Y, Z)
    assert all(np.isfinite(d).all() for d in pullback(np.ones_like(Y))[1:])


def test_what_is_refused():
    Q, K, V = heads()
    for wrong in ({"window": 0}, {"window": W, "Q": np.concatenate([Q, Q], -2)}):
        with pytest.raises(ValueError, match=r"^(window: 0 should be at least 1|Q: \d+ queries)"):
            routing_attention(**{"Q": Q, "K": K, "V": V, "centroids": centroids(), **wrong})
    with pytest.raises(ValueError, match="mask: shape"):
        routing_attention(Q, K, V, centroids=centroids(), window=W, mask=np.ones((N, 5), bool))
    with pytest.raises(TypeError, match="centroids"):
        routing_attention(Q, K, V, centroids=centroids()[..., :3], window=W)
    options = {"centroids": centroids(), "window": W, "params": NoParams()}
    with pytest.raises(ValueError, match="scale: none can be given beside an encoding"):
        routing_attention(Q, K, V, scale=1.0, encoding=ALiBi(H), **options)
    with pytest.raises(TypeError, match="parameter 'encoding': RoPE"):
        routing_attention(Q, K, V, encoding=RoPE(D), **options)
    with pytest.raises(TypeError, match=r"^encoding: RoPE"):
        Routing(H, D, N, encoding=RoPE(D))
    for d in (1, 2):
        with pytest.raises(
            ValueError, match=f"^d: the width of a head, {d}, should be at least 3: of two numbers a layer norm"
        ):
            routing_attention(Q[..., :d], K[..., :d], V, centroids=centroids()[..., :d], window=W)
        with pytest.raises(ValueError, match=f"^d: the width of a head, {d}, "):
            Routing(H, d, N)
    for wrong in ({"clusters": 0}, {"window": 0}, {"decay": 1.1}):
        with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}: .* should be (at least 1|in \[0, 1\])"):
            Routing(H, D, N, **wrong)
