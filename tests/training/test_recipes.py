"""What the two trainings of `minitransformer train`, and those of the experiments, are made of."""

import numpy as np
import pytest

from minitransformer.backend import available, backend
from minitransformer.training.recipes import (
    LARGE,
    date_translator,
    language_model,
    parts_of,
    usual_training,
    usually_trained,
)

SMALL = {"width": 24, "depth": 1, "heads": 2, "batch": 4, "steps": 50, "seed": 3}


@pytest.mark.parametrize("recipe", [language_model, date_translator])
def test_the_rate_rises_for_a_tenth_of_the_steps(recipe):
    _, training = recipe(**SMALL, lr=0.01)
    assert (training.steps, training.batch, training.seed) == (50, 4, 3)
    assert (training.schedule.peak, training.schedule.steps, training.schedule.warmup) == (0.01, 50, 5)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"^lr: "):
            recipe(**SMALL, lr=wrong)


def test_a_gated_network_has_as_many_parameters_as_a_plain_one():
    hidden = {ffn: language_model(**SMALL, ffn=ffn)[0].body.blocks[0].ffn.hidden for ffn in ("relu", "swiglu")}
    assert hidden == {"relu": 4 * 24, "swiglu": 4 * 24 * 2 // 3}


def test_the_usual_training_of_an_experiment():
    training = usual_training(50, 4, 0.02, 3)
    assert (training.parts, training.look_every, training.seed, training.schedule.warmup) == (1, 50, 3, 5)
    assert usual_training(50, 4, 0.02, 3, warmup=0).schedule.warmup == 0


@pytest.mark.parametrize("tier", available())
def test_a_batch_is_cut_in_two_if_it_can_be_and_where_it_pays(tier):
    with backend(tier):
        assert [parts_of(batch, LARGE) for batch in (1, 2, 5, 6)] == [1, 2, 1, 2]
        assert parts_of(6, LARGE - 1) == (1 if tier == "micro" else 2)
        for context, parts in ((LARGE // 4, 2), (LARGE // 4 - 1, 1 if tier == "micro" else 2)):
            assert language_model(**SMALL, context=context)[1].parts == parts
        assert date_translator(**{**SMALL, "batch": 400})[1].parts == 2, "dates of ten characters"


def test_what_is_usually_trained_begins_with_its_seed():
    class Still:
        """A model of one number, that no step moves: its gradient is zero."""

        def init(self, rng, dtype):
            return rng.random(1).astype(dtype)

    class Nothing:
        data, length = {}, 1

        def batch(self, size, rng):
            return (np.zeros(size),)

        def loss(self, model, params, batch, rng=None):
            return params.dtype.type(0), lambda dloss: 0 * params

        def look(self, model, params):
            return 0.0

    found = usually_trained(Still(), Nothing(), 2, 4, 0.1, 5)
    np.testing.assert_array_equal(found, np.random.default_rng([5, 0]).random(1).astype(np.float32))
