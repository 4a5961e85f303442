"""What the captions of the figures on memory retrieval claim, and what the chapter reads off its records."""

import numpy as np
import pytest

from minitransformer import experiments
from minitransformer.attention import dot_product_attention
from minitransformer.figures import hopfield_capacity, hopfield_heads, hopfield_retrieval, hopfield_temperature
from minitransformer.functional import softmax


@pytest.fixture(scope="module")
def retrieval():
    return hopfield_retrieval.data()


@pytest.fixture(scope="module")
def warm():
    return hopfield_temperature.data()


def test_the_first_update_is_cross_attention_and_the_energy_falls(retrieval):
    once, _ = dot_product_attention(retrieval.states[0], retrieval.K, retrieval.K, scale=hopfield_retrieval.BETA)
    assert np.allclose(retrieval.states[1], once)
    assert (np.diff(retrieval.energies, axis=0) <= 1e-12).all()
    fell = retrieval.energies[0] - retrieval.energies
    assert (fell[1] > 0.99 * fell[-1]).all()


def test_noise_is_as_long_as_a_digit_and_most_come_back(retrieval):
    assert np.allclose(np.linalg.norm(retrieval.K, axis=-1), 1)
    assert np.linalg.norm(retrieval.states[0] - retrieval.K, axis=-1).mean() == pytest.approx(1, abs=0.05)
    numbers = np.arange(30)
    assert (retrieval.first.argmax(1) == numbers).all(), "after one step all"
    assert (retrieval.last.argmax(1) == numbers).sum() == 27, "at the end three have run elsewhere"
    for weights in (retrieval.first, retrieval.last):
        assert (weights.argmax(1) % 10 == numbers % 10).all(), "but to the same digit; they are 0 … 9 thrice"
    shown = hopfield_retrieval.SHOWN
    far = [np.linalg.norm(state[shown] - retrieval.K[shown]) for state in retrieval.states[[0, 1, 3, -1]]]
    assert (np.diff(far) < 0).all(), "the digit shown comes nearer"
    assert far[-1] < 0.05
    hopfield_retrieval.draw(retrieval)


def test_queries_part_before_the_turning_point_and_none_is_at_the_mean_beyond(warm):
    cold, one = warm.betas > hopfield_temperature.turning_point(), warm.betas < 5
    K = hopfield_retrieval.stored()
    largest = np.linalg.svd(K - K.mean(0), compute_uv=False)[0] ** 2 / len(K)
    assert hopfield_temperature.turning_point() == pytest.approx(1 / largest)
    assert (warm.ends[one] == 1).all()
    assert (warm.last_use[one] > 29).all()
    (between,) = np.flatnonzero(~one & ~cold)
    assert warm.ends[between] == 5
    assert (warm.last_use[between] > 29).sum() == 15, "the mean is still a minimum, and no longer the only one"
    assert (warm.last_use[cold] < 15).all()
    assert (warm.ends[cold] > 1).all()
    assert (warm.ends[warm.betas > 19] == 30).all()
    assert (np.diff(warm.ends) >= 0).all()
    assert (warm.last_use[warm.betas > 60] < 1.01).all()


def test_between_them_one_step_knows_more_than_the_end(warm):
    K = hopfield_retrieval.stored()
    once, _ = softmax(warm.betas[5] * hopfield_retrieval.noisy(K) @ K.T)
    np.testing.assert_allclose(warm.first_right[5], once.diagonal(), rtol=1e-9)
    first, last = warm.first_right.mean(1), warm.last_right.mean(1)
    assert (first > last)[warm.betas < 17].all()
    assert (last > first)[(warm.betas > 19) & (warm.betas < 100)].all()
    assert (warm.last_right[warm.betas >= 64] > 0.99).all()
    assert warm.last_right[warm.betas == 32].min() < 0.99
    k = hopfield_temperature.BETAS.index(hopfield_temperature.PICTURES[2])
    assert 1.5 < warm.last_use[k].mean() < 5, "means of a few"
    shown, patterns = hopfield_temperature.SHOWN, hopfield_retrieval.stored()
    assert shown % 10 == 2
    for beta, digit in zip(hopfield_temperature.PICTURES[1:3], (9, 2), strict=True):
        end = warm.states[hopfield_temperature.BETAS.index(beta), shown]
        p, _ = softmax(beta * patterns @ end)
        assert np.bincount(np.arange(30) % 10, p)[digit] > 0.6, "the second picture is of nines, the third of twos"
    hopfield_temperature.draw(warm)


