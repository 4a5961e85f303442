"""What chapter 08 says about models that were trained on long texts."""

import numpy as np

from minitransformer import experiments
from minitransformer.experiments.long_document import GLOBAL, LONG, SEEDS, SHORT, WINDOW


def test_short_texts_are_best_and_of_one_length_a_window_alone_is_best_in_each_run():
    record = experiments.load("long_document")
    bits = {}
    for trial, result in record:
        bits.setdefault((trial.attention, trial.context), []).append(result["bits"])
    assert bits.keys() == {(GLOBAL, LONG), (WINDOW, LONG), (WINDOW, SHORT), ("softmax", SHORT)}
    assert all(len(each) == SEEDS for each in bits.values())
    mean = {kind: np.mean(each) for kind, each in bits.items()}
    short, window = mean["softmax", SHORT], mean[WINDOW, LONG]
    assert short < window - 0.15
    assert mean[WINDOW, SHORT] < window - 0.3  # the same attention on short texts: the length is what costs most
    assert max(bits[WINDOW, SHORT]) < min(bits["softmax", SHORT])
    assert max(bits[WINDOW, LONG]) < min(bits[GLOBAL, LONG])
    assert len({(result["parameters"], result["judged"]) for _, result in record}) == 1
