"""The claims of chapter 03 about the record of the default run."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.figures import training_text


@pytest.fixture(scope="module")
def data():
    return training_text.data()


def bits(data, name):
    """(seeds, 3): all, copies, new."""
    return data.bits[:, data.names.index(name)]


def test_new_passages_are_better_guessed_by_the_model_and_copies_by_the_table(data):
    model, four, six = (bits(data, name) for name in ("transformer", "4-gram", "6-gram"))
    assert model.shape == (3, 3)
    assert (model[:, 0] <= 2.0).all()
    assert (model[:, 0] < four[:, 0]).all()
    assert (model[:, 0] < six[:, 0]).all()  # over everything the model is ahead, by little ...
    assert (model[:, 0] > six[:, 0] - 0.1).all()
    assert (model[:, 1] > six[:, 1] + 0.2).all()  # ... though not on what the table has seen before
    for name in data.names[:-1]:
        assert (model[:, 2] < bits(data, name)[:, 2] - 0.2).all()  # on new passages every table is behind


def test_the_tables_are_the_same_for_every_seed(data):
    np.testing.assert_array_equal(data.bits[:, :-1], np.broadcast_to(data.bits[:1, :-1], data.bits[:, :-1].shape))


def test_both_losses_fall(data):
    assert data.steps[-1] == data.looked[-1] == 2400
    assert (data.looks[:, -1] < data.looks[:, 0] - 1).all()
    assert (data.losses[:, -1] < data.losses[:, 0] - 4).all()


def test_more_than_a_third_of_the_held_out_text_is_copied():
    for result in experiments.load("training_text").results:
        assert 1 / 3 < result["copies"] < 0.4


def test_the_distribution_over_the_next_byte_is_one():
    for result in experiments.load("training_text").results:
        assert sum(2.0**-b for b in result["next"]) == pytest.approx(1, abs=1e-3)
