import dataclasses

import pytest

from minitransformer.training.choices import Training
from minitransformer.training.schedule import Cosine


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps: 0 should be at least 1"),
        ({"batch": 0}, "batch: 0"),
        ({"parts": 0}, "parts: 0"),
        ({"look_every": 0}, "look_every: 0"),
        ({"save_every": 0}, "save_every: 0"),
        ({"batch": 10, "parts": 4}, "a batch of 10 can't be cut into 4 equal ones"),
        ({"clip": 0.0}, "clip: 0.0 should be above 0"),
        ({"seed": -1}, "seed: -1"),
    ],
)
def test_senseless_choices_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Training(**{"steps": 10, "batch": 4, "schedule": Cosine(1e-3, 10), **wrong})


def test_choices_do_not_change():
    training = Training(10, 4, Cosine(1e-3, 10))
    with pytest.raises(dataclasses.FrozenInstanceError):
        training.steps = 5
