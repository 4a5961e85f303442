"""Nyströmformer: the definition in loops, the pseudo-inverse, landmarks of any length, the limiting case, gradients."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.compressed import Nystrom, nystrom_attention, pseudo_inverse
from minitransformer.attention.compressed.nystrom import segments
from minitransformer.functional import softmax

B, H, N, D, DV, R, TAPS = 2, 3, 11, 4, 6, 3, 5


def arrays(n=N, m=None, seed=0):
    """Q, K, V and the kernels."""
    rng = np.random.default_rng(seed)
    m = n if m is None else m
    return [rng.standard_normal(shape) for shape in ((B, H, n, D), (B, H, m, D), (B, H, m, DV), (H, TAPS))]


def softmax_of_products(Q, K):
    A = np.zeros((len(Q), len(K)))
    for i, q in enumerate(Q):
        weights = [math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))) for k in K]
        A[i] = [weight / sum(weights) for weight in weights]
    return A


def loops(Q, K, V, theta, r):
    """Equal segments; the iteration is written out, the convolution entry by entry."""
    n, size = len(Q), len(Q) // r
    Q_few = [sum(Q[a * size + t] for t in range(size)) / size for a in range(r)]
    K_few = [sum(K[a * size + t] for t in range(size)) / size for a in range(r)]
    F, A, B_ = softmax_of_products(Q, K_few), softmax_of_products(Q_few, K_few), softmax_of_products(Q_few, K)
    Z, eye = A.T / max(sum(A[:, j]) for j in range(r)), np.eye(r)
    for _ in range(6):
        Z = Z @ (13 * eye - A @ Z @ (15 * eye - A @ Z @ (7 * eye - A @ Z))) / 4
    Y, taps = F @ Z @ B_ @ V, len(theta)
    for i in range(n):
        for t in range(taps):
            if 0 <= i + t - taps // 2 < n:
                Y[i] += theta[t] * V[i + t - taps // 2]
    return Y


def test_against_loops():
    Q, K, V, theta = arrays(12)
    Y, _ = nystrom_attention(Q, K, V, theta, landmarks=R)
    for b, h in np.ndindex(B, H):
        want = loops(Q[b, h], K[b, h], V[b, h], theta[h], R)
        np.testing.assert_allclose(Y[b, h], want, rtol=0, atol=1e-11)


def test_no_token():
    Q, K, V, theta = arrays(0)
    Y, pullback = nystrom_attention(Q, K, V, theta, landmarks=R)
    assert Y.shape == V.shape
    assert [g.shape for g in pullback(Y)] == [X.shape for X in (Q, K, V, theta)]


# ------------------------------------------------------------------------------------------------ limiting case


@pytest.mark.parametrize("landmarks", [N, N + 5])
def test_every_token_a_landmark_and_the_exact_inverse_is_dense(landmarks):
    """S S⁺ S = S."""
    Q, K, V, _ = arrays()
    Y, pullback = nystrom_attention(Q, K, V, landmarks=landmarks, steps=None)
    want, dense = dot_product_attention(Q, K, V)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-12)
    np.testing.assert_allclose(pullback.A, dense.A, rtol=0, atol=1e-12)
    for ours, theirs in zip(pullback(want), dense(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


def test_more_steps_come_closer_to_it():
    Q, K, V, _ = arrays()
    want, _ = dot_product_attention(Q, K, V)
    far = [np.abs(nystrom_attention(Q, K, V, landmarks=N, steps=steps)[0] - want).max() for steps in (6, 12, 18)]
    assert far[0] > 10 * far[1] > 100 * far[2]


def test_the_rows_of_the_matrix_sum_to_one_if_the_inverse_is_exact():
    """A 1 = 1, so A⁺ 1 = 1 for an A that is regular; F and B keep it. No row has to be positive."""
    Q, K, V, _ = arrays(40)
    _, pullback = nystrom_attention(3 * Q, 3 * K, V, landmarks=R, steps=None)
    np.testing.assert_allclose(pullback.A.sum(-1), 1, rtol=0, atol=1e-12)
    assert pullback.A.min() < 0


# ------------------------------------------------------------------------------------------------ pseudo-inverse


def stochastic(*shape, seed=1):
    return softmax(2 * np.random.default_rng(seed).standard_normal(shape))[0]


def test_what_a_pseudo_inverse_is():
    A = stochastic(4, 10, 10)
    for steps, far in ((None, 1e-12), (20, 1e-9)):
        Z, _ = pseudo_inverse(A, steps=steps)
        for product, same in ((A @ Z @ A, A), (Z @ A @ Z, Z), (A @ Z, (A @ Z).mT), (Z @ A, (Z @ A).mT)):
            np.testing.assert_allclose(product, same, rtol=0, atol=far * np.abs(same).max())


def test_the_iteration_converges_fast_once_it_is_near():
    A = stochastic(10, 10)
    far = [np.abs(A @ pseudo_inverse(A, steps=steps)[0] @ A - A).max() for steps in (2, 6, 12)]
    assert far[0] > far[1] > 1e3 * far[2]


def test_a_matrix_has_its_own_constant():
    """With one constant for all, as published code has it, a sample's result would depend on the others."""
    A = stochastic(4, 6, 6).copy()
    A[3] = np.eye(6)[0]  # one column has all of it: its constant is the largest that there is
    alone, _ = pseudo_inverse(A[:3], steps=2)
    assert np.array_equal(pseudo_inverse(A, steps=2)[0][:3], alone)
    c = A.sum(-2).max(-1)
    assert c[3] == 6
    assert c[:3].max() < 4