def test_capacities():
    """The classical one near 0.138 d; a power of d for the cube, near the second; more than any of these powers for exp."""
    found = hopfield_capacity.data()
    middle = {kind: np.median(counts, 1) for kind, counts in found.capacities.items()}
    large = found.neurons["classical"] >= 256
    ratio = found.capacities["classical"][large] / found.neurons["classical"][large, None]
    assert (np.abs(ratio / hopfield_capacity.THEORY - 1) < 0.2).all()
    slopes = {
        kind: np.diff(np.log(counts)) / np.diff(np.log(found.neurons[kind].astype(float)))
        for kind, counts in middle.items()
    }
    assert 0.8 < slopes["classical"][-2:].mean() < 1.2
    assert 1.8 < slopes["power 3"][-2:].mean() < 2.6
    assert (slopes["exponential"][-2:] > 8).all()
    assert (found.capacities["exponential"][-1].min() > 5 * middle["power 3"][2]).all(), "20 neurons beside 32"
    assert all(result.get("reached", True) for _, result in experiments.load("hopfield_capacity"))
    for kind in ("exponential", "continuous"):
        assert (found.overlaps[kind] == 1).all()
    beyond = found.loads > 0.3
    assert (found.overlaps["classical"][:, beyond] < 0.7).all()
    assert (found.overlaps["power 3"][:, found.loads < 4] > 0.98).all()
    for ax in hopfield_capacity.draw(found).axes:
        named = [text.get_color() for text in ax.texts]
        assert {"#20639b", "#c8553d", "#3b8554"} <= {*named}, "each line has its name, in its colour"


def test_heads_of_bert_are_far_from_their_fixed_points():
    found = hopfield_heads.data()
    trained, random = found.trained["distance"], found.random["distance"]
    for draw in random:
        assert (np.sort(trained.ravel())[1:-2] > np.sort(draw.ravel())[1:-2]).all(), "rank by rank, but at the ends"
    assert (trained > 0.5).sum() > 50
    assert (3 * (random > 0.5).sum((1, 2)) < (trained > 0.5).sum()).all(), "few of any draw, most of the trained"
    assert divmod(int(found.order[0]), 12) == (0, 2), "the token before"
    assert trained[0, 2] < 0.001
    assert np.sort(trained.ravel())[1] > 0.19
    assert (found.trained["last"] < found.trained["first"]).sum() > 60
    assert np.median(found.trained["spread"]) > 0.2
    assert found.random["spread"].max() < 0.2, "no random head's tokens part as far as those of the median trained one"
    assert found.trained["spread"][0, 2] > 0.98
    for kind in (found.trained, found.random):
        assert kind["settled"].min() == 1
    hopfield_heads.draw(found)


def test_the_implicit_way_back_remembers_less_and_is_faster_after_many_steps():
    held, ratios = {}, {}
    for trial, result in experiments.load("hopfield_gradients"):
        assert result["settled"]
        held.setdefault(trial.beta, []).append(result["bytes"])
        ratios.setdefault(trial.beta, []).append(result["ratio"])
        assert result["steps"] < 12 or trial.beta >= 1
    assert min(ratios[2.0]) > 8
    assert min(ratios[2.0]) > 2 * max(ratios[1.0])
    assert min(ratios[1.0]) > 1.5
    for all_held in held.values():
        assert all(h["implicit"] < h["unrolled"] for h in all_held)
    assert all(h["unrolled"] > 8 * h["implicit"] for h in held[2.0])
