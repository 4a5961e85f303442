"""The two questions about the same pairs, and what the record of capsules says."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.data.digits import digits
from minitransformer.experiments import capsules
from minitransformer.experiments.synthesizers import KEYS, PAIRS, VALUES, Questions, fit


def test_by_content_the_answer_is_the_value_of_the_key():
    tokens, values = Questions("content").batch(20, np.random.default_rng(0))
    assert tokens.shape == (20, 2 * PAIRS)
    for sample, answers in zip(tokens.tolist(), values.tolist(), strict=True):
        pairs = dict(divmod(token, VALUES) for token in sample[:PAIRS])
        asked = [token - KEYS * VALUES for token in sample[PAIRS:]]
        assert len(pairs) == PAIRS
        assert sorted(asked) == sorted(pairs)
        assert [pairs[key] for key in asked] == answers


def test_by_place_the_key_does_not_matter():
    task = Questions("place")
    tokens, values = task.batch(20, np.random.default_rng(0))
    assert np.array_equal(tokens, Questions("content").batch(20, np.random.default_rng(0))[0])
    assert sorted(task.places) == list(range(PAIRS))
    assert np.array_equal(values, (tokens[:, :PAIRS] % VALUES)[:, task.places])


def test_a_bag_stays_a_bag():
    """Its logits are zero before and after: what it is not allowed to learn it has not learned."""
    _, params = fit("bag of tokens", Questions("content"), 0, 2)
    assert not params.stack.blocks[0].attention.core.logits.R.any()


def test_what_the_record_says():
    """By place every source that learns is right; by content those that compare, of the others none by much more than half.

    ... in each run: the mixture is the best, and the dense synthesizer the best of those that compare no tokens.
    """
    right = {}
    for trial, result in experiments.load("synthesizers"):
        question = trial.question if trial.steps == 300 else "content, 900 steps"
        right.setdefault((question, trial.kind), []).append(result["right"])
    learned = ("dot product", "dense", "random", "dense + dot product")
    assert all(min(right["place", kind]) > 0.98 for kind in learned)
    assert max(right["place", "bag of tokens"] + right["place", "random, not learned"]) < 0.4
    assert min(right["content", "dot product"] + right["content", "dense + dot product"]) > 0.9
    assert max(right["content", "dense"]) < 0.65
    content = {kind: np.mean(shares) for (question, kind), shares in right.items() if question == "content"}
    assert min(right["content", "dense + dot product"]) > max(right["content", "dot product"])
    assert min(right["content", "dense"]) > max(right["content", "bag of tokens"])
    assert content["bag of tokens"] > content["random"]
    assert content["bag of tokens"] > content["random, not learned"]
    for kind in ("dense", "bag of tokens"):  # what 300 steps gave is no bound
        assert max(right["content", kind]) + 0.1 < min(right["content, 900 steps", kind]) < 0.9
    assert min(right["content, 900 steps", "dot product"]) > 0.97


@pytest.fixture(scope="module")
def record():
    found = {}
    for trial, result in experiments.load("capsules"):
        found.setdefault(trial.model, []).append(result)
    return found


def test_controls_have_as_many_numbers(record):
    learned = {model: {result["learned"] for result in results} for model, results in record.items()}
    (many,) = learned["3 rounds"]
    assert learned["1 round"] == learned["5 rounds"] == {many}
    (plain,) = learned["network"]
    assert abs(plain / many - 1) < 0.01


def test_the_first_round_is_equal_and_each_sharpens(record):
    for model, rounds in capsules.CAPSULES.items():
        for result in record[model]:
            sharing = result["sharing"]
            assert len(sharing) == rounds
            assert sharing[0] == 10
            assert sharing == sorted(sharing, reverse=True)


def test_capsules_learn_digits_and_agreement_is_ahead_early_only():
    """After 15 passes more rounds are ahead on average; after 30, at a larger rate, one round has caught up."""
    right = {15: {}, 30: {}}
    for trial, result in experiments.load("capsules"):
        right[trial.epochs].setdefault(trial.model, []).append(result["right"])
    early, late = right.values()
    assert min(min(parts) for parts in early.values()) > 0.85
    one, three, five, *plain = (
        np.mean(early[model]) for model in ("1 round", "3 rounds", "5 rounds", "network", "linear")
    )
    assert max(one, *plain) < five - 0.005
    assert one - 0.005 < three < five + 0.005, "between them, to within two digits of 360"
    assert min(early["5 rounds"]) > max(early["network"])
    assert min(late["1 round"]) > max(late["network"])
    means = {model: np.mean(parts) for model, parts in late.items()}
    assert abs(means["1 round"] - max(means["3 rounds"], means["5 rounds"])) < 0.01


def test_a_plain_network_has_the_gradient_of_its_loss():
    """By differences, in float32, of a few numbers."""
    from minitransformer.functional import cross_entropy

    learn, _ = digits()
    part = type(learn)(learn.images[:20].astype(np.float64), learn.labels[:20])
    params = [
        tuple(a.astype(np.float64) for a in layer) for layer in capsules.plain("network", np.random.default_rng(0))
    ]
    grads = capsules.gradient("network", params, part)

    def loss(layers):
        return cross_entropy(capsules.forward(layers, part.images)[0], part.labels)[0]

    for layer, which, place in ((0, 0, (20, 3)), (0, 1, (5,)), (1, 0, (7, 2)), (1, 1, (4,))):
        sides = []
        for step in (1e-6, -1e-6):
            changed = [list(pair) for pair in params]
            changed[layer][which] = changed[layer][which].copy()
            changed[layer][which][place] += step
            sides.append(loss(changed))
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(grads[layer][which][place], rel=1e-4, abs=1e-8)
