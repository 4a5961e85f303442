"""The walks of `thinking_longer`: ends and moves by walking, and a control that is one."""

import numpy as np

from minitransformer.experiments import thinking_longer
from minitransformer.experiments.thinking_longer import ENDS, PLACES, walks


def test_ends_and_moves_by_walking():
    found = walks(50, np.random.default_rng(0))
    for leads, ends, moves in zip(*found, strict=True):
        assert (leads == np.arange(PLACES)).sum() == ENDS
        for i in range(PLACES):
            place, way = i, 0
            while leads[place] != place:
                place, way = leads[place], way + 1
            assert (place, way) == (ends[i], moves[i])
    assert found.moves.max() >= 5


def test_every_kind_of_trial_has_three_seeds():
    seeds = {}
    for trial in thinking_longer.trials():
        seeds.setdefault(trial.ponder, []).append(trial.seed)
    assert all(len(set(each)) == 3 for each in seeds.values())
    assert sum(ponder < 0 for ponder in seeds) == 1
