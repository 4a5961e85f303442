"""The tasks as objectives, and the trials made of them."""

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.experiments import positions
from minitransformer.experiments.position_readers import mean_attention
from minitransformer.experiments.positions import Drawn, Trial
from minitransformer.models import BERT, LanguageModel
from minitransformer.training.objective import in_parts


def reader(longest):
    """A small BERT with two numbers at each token."""
    return BERT(21, longest, width=4, depth=1, heads=2, hidden=5, embedding="normed", outputs=2)


@pytest.mark.parametrize("task", ["copy", "induction", "order", "span"])
def test_the_loss_and_its_gradient(task, rng):
    """The mean of −log P(right) over what counts, sample by sample in a loop; and the pullback reaches every parameter."""
    objective = Drawn(task, 18)
    if task in ("order", "span"):
        model = reader(18)
    else:
        model = LanguageModel(17, 36, width=4, depth=1, heads=2)
    params = mt.random_like(model.init(rng, np.float64), rng)
    batch = objective.batch(3, rng)
    loss, pullback = objective.loss(model, params, batch)
    logits = model(params, batch.tokens)[0]
    terms = []
    for row, place in np.argwhere(batch.counts):
        scores = logits[row, :, place] if task == "span" else logits[row, place]
        terms.append(np.log(np.exp(scores).sum()) - scores[batch.targets[row, place]])
    np.testing.assert_allclose(loss, np.mean(terms), rtol=1e-12)
    direction = mt.random_like(params, rng)
    shifted = [
        objective.loss(model, mt.pullback.tree_map(lambda p, v, s=s: p + s * v, params, direction), batch)[0]
        for s in (1e-6, -1e-6)
    ]
    dparams = pullback(np.float64(1))
    along = sum(np.vdot(g, v) for g, v in zip(*map(mt.pullback.tree_leaves, (dparams, direction)), strict=True))
    np.testing.assert_allclose(along, (shifted[0] - shifted[1]) / 2e-6, rtol=1e-5)


def test_parts_of_a_batch(rng):
    objective = Drawn("span", 12)
    batch = objective.batch(6, rng)
    parts = in_parts(batch, 3)
    assert np.array_equal(np.concatenate([part.targets for part in parts]), batch.targets)


def test_held_out_samples_are_the_same_every_time_and_no_training_samples():
    objective = Drawn("order", 12)
    model = reader(12)
    params = model.init(np.random.default_rng(0))
    assert objective.look(model, params) == objective.look(model, params)
    assert objective.right(model, params, 12) == objective.right(model, params, 12)


def test_an_unknown_task():
    with pytest.raises(ValueError, match="task: no 'sort'; there are copy, induction, order, span"):
        Drawn("sort", 12)


def test_a_trial_learns_and_says_where_a_table_ends(monkeypatch):
    monkeypatch.setitem(positions.LENGTHS, "order", (12, 20))
    right, ended = positions.run(Trial("order", "learned", 0, 250))["scores"]
    assert right > 0.95
    assert ended is None


def test_order_can_not_be_learned_without_positions(monkeypatch):
    monkeypatch.setitem(positions.LENGTHS, "order", (12,))
    (right,) = positions.run(Trial("order", "none", 0, 100))["scores"]
    assert 0.35 < right < 0.65


def test_mean_attention():
    A = mean_attention(positions.fit("span", "rope", 0, steps=1), samples=32)
    assert A.shape == (4, 24, 24)
    np.testing.assert_allclose(A.sum(-1), 1, rtol=1e-4)


def test_three_seeds_at_least_beside_every_ordering():
    trials = positions.trials()
    for task in positions.LENGTHS:
        of_task = [trial for trial in trials if trial.task == task]
        names = {trial.positions for trial in of_task}
        assert {len({t.seed for t in of_task if t.positions == name}) for name in names} == {positions.SEEDS[task]}
    assert min(positions.SEEDS.values()) == 3
