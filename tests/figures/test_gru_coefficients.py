"""What the caption of fig_gru_coefficients claims, on models that were trained for a few steps only."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.data.text import python_docs
from minitransformer.figures import gru_coefficients
from minitransformer.figures.gru_coefficients import ATTENTION_SIDE, MEMORIES, RNN_SIDE, ByteModel
from minitransformer.functional import cross_entropy
from minitransformer.kin import GRU
from minitransformer.training.objective import NextByte


@pytest.fixture(scope="module")
def data():
    return gru_coefficients.data(steps=40)


def test_weights_sum_to_one(data):
    np.testing.assert_allclose(data.coefficients.sum(1), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(data.attention.sum(-1), 1, rtol=0, atol=1e-5)


def test_nobody_looks_ahead(data):
    n = len(data.text)
    assert not data.coefficients[np.triu_indices(n, 2, n + 1)].any()
    assert not np.triu(data.attention, 1).any()


def test_a_gru_cannot_fetch_what_it_has_forgotten(data):
    """Down a column its weights never rise; those of every head of attention do somewhere."""
    C, A = data.coefficients, data.attention
    n = len(data.text)
    for i in range(1, n + 1):
        assert np.diff(C[i - 1 :, i], axis=0).max(initial=0) <= 0
    for head in A:
        assert max(np.diff(head[i:, i]).max(initial=0) for i in range(n)) > 0.005


def test_coordinates_differ_in_memory(data):
    """Each has weights of its own, and the ones that are drawn are in order."""
    drawn = [data.memory[np.abs(data.memory - target).argmin()] for target in MEMORIES]
    assert drawn == sorted(drawn)
    assert data.memory.max() > 10 * data.memory.min()


def test_both_learn(data):
    assert (data.bits < 5).all()  # of 8, after 40 steps


def test_both_are_causal():
    tokens = np.random.default_rng(0).integers(0, 256, (2, 9))
    other = tokens.copy()
    other[:, 5] += 1
    for model in (RNN_SIDE, ATTENTION_SIDE):
        params = model.init(np.random.default_rng(1))
        assert np.array_equal(model(params, tokens)[0][:, :5], model(params, other % 256)[0][:, :5])


def test_gradient():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 256, (2, 6))
    model = ByteModel((GRU(gru_coefficients.WIDTH, 64),))
    params = random_like(model.init(rng), rng)

    def loss(params):
        logits, model_pullback = model(params, tokens[:, :-1])
        value, pullback = cross_entropy(logits, tokens[:, 1:])
        return value, lambda dloss: model_pullback(pullback(dloss))

    check_pullback(loss, params, entries=4)


def test_training_repeats():
    objective = NextByte(python_docs(), 16)
    first, second = (gru_coefficients.train(RNN_SIDE, objective, steps=3, seed=5) for _ in range(2))
    assert np.array_equal(first.layers[0].U_c, second.layers[0].U_c)


def test_it_is_drawn(data):
    fig = gru_coefficients.draw(data)
    titles = [ax.get_title().split(",")[0] for ax in fig.axes]
    assert titles.count("GRU") == titles.count("attention") == 3
