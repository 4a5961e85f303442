"""What the caption of fig_sinusoid_products claims."""

import numpy as np
import pytest

from minitransformer.figures import sinusoid_products
from minitransformer.positions import sinusoids


@pytest.fixture(scope="module")
def d():
    return sinusoid_products.data()


def test_constant_along_diagonals_symmetric_and_largest_in_the_middle(d):
    n = len(d.gram)
    assert max(np.ptp(np.diagonal(d.gram, o)) for o in range(n)) < 1e-11
    np.testing.assert_allclose(d.gram, d.gram.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(np.diag(d.gram), d.width / 2, rtol=1e-12)
    assert np.array_equal(d.gram.argmax(1), np.arange(n))


def test_profiles_are_rows_of_gram_matrices(d):
    for width, line in zip(d.widths, d.profiles, strict=True):
        table = sinusoids(len(line), width)
        np.testing.assert_allclose(line, table[0] @ table.T / (width / 2), rtol=0, atol=1e-12)
        assert line[0] == 1


def test_they_fall_until_the_dot_and_the_wider_the_longer(d):
    assert d.falls_until == (5, 11, 24, 43, 68)
    for line, until in zip(d.profiles, d.falls_until, strict=True):
        assert (np.diff(line)[:until] < 0).all()
        assert np.diff(line)[until] >= 0


def test_what_comes_after_is_a_ripple_on_a_slow_fall_and_smaller_for_wide_tables(d):
    ripple = [np.abs(np.diff(line)[68:]).max() for line in d.profiles]
    assert (np.diff(ripple) < 0).all()
    assert (np.abs(d.profiles - d.profiles[-1])[2:, :68] < 0.03).all()
    assert (d.profiles[:, 100:].mean(1) < d.profiles[:, 20:40].mean(1)).all()


def test_it_draws_one_line_and_one_dot_for_each_width(d):
    fig = sinusoid_products.draw(d)
    assert len(fig.axes[1].lines) == 2 * len(d.widths)
