"""What the text of chapter 06 says about the record of runs on short sequences."""

import numpy as np
import pytest

from minitransformer.data.position_tasks import LETTERS
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


def test_what_the_chapter_says_of_text(data):
    first = np.sort([data.mean("text", name)[0] for name in data.names])
    assert first[9] - first[0] < 0.2 < first[10] - first[0]
    assert data.of("text", "deberta")[:, 0].max() < data.of("text", "t5")[:, 0].min()
    assert data.names[int(np.argmax([data.mean("text", name)[0] for name in data.names]))] == "none"
    lost = {name: data.of("text", name)[:, 2] - data.of("text", name)[:, 0] for name in data.names}
    for name in ("transformer-xl", "shaw", "kerple", "alibi", "multiplicative"):
        assert (lost[name] < 0.1).all()
    assert 0.1 < lost["deberta"].mean() < lost["fire"].mean() < 0.5
    for name in ("sinusoidal", "rope", "t5"):
        assert (lost[name] > 1.5).all()
    assert all(np.nanmin(found) > -0.03 for found in lost.values() if np.isfinite(found).all())  # none gets better


def test_what_the_chapter_says_of_copy_and_induction(data):
    """Who copies more than half with every seed, and who with none; whose trainings end far apart; who finds again."""
    copied = {name: data.of("copy", name)[:, 2] for name in data.names}
    for name in ("kerple", "fire", "alibi"):
        assert copied[name].min() > 0.5
    for name in ("transformer-xl", "tener", "t5", "sinusoidal", "rope"):
        assert copied[name].max() < 0.5
    assert np.ptp([copied[name] for name in ("deberta", "shaw", "multiplicative")]) > 0.3
    without = data.of("copy", "none")[:, 0]
    assert without.min() > 4 / LETTERS  # four times a guess
    assert min(data.of("induction", name)[:, 2].min() for name in ("fire", "alibi")) > 0.5
    found, copies = (data.mean(task, "transformer-xl")[2] for task in ("induction", "copy"))
    assert found > copies + 0.1


def test_with_an_encoding_they_do_better_than_without(data):
    """With each of them on text; on induction and copy with nearly all, for some have trainings that fail."""
    for task in TASKS:
        first = {name: data.mean(task, name)[0] for name in data.names}
        without = first.pop("none")
        worse = [name for name in first if (first[name] > without if task == "text" else first[name] < without)]
        assert len(worse) <= {"text": 0, "induction": 1, "copy": 2}[task], (task, worse)


def test_no_encoding_is_the_best_at_everything(data):
    """What is among the first on text is among the last on induction, at the trained length."""
    first = {task: sorted(data.names, key=lambda name: data.mean(task, name)[0]) for task in TASKS}
    assert "deberta" in first["text"][:3]
    assert "deberta" in first["induction"][:5]


def test_crosses_stand_beyond_the_bad_end(data):
    for task in TASKS:
        scores = data.scores[task][np.isfinite(data.scores[task])]
        worst = scores.max() if task == "text" else scores.min()
        assert (WORST[task] > worst) if task == "text" else (WORST[task] < worst)


def test_the_picture_has_a_mark_for_each_length_and_the_best_on_text_first(data):
    fig = length_extrapolation.draw(data)
    assert len(fig.axes) == 3
    for ax in fig.axes:
        assert sum(line.get_marker() in "osD" for line in ax.get_lines()) == 3
        names = [label.get_text() for label in ax.get_yticklabels()]
        first = [data.mean("text", name)[0] for name in names]
        assert first == sorted(first)


def test_text_is_above_the_others_and_hides_no_mark_under_its_legend(data):
    fig = length_extrapolation.draw(data)
    fig.canvas.draw()
    text, *others = sorted(fig.axes, key=lambda ax: -ax.get_position().y0)
    assert [ax.get_title().split(",")[0] for ax in (text, *others)] == list(TASKS)
    assert text.get_position().y0 > max(ax.get_position().y1 for ax in others)
    box = text.get_legend().get_window_extent()
    for line in text.get_lines():
        points = text.transData.transform(line.get_xydata())
        assert not any(box.contains(*point) for point in points)
    assert [ax.get_legend() for ax in others] == [None, None]
