"""Lightweight and dynamic convolutions, figure 12c: one number at a time."""

import math

import numpy as np

from minitransformer.related import dynamic_convolution, lightweight_convolution

n, H, w, K = 5, 2, 3, 3  # tokens, heads, channels of a head, taps
D = H * w


def softmax_of(scores):
    weights = [math.exp(score) for score in scores]
    return [weight / sum(weights) for weight in weights]


def test_borealis_lightweight_convolution():
    """y_ihc = Σ_s a_hs x_(i − K + 1 + s)hc,  a_h = softmax(s_h): the K tokens up to i, with one set of weights for each head."""
    rng = np.random.default_rng(0)
    X, S = rng.standard_normal((n, D)), rng.standard_normal((H, K))
    Y, _ = lightweight_convolution(X, S, causal=True)
    for i in range(n):
        for h in range(H):
            a = softmax_of(S[h])
            for c in range(w):
                total = 0.0
                for s in range(K):
                    j = i - K + 1 + s
                    if j >= 0:  # in front of the text there are zeros
                        total += a[s] * X[j, h * w + c]
                assert math.isclose(Y[i, h * w + c], total, abs_tol=1e-14)


def test_borealis_dynamic_convolution():
    """The same with a_ih = softmax(x_i W_h): token i has weights of its own, and they are made of x_i alone."""
    rng = np.random.default_rng(1)
    X, W = rng.standard_normal((n, D)), rng.standard_normal((D, H, K))
    Y, _ = dynamic_convolution(X, W, causal=True)
    for i in range(n):
        for h in range(H):
            a = softmax_of([sum(X[i, e] * W[e, h, s] for e in range(D)) for s in range(K)])
            for c in range(w):
                total = 0.0
                for s in range(K):
                    j = i - K + 1 + s
                    if j >= 0:
                        total += a[s] * X[j, h * w + c]
                assert math.isclose(Y[i, h * w + c], total, abs_tol=1e-14)
