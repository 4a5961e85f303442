"""What the text of chapter 06 says about the record of trainings on short sequences."""

import numpy as np
import pytest

from minitransformer.experiments.positions import SEEDS
from minitransformer.figures import length_extrapolation
from minitransformer.figures.length_extrapolation import TASKS, WORST


@pytest.fixture(scope="module")
def data():
    return length_extrapolation.data()


def test_the_record_is_complete(data):
    for task in TASKS:
        assert data.scores[task].shape == (len(data.names), SEEDS[task], 3)
        assert np.isfinite(data.scores[task][..., 0]).all()


def test_only_tables_of_places_end(data):
    """A cross stands where a table has ended."""
    ended = {task: [name for name in data.names if np.isnan(data.of(task, name)[:, -1]).any()] for task in TASKS}
    assert all(names == ["learned", "tupe"] for names in ended.values())


def test_crosses_stand_beyond_the_bad_end(data):
    for task in TASKS:
        scores = data.scores[task][np.isfinite(data.scores[task])]
        worst = scores.max() if task == "text" else scores.min()
        assert (WORST[task] > worst) if task == "text" else (WORST[task] < worst)


def test_the_picture_has_a_mark_for_each_length_and_the_best_on_text_first(data):
    fig = length_extrapolation.draw(data)
    for ax in fig.axes[:3]:
        assert sum(line.get_marker() in "osD" for line in ax.get_lines()) == 3
    names = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    first = [data.mean("text", name)[0] for name in names]
    assert first == sorted(first)
