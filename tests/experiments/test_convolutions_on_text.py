"""What the record of convolutions on a text says, and that its models are as large as each other."""

import itertools

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments.convolutions_on_text import LONGER, MODELS, hidden, trials


@pytest.fixture(scope="module")
def bits():
    found: dict = {}
    for trial, result in experiments.load("convolutions_on_text"):
        found.setdefault((trial.model, trial.positions, trial.steps), []).append(result["bits"])
    assert all(len(of) == 3 for of in found.values())
    return {kind: np.array(of) for kind, of in found.items()}


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_the_order_after_300_steps(bits, positions):
    """In every training, and by more than the seeds differ."""
    order = [bits[name, positions, 300] for name in MODELS if name != "one tap"]
    order.append(bits["one tap", "sinusoidal", 300])
    for better, worse in itertools.pairwise(order):
        assert better.max() < worse.min() - 0.05


def test_convolutions_do_better_without_positions(bits):
    for name in ("dynamic convolution", "lightweight convolution"):
        assert bits[name, "none", 300].max() < bits[name, "sinusoidal", 300].min() - 0.05


def test_the_dynamic_convolution_is_still_ahead_after_900_steps(bits):
    longer = [bits[*kind, 900] for kind in LONGER]
    for worse in longer[1:]:
        assert longer[0].max() < worse.min() - 0.1


def test_all_have_as_many_parameters():
    sizes = [result["parameters"] for _, result in experiments.load("convolutions_on_text")]
    assert max(sizes) / min(sizes) < 1.002
    assert hidden("softmax") == 256
    assert len(trials()) == 36
