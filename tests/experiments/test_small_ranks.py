"""What chapter 07 says of small models: their matrices before and after training, and one k for several lengths."""

import numpy as np
import pytest

from minitransformer import experiments


def test_training_makes_all_layers_but_the_first_fuller():
    results = [result for _, result in experiments.load("small_ranks")]
    before, after = np.array([result["quarter"] for result in results]).swapaxes(0, 1)
    assert before.shape == after.shape == (3, 4)
    assert (after[:, 0] > before[:, 0]).all()
    assert (after[:, 1:] < before[:, 1:]).all()
    assert after.min() < 0.5
    used = np.array([result["used"][1] for result in results])
    assert (used[:, 1:] < 2.5).mean() > 0.5


@pytest.fixture(scope="module")
def found():
    """Bits of each missing byte by kind and length."""
    bits = {}
    for trial, result in experiments.load("smaller_matrices"):
        bits.setdefault((trial.attention.partition(" + ")[2], trial.n), []).append(result["bits"])
    return bits


def test_each_way_of_sharing_is_better_than_none_on_average(found):
    how = "linformer:k=32,sharing="
    for sharing in ("linformer:k=32", how + "key-value", how + "layerwise"):
        assert np.mean(found[sharing, 256]) < np.mean(found[how + "none", 256]), sharing


def test_one_k_is_not_enough_for_every_length(found):
    window, dense, mixed = (
        np.array([np.mean(found[kind, n]) for n in (64, 256, 1024)])
        for kind in ("window:radius=8", "softmax", "linformer:k=32")
    )
    behind = mixed - window
    assert 0.05 < behind.min() <= behind[:2].max() < 0.35
    assert behind[2] > 1.5 * behind[:2].max()
    lost = {name: bits[2] - bits[1] for name, bits in (("window", window), ("dense", dense), ("mixed", mixed))}
    assert lost["mixed"] > 0.1 + max(lost["window"], lost["dense"]), "it loses far more in long texts than the others"
    assert all(len(bits) == 3 for bits in found.values())
