"""Rotary positions: the angle between query and key depends on their offset only, and lengths stay."""

import numpy as np
import pytest

from minitransformer.figures import rotation
from minitransformer.figures.rotation import PLACES, SPEED


@pytest.fixture(scope="module")
def d():
    return rotation.data()


def angle(x):
    return np.arctan2(x[..., 1], x[..., 0])


def test_each_has_turned_by_its_place(d):
    for (i, j), (q, k) in zip(PLACES, d.turned, strict=True):
        assert angle(q) == pytest.approx(angle(d.words[0]) + i * SPEED)
        assert angle(k) == pytest.approx(angle(d.words[1]) + j * SPEED)


def test_same_offset_same_angle_same_score(d):
    assert len({j - i for i, j in PLACES}) == 1
    between = angle(d.turned[:, 1]) - angle(d.turned[:, 0])
    np.testing.assert_allclose(between, np.radians(80))
    np.testing.assert_allclose(d.scores, np.cos(np.radians(80)))
    assert d.words[0] @ d.words[1] == pytest.approx(np.cos(np.radians(40)))  # before they turned


def test_no_length_changes(d):
    np.testing.assert_allclose(np.linalg.norm(d.turned, axis=-1), 1)


def test_the_figure_says_angle_and_score(d):
    for ax in rotation.draw(d).axes:
        assert "80°" in [text.get_text() for text in ax.texts]
        assert ax.get_title().endswith("score 0.17")
