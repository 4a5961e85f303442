"""What the experiments of chapter 16 measure, where it is known beforehand."""

import numpy as np
import pytest

from minitransformer.attention import dot_product_attention
from minitransformer.experiments import hopfield_capacity, hopfield_heads


def measures(Q, K):
    _, attention = dot_product_attention(Q, K, K)
    found = hopfield_heads.measured(Q, K, attention.A)
    return dict(zip(("distance", "first", "last", "spread", "steps", "settled"), found, strict=True))


def test_long_keys_that_have_nothing_in_common_are_found_in_one_step():
    """Every query stays at its own key: no weight moves, and all of it differs between two queries."""
    found = measures(*np.broadcast_to(60 * np.eye(5), (2, 3, 5, 5)))  # three heads
    for name, value in {"distance": 0, "first": 1, "last": 1, "spread": 1, "settled": 1}.items():
        np.testing.assert_allclose(found[name], value, atol=1e-12, err_msg=name)
    assert found["steps"].shape == (3,)
    assert (found["steps"] <= 3).all()


def test_short_keys_are_left_for_their_mean():
    """A long query takes one key at first, and its end has all five alike: four fifths of the weight have moved."""
    K = np.broadcast_to(0.1 * np.eye(5), (2, 5, 5))
    found = measures(1e5 * K, K)
    for name, value in {"distance": 4 / 5, "first": 1, "last": 5, "spread": 0, "settled": 1}.items():
        np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(("look", "turned"), [("curve", 8), ("capacity", 1)])
def test_so_many_neurons_are_turned(look, turned, monkeypatch):
    """A memory that leaves them as they are has an overlap of 1 − 2 · turned/d."""
    monkeypatch.setattr(hopfield_capacity, "recalled", lambda kind, X, s: s)
    trial = hopfield_capacity.Trial(look, "classical", 64, 0)
    assert hopfield_capacity.overlap(trial, 40) == pytest.approx(1 - 2 * turned / 64)


def test_the_capacity_is_the_last_load_before_patterns_are_lost(monkeypatch):
    """Loads rise by a fifth, from d/16 on: of 64 neurons 4, 5, 6, 7, 8, 10, 12, 14, …"""
    monkeypatch.setattr(hopfield_capacity, "overlap", lambda trial, m: 1.0 if m <= 11 else 0.9)
    found = hopfield_capacity.run(hopfield_capacity.Trial("capacity", "classical", 64, 0))
    assert found == {"capacity": 10, "reached": True}
