"""What chapter 01 says about the record of the trained GRU, and the small models that it trains."""

from dataclasses import replace

import numpy as np
import pytest

from minitransformer import check_pullback, experiments, random_like
from minitransformer.data.text import python_docs
from minitransformer.experiments import gru_maps
from minitransformer.experiments.gru_maps import MODELS, ByteModel, Trial
from minitransformer.functional import cross_entropy
from minitransformer.related import GRU, gru_coefficients
from minitransformer.training.objective import NextByte


@pytest.fixture(scope="module")
def record():
    return list(experiments.load("gru_maps"))


def test_three_seeds_of_each(record):
    assert [trial for trial, _ in record] == [Trial(model, seed) for model in MODELS for seed in range(3)]


def test_all_know_more_than_pairs_of_bytes_and_less_than_triples(record):
    for _, result in record:
        _, pairs, triples = result["counted"]
        assert triples < result["bits"] < pairs


def test_the_attention_model_is_the_larger_one(record):
    sizes = {model: {result["parameters"] for trial, result in record if trial.model == model} for model in MODELS}
    assert max(sizes["GRU"]) < min(sizes["attention"])


def test_most_coordinates_forget_within_a_byte_and_a_few_hold_what_is_older_than_a_training_text(record):
    for ages in [np.array(result["ages"]) for trial, result in record if trial.model == "GRU"]:
        assert (ages < 1).mean() > 0.75
        assert 1 <= (ages > gru_maps.CONTEXT).sum() <= (ages > 10).sum() < 0.2 * len(ages)


@pytest.mark.parametrize("model", MODELS)
def test_a_short_run(model):
    result = gru_maps.run(replace(Trial(model, 5), **gru_maps.IN_A_TEST))
    assert result["bits"] < 8
    assert np.all(np.abs(np.array(result["C" if model == "GRU" else "A"]).sum(-1) - 1) < 1e-3)


def test_the_mean_age_is_that_of_the_coefficients():
    n = 9
    u = np.random.default_rng(0).random((n, 3))
    C = gru_coefficients(u)[0][1:]
    age = np.maximum(np.arange(1, n + 1)[:, None] - np.arange(n + 1), 0)
    np.testing.assert_allclose(gru_maps.mean_ages(u), np.einsum("ij,ijc->ic", age, C), rtol=1e-12)


def test_both_are_causal():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9))
    other = tokens.copy()
    other[:, 5] += 1
    for model in MODELS.values():
        params = model.init(np.random.default_rng(1))
        assert np.array_equal(model(params, tokens)[0][:, :5], model(params, other % 256)[0][:, :5])


def test_gradient():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (2, 6))
    model = ByteModel((GRU(gru_maps.WIDTH, 64),))
    params = random_like(model.init(rng), rng)

    def loss(params):
        logits, model_pullback = model(params, tokens[:, :-1])
        value, pullback = cross_entropy(logits, tokens[:, 1:])
        return value, lambda dloss: model_pullback(pullback(dloss))

    check_pullback(loss, params, entries=4)


def test_training_repeats():
    objective = NextByte(python_docs(), 16)
    first, second = (gru_maps.train(MODELS["GRU"], objective, steps=3, seed=5) for _ in range(2))
    assert np.array_equal(first.layers[0].U_c, second.layers[0].U_c)
