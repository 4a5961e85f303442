"""Where Borealis II slips in its equation (11): what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.attention import scores
from minitransformer.functional import softmax
from minitransformer.positions.t5 import OffsetScalarParams, OffsetScalars, T5Bias, t5_buckets


def test_E9_a_scalar_for_each_signed_offset_and_what_t5_does_with_it():
    """Printed before (11): Raffel et al. "adding a learnable scalar π_|i−j|"; in and after it: π_{i−j}, "a different scalar
    for each signed offset".

    The two are not the same. With |i − j| a head can't tell before from after: read the text backwards and every token
    attends as it did. A head that looks at the token before it needs the sign.
    Both leave out what makes T5 work at any length: offsets share buckets. And T5 does not divide by √d, so it draws W_q
    smaller by that factor.
    """
    rng = np.random.default_rng(9)
    n, d = 6, 4
    Q, K, V = rng.standard_normal((3, 1, n, d))
    encoding = OffsetScalars(heads=1, longest=n)
    of_distance = np.abs(np.arange(-(n - 1), n))
    pi = rng.standard_normal(n)

    # π_|i−j|: backwards in, backwards out
    printed = OffsetScalarParams(pi[of_distance][None])
    forwards, _ = encoding(printed, Q, K, V)
    backwards, _ = encoding(printed, Q[:, ::-1], K[:, ::-1], V[:, ::-1])
    np.testing.assert_allclose(backwards[:, ::-1], forwards, rtol=0, atol=1e-12)

    # π_{i−j}: it matters which way one reads
    signed = OffsetScalarParams(rng.standard_normal((1, 2 * n - 1)))
    forwards, _ = encoding(signed, Q, K, V)
    backwards, _ = encoding(signed, Q[:, ::-1], K[:, ::-1], V[:, ::-1])
    assert np.abs(backwards[:, ::-1] - forwards).max() > 0.1

    # the best that a head can do which wants the token before it, and has only distances: half of its weight
    zeros = np.zeros((1, n, d))
    _, pullback = encoding(OffsetScalarParams(np.where(of_distance == 1, 50.0, 0)[None]), zeros, zeros, V)
    assert pullback.A[0, 3, 2] == pytest.approx(0.5)
    one_before = np.where(np.arange(-(n - 1), n) == -1, 50.0, 0)
    _, pullback = encoding(OffsetScalarParams(one_before[None]), zeros, zeros, V)
    assert pullback.A[0, 3, 2] == pytest.approx(1)


def test_E9_not_a_scalar_for_each_offset_but_for_each_bucket():
    """1023 signed offsets among 512 tokens, and 31 numbers of a head for them. So there is one for any offset."""
    offset = np.arange(-511, 512)
    assert len(set(t5_buckets(offset, causal=False))) == 31
    assert t5_buckets(np.array([-91]), causal=False) == t5_buckets(np.array([-500]), causal=False)

    rng = np.random.default_rng(1)
    T5 = T5Bias(heads=2)
    X = rng.standard_normal((2, 300, 4))
    T5(T5.init(rng, np.float64), X, X, X)
    printed = OffsetScalars(heads=2, longest=200)
    with pytest.raises(ValueError, match="the table ends at 199"):
        printed(printed.init(rng, np.float64), X, X, X)


def test_E9_no_scale_and_what_that_asks_of_the_weights():
    """Without 1/√d, scores of usual weights have a deviation of √d, and softmax is close to an argmax at the first step.

    With W_q drawn smaller by √d, as T5 draws it, they have a deviation of 1, as those of other models with their scale.
    """
    rng = np.random.default_rng(2)
    n, D, d = 64, 512, 64
    X = rng.standard_normal((n, D))
    W_q, W_k = rng.standard_normal((2, D, d)) / math.sqrt(D)
    Q, K = X @ W_q, X @ W_k
    scaled, _ = scores(Q, K)
    printed, _ = scores(Q, K, scale=T5Bias.scale)
    meant, _ = scores(Q / math.sqrt(d), K, scale=T5Bias.scale)

    assert printed.std() == pytest.approx(math.sqrt(d), rel=0.1)
    assert softmax(printed)[0].max(-1).mean() > 0.7
    np.testing.assert_allclose(meant, scaled, rtol=0, atol=1e-13)
    assert softmax(meant)[0].max(-1).mean() < 0.2
