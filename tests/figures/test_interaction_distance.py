"""What the caption of fig_interaction_distance claims."""

import numpy as np
import pytest

from minitransformer.figures import interaction_distance
from minitransformer.figures.interaction_distance import DEPTHS, reach
from minitransformer.functional import linear
from minitransformer.related import RNN


@pytest.fixture(scope="module")
def data():
    return interaction_distance.data(draws=3)


def test_recurrence_shrinks_or_grows_exponentially(data):
    """A straight line on the logarithmic axis: after n ≥ 8, log of the gradient against n correlates above 0.98."""
    long = data.n >= 8
    for line, falls in zip(data.networks[:3], (True, False, True), strict=True):
        slope = np.polyfit(data.n[long], np.log10(line[long]), 1)[0]
        assert (slope < 0) == falls
        assert abs(np.corrcoef(data.n[long], np.log10(line[long]))[0, 1]) > 0.98
    assert data.networks[0, -1] < 1e-10
    assert data.networks[1, -1] > 1e6


def test_gates_make_it_slower(data):
    assert data.networks[2, -1] > 1e8 * data.networks[0, -1]


def test_attention_falls_like_1_over_n(data):
    """Its weights are shared by n tokens, whatever the distance: a power of n, not an exponential."""
    slope = np.polyfit(np.log(data.n), np.log(data.networks[3]), 1)[0]
    assert -1.5 < slope < -0.7


def test_attention_is_flat_where_it_recognises_the_first_token(data):
    assert data.networks[4].min() > 0.9 * data.networks[4].max() > 0.4


def test_windows_are_exactly_zero_until_there_are_enough_layers(data):
    for line, L in zip(data.windows, DEPTHS, strict=True):
        assert np.array_equal(line > 0, data.short - 1 <= 2 * L)


def test_the_field_grows_by_two_tokens_to_each_side(data):
    layers, n = data.field.shape
    for L in range(1, layers + 1):
        assert np.array_equal(data.field[L - 1] > 0, np.abs(np.arange(n) - n // 2) <= 2 * L)


def test_reach_is_the_norm_of_the_jacobian():
    rng = np.random.default_rng(0)
    W, X = rng.standard_normal((3, 4)), rng.standard_normal((5, 3))

    def layer(W, X):
        Y, pullback = linear(X, W)
        return Y, lambda dY: pullback(dY)[::-1]

    expected = np.zeros(5)
    expected[2] = np.linalg.norm(W) / 2  # √D = 2
    np.testing.assert_allclose(reach(layer, W, X, 2), expected, rtol=1e-14)

    rnn = RNN(3, 4)
    p = rnn.init(rng, np.float64)
    step = 1e-6
    for j in range(5):
        columns = []
        for c in range(3):
            E = np.zeros_like(X)
            E[j, c] = step
            columns.append((rnn(p, X + E)[0][3] - rnn(p, X - E)[0][3]) / (2 * step))
        assert reach(rnn, p, X, 3)[j] == pytest.approx(np.linalg.norm(columns) / 2, rel=1e-6, abs=1e-9)


def test_it_is_drawn(data):
    panels = {ax.get_title(): ax for ax in interaction_distance.draw(data).axes}
    assert panels["one layer"].get_yscale() == panels["stacked word windows"].get_yscale() == "log"
    assert panels["seen by the middle row"].get_xlabel()
