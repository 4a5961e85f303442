"""RoPE on longer texts: which angles each method reaches, and what it does to the models of the record."""

import numpy as np
import pytest

from minitransformer.experiments.positions import prepare
from minitransformer.figures import rope_scaling


@pytest.fixture(scope="module")
def data():
    return rope_scaling.data()


def test_the_angles_that_training_has_seen(data):
    """Interpolation stays within what was seen; as trained, nothing does; the others leave the fastest pair as it was."""
    seen = data.turns["as trained"] * (rope_scaling.TRAINED - 1) / (data.lengths[-1] - 1)
    assert (data.turns["interpolation"] <= seen * 1.02).all()
    assert (data.turns["as trained"] > 4 * seen).all()
    for name in ("NTK", "dynamic NTK", "YaRN"):
        assert np.isclose(data.turns[name][0], data.turns["as trained"][0])
        assert data.turns[name][-1] <= 1.02 * seen[-1]


def test_one_line_for_two_that_coincide(data):
    np.testing.assert_allclose(data.turns["NTK"], data.turns["dynamic NTK"])
    labels = [line.get_label() for line in rope_scaling.draw(data).axes[0].lines]
    assert labels == ["as trained", "interpolation", "NTK, dynamic NTK", "YaRN"]


def test_nothing_changes_at_the_old_length_for_dynamic_ntk_alone(data):
    same = [name for name, bits in data.bits.items() if (bits[:, 0] == data.bits["as trained"][:, 0]).all()]
    assert same == ["as trained", "dynamic NTK"]


def test_what_the_chapter_says_in_every_seed(data):
    long = {name: bits[:, -1] for name, bits in data.bits.items()}
    assert len(long["as trained"]) == 3
    for name in ("NTK", "dynamic NTK", "YaRN"):
        assert (long[name] < long["as trained"] - 1).all()
    assert (data.bits["interpolation"][:, 0] > data.bits["as trained"][:, 0] + 1).all()


def test_the_record_is_of_heads_as_wide_as_those_that_are_drawn():
    model, _ = prepare("text", "rope")
    assert model.width // model.heads == rope_scaling.WIDTH
