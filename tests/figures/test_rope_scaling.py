"""RoPE on longer texts: which angles each method reaches."""

import numpy as np
import pytest

from minitransformer.figures import rope_scaling
from minitransformer.training import position_study as study


@pytest.fixture(scope="module")
def data():
    trained = study.fit("text", "rope", seed=0, steps=1)
    short = trained.objective.text._replace(held_out=trained.objective.text.held_out[:600])
    objective = study.NextByte(short, 64)
    return rope_scaling.data(trained._replace(objective=objective))


def test_the_angles_that_training_has_seen(data):
    """Interpolation stays within what was seen; as trained, nothing does; the others leave the fastest pair as it was."""
    seen = data.turns["as trained"] * (rope_scaling.TRAINED - 1) / (data.lengths[-1] - 1)
    assert (data.turns["interpolation"] <= seen * 1.02).all()
    assert (data.turns["as trained"] > 4 * seen).all()
    for name in ("NTK", "dynamic NTK", "YaRN"):
        assert np.isclose(data.turns[name][0], data.turns["as trained"][0])
        assert data.turns[name][-1] <= 1.02 * seen[-1]


def test_nothing_changes_at_the_old_length_for_dynamic_ntk_alone(data):
    same = [name for name, bits in data.bits.items() if bits[0] == data.bits["as trained"][0]]
    assert same == ["as trained", "dynamic NTK"]


def test_the_picture(data):
    fig = rope_scaling.draw(data)
    assert len(fig.axes) == 2
    assert fig.axes[0].get_yscale() == "log"
