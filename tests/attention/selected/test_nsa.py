"""NSA: three branches in plain loops, each alone, what learns through the choice, and that it is causal bit for bit."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.selected import NSA, nsa_attention
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, G, N, D, DV, BLOCK, CHOSEN, W = 2, 4, 2, 23, 4, 3, 4, 4, 5
OPTIONS = {"block": BLOCK, "chosen": CHOSEN, "window": W}


def arrays(seed=0, n=N, m=N):
    rng = np.random.default_rng(seed)
    shapes = (H, n, D), (G, m, D), (G, m, DV)
    return *(rng.standard_normal((B, *shape)) for shape in shapes), rng.random((B, H, n, 3))


def only(branch, gates):
    return np.broadcast_to(np.eye(3)[branch], gates.shape).copy()


def average(q, keys, values):
    """softmax(⟨q, k⟩/√d) of the keys, and the average of the values."""
    weights = [math.exp(q @ k / math.sqrt(D)) for k in keys]
    if not weights:
        return {}, np.zeros(DV)
    return [w / sum(weights) for w in weights], sum(
        w * v for w, v in zip(weights, values, strict=True)
    ) / sum(weights)  # fmt: skip


def loops(Q, K, V, gates, there):
    """Of one sample: Q (H, n, D), K and V (G, m, …)."""
    n, m = Q.shape[1], K.shape[1]
    Y, r = np.zeros((H, n, DV)), H // G
    blocks = [[j for j in range(c, min(c + BLOCK, m)) if there[j]] for c in range(0, m, BLOCK)]
    for g in range(G):
        means = [
            (sum(K[g, j] for j in rows) / len(rows), sum(V[g, j] for j in rows) / len(rows)) if rows else None
            for rows in blocks
        ]
        for row in range(n):
            i = m - n + row
            complete = [c for c in range(len(blocks)) if (c + 1) * BLOCK - 1 <= i and blocks[c]]
            importance, coarse = dict.fromkeys(range(len(blocks)), 0.0), {}
            for h in range(g * r, (g + 1) * r):
                weights, coarse[h] = average(Q[h, row], *zip(*(means[c] for c in complete), strict=True)) if complete \
                    else ([], np.zeros(DV))  # fmt: skip
                for c, w in zip(complete, weights, strict=True):
                    importance[c] += w
            for c in (0, i // BLOCK, i // BLOCK - 1):
                importance[c] = np.inf
            candidates = [c for c in range(i // BLOCK + 1) if blocks[c]]
            best = sorted(candidates, key=lambda c: -importance[c])[:CHOSEN]
            for h in range(g * r, (g + 1) * r):
                mine = [j for c in best for j in blocks[c] if j <= i]
                near = [j for j in range(max(i - W + 1, 0), i + 1) if there[j]]
                parts = [coarse[h]]
                parts += [average(Q[h, row], K[g, rows], V[g, rows])[1] for rows in (mine, near)]
                Y[h, row] = sum(a * y for a, y in zip(gates[h, row], parts, strict=True))
    return Y


@pytest.mark.parametrize("n", [N, 9, 1])
@pytest.mark.parametrize("hidden", [False, True])
def test_against_loops(n, hidden, tier):
    Q, K, V, gates = arrays(n=n)
    there = ~np.isin(np.arange(N), [1, 4, 5, 6, 7, 21]) if hidden else np.ones(N, bool)
    Y, _ = nsa_attention(Q, K, V, gates, **OPTIONS, mask=there[None] if hidden else None)
    for b in range(B):
        np.testing.assert_allclose(Y[b], loops(Q[b], K[b], V[b], gates[b], there), rtol=1e-9, atol=1e-12)


def test_gradient(tier):
    mask = padding_mask(np.array([N, 15]), N)[:, None]
    check_pullback(partial(nsa_attention, **OPTIONS), *arrays(), entries=20)
    check_pullback(partial(nsa_attention, **OPTIONS, mask=mask), *arrays(n=9), entries=15)


def test_each_branch_can_be_dense_attention(tier):
    """All blocks selected; a window over everything; blocks of one key, which are their own means."""
    Q, K, V, gates = arrays()
    want, _ = dot_product_attention(Q, K, V, causal=True, scale=0.7)
    for branch, options in ((0, {"block": 1}), (1, {"chosen": 6}), (2, {"window": N})):
        Y, _ = nsa_attention(Q, K, V, only(branch, gates), **{**OPTIONS, **options}, scale=0.7)
        np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)


def test_outputs_and_choice_are_causal_bit_for_bit(tier):
    Q, K, V, gates = arrays()
    Y, known = nsa_attention(Q, K, V, gates, **OPTIONS)
    for t in range(N):
        changed = [X.copy() for X in (Q, K, V)]
        for X in changed:
            X[..., t, :] -= 9
        Z, other = nsa_attention(*changed, gates, **OPTIONS)
        np.testing.assert_array_equal(Z[..., :t, :], Y[..., :t, :])
        np.testing.assert_array_equal(other.blocks[..., :t, :], known.blocks[..., :t, :])


@pytest.mark.parametrize("chosen", [1, 2, 3, CHOSEN, 9])
@pytest.mark.parametrize("block", [1, 3, BLOCK, N + 1])
def test_what_is_always_chosen(chosen, block):
    """The first block, the query's own and the one before it, be there fewer to choose than these; and no more than asked for."""
    Q, K, V, gates = arrays()
    _, pullback = nsa_attention(Q, K, V, gates, **{**OPTIONS, "chosen": chosen, "block": block})
    own = np.arange(N) // block
    for c in (0 * own, own, np.maximum(own - 1, 0)):
        assert np.take_along_axis(pullback.blocks, np.broadcast_to(c[:, None], (B, G, N, 1)), -1).all()
    assert (pullback.blocks.sum(-1) == np.minimum(own + 1, max(chosen, 3))).all()


