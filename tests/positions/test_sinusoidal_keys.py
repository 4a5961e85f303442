"""Sinusoids of the offset in Shaw's place."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import attend
from minitransformer.positions import sinusoids
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.positions.sinusoidal_keys import SinusoidalKeys


@pytest.mark.parametrize("n", [5, 1])
@pytest.mark.parametrize("learn", [False, True])
def test_it_is_shaw_with_a_table_of_sinusoids(learn, n, rng):
    encoding, shaw = SinusoidalKeys(6, learn), Shaw(6, 6, values=False)
    Q, K, V = rng.standard_normal((2, 3, n, 6)), rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((2, 3, 7, 4))
    table = ShawParams(sinusoids(13, 6, first=-6))
    for causal in (False, True):
        Y, pullback = attend(encoding, encoding.init(rng, np.float64), Q, K, V, causal=causal)
        same, same_pullback = attend(shaw, table, Q, K, V, causal=causal)
        np.testing.assert_allclose(Y, same, rtol=0, atol=1e-13)
        for have, want in zip(pullback(Y)[1:], same_pullback(Y)[1:], strict=True):
            np.testing.assert_allclose(have, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("learn", [False, True])
def test_gradients(learn, rng):
    encoding = SinusoidalKeys(6, learn)
    Q, K, V = rng.standard_normal((2, 4, 5, 6)), rng.standard_normal((2, 2, 7, 6)), rng.standard_normal((2, 2, 7, 3))
    mask = rng.random((5, 7)) < 0.7
    mask[2] = False
    for causal in (False, True):
        check_pullback(
            lambda params, Q, K, V, causal=causal: attend(encoding, params, Q, K, V, causal=causal, mask=mask),
            encoding.init(rng, np.float64), Q, K, V,
        )  # fmt: skip


def test_scores_depend_on_the_offset_and_tell_before_from_behind(rng):
    encoding = SinusoidalKeys(6)
    q = np.broadcast_to(rng.standard_normal(6), (1, 9, 6))
    S, _ = encoding.scores(encoding.init(rng), np.ascontiguousarray(q), np.zeros((1, 9, 6)))
    assert all(np.ptp(np.diagonal(S[0], o)) < 1e-12 for o in range(-8, 9))
    assert abs(S[0, 4, 5] - S[0, 4, 3]) > 1e-3


def test_odd_width():
    with pytest.raises(ValueError, match=r"^d: sines and cosines come in pairs, and 5 is not"):
        SinusoidalKeys(5)
