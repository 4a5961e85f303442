"""Where the sources slip on dynamic convolutions: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.related import dynamic_convolution


def test_E21_the_weights_of_a_dynamic_convolution_depend_on_the_current_token_only():
    """Borealis II, before figure 12.

    printed  "the convolution weights are determined by all of the inputs, and if we permute them, the result will be
             different"
    wrong    The weights of token i are the same to the last bit with other tokens around it: they differ by 0.
    holds    Weights are softmax(x_i W). The result is different because a weight is that of an offset, and at the
             offsets stand other tokens.
    """
    rng = np.random.default_rng(0)
    n, D, H, K = 9, 6, 2, 5
    X, W, i = rng.standard_normal((n, D)), rng.standard_normal((D, H, K)), 4
    Y, pullback = dynamic_convolution(X, W)

    others = rng.standard_normal((n, D))
    others[i] = X[i]
    Z, elsewhere = dynamic_convolution(others, W)
    np.testing.assert_array_equal(elsewhere.weights[i], pullback.weights[i])
    assert np.abs(Z[i] - Y[i]).max() > 0.1  # but not what is averaged

    order = rng.permutation(n)
    Z, permuted = dynamic_convolution(X[order], W)
    np.testing.assert_allclose(permuted.weights, pullback.weights[order], rtol=1e-13)
    assert np.abs(Z - Y[order]).max() > 0.1

    even, _ = dynamic_convolution(X, 0 * W)  # all weights the same, for all tokens: the order is still seen
    again, _ = dynamic_convolution(X[order], 0 * W)
    assert np.abs(again - even[order]).max() > 0.1
