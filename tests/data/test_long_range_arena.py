"""The table of the Long Range Arena: eleven registered models, five tasks, and one mean that isn't the mean of its row."""

import numpy as np

from minitransformer.attention import ATTENTIONS
from minitransformer.data.long_range_arena import ARENA, PRINTED, TASKS


def test_each_model_is_registered_and_has_a_number_for_each_task():
    assert set(ARENA) == set(PRINTED) <= set(ATTENTIONS)
    assert {len(row) for row in ARENA.values()} == {len(TASKS)}


def test_all_printed_means_but_one_are_means():
    slips = {name: np.mean(row) - PRINTED[name] for name, row in ARENA.items()}
    wrong = [name for name, slip in slips.items() if abs(slip) > 0.0051]
    assert wrong == ["sinkhorn"]
    assert round(slips["sinkhorn"], 2) == 0.19
