"""The indexer: scores and choice in loops, its own loss, and that neither loss reaches the other's parameters."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like
from minitransformer.attention import MultiHeadAttention, dot_product_attention, padding_mask
from minitransformer.attention.selected import Indexer, index_loss, index_scores
from minitransformer.attention.selected.indexer import lesson, most_wanted
from minitransformer.data.text import Text
from minitransformer.models import LanguageModel
from minitransformer.positions import ALiBi
from minitransformer.pullback import added_losses, tree_get, tree_items, with_added
from minitransformer.training.choices import Training
from minitransformer.training.loop import start, train
from minitransformer.training.objective import NextByte
from minitransformer.training.schedule import Cosine

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, K_CHOSEN, SMALL, NARROW = 2, 3, 13, 4, 4, 2, 5

causal_or_not = pytest.mark.parametrize("causal", [False, True])


def test_how_the_projections_start(rng):
    """Uniform on ±√(3/(H d)), which has the variance 1/(H d)."""
    for U in Indexer(6, 32, small=9, narrow=9).init(rng, np.float64)[:3]:
        assert 0.99 < np.abs(U).max() / math.sqrt(3 / 192) <= 1
        assert U.var() == pytest.approx(1 / 192, rel=0.1)


def core(**options):
    return Indexer(H, D, **{"chosen": K_CHOSEN, "small": SMALL, "narrow": NARROW, **options})


def heads(seed=0, n=N, m=N):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((B, H, rows, D)) for rows in (n, m, m)]


def some():
    rng = np.random.default_rng(1)
    return random_like(core().init(rng, np.float64), rng)


def side_by_side(X):
    return np.concatenate([X[:, h] for h in range(X.shape[1])], -1)


def loops(params, Q, K, sees):
    """I and the chosen keys of each query, of one sample; Q (n, H·d), K (m, H·d)."""
    n, m = len(Q), len(K)
    scores, chosen = np.zeros((n, m)), np.zeros((n, m), bool)
    for i in range(n):
        small = (Q[i] @ params.U_q).reshape(SMALL, NARROW)
        for j in range(m):
            key = K[j] @ params.U_k
            scores[i, j] = sum((Q[i] @ params.U_w)[h] * max(small[h] @ key, 0) for h in range(SMALL))
        allowed = [j for j in range(m) if sees[i, j]]
        chosen[i, sorted(allowed, key=lambda j, i=i: -scores[i, j])[:K_CHOSEN]] = True
    return scores / math.sqrt(SMALL * NARROW), chosen


@causal_or_not
@pytest.mark.parametrize(("n", "hidden"), [(N, False), (5, False), (N, True)])
def test_against_loops(n, hidden, causal, tier):
    Q, K, V = heads(n=n)
    there = ~np.isin(np.arange(N), [1, 6]) if hidden else np.ones(N, bool)
    Y, pullback = core()(some(), Q, K, V, causal=causal, mask=there[None] if hidden else None)
    sees = there & (np.arange(N) <= np.arange(N - n, N)[:, None] if causal else True)
    known = side_by_side(K * there[:, None])
    kl = []
    for b in range(B):
        index, chosen = loops(some(), side_by_side(Q)[b], known[b], np.broadcast_to(sees, (n, N)))
        with mt.backend("numpy"):
            want, dense = dot_product_attention(Q[b], K[b], V[b], mask=chosen)
        rows = [i for i in range(n) if there[N - n + i]]
        np.testing.assert_allclose(Y[b][:, rows], want[:, rows], rtol=1e-10, atol=1e-13)
        for i in rows:
            p = dense.A[:, i].mean(0)
            A = np.where(chosen[i], np.exp(index[i]), 0)
            A /= A.sum()
            kl.append(sum(p[j] * math.log(p[j] / A[j]) for j in range(N) if chosen[i, j]))
    assert added_losses(pullback) == [pytest.approx(np.mean(kl), rel=1e-9)]


@causal_or_not
def test_all_keys_are_dense_attention(causal, tier):
    Q, K, V = heads()
    Y, pullback = core(chosen=N)(some(), Q, K, V, causal=causal)
    want, dense = dot_product_attention(Q, K, V, causal=causal)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)
    for found, known in zip(pullback(want)[1:], dense(want), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-9, atol=1e-12)


def test_a_key_that_one_head_alone_may_see_can_be_chosen(tier):
    """All heads share the choice, and each then sees what its own mask allows."""
    Q, K, V = heads()
    mask = np.zeros((Q.shape[-3], N, N), bool)
    mask[0, :, ::2] = mask[1:, :, 1::2] = True
    Y, _ = core(chosen=N)(some(), Q, K, V, mask=mask)
    want, _ = dot_product_attention(Q, K, V, mask=mask)
    np.testing.assert_allclose(Y, want, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("heads_alike", [True, False])
def test_a_token_that_nobody_sees_chooses_as_any_other(heads_alike, tier):
    """It may see others itself, as a token that sums up a text does, and then its choice is that of its query."""
    Q, K, V = heads()
    mask = np.ones((1 if heads_alike else H, N, N), bool)
    mask[0, :, N - 1] = False
    Y, _ = core()(some(), Q, K, V, mask=mask)
    known = K * mask.any(-2)[..., None]
    for b in range(B):
        _, chosen = loops(some(), side_by_side(Q)[b], side_by_side(known)[b], np.broadcast_to(mask.any(0), (N, N)))
        with mt.backend("numpy"):
            want, _ = dot_product_attention(Q[b], K[b], V[b], mask=mask & chosen)
        np.testing.assert_allclose(Y[b], want, rtol=1e-10, atol=1e-13)


def test_outputs_and_choice_are_causal_bit_for_bit(tier):
    Q, K, V = heads()
    Y, known = core()(some(), Q, K, V, causal=True)
    for t in range(N):
        changed = [X.copy() for X in (Q, K, V)]
        for X in changed:
            X[..., t, :] -= 9
        Z, other = core()(some(), *changed, causal=True)
        np.testing.assert_array_equal(Z[..., :t, :], Y[..., :t, :])
        np.testing.assert_array_equal((other.A > 0)[..., :t, :], (known.A > 0)[..., :t, :])


def test_the_weights_of_its_heads_change_the_order():
    """Not only the size: a head with a negative weight speaks against a key."""
    rng = np.random.default_rng(2)
    Q, K, w = rng.standard_normal((2, 4, 3)), rng.standard_normal((6, 3)), rng.standard_normal((4, 2))
    weighted, plain = (index_scores(Q, K, X)[0].argsort(-1) for X in (w, np.ones_like(w)))
    assert (weighted != plain).any()


def test_one_query_chooses_among_those_that_it_may(tier):
    """As many do, of whom it is the last."""
    Q, K, w = heads(5, 3)[0], heads(6)[1][:, 0], heads(7, 3)[0].swapaxes(1, 2)[..., 0].copy()
    among = np.arange(N) % 3 > 0
    whole = most_wanted(Q, w, K, K_CHOSEN, np.array([N, N, N]), among[None])
    chosen = most_wanted(Q[:, :, -1:], w[:, -1:], K, K_CHOSEN, np.array([N]), among[None])
    assert among[chosen].all()
    np.testing.assert_array_equal(chosen, whole[:, -1:])


# --------------------------------------------------------------------------------------------- its own loss


def test_gradients_of_scores_and_of_the_loss():
    rng = np.random.default_rng(3)
    check_pullback(index_scores, *(rng.standard_normal((B, *shape)) for shape in ((SMALL, 7, 3), (9, 3), (7, SMALL))))
    sees = rng.random((B, 7, 9)) < 0.6
    sees[0, 2] = False
    p = np.where(sees, rng.random((B, 7, 9)), 0)
    p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)

    def loss(scores):
        value, pullback = index_loss(scores, p.astype(scores.dtype), sees)
        return np.asarray(value, scores.dtype), pullback

    check_pullback(loss, rng.standard_normal((B, 7, 9)))
    perfect = np.where(sees, np.log(np.where(p > 0, p, 1)) + 5, 0)
    value, pullback = index_loss(perfect, p, sees)
    assert abs(value) < 1e-12, "scores that are ln p, up to a constant"
    assert np.abs(pullback(1.0)).max() < 1e-12


def test_a_query_that_gives_nothing_to_what_it_has_chosen_teaches_nothing():
    """Its weights are zeros if what it sees besides is far larger. The mean leaves it out, like a query that is not there."""
    Q, K, w = heads(8)[0], heads(9)[1][:, 0], heads(10)[0].swapaxes(1, 2)[..., 0].copy()
    rng = np.random.default_rng(11)
    chosen = np.broadcast_to(np.array([0, 2, 5, 7]), (B, N, 4)).copy()
    weights, there = rng.random((B, N, 4)), np.arange(N) % 4 > 0
    zeros = np.where(there[:, None], weights, 0)
    (loss, pullback), (same, known) = (
        lesson(Q, K, w, chosen, zeros),
        lesson(Q, K, w, chosen, weights, np.broadcast_to(there, (B, N))),
    )
    assert loss == pytest.approx(same, rel=1e-12)
    for G, wanted in zip(pullback(1.0), known(1.0), strict=True):
        np.testing.assert_allclose(G, wanted, rtol=1e-12)


def test_the_indexer_learns_from_its_loss_alone_and_the_model_from_its_own():
    """Difference quotients of the added loss, with Q and K held: the gradient of U. And none of it goes to Q, K and V."""
    Q, K, V = heads()
    mask = padding_mask(np.array([N, 9]), N)[:, None]
    attend = partial(core(weight=0.7), causal=True, mask=mask)

    def loss(params):
        _, pullback = attend(params, Q.astype(params.U_q.dtype), K.astype(params.U_q.dtype), V.astype(params.U_q.dtype))
        zeros = np.zeros((B, H, N, D), params.U_q.dtype)
        return np.asarray(pullback.added, zeros.dtype), lambda dloss: with_added(pullback, float(dloss))(zeros)[0]

    check_pullback(loss, some(), entries=20)
    Y, pullback = attend(some(), Q, K, V)
    without, paid = pullback(Y), with_added(pullback, 1.0)(Y)
    assert not any(dU.any() for dU in without[0][:3])
    assert all(dU.any() for dU in paid[0][:3])
    for a, b in zip(without[1:], paid[1:], strict=True):
        np.testing.assert_array_equal(a, b)
    assert core().apart == IndexerPaths


IndexerPaths = ("U_q", "U_k", "U_w")


def test_what_the_padding_holds_does_not_count():
    """Neither in Y nor in the loss; a hidden key or value may be NaN."""
    Q, K, V = heads()
    mask = padding_mask(np.array([N, 9]), N)[:, None]
    Y, known = core()(some(), Q, K, V, mask=mask)
    Q[1, :, 9:], K[1, :, 9:], V[1, :, 9:] = 7, np.nan, np.nan
    Z, other = core()(some(), Q, K, V, mask=mask)
    np.testing.assert_array_equal(Y[0], Z[0])
    np.testing.assert_array_equal(Y[1, :, :9], Z[1, :, :9])
    assert known.added == other.added
    assert all(np.isfinite(d).all() for _, d in tree_items(with_added(other, 1.0)(np.ones_like(Y))))
    Q[1, :, 9:] = np.nan  # a hidden query spoils its own row, and nothing that the indexer learns from
    _, spoilt = core()(some(), Q, K, V, mask=mask)
    assert spoilt.added == known.added
    for a, b in zip(with_added(spoilt, 1.0)(0 * Y)[0], with_added(known, 1.0)(0 * Y)[0], strict=True):
        np.testing.assert_array_equal(a, b)


def test_training_brings_the_indexer_nearer_to_attention():
    """Its loss falls, and no faster or slower for what the model learns: the gradient of Y does not reach it."""
    letters = np.resize(np.frombuffer(b"abcdefgh ijkl. ", np.uint8), 4000) % 40
    objective = NextByte(Text(letters, letters[:600], "letters", ""), 24)
    training = Training(40, 4, Cosine(1e-2, 40, 1), parts=1, look_every=40)
    model = LanguageModel(40, 24, 12, 2, 2, 10, attention=Indexer(2, 6, chosen=8))
    state, tokens = start(model, training), letters[:24][None].astype(int)
    after = train(model, objective, training, state=state, progress=False).params
    told = after
    for k in range(2):  # the trained model with the indexer it began with
        path = f"stack.blocks.{k}.attention.core"
        told = mt.pullback.tree_set(told, path, tree_get(state.params, path))
    trained, untrained = (sum(added_losses(model(params, tokens)[1])) for params in (after, told))
    assert trained < 0.8 * untrained


def test_what_is_refused():
    Q, K, V = heads()
    with pytest.raises(ValueError, match="Q: 13 queries"):
        core()(some(), Q, K[..., :5, :], V[..., :5, :])
    with pytest.raises(ValueError, match="mask: shape"):
        core()(some(), Q, K, V, mask=np.ones((N, 5), bool))
    assert MultiHeadAttention(H * D, H, core=core()).apart == tuple(f"core.{path}" for path in IndexerPaths)


def test_a_batch_without_samples_has_no_weights(tier):
    """An encoding goes the long way, by the whole matrix."""
    layer = MultiHeadAttention(12, 3, core=core(encoding=ALiBi(3)))
    Y, pullback = layer(layer.init(np.random.default_rng(0)), np.ones((0, 5, 12), np.float32))
    assert Y.shape == pullback(Y)[1].shape == (0, 5, 12)


def test_its_keys_are_made_once(tier):
    """While it writes, what the indexer makes of a key is kept: nothing is made of the keys that were there before."""
    core = Indexer(heads=2, d=4, chosen=3)
    rng = np.random.default_rng(0)
    params, (Q, K, V) = core.init(rng, np.float64), rng.standard_normal((3, 2, 9, 4))
    whole, _ = core(params, Q, K, V, causal=True)
    _, state = core.step(params, Q[:, :8], K[:, :8], V[:, :8], state=None)
    kept = state.small.keys.copy()
    Y, longer = core.step(params, Q[:, 8:], K[:, 8:], V[:, 8:], state=state)
    np.testing.assert_allclose(Y, whole[:, 8:], rtol=1e-12)
    np.testing.assert_array_equal(longer.small.keys[:8], kept)
    np.testing.assert_allclose(longer.small.keys, K.swapaxes(0, 1).reshape(9, 8) @ params.U_k, rtol=1e-12)
    longer.small.K[:8] *= -1  # and it is these keys that are scored
    other, _ = core.step(params, Q[:, 8:], K[:, 8:], V[:, 8:], state=longer)
    plain, _ = core.step(params, Q[:, 8:], K[:, 8:], V[:, 8:], state=core.step(params, Q, K, V, state=None)[1])
    assert (other != plain).any()