def test_what_is_not_there_stays_zero():
    A = np.zeros((5, 5))
    A[:3, :3] = stochastic(3, 3)
    for steps in (None, 6):
        Z, pullback = pseudo_inverse(A, steps=steps)
        np.testing.assert_allclose(Z[:3, :3], pseudo_inverse(A[:3, :3], steps=steps)[0], rtol=0, atol=1e-12)
        assert np.abs(Z[3:]).max() == np.abs(Z[:, 3:]).max() == 0
        assert np.isfinite(pullback(Z)).all()
    with np.errstate(all="raise"):
        assert not pseudo_inverse(np.zeros((2, 3, 3)))[0].any()


@pytest.mark.parametrize("steps", [1, 2, 6, None])
def test_gradient_of_the_pseudo_inverse(steps):
    check_pullback(partial(pseudo_inverse, steps=steps), stochastic(2, 4, 4), tolerance=1e-5)


def test_gradient_of_the_exact_one_where_the_rank_is_not_full():
    """It has one as long as the rank stays: A = L R with three columns and rows, of five."""

    def through(L, R):
        Z, of_inverse = pseudo_inverse(L @ R, steps=None)
        return Z, lambda dZ: (of_inverse(dZ) @ R.T, L.T @ of_inverse(dZ))

    rng = np.random.default_rng(3)
    L, R = rng.random((5, 3)), rng.random((3, 5))
    Z, pullback = through(L, R)
    dZ = rng.standard_normal(Z.shape)
    for k, ours in enumerate(pullback(dZ)):
        for place in np.ndindex(ours.shape):
            moved = [[X.copy() for X in (L, R)] for _ in range(2)]
            for side, (sign, pair) in enumerate(zip((1, -1), moved, strict=True)):
                pair[k][place] += sign * 1e-6
                moved[side] = pseudo_inverse(pair[0] @ pair[1], steps=None)[0]
            assert np.vdot(dZ, moved[0] - moved[1]) / 2e-6 == pytest.approx(ours[place], rel=1e-4, abs=1e-4)


# ---------------------------------------------------------------------------------------------------- landmarks


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 11, 12])
def test_segments(n):
    """As equal as can be, in order, each token in one; rows of averages."""
    M = segments(np.ones(n, bool), R)
    members = M > 0
    assert M.shape == (R, n)
    assert (members.sum(0) == 1).all()
    sizes = members.sum(1)[: min(n, R)]
    assert not sizes.size or sizes.max() - sizes.min() <= 1
    assert (np.diff(members.argmax(0)) >= 0).all()
    np.testing.assert_allclose(M.sum(1), np.arange(R) < n, rtol=0, atol=1e-15)


def test_segments_of_what_is_there():
    there = np.array([True, False, True, True, False, True, True])
    want = np.zeros((2, 7))
    want[0, [0, 2, 3]], want[1, [5, 6]] = 1 / 3, 1 / 2
    assert np.array_equal(segments(there, 2), want)


