"""Self-attention without weights."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import padding_mask, unweighted_attention

pytestmark = pytest.mark.usefixtures("definitions")

fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 4, 3))


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"mask": padding_mask(np.array([4, 2]), 4)}], ids=["plain", "causal", "padding"]
)
def test_gradient(options):
    """X is query, key and value at once: three gradients add up."""
    check_pullback(lambda X: unweighted_attention(X, **options), X)


def test_long_orthogonal_rows_attend_to_themselves(rng):
    """The diagonal |x_i|² wins as the rows grow."""
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0][:4]
    distances = [np.abs(unweighted_attention(c * basis)[0] - c * basis).max() for c in (1.0, 3.0, 6.0)]
    assert distances[0] > 0.1
    assert sorted(distances, reverse=True) == distances
    assert distances[-1] < 1e-13


def test_equal_rows_stay_as_they_are():
    equal = np.repeat(X[:, :1], 4, axis=1)
    assert np.allclose(unweighted_attention(equal)[0], equal, rtol=1e-15)


def test_outputs_are_averages():
    """In the convex hull of the rows: no coordinate leaves the range of its column."""
    Y, _ = unweighted_attention(X)
    assert (Y <= X.max(1, keepdims=True)).all()
    assert (Y >= X.min(1, keepdims=True)).all()


def test_it_is_equivariant():
    order = np.array([2, 0, 3, 1])
    assert np.allclose(unweighted_attention(X[:, order])[0], unweighted_attention(X)[0][:, order], atol=1e-13)


def test_causal_outputs_before_t_do_not_change_at_all():
    changed = X.copy()
    changed[:, 2] += 1
    assert np.array_equal(
        unweighted_attention(X, causal=True)[0][:, :2], unweighted_attention(changed, causal=True)[0][:, :2]
    )


@pytest.mark.parametrize("n", [0, 1])
def test_short_sequences(n):
    Y, pullback = unweighted_attention(X[:, :n])
    assert np.array_equal(Y, X[:, :n])
    assert np.array_equal(pullback(Y), Y), "one row is its own average"


def test_bad_input():
    with pytest.raises(TypeError, match="parameter 'X'"):
        unweighted_attention(np.arange(6).reshape(2, 3))
    with pytest.raises(ValueError, match=r"mask: shape \(3, 4\) does not broadcast"):
        unweighted_attention(X, mask=np.ones((3, 4), bool))