def test_the_scorer_learns_only_because_it_also_answers():
    """Keys of a block that was not selected learn through the compressed branch, and get nothing without it."""
    Q, K, V, gates = arrays()
    dY = np.zeros((B, H, N, DV))
    dY[:, :, -1] = 1
    for branch, learns in ((0, True), (1, False)):
        _, pullback = nsa_attention(Q, K, V, only(branch, gates), **OPTIONS)
        left_out = ~np.repeat(pullback.blocks[..., -1, :], BLOCK, -1)[..., :N]
        _, dK, _, dgates = pullback(dY)
        assert left_out.sum() == 2 * BLOCK * B * G
        assert dK[left_out].any() == learns
        assert dgates[:, :, -1].all(), "a closed gate learns what opening it would have done"


def test_heads_that_share_their_keys_choose_together():
    Q, K, V, gates = arrays()
    _, together = nsa_attention(Q, K, V, gates, **OPTIONS)
    _, alone = nsa_attention(Q, np.repeat(K, 2, 1), np.repeat(V, 2, 1), gates, **OPTIONS)
    assert together.blocks.shape[1] == G
    assert alone.blocks.shape[1] == H
    assert (alone.blocks != np.repeat(together.blocks, 2, 1)).any()


# ---------------------------------------------------------------------------------------------------- the core


def test_the_core_opens_its_gates_by_a_sigmoid():
    Q, K, V, g = arrays()
    Y, _ = NSA(BLOCK, CHOSEN, W)(NoParams(), Q, K, V, 4 * g - 2)
    want, _ = nsa_attention(Q, K, V, 1 / (1 + np.exp(2 - 4 * g)), **OPTIONS)
    np.testing.assert_allclose(Y, want, rtol=1e-12)
    check_pullback(NSA(BLOCK, CHOSEN, W), NoParams(), Q, K, V, g, entries=10)
    with pytest.raises(ValueError, match="NSA is always causal"):
        NSA()(NoParams(), Q, K, V, g, causal=False)


def test_what_is_hidden_does_not_matter():
    Q, K, V, gates = arrays()
    there = np.arange(N) % 4 != 2
    Y, _ = nsa_attention(Q, K, V, gates, **OPTIONS, mask=there[None])
    K[..., ~there, :], V[..., ~there, :] = np.nan, np.nan
    Z, pullback = nsa_attention(Q, K, V, gates, **OPTIONS, mask=there[None])
    np.testing.assert_array_equal(Y, Z)
    for d in pullback(np.ones_like(Y)):
        assert np.isfinite(d).all()


def test_a_mask_of_pairs_hides_a_key_in_every_branch():
    """Key 2 is hidden from query 20 alone: nothing of it reaches that row, be it in a mean; the others see it as before."""
    Q, K, V, gates = arrays()
    mask = np.ones((N, N), bool)
    mask[20, 2] = False
    Y, _ = nsa_attention(Q, K, V, gates, **OPTIONS, mask=mask)
    other = V.copy()
    other[..., 2, :] += 9
    Z, _ = nsa_attention(Q, K, other, gates, **OPTIONS, mask=mask)
    np.testing.assert_array_equal(Z[..., 20, :], Y[..., 20, :])
    assert (Z[..., [19, 21], :] != Y[..., [19, 21], :]).all()


def test_what_is_refused():
    Q, K, V, gates = arrays()
    with pytest.raises(ValueError, match=r"^window: 0 should be at least 1"):
        nsa_attention(Q, K, V, gates, window=0)
    with pytest.raises(ValueError, match=f"^Q: {N} queries"):
        nsa_attention(Q, K[..., :5, :], V[..., :5, :], gates)
    with pytest.raises(ValueError, match="heads that share keys should have the same"):
        nsa_attention(Q, K, V, gates, mask=np.random.default_rng(0).random((H, N, N)) < 0.5)
    with pytest.raises(TypeError, match="gates"):
        nsa_attention(Q, K, V, gates[..., :2])
    with pytest.raises(ValueError, match=r"^window: 0 should be at least 1"):
        NSA(window=0)
