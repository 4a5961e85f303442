"""What chapter 08 says about models that were trained on long texts."""

from minitransformer import experiments
from minitransformer.experiments.long_document import GLOBAL, LONG, SEEDS, SHORT, WINDOW


def test_short_texts_are_best_with_either_attention_and_global_words_help_nothing():
    record = experiments.load("long_document")
    bits = {}
    for trial, result in record:
        bits.setdefault((trial.attention, trial.context), []).append(result["bits"])
    assert bits.keys() == {(GLOBAL, LONG), (WINDOW, LONG), (WINDOW, SHORT), ("softmax", SHORT)}
    assert all(len(each) == SEEDS for each in bits.values())
    short, window, words = bits["softmax", SHORT], bits[WINDOW, LONG], bits[GLOBAL, LONG]
    assert max(short) < min(window) - 0.2
    same = bits[WINDOW, SHORT]  # the same attention on short texts: the length is what costs most
    assert max(same) < min(window) - 0.3
    assert max(same) < min(short)
    assert max(window) < min(words)
    assert len({(result["parameters"], result["judged"]) for _, result in record}) == 1
