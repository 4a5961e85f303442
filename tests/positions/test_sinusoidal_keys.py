"""Sinusoids of the offset in Shaw's place. What all promise: test_every_encoding.py."""

import numpy as np
import pytest

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


def test_scores_depend_on_the_offset_and_tell_before_from_behind(rng):
    encoding = SinusoidalKeys(6)
    q = np.broadcast_to(rng.standard_normal(6), (1, 9, 6))
    S, _ = encoding.scores(encoding.init(rng), np.ascontiguousarray(q), np.zeros((1, 9, 6)))
    assert all(np.ptp(np.diagonal(S[0], o)) < 1e-12 for o in range(-8, 9))
    assert abs(S[0, 4, 5] - S[0, 4, 3]) > 1e-3


def test_odd_width():
    with pytest.raises(ValueError, match=r"^d: sines and cosines come in pairs, and 5 is not"):
        SinusoidalKeys(5)
