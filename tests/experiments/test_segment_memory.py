"""What chapter 12 says about memories in training and in evaluation."""

import numpy as np

from minitransformer import experiments
from minitransformer.figures import memory_bits


def test_the_record_is_of_one_text_and_one_size():
    results = [result for _, result in experiments.load("segment_memory")]
    assert len({result["text"]["sha256"] for result in results}) == 1
    assert len({result["parameters"] for result in results}) == 1, "a memory has no parameters"


def test_a_memory_helps_and_most_if_it_was_there_in_training():
    data = memory_bits.data()
    assert data.judged == (0, 32, 64, 128, 256, 512)
    assert all(found.shape == (3, 6) for found in data.bits.values())
    for found in data.bits.values():
        assert (found[:, 1:].max(1) < found[:, 0]).all()  # any memory is better than none, in every training
        assert np.ptp(found[:, 2:], axis=1).max() < 0.01  # from one segment on, more changes next to nothing
    without, one, two = (data.bits[M] for M in (0, 64, 128))
    assert one[:, 2].max() < without.min()
    assert two[:, 3].max() < without.min()
    assert min(one[:, 0].min(), two[:, 0].min()) > without[:, 0].max()  # without it, they are worse off
    memory_bits.draw(data)
