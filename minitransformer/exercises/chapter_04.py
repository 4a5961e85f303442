"""Exercises of chapter 04, on absolute positions."""

import math

import numpy as np

from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    several,
    unless,
    value,
    with_pullback,
    without_nan,
)
from minitransformer.functional import softmax
from minitransformer.measurements.position_probes import position_error
from minitransformer.positions import sinusoids


@exercise("4.1")
def a_third_of_a_turn(answer):
    """M_2 for one pair with ω = π/3, (2, 2)."""
    given, angle = array_of(answer, (2, 2)), 2 * np.pi / 3
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    unless(given, turn.T, "This turns the other way. Row i is (sin ωi, cos ωi), in this order: see (4).", 0.01)
    if np.allclose(given @ given, turn, atol=0.02):
        raise NotYet("That is M_1. M_2 turns by two ticks.")
    close(given, turn, "Take row 0, which is (0, 1), to row 2. By what angle do two ticks turn the hand?", 0.01)


@exercise("4.2")
def when_a_row_comes_back(answer):
    """After how many positions row 0 comes back: for ω = π/3, and for π/3 and π/4."""
    first, second = 6, 8  # ticks in a turn
    given = array_of(answer, (2,), "Two whole numbers are wanted.")
    if given[0] == first // 2:
        raise NotYet("After half a turn the hand points the other way: (0, −1).")
    if given[0] != first:
        raise NotYet("The first number: π/3 is a part of a whole turn, 2π. What part?")
    if given[1] in (first, second):
        raise NotYet("The second number: one of the two hands is back then. And the other?")
    if given[1] == first * second:
        raise NotYet("The second number: both are back then, but not for the first time.")
    close(given, [first, math.lcm(first, second)], "The second number: both hands have to be back at once.")


@exercise("4.3")
def hands_that_never_turn(answer):
    """How many of 32 pairs complete no turn in positions 0 to 511."""
    given = array_of(answer, ())
    omega = 10000.0 ** (-2 * np.arange(32) / 64)
    right = (511 * omega < 2 * np.pi).sum()
    for wrong, hint in (
        (2 * right, "That is the number of channels. Each pair has two."),
        ((511 * omega < 1).sum(), "A turn is an angle of 2π, and not of 1."),
        ((511 * omega < np.pi).sum(), "A turn is an angle of 2π, and not of π."),
        (
            (511 * 10000.0 ** (-np.arange(32) / 64) < 2 * np.pi).sum(),
            "The exponent is −2f/D: the last pair has nearly −1.",
        ),
    ):
        if given == wrong != right:
            raise NotYet(hint)
    if given != right:
        raise NotYet("Which angle has hand f gone through at position 511? Compare it with 2π, and count.")


@exercise("4.4")
def words_and_their_places(answer):
    """Length of a row of Π over that of a word, at D = 512: without √D, and with it."""
    length = np.linalg.norm(sinusoids(5, 512)[3])
    first, second = array_of(answer, (2,))
    expect(
        first,
        length,
        "Sum the squares of a row: of Π, pair by pair; of E, D entries of variance 1/D.",
        (
            length * np.sqrt(2),
            "A row of Π has D entries, and half as large a sum of squares: sin² + cos² is 1 for each pair.",
        ),
        (length**2, "That is the square of a length."),
        tolerance=0.01,
    )
    close(
        second,
        length / np.sqrt(512),
        "The first is right. √D times a word is longer by √D, so the quotient is smaller by the same factor.",
        0.02,
    )


