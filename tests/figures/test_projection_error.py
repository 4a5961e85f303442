"""What the caption of fig_projection_error claims."""

import numpy as np
import pytest

from minitransformer.figures import projection_error


@pytest.fixture(scope="module")
def found():
    return projection_error.data()


def test_four_times_the_rows_halve_the_error(found):
    for name, errors in found.errors.items():
        slope = np.polyfit(np.log(found.ks), np.log(errors.mean(1)), 1)[0]
        assert slope == pytest.approx(-0.5, abs=0.08)
        np.testing.assert_allclose(errors.mean(1), found.predicted[name], rtol=0.4)


def test_the_theorem_holds_with_a_mean_and_not_without(found):
    k = int(np.searchsorted(found.ks, found.needed))
    assert found.ks[k] == 256
    assert (found.errors["mean 2"][k] < projection_error.EPS).all()
    assert (found.errors["mean 0"][k] > projection_error.EPS).all()
    assert (found.errors["mean 0"][found.ks == 512] > projection_error.EPS).all(), "not even with n rows"


def test_the_star_stands_where_the_theorem_does(found):
    assert 249 < found.needed < 251
    lines = projection_error.draw(found).axes[0].lines
    (star,) = (line for line in lines if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (found.needed, projection_error.EPS)
