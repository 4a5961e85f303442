"""The ladder from the GRU to attention, rung by rung."""

from functools import partial

import numpy as np
import pytest

from minitransformer import chain, check_pullback, random_like, tree_size
from minitransformer.attention import MultiHeadAttention, MultiHeadParams, unweighted_attention
from minitransformer.related import GRU, After, Alike, Attend, Candidates, FreeWeights, rungs

rng = np.random.default_rng(0)
D, d, n, N = 3, 6, 5, 2
RUNGS = rungs(D, d, heads=N, longest=n + 2, hidden=7)
X = rng.standard_normal((2, n, D))
F = rng.standard_normal((2, n, d))


def draw(layers):
    return random_like(tuple(layer.init(rng, np.float64) for layer in layers), rng)


@pytest.mark.parametrize("rung", RUNGS)
def test_gradient(rung):
    layers = RUNGS[rung]
    check_pullback(chain(*layers), draw(layers), X)


def test_gradient_of_a_nonlinearity_on_every_head():
    layers = (Candidates(D, d), Attend(d, N), After(d, 7, N))
    check_pullback(chain(*layers), draw(layers), X)


@pytest.mark.parametrize("rung", [1, 2, 3, 4, 5, 6])
def test_causal(rung):
    layers = RUNGS[rung]
    params, layer = draw(layers), chain(*layers)
    H, _ = layer(params, X)
    for t in range(n):
        other = X.copy()
        other[:, t] += 1
        changed, _ = layer(params, other)
        assert np.array_equal(changed[:, :t], H[:, :t])
        assert not np.isclose(changed[:, t], H[:, t]).all()


@pytest.mark.parametrize("rung", [7, 8, 9])
def test_looks_both_ways(rung):
    layers = RUNGS[rung]
    params, layer = draw(layers), chain(*layers)
    H, _ = layer(params, X)
    other = X.copy()
    other[:, -1] += 1
    assert not np.isclose(layer(params, other)[0], H).all(-1).any()


@pytest.mark.parametrize("rung", RUNGS)
def test_samples_do_not_meet(rung):
    layers = RUNGS[rung]
    params, layer = draw(layers), chain(*layers)
    other = X.copy()
    other[1] += 1
    assert np.array_equal(layer(params, other)[0][0], layer(params, X)[0][0])


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(rung, length):
    layers = RUNGS[rung]
    H, pullback = chain(*layers)(draw(layers), X[:, :length])
    assert H.shape == (2, length, d)
    assert pullback(H)[1].shape == (2, length, D)


@pytest.mark.parametrize("rung", [3, 4, 5, 6, 7, 8, 9])
def test_weights_sum_to_one(rung):
    layers = RUNGS[rung]
    _, steps = chain(*layers)(draw(layers), X)
    A = next(step.A for step in steps if hasattr(step, "A"))
    np.testing.assert_allclose(A.sum(-1), 1, rtol=0, atol=1e-14)
    assert not np.triu(A, 1).any() if rung < 7 else np.triu(A, 1).any()


@pytest.mark.parametrize(("rung", "heads"), [(5, 1), (6, N), (7, N), (8, N), (9, N)])
def test_how_many_heads(rung, heads):
    """Heads come in on rung 6, and stay."""
    _, steps = chain(*RUNGS[rung])(draw(RUNGS[rung]), X)
    A = next(step.A for step in steps if hasattr(step, "A"))
    assert A.shape == (2, heads, n, n)
    assert heads == 1 or np.abs(A[:, 0] - A[:, 1]).max() > 0.01


# ------------------------------------------------------------ at which parameters is a rung the one below?


def test_2_is_1():
    params = draw(RUNGS[1])
    np.testing.assert_allclose(chain(*RUNGS[2])(params, X)[0], chain(*RUNGS[1])(params, X)[0], rtol=0, atol=1e-13)


def test_3_changes_the_model():
    """A GRU weighs every coordinate by itself; freed weights are one number for all coordinates of a candidate."""
    _, gru = GRU(D, d)(draw(RUNGS[1])[0], X)
    _, free = FreeWeights(D, d)(draw(RUNGS[3])[0], X)
    assert gru.u.shape == (2, n, d)
    assert free.A.shape == (2, n, n)


def test_3_is_the_loop():
    (p,) = draw(RUNGS[3])
    H, pullback = chain(*RUNGS[3])((p,), X)
    for b in range(2):
        candidates, h = [], np.zeros(d)
        for t in range(n):
            candidates.append(np.tanh(X[b, t] @ p.W_c + h @ p.U_c + p.b_c))
            score = np.array([c @ (X[b, t] @ p.W_q) / np.sqrt(d) for c in candidates])
            alpha = np.exp(score) / np.exp(score).sum()
            h = sum(a * c for a, c in zip(alpha, candidates, strict=True))
            np.testing.assert_allclose(pullback[0].A[b, t, : t + 1], alpha, rtol=0, atol=1e-13)
            np.testing.assert_allclose(H[b, t], h, rtol=0, atol=1e-13)


def test_4_is_3_with_candidates_that_do_not_read_the_state():
    """U_c = 0, and queries that are the candidates: for n ≤ D tokens there is a W_q with X W_q = f(X)."""
    (p,) = draw(RUNGS[3])
    few = X[0, :D]
    f = Candidates(D, d).init(rng, np.float64)._replace(W=p.W_c, b=p.b_c)
    W_q = np.linalg.solve(few, np.tanh(few @ p.W_c + p.b_c))
    free, _ = FreeWeights(D, d)(p._replace(U_c=np.zeros((d, d)), W_q=W_q), few)
    np.testing.assert_allclose(free, chain(*RUNGS[4])((f, ()), few)[0], rtol=0, atol=1e-12)


