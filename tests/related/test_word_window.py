"""Word windows: a one-dimensional convolution over tokens."""

import numpy as np
import pytest

from minitransformer import chain, check_pullback, random_like
from minitransformer.related import WordWindow

rng = np.random.default_rng(0)
D, d, n = 3, 4, 7
window = WordWindow(D, d, 5)
params = random_like(window.init(rng, np.float64), rng)
X = rng.standard_normal((2, n, D))


def test_gradient():
    check_pullback(window, params, X)


def test_gradient_when_the_window_is_wider_than_the_text():
    check_pullback(window, params, X[:, :2])


def test_gradient_of_a_stack():
    second = WordWindow(d, 6, 3)
    check_pullback(chain(window, second), (params, random_like(second.init(rng, np.float64), rng)), X)


def test_window_of_one_is_a_linear_layer_with_tanh():
    one = WordWindow(D, d, 1)
    p = random_like(one.init(rng, np.float64), rng)
    np.testing.assert_allclose(one(p, X)[0], np.tanh(X @ p.W[0] + p.b), rtol=0, atol=1e-13)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_sees_its_neighbours_and_nobody_else(layers):
    """L layers of width 5: a row changes if and only if a token at most 2 L places away does. Bit for bit."""
    square, n = WordWindow(D, D, 5), 17
    stack = chain(*[square] * layers)
    p = tuple(random_like(square.init(rng, np.float64), rng) for _ in range(layers))
    Z = 0.1 * rng.standard_normal((n, D))
    Y, _ = stack(p, Z)
    for j in range(n):
        other = Z.copy()
        other[j] += 0.1
        changed = (stack(p, other)[0] != Y).any(-1)
        assert np.array_equal(changed, abs(np.arange(n) - j) <= 2 * layers)


def test_samples_do_not_meet():
    Y, _ = window(params, X)
    other = X.copy()
    other[1] += 1
    assert np.array_equal(window(params, other)[0][0], Y[0])


def test_moves_with_its_input():
    """Away from the ends, shifted tokens give shifted rows."""
    Z = rng.standard_normal((20, D))
    Y, shifted = window(params, Z)[0], window(params, Z[3:])[0]
    np.testing.assert_allclose(shifted[2:-2], Y[5:-2], rtol=0, atol=1e-13)


def test_no_tokens():
    Y, pullback = window(params, X[:, :0])
    dparams, dX = pullback(Y)
    assert Y.shape == (2, 0, d)
    assert dX.shape == (2, 0, D)
    assert not dparams.W.any()


def test_initial_parameters_keep_the_variance_of_a_row():
    W = WordWindow(100, 80, 5).init(np.random.default_rng(0)).W
    padded = np.random.default_rng(1).standard_normal((50, 500))
    assert np.var(padded @ W.reshape(500, 80)) == pytest.approx(1, abs=0.05)


def test_bad_input():
    with pytest.raises(TypeError, match="'X'"):
        window(params, rng.standard_normal((2, n, D + 1)))
    with pytest.raises(TypeError, match="'X'"):
        window(params, np.ones((2, n, D), int))
    with pytest.raises(ValueError, match="odd"):
        WordWindow(3, 4, 4)
    with pytest.raises(ValueError, match="odd"):
        WordWindow(3, 4, 2)
    with pytest.raises(ValueError, match="at least 1"):
        WordWindow(3, 0)