@exercise("4.5")
def rows_of_a_matrix(answer):
    """A function of W_q (D, d): the matrix for a table whose columns are sorted by halves."""
    for D in (8, 6):
        W = np.random.default_rng(45).standard_normal((D, 3))
        given = array_of(answer(W), (D, 3), "Nothing is added or lost, rows only move.")
        table = sinusoids(D, D)
        halves = np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)
        back = W.reshape(2, D // 2, 3).swapaxes(0, 1).reshape(D, 3)
        unless(given, back, "This is the way from halves to turns. Which row of W_q has met column 2, the second sine?")
        close(halves @ given, table @ W, "A row of W_q belongs to a channel of the table. Where is each channel now?")


@exercise("4.6")
def a_head_that_looks_back(answer):
    """A function of D and o: W_q, W_k (D, D) of a head that looks o positions back."""
    for D, o in ((16, 1), (16, 5), (12, 3)):
        W_q, W_k = (without_nan(array_of(W, (D, D))) for W in several(answer(D, o), "W_q", "W_k"))
        Pi, i = sinusoids(48, D), np.arange(o, 48)
        with np.errstate(over="ignore", invalid="ignore"):
            S = Pi @ W_q @ (Pi @ W_k).T / np.sqrt(D)
        if not np.isfinite(S).all():
            raise NotYet("The scores are too large for float64.")
        A, _ = softmax(S)
        weights, peaks = A[i, i - o], A[i].argmax(1) - i
        if (peaks[: 47 - 2 * o] == o).all():
            raise NotYet(
                f"For o = {o} the head looks ahead. M moves columns: π_i as a row is multiplied from the right."
            )
        if (peaks == 0).all():
            raise NotYet("The head looks at itself. Which matrix takes π_i to π_{i−o}?")
        if (peaks == -o).all() and weights.min() < 0.9:
            raise NotYet(
                f"The peak is in place, with a weight of {weights.min():.2f} only. What makes a softmax sharper?"
            )
        if weights.min() < 0.9:
            raise NotYet(
                f"For D = {D} and o = {o} the weight on i − o is {weights.min():.2f} in one row. Moving is turning."
            )


@exercise("4.7")
def positions_that_come_twice(answer):
    """A function of table, X and positions: X + table[positions], and a pullback with dtable and dX."""
    rng = np.random.default_rng(47)
    positions = np.array([0, 1, 2, 3, 0, 1, 0])
    table, X = rng.standard_normal((6, 3)), rng.standard_normal((7, 3))
    Y, pullback = with_pullback(answer, table, X, positions)
    close(Y, X + table[positions], "Y is X + table[positions], as it was.")
    dY, last = rng.standard_normal((7, 3)), np.zeros((6, 3))
    last[positions] = dY
    gradients = pullback(dY)
    if isinstance(gradients, (tuple, list)) and len(gradients) == 2:
        hint = "Row 0 gets what its last place sends, though it was used at three. x[k] += y writes once for each k."
        unless(gradients[0], last, hint)
    hint = "Each row of dY goes to the row of the table that was added there, on top of what is there already."
    derivative(lambda table, X: answer(table, X, positions), table, X, hint=hint)


@exercise("4.8")
def a_base_that_is_learned(answer):
    """A function of X (batch, n, D) and b (1,): X + Π, and a pullback with dX and db."""
    rng = np.random.default_rng(48)
    X, b = rng.standard_normal((2, 5, 6)), np.array([7.0])
    Y = value(answer, X, b)
    close(
        Y,
        X + sinusoids(5, 6, base=7.0),
        "Y is not X + Π: sines in columns 0, 2, 4, cosines in 1, 3, 5, and i from 0 on.",
    )
    derivative(
        answer,
        X,
        b,
        hint="Y is right, but its gradient is not. Chain three steps: from Π to ω, from ω to b, and over the batch.",
    )


@exercise("4.9")
def the_worst_width(answer):
    """The width of random tables of 100 rows for which the probe errs most."""
    widths = (20, 50, 80, 120, 200, 400)
    given = array_of(answer, ())
    if given not in widths:
        raise NotYet("One of the six widths of the task is wanted.")
    rng = np.random.default_rng(49)
    errors = [np.mean([position_error(rng.standard_normal((100, D)), rng) for _ in range(4)]) for D in widths]
    if given != widths[int(np.argmax(errors))]:
        raise NotYet("Another width does worse. How many rows are there to fit, and how many weights?")
