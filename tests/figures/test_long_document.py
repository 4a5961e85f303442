"""What chapter 08 says about models that were trained on long texts."""

import numpy as np

from minitransformer import experiments
from minitransformer.experiments.long_document import GLOBAL, LONG, SEEDS, SHORT, WINDOW


def test_short_texts_are_best_with_either_attention_and_global_words_help_nothing():
    record = experiments.load("long_document")
    bits = {}
    for trial, result in record:
        bits.setdefault((trial.attention, trial.context), []).append(result["bits"])
    assert bits.keys() == {(GLOBAL, LONG), (WINDOW, LONG), (WINDOW, SHORT), ("softmax", SHORT)}
    assert all(len(each) == SEEDS for each in bits.values())
    mean = {kind: np.mean(each) for kind, each in bits.items()}
    short, window, words = mean["softmax", SHORT], mean[WINDOW, LONG], mean[GLOBAL, LONG]
    assert short < window - 0.15
    same = mean[WINDOW, SHORT]  # the same attention on short texts: the length is what costs most
    assert same < window - 0.3
    assert same < short + 0.1
    assert window < words + 0.02
    assert len({(result["parameters"], result["judged"]) for _, result in record}) == 1
