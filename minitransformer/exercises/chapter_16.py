"""Exercises of chapter 16, on attention as memory retrieval."""

import tracemalloc
from typing import Any

import numpy as np

from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    unless,
    value,
    with_pullback,
    yes_or_no,
)
from minitransformer.functional import softmax
from minitransformer.machine import peak_memory
from minitransformer.related import classical_recall, dense_recall, hebbian


@exercise("16.1")
def a_pattern_and_its_negative(answer):
    """Where (−1, −1, −1) comes to rest, and the energy."""
    found = classical_recall(hebbian(np.array([[1.0, 1, -1]])), -np.ones(3))
    unless(
        answer,
        [1, 1, -1, -1],
        "That is what was stored, but on the way there two neurons would have to leave a tie.",
        1e-3,
    )
    unless(answer, [-1, -1, -1, 1 / 3], "Is that a rest? Look at the field of the third neuron.", 0.01)
    wanted = [*found.states[-1], found.energies[-1]]
    close(
        answer,
        wanted,
        "On a tie a neuron stays. E is minus half of s W s, and each pair of neurons is in it twice.",
        1e-3,
    )


@exercise("16.2")
def with_its_negative(answer):
    """For which F the energy is even."""
    rng = np.random.default_rng(2)
    X, s = rng.standard_normal((2, 7, 5))
    overlaps = X @ s[0]
    names = "z²", "z³", "z⁴", "e to the z", "the logarithm of (16.3)"
    functions: tuple[Any, ...] = (
        lambda z: z**2,
        lambda z: z**3,
        lambda z: z**4,
        np.exp,
        lambda z: np.log(np.exp(z).sum()),
    )
    for said, name, F in zip(yes_or_no(answer, 5), names, functions, strict=True):
        if said != np.isclose(np.sum(F(overlaps)), np.sum(F(-overlaps))):
            raise NotYet(f"Look again at {name}: what becomes of it if all overlaps change their sign?")


@exercise("16.3")
def where_the_mean_gives_way(answer):
    """1 / the largest eigenvalue of the covariance."""
    K = np.array([[2.0, 0], [-2, 0], [0, 1], [0, -1]])
    high = np.linalg.eigvalsh(K.T @ K / 4).max()
    unless(
        answer,
        high,  # which is one over the smaller one, too
        "Is it the larger eigenvalue, or one over the smaller? "
        "An update multiplies each direction by β times its eigenvalue: which one grows first?",
        0.01,
    )
    unless(
        answer, 1 / np.linalg.eigvalsh(K.T @ K).max(), "A covariance is a mean over the patterns, not their sum.", 0.01
    )
    unless(
        answer,
        1 / 4,
        "The longest pattern has a square of 4, but it has only a quarter of the weight, as has its negative.",
        0.01,
    )
    close(
        answer,
        1 / high,
        "Which matrix moves a small displacement from the mean, and when is it longer after an update?",
        0.01,
    )


@exercise("16.4")
def one_sweep(answer):
    """One neuron after another takes the lower side."""
    rng = np.random.default_rng(4)
    for m, d, p, tie in (
        (5, 12, 3, 0),
        (9, 11, 2, 0),
        (4, 10, 4, 0),
        (27, 7, 4, 0),
        (12, 16, 2, 0),
        (1, 3, 2, -1),
        (1, 3, 2, 1),
    ):
        X, s = rng.choice([-1.0, 1.0], (m, d)), rng.choice([-1.0, 1.0], d)
        if tie:  # in which a neuron stays at −1, or at 1
            X, s = np.array([[1.0, 1, -1]]), np.full(3, float(tie))
        wanted = dense_recall(X, s, power=p, sweeps=1).states[1]
        given = answer(X, s, p)
        together = dense_recall(X, s, power=p, sweeps=1, order="synchronous").states[1]
        told = f"With m = {m}, d = {d}, r = {p}: "
        if not np.array_equal(together, wanted):
            unless(given, together, told + "a neuron has to see those before it as they are now, not as they were.")
        for sweeps in (2, 50):
            more = dense_recall(X, s, power=p, sweeps=sweeps).states[-1]
            if not np.array_equal(more, wanted):
                unless(given, more, told + "this is more than one sweep. In one, every neuron has one turn.")
        close(
            given,
            wanted,
            told + "compare E with the neuron at 1 and at −1, the others as they are; a tie changes nothing.",
        )


