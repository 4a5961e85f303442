"""The task of parities: what is asked has an answer; and the smallest training runs."""

from dataclasses import replace

import numpy as np

from minitransformer.attention import ATTENTIONS
from minitransformer.experiments import parity
from minitransformer.experiments.parity import LONGEST, PLACES, Parity

TASK = Parity()


def test_the_answer_is_whether_the_ones_so_far_are_odd_in_number():
    bits, parities = TASK.of(9, 30, np.random.default_rng(0))
    assert set(bits.ravel()) == {0, 1}
    for text, answers in zip(bits.tolist(), parities.tolist(), strict=True):
        assert answers == [text[: t + 1].count(1) % 2 for t in range(9)]


def test_no_text_of_the_training_is_longer_than_the_first_place():
    rng = np.random.default_rng(1)
    lengths = [TASK.batch(2, rng)[0].shape[1] for _ in range(300)]
    assert (min(lengths), max(lengths)) == (2, LONGEST)
    assert PLACES[0] == (1, LONGEST)


def test_trials_are_of_the_registry():
    assert {trial.attention.partition(":")[0] for trial in parity.trials()} <= set(ATTENTIONS)
    assert {trial.seed for trial in parity.trials()} == {0, 1, 2}


def test_the_smallest_training_runs():
    result = parity.run(replace(parity.trials()[-1], **parity.IN_A_TEST))
    assert {f"bits {first} to {last}" for first, last in PLACES} <= set(result)
