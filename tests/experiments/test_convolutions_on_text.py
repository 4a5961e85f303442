"""What the record of convolutions on a text says, and that its models are as large as each other."""

import itertools

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments.convolutions_on_text import LONGER, MODELS, TURNED, hidden, trials


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


def test_rope_puts_attention_between_the_two_convolutions(bits):
    dynamic, lightweight = (bits[f"{name} convolution", "none", 300] for name in ("dynamic", "lightweight"))
    for name, _ in TURNED:
        turned = bits[name, "rope", 300]
        assert dynamic.max() < turned.min() - 0.02
        assert turned.max() < lightweight.min() - 0.2
        gains = [bits[name, other, 300].mean() - turned.mean() for other in ("sinusoidal", "none")]
        assert 0.8 < min(gains)
        assert max(gains) < 0.95


def test_the_dynamic_convolution_is_hardly_ahead_after_900_steps(bits):
    longer = {kind: bits[*kind, 900] for kind in LONGER}
    dynamic = longer.pop(LONGER[0])
    for (name, positions), worse in longer.items():
        assert dynamic.max() < worse.min(), name
        far = positions == "sinusoidal"
        assert (worse.max() - dynamic.min() < 0.1) == (not far)
    assert np.round([longer["window", at].mean() - dynamic.mean() for at in ("sinusoidal", "rope")], 2).tolist() == [
        0.39,
        0.03,
    ]


def test_all_have_as_many_parameters():
    sizes = [result["parameters"] for _, result in experiments.load("convolutions_on_text")]
    assert max(sizes) / min(sizes) < 1.002
    assert hidden("softmax") == 256
    assert len(trials()) == 51
