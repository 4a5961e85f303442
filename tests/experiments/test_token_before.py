"""The task that is about order and nothing else, and what the record of its trainings says."""

import math
from dataclasses import replace

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.experiments import token_before
from minitransformer.experiments.token_before import TokenBefore
from minitransformer.models import SequenceModel
from minitransformer.positions import LearnableSinusoids, NoPositions, shift_matrix, sinusoids
from minitransformer.training.choices import Training
from minitransformer.training.loop import train
from minitransformer.training.objective import in_parts
from minitransformer.training.schedule import Cosine

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
    parts = in_parts(batch, 3)
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
    model = SequenceModel(9, width=8, depth=2, heads=2, positions=NoPositions(8))
    rng = np.random.default_rng(1)
    for _ in range(3):
        params = model.init(rng)
        assert TASK.right(model, params, 2000) < 1 / 4 + 0.03
        assert TASK.look(model, params) * 5 > 0.9 * 4 * math.log2(4)


def test_sinusoids_solve_it():
    model = SequenceModel(9, width=16, depth=1, heads=1)
    training = Training(200, 16, Cosine(2e-2, 200, 20), parts=1, look_every=200)
    state = train(model, TASK, training, progress=False)
    assert TASK.right(model, state.params) > 0.9


def test_a_length_beyond_the_vocabulary_is_refused():
    for length in (1, 10):
        with pytest.raises(ValueError, match=f"length: {length} is not within 2 … 9, the vocabulary"):
            TokenBefore(9, length)


@pytest.fixture(scope="module", params=["as it is kept", pytest.param("made anew", marks=pytest.mark.full)])
def record(request):
    """The results by kind; or those of other seeds, as another machine would have them. What is said holds for both."""
    found = {}
    for trial, result in experiments.load("token_before"):
        if request.param == "made anew":
            result = token_before.run(replace(trial, seed=trial.seed + 100))
        found.setdefault(trial.positions, []).append(result)
    return found


def test_without_positions_it_is_one_in_fifteen(record):
    assert all(abs(result["right"] - 1 / 15) < 0.01 for result in record["none"])


def test_with_sinusoids_all_or_next_to_nothing(record):
    """Most solve the task, and the others are far from it; none of them carries over to the second half of 32 tokens."""
    for name in ("sinusoidal", "learnable sinusoids"):
        solved = [result for result in record[name] if result["right"] > 0.99]
        assert len(record[name]) / 2 < len(solved)
        assert all(result["32, first half"] > 0.8 > 0.6 > result["32, second half"] for result in solved)
        assert all(result["right"] < 0.9 for result in record[name] if result not in solved)


@pytest.fixture(scope="module")
def forms(record):
    """W_q W_kᵀ of those that solved it."""
    return [np.array(result["form"]) for result in record["sinusoidal"] if result["right"] > 0.99]


def test_they_look_one_token_back(record, forms):
    for result in record["sinusoidal"]:
        if result["right"] > 0.99:
            assert np.diagonal(np.array(result["attention"]), -1).mean() > 0.75
    table = sinusoids(16, 32)
    for B in forms:
        peaks = (table @ B @ table.T).argmax(1) - np.arange(16)
        assert (peaks[1:] == -1).mean() > 0.5
        assert set(peaks[1:]) <= {-2, -1, 0}


def test_the_fastest_pair_has_learned_the_rotation_and_the_whole_form_has_not(forms):
    def cosine(A, B):
        return (A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B)

    wanted = shift_matrix(32, -1).T
    for B in forms:
        near = [cosine(B[c : c + 2, c : c + 2], wanted[c : c + 2, c : c + 2]) for c in (0, 2, 4, 6)]
        assert near[0] > 0.95
        assert min(near) > 0.6
        assert cosine(B, wanted) < 0.4
        assert np.linalg.norm(B[30:, 30:]) < np.linalg.norm(B[:2, :2]) / 20


def test_learned_hands_are_faster(record):
    start = np.exp(LearnableSinusoids(32).init(np.random.default_rng(0)).log_omega)
    for result in record["learnable sinusoids"]:
        if result["right"] > 0.99:
            assert np.mean(np.array(result["omega"])[:6] / start[:6]) > 1.1
