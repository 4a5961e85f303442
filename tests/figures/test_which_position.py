"""The record of the grid: absolute and relative, learned, fixed, and with learned frequencies."""

import pytest

from minitransformer.experiments.positions import SEEDS
from minitransformer.figures import which_position


@pytest.fixture(scope="module")
def data():
    return which_position.data()


def test_the_record_is_complete(data):
    assert data.kinds == ("absolute", "relative")
    assert data.forms == ("learned", "sinusoids", "learned frequencies")
    for task, right in data.right.items():
        assert right.shape == (2, 3, SEEDS[task])
        assert ((right >= 0) & (right <= 1)).all()


def test_what_the_chapter_says_of_it(data):
    order, span = data.right["order"], data.right["span"]
    assert (order[0, 0] > 0.9).all()  # learned places: order every time
    assert order[1, 0].min() < 0.7  # learned offsets: not
    assert order[1, 0].max() < order[0, 0].min()
    assert (span[1, 0] > 0.98).all()  # and span every time
    assert span[0, 0].max() < span[1, 0].min()  # where places miss some ends
    assert (order[1, 1:] > 0.97).all()  # waves of an offset: both
    assert (span[1, 1:] > 0.98).all()
    assert order[0, 1].min() < 0.9  # waves added to the words: not with every seed
    assert span[0, 1].max() < min(span[0, 0].min(), span[1, 0].min())


def test_a_dot_for_each_training_and_a_bar_for_each_mean(data):
    fig = which_position.draw(data)
    for ax, right in zip(fig.axes, data.right.values(), strict=True):
        dots = [line for line in ax.lines if line.get_marker() == "o"]
        bars = [line for line in ax.lines if line.get_marker() == "|"]
        assert len(dots) == len(bars) == 6
        assert sorted(dots[0].get_xdata()) == sorted(right[0, 0])