def test_4_is_causal_attention_without_weights():
    params = random_like(Candidates(D, d).init(rng, np.float64), rng)
    F = np.tanh(X @ params.W + params.b)
    scaled, _ = unweighted_attention(F / d**0.25, causal=True)  # it has no scale: ⟨f, f⟩/√d is in the vectors
    np.testing.assert_allclose(chain(*RUNGS[4])((params, ()), X)[0], scaled * d**0.25, rtol=0, atol=1e-13)


def test_5_is_4_with_identities():
    one = np.eye(d)
    params = Attend(d).init(rng, np.float64)._replace(W_q=one, W_k=one, W_v=one)
    np.testing.assert_allclose(Attend(d)(params, F)[0], Alike(d)((), F)[0], rtol=0, atol=1e-13)


def test_6_is_5_for_one_head_and_multi_head_attention_without_its_output():
    params = random_like(Attend(d).init(rng, np.float64), rng)
    heads = Attend(d, N, causal=False)(params, F)[0]
    mha = MultiHeadAttention(d, N, bias=False)
    W_o = rng.standard_normal((d, d))
    np.testing.assert_allclose(mha(MultiHeadParams(*params, np.eye(d)), F)[0], heads, rtol=0, atol=1e-13)
    np.testing.assert_allclose(mha(MultiHeadParams(*params, W_o), F)[0], heads @ W_o, rtol=0, atol=1e-12)


def test_7_is_6_in_the_last_row():
    params = random_like(Attend(d).init(rng, np.float64), rng)
    causal, both = Attend(d, N)(params, F)[0], Attend(d, N, causal=False)(params, F)[0]
    np.testing.assert_allclose(causal[:, -1], both[:, -1], rtol=0, atol=1e-13)
    assert not np.isclose(causal[:, :-1], both[:, :-1]).any(-1).all()


def test_7_moves_with_a_permutation_and_8_does_not():
    order = rng.permutation(n)
    moved = {}
    for rung in (6, 7, 8):
        params, layer = draw(RUNGS[rung]), chain(*RUNGS[rung])
        moved[rung] = np.allclose(layer(params, X[:, order])[0], layer(params, X)[0][:, order], rtol=0, atol=1e-12)
    assert moved == {6: False, 7: True, 8: False}


def test_8_is_7_with_positions_of_zero():
    f, p, attend = draw(RUNGS[8])
    nowhere = p._replace(table=np.zeros_like(p.table))
    np.testing.assert_allclose(
        chain(*RUNGS[8])((f, nowhere, attend), X)[0], chain(*RUNGS[7])((f, attend), X)[0], rtol=0, atol=1e-13
    )


def test_9_is_8_when_g_is_the_identity():
    """relu(h) − relu(−h) = h: hidden units in pairs."""
    params = draw(RUNGS[8])
    g = After(d, 2 * d)
    one, zero = np.eye(d), np.zeros
    identity = g.init(rng, np.float64)._replace(
        W_1=np.hstack([one, -one]), b_1=zero(2 * d), W_2=np.vstack([one, -one]), b_2=zero(d)
    )
    H, _ = chain(*RUNGS[8], g)((*params, identity), X)
    np.testing.assert_allclose(H, chain(*RUNGS[8])(params, X)[0], rtol=0, atol=1e-13)


def test_9_on_every_head_keeps_them_apart():
    g = After(d, 7, N)
    params = random_like(g.init(rng, np.float64), rng)
    Y, _ = g(params, F)
    for head in range(N):
        columns = slice(head * d // N, (head + 1) * d // N)
        alone = np.maximum(F[..., columns] @ params.W_1 + params.b_1, 0) @ params.W_2 + params.b_2
        np.testing.assert_allclose(Y[..., columns], alone, rtol=0, atol=1e-12)


def test_9_on_every_head_is_cheaper():
    joint, each = (tree_size(After(d, 7, heads).init(rng)._replace(b_1=None, b_2=None)) for heads in (1, N))
    assert joint == N * each


def test_float32_stays():
    for layers in RUNGS.values():
        H, _ = chain(*layers)(tuple(layer.init(rng) for layer in layers), X.astype(np.float32))
        assert H.dtype == np.float32
    free = RUNGS[3][0]
    assert free(free.init(rng), X.astype(np.float32))[1].A.dtype == np.float32


def test_bad_input():
    for layers in RUNGS.values():
        with pytest.raises(TypeError, match="'X'"):
            layers[0](draw(layers)[0], rng.standard_normal((2, n, D + 1)))
        with pytest.raises(TypeError, match="'X'"):
            layers[0](draw(layers)[0], np.ones((2, n, D), int))
    with pytest.raises(TypeError, match="'F'"):
        Attend(d, N)(draw(RUNGS[6])[1], X)
    with pytest.raises(TypeError, match="'F'"):
        Alike(d)((), X)
    with pytest.raises(TypeError, match="'X'"):
        After(d, 7)(draw(RUNGS[9])[3], X)
    for layer in (Attend, partial(After, hidden=7)):
        with pytest.raises(ValueError, match="not divisible into 4 heads"):
            layer(6, heads=4)
    with pytest.raises(ValueError, match="heads: 0 should be at least 1"):
        After(6, 7, 0)
    with pytest.raises(ValueError, match="beyond the learned table"):
        chain(*RUNGS[8])(draw(RUNGS[8]), rng.standard_normal((2, n + 3, D)))