@pytest.mark.parametrize("theta", [True, False])
def test_more_padding_changes_nothing(theta):
    Q, K, V, kernels = arrays()
    more = [np.concatenate([X, np.full_like(X, np.nan)], -2) for X in (Q, K, V)]
    more[0][..., N:, :] = 7
    mask = padding_mask(np.array([N, N]), 2 * N)[:, None]
    options = (kernels,) if theta else ()
    Y, pullback = nystrom_attention(*more, *options, landmarks=R, mask=mask)
    want, shorter = nystrom_attention(Q, K, V, *options, landmarks=R)
    np.testing.assert_allclose(Y[..., :N, :], want, rtol=0, atol=1e-11)
    dY = np.concatenate([want, np.zeros_like(want)], -2)
    for ours, theirs in zip(pullback(dY)[:3], shorter(want), strict=False):
        np.testing.assert_allclose(ours[..., :N, :], theirs, rtol=0, atol=1e-9)
        assert not ours[..., N:, :].any()


def test_where_all_is_padding_there_is_zero():
    with np.errstate(all="raise"):
        Y, pullback = nystrom_attention(*arrays(), landmarks=R, mask=padding_mask(np.array([N, 0]), N)[:, None])
        grads = pullback(np.ones_like(Y))
    assert not Y[1].any()
    assert not any(dX[1].any() for dX in grads[:3])


def test_queries_may_be_the_last_of_more_positions():
    Q, K, V, theta = arrays(5, 9)
    Y, _ = nystrom_attention(Q, K, V, theta, landmarks=9, steps=None)
    whole = np.concatenate([np.zeros_like(K[..., :4, :]), Q], -2)
    local = nystrom_attention(whole, K, V, theta, landmarks=9)[0] - nystrom_attention(whole, K, V, landmarks=9)[0]
    plain = nystrom_attention(Q, K, V, landmarks=9, steps=None)[0]
    np.testing.assert_allclose(Y - plain, local[..., 4:, :], rtol=0, atol=1e-12)
    with mt.backend("numpy"):
        check_pullback(partial(nystrom_attention, landmarks=R), Q, K, V, theta, entries=20)


# ---------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("steps", [6, None])
@pytest.mark.parametrize("padded", [True, False])
def test_gradient(steps, padded):
    mask = padding_mask(np.array([N, 7]), N)[:, None] if padded else None
    function = partial(nystrom_attention, landmarks=R, steps=steps, mask=mask)
    with mt.backend("numpy"):
        check_pullback(function, *arrays(), entries=20)
        check_pullback(function, *arrays()[:3], entries=20)


# ------------------------------------------------------------------------------------------------------- errors


def test_what_does_not_fit():
    Q, K, V, theta = arrays()
    with pytest.raises(ValueError, match="steps: 0"):
        nystrom_attention(Q, K, V, steps=0)
    with pytest.raises(ValueError, match=r"theta: shape .* odd"):
        nystrom_attention(Q, K, V, theta[:, :4])
    with pytest.raises(ValueError, match=r"theta: shape .* heads"):
        nystrom_attention(Q, K, V, theta[:2])
    with pytest.raises(ValueError, match="Q: 11 queries for 10 keys: should be at most 10"):
        nystrom_attention(Q, K[..., 1:, :], V[..., 1:, :])
    with pytest.raises(ValueError, match=r"mask: shape .* a landmark has no score for a pair"):
        nystrom_attention(Q, K, V, mask=np.ones((N, N), bool))
    with pytest.raises(TypeError, match="dtype"):
        nystrom_attention(Q, K, V, theta.astype(np.float32))
    with pytest.raises(ValueError, match=r"A: shape \(2, 0, 0\) has no rows"):
        pseudo_inverse(np.zeros((2, 0, 0)))


def test_options():
    for options, message in (
        ({"steps": 0}, "steps: 0"),
        ({"taps": 4}, "taps: 4 should be odd"),
    ):
        with pytest.raises(ValueError, match=message):
            Nystrom(H, **options)
    assert Nystrom(H, taps=None).init(np.random.default_rng(0)).theta is None
