"""Networks of neurons that are −1 or 1: an energy that falls, what is stored, and the memories that are one another."""

import itertools

import numpy as np
import pytest

from minitransformer.related import classical_energy, classical_recall, dense_energy, dense_recall, hebbian


def signs(rng, *shape):
    return rng.choice([-1.0, 1.0], shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_few_patterns_are_found_again(dtype):
    rng = np.random.default_rng(0)
    X = signs(rng, 3, 60).astype(dtype)
    s = X.copy()
    s[:, :6] *= -1
    found = classical_recall(hebbian(X), s)
    assert (found.states.dtype, found.energies.dtype) == (dtype, dtype)
    assert np.array_equal(found.states[-1], X)
    assert found.settled.all()
    assert np.array_equal(found.states[0], s)


@pytest.mark.parametrize("rng", [None, 3])
def test_one_after_another_the_energy_never_grows(rng):
    """With far more patterns than it can keep; and at the end no single neuron can lower it."""
    draw = np.random.default_rng(1)
    X, s = signs(draw, 30, 41), signs(draw, 2, 5, 41)
    W = hebbian(X)
    found = classical_recall(W, s, rng=None if rng is None else np.random.default_rng(rng))
    assert (np.diff(found.energies, axis=0) <= 1e-12).all()
    assert (found.energies[-1] < found.energies[0]).all()
    assert found.settled.all()
    end = found.states[-1]
    for a in range(41):
        turned = end.copy()
        turned[..., a] *= -1
        assert (classical_energy(W, turned) >= found.energies[-1] - 1e-12).all()


def test_all_at_once_two_states_can_follow_each_other_for_ever():
    """Two neurons that want to be alike, and are not."""
    W, s = hebbian(np.ones((1, 2))), np.array([1.0, -1])
    found = classical_recall(W, s, order="synchronous", sweeps=4)
    assert found.states.tolist() == [[1, -1], [-1, 1], [1, -1], [-1, 1], [1, -1]]
    assert not found.settled
    assert classical_recall(W, s).settled
    both = classical_recall(W, np.stack([s, np.ones(2)]), order="synchronous", sweeps=4)
    assert both.settled.tolist() == [False, True], "each state by itself"
    beside = np.zeros((3, 3))
    beside[:2, :2] = W
    found = classical_recall(beside, np.array([1.0, -1, 1]), order="synchronous", sweeps=4)
    assert not found.settled, "one neuron that stands still is not enough"
    assert classical_recall(np.zeros((2, 2)), s).states[-1].tolist() == [1, -1], "where nothing is stored all is a tie"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [32, 33])
@pytest.mark.parametrize("order", ["asynchronous", "synchronous"])
def test_with_squares_the_dense_memory_is_the_classical_one(order, d, dtype):
    """Divided by 33, weights are rounded, and a sum of them that should be zero is not: it has to be a tie still."""
    rng = np.random.default_rng(2)
    X, s = signs(rng, 11, d).astype(dtype), signs(rng, 40, d).astype(dtype)
    one = classical_recall(hebbian(X), s, order=order, sweeps=6)
    two = dense_recall(X, s, power=2, order=order, sweeps=6)
    assert np.array_equal(one.states, two.states)
    rounding = 1e-5 if dtype is np.float64 else 1e-4
    assert np.allclose(two.energies, 2 * d * one.energies - 11 * d, rtol=rounding)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tie_of_exponentials_is_a_tie_in_any_order_of_the_patterns(dtype):
    """Four patterns: with the other neurons two overlap by 3, two by −1, and the neuron is 1 in one of each two."""
    X = np.array([[1, 1, 1, 1], [1, -1, -1, 1], [-1, 1, 1, 1], [-1, -1, -1, 1]], dtype)
    for order in itertools.permutations(range(4)):
        for first in (1, -1):
            s = np.array([first, 1, 1, 1], dtype)
            found = dense_recall(X[list(order)], s, power=None, order="synchronous", sweeps=1)
            assert found.states[1, 0] == first


