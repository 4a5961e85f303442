"""The plain recurrent network."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.related import RNN

rng = np.random.default_rng(0)
D, d, n = 3, 4, 5
rnn = RNN(D, d)
params = random_like(rnn.init(rng, np.float64), rng)
X = rng.standard_normal((2, n, D))
h_0 = rng.standard_normal((2, d))


def test_gradient():
    check_pullback(rnn, params, X, h_0)


def test_gradient_from_a_state_of_zeros():
    check_pullback(rnn, params, X)


def test_gradient_through_many_steps():
    """BPTT by the plainest recipe: add up, for every step at which U is used, what that use does."""
    H, pullback = rnn(params, X, h_0)
    dH = rng.standard_normal(H.shape)
    states = np.concatenate([h_0[:, None], H], axis=1)
    dU = np.zeros((d, d))
    for b in range(2):
        for t in range(1, n + 1):  # the output of step t
            v = dH[b, t - 1]
            for s in range(t, 0, -1):  # walks back through the use of U at step s
                v = v * (1 - states[b, s] ** 2)
                dU += np.outer(states[b, s - 1], v)
                v = params.U @ v
    np.testing.assert_allclose(pullback(dH)[0].U, dU, rtol=1e-12, atol=1e-12)


def test_is_the_loop():
    H, _ = rnn(params, X, h_0)
    for b in range(2):
        h = h_0[b]
        for t in range(n):
            h = np.tanh(X[b, t] @ params.W + h @ params.U + params.b)
            np.testing.assert_allclose(H[b, t], h, rtol=0, atol=1e-13)


def test_state_carries_everything():
    """Read the first part, then go on from its last state: the same as reading all at once."""
    H, _ = rnn(params, X, h_0)
    first, _ = rnn(params, X[:, :2], h_0)
    second, _ = rnn(params, X[:, 2:], first[:, -1])
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), H, rtol=0, atol=1e-13)


def test_no_state_given_means_zeros():
    assert np.array_equal(rnn(params, X)[0], rnn(params, X, np.zeros((2, d)))[0])


def test_any_batch_axes():
    Z = rng.standard_normal((2, 3, n, D))
    H, _ = rnn(params, Z)
    np.testing.assert_allclose(H[1, 2], rnn(params, Z[1, 2])[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("length", [0, 1])
def test_short_sequences(length):
    H, pullback = rnn(params, X[:, :length], h_0)
    dparams, dX, dh_0 = pullback(np.ones_like(H))
    assert H.shape == (2, length, d)
    assert dX.shape == (2, length, D)
    assert np.any(dh_0) == np.any(dparams.U) == (length > 0)


def test_initial_parameters_keep_the_variance_of_a_row():
    p = RNN(300, 400).init(np.random.default_rng(0))
    assert np.var(np.random.default_rng(1).standard_normal((50, 300)) @ p.W) == pytest.approx(1, abs=0.05)
    assert p.U.dtype == np.float32
    assert not p.b.any()


def test_bad_input():
    with pytest.raises(TypeError, match="'X'"):
        rnn(params, rng.standard_normal((2, n, D + 1)))
    with pytest.raises(TypeError, match="'X'"):
        rnn(params, np.ones((2, n, D), int))
    with pytest.raises(TypeError, match="'h_0'"):
        rnn(params, X, rng.standard_normal((3, d)))
    with pytest.raises(TypeError, match="X, h_0: should have one dtype, got float64, float32"):
        rnn(params, X, h_0.astype(np.float32))
    with pytest.raises(ValueError, match="at least 1"):
        RNN(0, 4)
