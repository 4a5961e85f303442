"""What the caption of fig_gru_coefficients claims, on every seed of the record."""

import numpy as np
import pytest

from minitransformer.figures import gru_coefficients


@pytest.fixture(scope="module", params=range(3))
def data(request):
    return gru_coefficients.data(request.param)


def test_weights_sum_to_one(data):
    np.testing.assert_allclose(data.coefficients.sum(-1), 1, rtol=0, atol=1e-3)  # kept with four decimals
    np.testing.assert_allclose(data.attention.sum(-1), 1, rtol=0, atol=1e-3)


def test_nobody_looks_ahead(data):
    n = len(data.text)
    assert data.coefficients.shape == (2, n, n + 1)
    assert not np.triu(data.coefficients, 2).any()
    assert not np.triu(data.attention, 1).any()


def test_down_a_column_a_gru_falls_and_a_head_does_not(data):
    n = len(data.text)
    for C in data.coefficients:
        assert all(np.diff(C[j - 1 :, j]).max(initial=0) <= 0 for j in range(1, n + 1))
    for A in data.attention:
        assert max(np.diff(A[j:, j]).max(initial=0) for j in range(n)) > 0.05


def test_short_is_on_the_left_and_long_on_the_right(data):
    assert data.ages[1] > 2 * data.ages[0]
    assert data.distances[1] > data.distances[0]


def test_it_is_drawn(data):
    titles = [ax.get_title().split(",")[0] for ax in gru_coefficients.draw(data).axes]
    assert titles.count("GRU") == titles.count("head") == 2
