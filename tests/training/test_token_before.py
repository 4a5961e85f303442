"""The task that is about order and nothing else."""

import math

import numpy as np
import pytest

from minitransformer.models.tagger import Tagger
from minitransformer.positions import NoPositions
from minitransformer.training.loop import train
from minitransformer.training.schedule import Cosine
from minitransformer.training.state import Training
from minitransformer.training.token_before import TokenBefore

TASK = TokenBefore(vocabulary=9, length=5)


def test_every_token_is_there_once_and_the_target_is_the_one_before():
    tokens, targets = TASK.batch(50, np.random.default_rng(0))
    assert tokens.shape == targets.shape == (50, 5)
    assert (tokens[:, 0] == 0).all()
    assert all(len(set(row)) == 5 for row in tokens.tolist())
    assert np.array_equal(targets[:, 1:], tokens[:, :-1])
    assert (targets[:, 0] == 0).all()
    assert tokens.max() == 8


def test_parts_make_the_batch():
    batch = TASK.batch(6, np.random.default_rng(0))
    parts = TASK.parts(batch, 3)
    assert [p[0].shape for p in parts] == [(2, 5)] * 3
    assert np.array_equal(np.concatenate([p[1] for p in parts]), batch[1])


def test_right_counts_the_tokens_after_the_start():
    class Oracle:
        def __call__(self, params, tokens):
            return np.eye(9)[np.concatenate([tokens[:, :1], tokens[:, :-1]], axis=1)], None

    class Itself:
        def __call__(self, params, tokens):
            return np.eye(9)[tokens], None

    assert TASK.right(Oracle(), None) == 1
    assert TASK.right(Itself(), None) == 0


def test_a_model_that_is_blind_to_order_can_only_guess():
    """Whatever its parameters are: of the length! orders of a set of tokens, each is as likely as any other, so at best
    a token names the start, which is right once, or another token of the set."""
    model = Tagger(9, width=8, depth=2, positions=NoPositions(8))
    rng = np.random.default_rng(1)
    for _ in range(3):
        params = model.init(rng)
        assert TASK.right(model, params, 2000) < 1 / 4 + 0.03
        assert TASK.look(model, params) * 5 > 0.9 * 4 * math.log2(4)


def test_sinusoids_solve_it():
    model = Tagger(9, width=16, heads=1)
    training = Training(200, 16, Cosine(2e-2, 200, 20), parts=1, look_every=200)
    state = train(model, TASK, training, progress=False)
    assert TASK.right(model, state.params) > 0.9


def test_a_length_beyond_the_vocabulary_is_refused():
    for length in (1, 10):
        with pytest.raises(ValueError, match=f"length: {length} is not within 2 … 9, the vocabulary"):
            TokenBefore(9, length)
