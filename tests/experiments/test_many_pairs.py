"""The task of many pairs: what is asked has an answer, and only one; and the smallest training runs."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import tree_map
from minitransformer.attention import ATTENTIONS
from minitransformer.experiments import many_pairs
from minitransformer.experiments.many_pairs import KEYS, VALUES, ManyPairs
from minitransformer.models import SequenceModel

TASK = ManyPairs()


@pytest.mark.parametrize("pairs", [2, 5, 32])
def test_the_answer_is_what_was_written_last(pairs):
    tokens, targets, rewritten = TASK.of(pairs, 30, np.random.default_rng(0))
    assert tokens.shape == (30, 2 * pairs + pairs // 2)
    for row, answers, again in zip(tokens.tolist(), targets.tolist(), rewritten.tolist(), strict=True):
        held, times = {}, {}
        for token in row[:-pairs]:
            key, value = divmod(token, VALUES)
            assert held.get(key) != value, "a rewritten key has another value"
            held[key], times[key] = value, times.get(key, 0) + 1
        asked = [token - KEYS * VALUES for token in row[-pairs:]]
        assert len(held) == pairs == len(set(asked))
        assert answers == [held[key] for key in asked]
        assert again == [times[key] == 2 for key in asked]


def test_only_the_answers_have_a_loss():
    model = SequenceModel(TASK.vocabulary, TASK.longest, 8, 1, 2, 8, outputs=VALUES, causal=True)
    params, batch = model.init(np.random.default_rng(0), np.float64), TASK.of(4, 3, np.random.default_rng(1))
    loss, pullback = TASK.loss(model, params, batch)
    step = tree_map(lambda d: 1e-6 * d, pullback(np.ones_like(loss)))
    ahead = TASK.loss(model, tree_map(np.add, params, step), batch)[0]
    slope = sum((d * d).sum() for d in tree_leaves_of(pullback(np.ones_like(loss)))) * 1e-6
    assert ahead - loss == pytest.approx(slope, rel=1e-3)


def tree_leaves_of(tree):
    found = []
    tree_map(found.append, tree)
    return found


def test_trials_are_of_the_registry():
    names = {trial.attention.partition(":")[0] for trial in many_pairs.trials()}
    assert names <= set(ATTENTIONS)
    assert len(many_pairs.trials()) == 63


def test_the_smallest_training_runs():
    result = many_pairs.run(replace(many_pairs.trials()[-1], **many_pairs.IN_A_TEST))
    assert {f"{pairs} pairs" for pairs in many_pairs.PAIRS} <= set(result)
