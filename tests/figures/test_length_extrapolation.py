"""What the text of chapter 06 says about the record of trainings on short sequences."""

import numpy as np
import pytest

from minitransformer.figures import length_extrapolation
from minitransformer.figures.length_extrapolation import TASKS
from minitransformer.figures.which_position import SEEDS


@pytest.fixture(scope="module")
def data():
    return length_extrapolation.data()


def test_the_record_is_complete(data):
    for task in TASKS:
        assert data.scores[task].shape == (len(data.names), len(SEEDS[task]), 3)
        assert np.isfinite(data.scores[task][..., 0]).all()


def test_only_tables_of_places_end(data):
    """A cross stands where a table has ended."""
    ended = {task: [name for name in data.names if np.isnan(data.mean(task, name)[-1])] for task in TASKS}
    assert all(names == ["learned", "tupe"] for names in ended.values())


def test_the_picture_has_a_mark_for_each_length(data):
    fig = length_extrapolation.draw(data)
    assert [len(ax.get_lines()) for ax in fig.axes] == [3, 3, 3]
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == list(data.names)
