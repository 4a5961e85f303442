"""What the caption of fig_shifted_peak claims."""

import numpy as np

from minitransformer.figures import shifted_peak


def test_each_row_has_its_peak_at_the_shift():
    d = shifted_peak.data()
    n = d.products.shape[1]
    for j, products in zip(d.shifts, d.products, strict=True):
        i = np.arange(max(0, -j), min(n, n - j))
        assert np.array_equal(products[i].argmax(1), i + j)
        np.testing.assert_allclose(products[i, i + j], 32, rtol=1e-12)  # D/2: as high as it ever was


def test_shifting_is_all_that_happens():
    """The whole matrix moves by j columns, what comes in from the side included."""
    d = shifted_peak.data()
    assert d.shifts[1] == 8
    np.testing.assert_allclose(d.products[1][:, 8:], d.products[0][:, :-8], rtol=0, atol=1e-11)


def test_it_draws_every_shift():
    d = shifted_peak.data()
    fig = shifted_peak.draw(d)
    assert len(fig.axes[2].lines) == 2 * len(d.shifts)