@pytest.mark.parametrize("power", [1, 2, 3, 4, 5, None])
def test_the_dense_energy_never_grows(power):
    rng = np.random.default_rng(3)
    X, s = signs(rng, 40, 17), signs(rng, 6, 17)
    found = dense_recall(X, s, power=power, rng=rng)
    assert (np.diff(found.energies, axis=0) <= 1e-9 * np.abs(found.energies[0])).all()
    assert found.settled.all()


def test_a_generator_draws_the_order():
    """Where more is stored than fits, it matters who comes first; and the same generator gives the same order."""
    X, s = signs(np.random.default_rng(7), 30, 41), signs(np.random.default_rng(8), 9, 41)
    for recall in (lambda rng: classical_recall(hebbian(X), s, rng=rng), lambda rng: dense_recall(X, s, rng=rng)):
        usual, one, same, other = (recall(seed and np.random.default_rng(seed)).states[-1] for seed in (None, 1, 1, 2))
        assert np.array_equal(one, same)
        assert not np.array_equal(one, usual)
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("power", [3, None])
def test_a_sweep_is_the_difference_of_energies_neuron_by_neuron(power):
    rng = np.random.default_rng(4)
    X, s = signs(rng, 12, 7), signs(rng, 7)

    def energy(s):
        return -sum((x @ s) ** power if power else np.exp(x @ s) for x in X)

    for order in ("asynchronous", "synchronous"):
        new = s.copy()
        for a in range(7):
            up, down = (new if order == "asynchronous" else s).copy(), (new if order == "asynchronous" else s).copy()
            up[a], down[a] = 1, -1
            new[a] = 1 if energy(up) < energy(down) else -1
        assert np.array_equal(dense_recall(X, s, power=power, order=order, sweeps=1).states[1], new)
    told = dense_energy(X, s, power=power)
    assert np.isclose(told, energy(s) if power else -np.log(-energy(s)))


@pytest.mark.parametrize(("power", "E"), [(3, "0.0"), (None, "inf")])
def test_without_patterns_there_is_an_energy_and_no_warning(power, E):
    """The sum of nothing, and −ln of it."""
    assert str(dense_energy(np.empty((0, 4)), np.ones(4), power=power)) == E


def test_a_dense_memory_keeps_what_the_classical_one_has_lost():
    """60 patterns of 60 neurons; and the exponential of a large overlap is no infinity, in float32 either."""
    rng = np.random.default_rng(5)
    X = signs(rng, 60, 60)
    assert (classical_recall(hebbian(X), X).states[-1] == X).mean() < 0.9
    for power in (4, None):
        assert np.array_equal(dense_recall(X, X, power=power).states[-1], X)
    usual, cubes = dense_recall(X, -X), dense_recall(X, -X, power=3)
    assert np.array_equal(usual.states, cubes.states)
    assert np.array_equal(usual.energies, cubes.energies)
    wide = signs(rng, 5, 300).astype(np.float32)
    found = dense_recall(wide, wide, power=None)
    assert np.array_equal(found.states[-1], wide)
    assert np.isfinite(found.energies).all()


def test_what_does_not_fit_is_refused():
    X = signs(np.random.default_rng(6), 3, 4)
    W = hebbian(X)
    for wrong, message in {
        "halves": (lambda: hebbian(X / 2), "X: its entries should be −1 or 1"),
        "state": (lambda: classical_recall(W, np.zeros(4)), "s: its entries should be −1 or 1"),
        "diagonal": (lambda: classical_recall(W + np.eye(4), X), "W: it should be symmetric, with zeros"),
        "one-sided": (lambda: classical_recall(np.triu(W), X), "W: it should be symmetric"),
        "patterns": (lambda: dense_recall(X / 2, X), "X: its entries should be −1 or 1"),
        "order": (lambda: classical_recall(W, X, order="none"), "order: no 'none'"),
    }.values():
        with pytest.raises(ValueError, match=message):
            wrong()
    for wrong in (X[:, :3], X.astype(int), X.astype(np.float32)):
        with pytest.raises(TypeError):
            classical_recall(W, wrong)
        with pytest.raises(TypeError):
            dense_recall(X, wrong)
        with pytest.raises(TypeError):
            dense_energy(X, wrong)
