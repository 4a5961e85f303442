"""What chapter 03 says of the two later parts of its model: both help, and the norm of queries and keys with every seed."""

import numpy as np
import pytest

from minitransformer import experiments


@pytest.fixture(scope="module")
def bits():
    """Bits per byte of each model, one a seed, in the order of the seeds."""
    record = experiments.load("first_model")
    found = {}
    for trial, result in sorted(record, key=lambda row: row[0].seed):
        found.setdefault(trial.model, []).append(result["bits"][0])
    return {name: np.array(seeds) for name, seeds in found.items()}


def test_each_helps_and_both_help_more(bits):
    assert all(len(seeds) == 3 for seeds in bits.values())
    assert (bits["gated"] < bits["neither"]).all()
    assert (bits["normed"] < bits["gated"] - 0.03).all()
    assert (bits["both"] < bits["normed"]).all()
    assert (bits["neither"] - bits["normed"] > 0.1).all()
    assert (abs(bits["neither"] - bits["both"] - 1 / 6) < 0.03).all(), "about a sixth"


def test_they_have_as_many_parameters():
    counts = [result["parameters"] for result in experiments.load("first_model").results]
    assert max(counts) < 1.001 * min(counts)


def test_it_is_the_model_that_the_command_trains(bits):
    """The same choices, steps and seeds: on one machine they are the same trainings, and on two as good on average."""
    of_command = [result["bits"][-1][1] for result in experiments.load("training_text").results]
    assert abs(bits["both"].mean() - np.mean(of_command)) < 0.03
