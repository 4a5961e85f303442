"""The tasks of chapter 06: every answer that counts can be found from the tokens, by a rule in plain Python."""

import numpy as np
import pytest

from minitransformer.data import position_tasks as tasks


def test_copy(rng):
    tokens, targets, counts = tasks.copy(5, 6, rng)
    assert tokens.shape == targets.shape == counts.shape == (5, 12)
    for row in range(5):
        letters = list(tokens[row, :6])
        assert tokens[row, 6] == tasks.SEPARATOR
        assert [targets[row, k] for k in range(12) if counts[row, k]] == letters
        assert list(tokens[row, 7:]) == letters[:-1]


def test_induction(rng):
    """At each place that counts, the last two letters have stood together before, and what followed them then is the answer."""
    tokens, targets, counts = tasks.induction(200, 24, rng)
    assert (counts.sum(1) == tasks.SEGMENT - 2).all()
    for row in range(200):
        places = np.flatnonzero(counts[row])
        assert (np.diff(places) == 1).all()
        line = [*tokens[row], targets[row, -1]]
        second = places[0] - 1  # where the second segment begins
        segment = line[second : second + tasks.SEGMENT]
        earlier = [k for k in range(second - tasks.SEGMENT + 1) if line[k : k + tasks.SEGMENT] == segment]
        assert earlier, "the segment stands there once before, without overlap"
        assert [targets[row, k] for k in places] == segment[2:]


@pytest.mark.parametrize(
    ("task", "least", "why"),
    [
        (tasks.induction, 17, "two segments of 8 letters do not fit into 16"),
        (tasks.order, 3, "n: 2 should be at least 3"),
        (tasks.span, 7, "n: 6 should be at least 7"),
    ],
)
def test_what_needs_room_takes_the_least_that_is_enough(task, least, why, rng):
    assert task(3, least, rng).tokens.shape == (3, least)
    with pytest.raises(ValueError, match=why):
        task(3, least - 1, rng)


def test_order(rng):
    tokens, targets, counts = tasks.order(300, 9, rng)
    assert (tokens[:, 0] == tasks.START).all()
    assert counts.sum() == 300
    assert counts[:, 0].all()
    for row in range(300):
        line = list(tokens[row])
        assert line.count(tasks.FIRST) == line.count(tasks.SECOND) == 1
        assert targets[row, 0] == (line.index(tasks.FIRST) > line.index(tasks.SECOND))
    assert 0.4 < targets[:, 0].mean() < 0.6


def test_span(rng):
    tokens, targets, counts = tasks.span(300, 12, rng)
    assert (set(targets[:, 0]), max(targets[:, 1])) == (set(range(2, 8)), 11), "wherever the longest span has room"
    assert counts.shape == targets.shape == (300, 2)
    assert counts.all()
    for row in range(300):
        (mark,) = [k for k in range(12) if tasks.LETTERS <= tokens[row, k] < tasks.START]
        length = tasks.LENGTHS[tokens[row, mark] - tasks.LETTERS]
        assert list(targets[row]) == [mark + 1, mark + length]
        assert mark + length < 12
    assert set(targets[:, 1] - targets[:, 0] + 1) == set(tasks.LENGTHS)


def test_how_many_letters_there_are():
    """The records of chapter 06 are of these."""
    assert (tasks.LETTERS, tasks.VOCABULARY, tasks.LENGTHS) == (16, 21, (2, 3, 4, 5))
