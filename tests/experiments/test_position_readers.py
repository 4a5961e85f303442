"""Invariance, monotonicity and symmetry, on attention that is made to have them or not."""

import numpy as np

from minitransformer.experiments.position_readers import measure, without_start
from minitransformer.measurements.position_scores import fit_offsets


def attention(S):
    A = np.exp(S)
    return A / A.sum(-1, keepdims=True)


def offset_scores(f, n=16):
    i = np.arange(n)
    return f(i - i[:, None])


def test_what_depends_on_the_offset_only_has_invariance_one(rng):
    """Whatever each row adds for itself, and although the ends of the rows cut the profile."""
    S = offset_scores(lambda o: np.sin(o) + 0.1 * o)
    p, invariance = fit_offsets(S + rng.standard_normal((16, 1)))
    assert invariance > 1 - 1e-12
    o = np.arange(-15, 16)
    assert np.ptp(p - np.sin(o) - 0.1 * o) < 1e-9


def test_what_depends_on_the_key_only_has_little(rng):
    assert fit_offsets(np.broadcast_to(rng.standard_normal(16), (16, 16)))[1] < 0.5


def test_monotonic_and_symmetric():
    falling = measure(attention(offset_scores(lambda o: -0.3 * np.abs(o)))[None])
    assert falling.monotonicity == 1
    assert falling.symmetry > 0.999
    tilted = measure(attention(offset_scores(lambda o: 0.3 * o))[None])
    assert tilted.monotonicity == 0.5
    assert tilted.symmetry < -0.999


def test_the_first_token_is_left_out(rng):
    A = without_start(attention(rng.standard_normal((2, 17, 17))))
    assert A.shape == (2, 16, 16)
    np.testing.assert_allclose(A.sum(-1), 1)