@exercise("16.5")
def each_for_itself(answer):
    """A query stops when it is still, whoever else is there."""
    rng = np.random.default_rng(5)
    Q, K, V = 0.4 * rng.standard_normal((6, 4)), rng.standard_normal((5, 4)), rng.standard_normal((5, 3))

    def alone(xi, beta, tolerance):
        while True:
            p, _ = softmax(beta * K @ xi)
            if np.linalg.norm(p @ K - xi) < tolerance:
                return p @ V
            xi = p @ K

    def all_together(xi, beta, tolerance):
        while True:
            p, _ = softmax(beta * xi @ K.T)
            if (np.linalg.norm(p @ K - xi, axis=1) < tolerance).all():
                return p @ V
            xi = p @ K

    for how in ((0.9, 0.04), (0.7, 0.1)):  # β and the tolerance
        given = answer(Q, K, V, *how)
        unless(given, all_together(Q, *how), "As before, all go on until the last is still.")
        unless(given, softmax(how[0] * Q @ K.T)[0] @ V, "That is one step. Queries should go on until they are still.")
        close(
            given,
            np.array([alone(q, *how) for q in Q]),
            "Ask for each query by itself, and compare. A query that is still keeps its state and its weights.",
        )


@exercise("16.6")
def slow_at_the_turning_point(answer):
    """Updates of tanh until it is still."""

    def updates(beta):
        xi, count = 0.5, 0
        while True:
            before, xi, count = xi, np.tanh(beta * xi), count + 1
            if abs(xi - before) < 1e-6:
                return count

    wanted = [updates(1.05), updates(2.0)]
    given = array_of(answer, (2,), "Two counts.")
    if np.array_equal(given, np.array(wanted) - 1):
        raise NotYet("The last update, which hardly moves, counts too.")
    for mine, right, beta in zip(given, wanted, (1.05, 2), strict=True):
        close(mine, right, f"Not for β = {beta}. Keep the state before the update, and compare.", 1e-4)


@exercise("16.7")
def slope_of_an_energy(answer):
    """−½ ln Σ e^{2⟨k, ξ⟩} + ½ |ξ|², and its gradient."""
    rng = np.random.default_rng(7)
    xi, K = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    total, half = np.exp(2 * xi @ K.T).sum(1), (xi * xi).sum(1) / 2
    given = value(answer, xi, K)
    unless(given, -np.log(total) + half, "The logarithm is divided by β.")
    unless(given, np.log(total) / 2 + half, "The sign: a query that is like a key lies low.")
    unless(given, -np.log(np.exp(xi @ K.T).sum(1)) / 2 + half, "β is in the exponent, too.")
    unless(given, -np.log(np.exp(xi @ K.T).sum(1)) + half, "That is the energy with β = 1.")
    unless(given, -np.log(total) / 2, "Half of the square of ξ is missing.")
    unless(given, -np.log(total) / 2 + 2 * half, "Half of the square of ξ is added, not all of it.")
    close(given, -np.log(total) / 2 + half, "One number for each query: the logarithm is of the sum over the keys.")
    derivative(answer, xi, K, hint="β in the exponent and 1/β in front cancel; a key hears from all queries.")


@exercise("16.8")
def gradient_of_a_rest(answer):
    """The fixed point from (1, …, 1), and its implicit gradient."""
    K = np.random.default_rng(8).standard_normal((5, 3))
    xi = np.ones(3)
    once = softmax(K @ xi)[0] @ K
    for _ in range(300):
        xi = softmax(K @ xi)[0] @ K
    given = value(answer, K)
    unless(given, once, "That is one update. Go on until nothing moves.")
    close(given, xi, "An update with β = 1 is the mean of the keys, weighted by the softmax of their products with ξ.")
    derivative(
        answer,
        K,
        hint="u solves (I − J) u = g, and goes through one update: the keys are its values, and its keys too.",
    )
    p, g = softmax(K @ xi)[0], np.array([1.0, -2, 3])
    u = np.linalg.solve(np.eye(3) - K.T @ (p[:, None] * K) + np.outer(xi, xi), g)
    exact = np.outer(p, u) + np.outer(p * (K @ u - p @ (K @ u)), xi)
    near = "It is as near as a quotient of differences comes. (16.7) has no step that is small, and no error of one."
    close(with_pullback(answer, K)[1](g), exact, near, 1e-11)
    K = np.random.default_rng(8).standard_normal((20, 10))
    with peak_memory() as peak:
        _, pullback = with_pullback(answer, K)
        tracemalloc.reset_peak()
        if peak() > 300 * K[0].nbytes:
            raise NotYet("It is right, but something of each update is kept. In (16.7) the last one is enough.")
        pullback(np.ones(10))
        if peak() > 300 * K[0].nbytes:
            raise NotYet("It is right, but the pullback goes through all updates once more. In (16.7) one is enough.")
