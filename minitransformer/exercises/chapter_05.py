"""Exercises of chapter 05, on relative positions."""

import numpy as np

from minitransformer import positions as pos
from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    likely,
    value,
    without_nan,
    yes_or_no,
)
from minitransformer.measurements.position_scores import scores_of, with_some_parameters
from minitransformer.positions.relative_sinusoids import relative_shift
from minitransformer.positions.shaw import ShawParams

TWO_DIGITS = 0.0101  # 1.4 for √2 is off by a little more than 1 %


@exercise("5.1")
def one_more_query(answer):
    """The row of S of the query (0, 1) in the example with Shaw's vectors; three numbers."""
    wanted = _shaw(np.array([[1.0, 2], [0, 1], [2, 0]]))[1]
    hint = "The query (0, 1) meets the vector for left, then self, then right."
    expect(answer, wanted, hint, (wanted * np.sqrt(2), "Nearly. What is it divided by?"), tolerance=TWO_DIGITS)


@exercise("5.2")
def what_an_offset_collects(answer):
    """The gradients of the vectors for left, self and right, (3, 2), if dS is 1 everywhere."""
    Q = np.array([[1.0, 2], [1, 1], [2, 0]])
    o = np.clip(np.arange(3) - np.arange(3)[:, None], -1, 1) + 1
    wanted, neighbours = np.zeros((3, 2)), np.zeros((3, 2))
    for i in range(3):
        for j in range(3):
            wanted[o[i, j]] += Q[i] / np.sqrt(2)
            neighbours[o[i, j]] += Q[i] / np.sqrt(2) * (abs(i - j) < 2)
    expect(
        answer,
        wanted,
        "Which of the nine pairs use the vector, and which query does it meet in each of them? Add those.",
        (wanted * np.sqrt(2), "Nearly. What are all scores divided by?"),
        (neighbours, "There are two more pairs: offsets of 2 are clipped to 1, so they use the same vectors."),
        (wanted[::-1], "Left and right are exchanged. Left is a key with j < i."),
        tolerance=TWO_DIGITS,
    )


@exercise("5.3")
def how_far_a_head_sees(answer):
    """The distance from which on a key has less than 1 % of the weight of the nearest: first and last of eight heads."""
    slopes = pos.alibi_slopes(8)[[0, -1]]
    given, wanted = array_of(answer, (2,)), np.ceil(np.log(100) / slopes)
    if (given == np.ceil(0.99 / slopes)).all():
        raise NotYet("The penalty stands in the score. A weight is the exponential of it.")
    if (given != wanted).any() and (np.abs(given - wanted) <= 1).all():
        raise NotYet("Nearly. From which whole t on is exp(−λt) *below* 1/100?")
    if given[0] != wanted[0]:
        raise NotYet("The first head: its slope is 2^(−8h/H) with h = 1 and H = 8. When is exp(−λt) below 1/100?")
    if given[1] != wanted[1]:
        raise NotYet("The last head: h = 8, and its slope is 128 times as flat. When is exp(−λt) below 1/100?")


@exercise("5.4")
def left_from_right(answer):
    """Six times True or False: do the scores of a sentence of one word tell left from right?"""
    rng = np.random.default_rng(54)
    q, k = rng.standard_normal((2, 4))
    tried = (
        (pos.T5Bias(heads=1), k, "Does an offset of −3 share its bucket with one of +3?"),
        (pos.ALiBi(heads=1), k, "What does the formula know of an offset?"),
        (pos.Shaw(d=4, clip=5, values=False), k, "Which vector meets the query at −3, and which at +3?"),
        (pos.Multiplicative(d=4, clip=5, kind="M1"), k, "What is the index of g?"),
        (
            pos.RoPE(d=4),
            q,
            "A query meets itself, turned by ω o to one side or the other. Which function is that of the angle?",
        ),
        (
            pos.RoPE(d=4),
            k,
            "Each pair of channels gives the cosine of an angle between q and k, and the turn adds to it.",
        ),
    )
    for number, (given, (encoding, key, hint)) in enumerate(zip(yes_or_no(answer, 6), tried, strict=True), 1):
        Q, K = (np.tile(row, (1, 1, 7, 1)) for row in (q, key))
        S = scores_of(encoding, with_some_parameters(encoding, rng), Q, K)[0, 0]
        if given == np.allclose(S[3, 0], S[3, 6]):
            raise NotYet(f"Number {number} is wrong. {hint}")


@exercise("5.5")
def shaw_from_four_terms(answer):
    """A function of X, W_q, W_k and Shaw's table (2n − 1, d): the scores (n, n)."""
    rng = np.random.default_rng(55)
    X, W_q, W_k, a = (rng.standard_normal(shape) for shape in ((5, 4), (4, 3), (4, 3), (9, 3)))
    Q, K = X @ W_q, X @ W_k
    found = answer(X, W_q, W_k, a)
    if isinstance(found, tuple):
        raise NotYet("four_terms returns S and its pullback; S is wanted.")
    products = np.take_along_axis(Q @ a.T, np.arange(5) - np.arange(5)[:, None] + 4, axis=1)
    expect(
        found,
        (Q @ K.T + products) / np.sqrt(3),
        "Pi @ U_k must be Shaw's table itself, and only cc and cp are wanted.",
        (Q @ K.T + products, "The scale is missing: by default it is 1/√d."),
        (Q @ K.T / np.sqrt(3), "This is content–content alone. What must Pi @ U_k be?"),
        (products / np.sqrt(3), "This is content–position alone. Shaw keeps the product of the words, too."),
    )


@exercise("5.6")
def a_turn(answer):
    """A function of x (n, d) and angles (n, d/2): the rows with their neighbouring channels turned."""
    rng = np.random.default_rng(56)
    x, angles = rng.standard_normal((5, 6)), rng.uniform(0, 6, (5, 3))
    given, wanted = without_nan(array_of(answer(x, angles), (5, 6))), pos.rotate(x, angles=angles)[0]
    as_printed = wanted.copy()
    as_printed[:, 1::2] = wanted[:, ::2] * np.sin(angles) + x[:, 1::2] * np.cos(angles)
    likely(
        given,
        (as_printed, "As printed, lengths change. When the last line reads a, what does a hold? It is a view of y."),
        (pos.rotate(x, angles=-angles)[0], "It turns the other way."),
        (
            np.concatenate([wanted[:, ::2], wanted[:, 1::2]], axis=1),
            "Every pair is turned, but its two numbers are put elsewhere: into the halves of a row.",
        ),
    )
    if not np.allclose(np.linalg.norm(given, axis=1), np.linalg.norm(x, axis=1)):
        raise NotYet(
            "The lengths of the rows have changed, and no turn does that. Try (1, 0) and (0, 1) with a quarter turn."
        )
    close(given, wanted, "Lengths are kept, but the wrong channels are turned, or by the wrong angles.")


@exercise("5.7")
def the_shift_backwards(answer):
    """A function of dS (n, n): dT (n, 2n)."""
    rng = np.random.default_rng(57)
    for n in (4, 3):
        dS, T = rng.standard_normal((n, n)), rng.standard_normal((n, 2 * n))
        dT = without_nan(array_of(answer(dS), (n, 2 * n)))
        if np.count_nonzero(dT) != n * n:
            raise NotYet(f"{n * n} entries of T were used, and {np.count_nonzero(dT)} get a gradient.")
        if not np.allclose(np.sort(dT[dT != 0]), np.sort(dS.ravel())):
            raise NotYet("Each entry of dS goes to one place, as it is.")
        if np.allclose(dT, answer(dS[::-1])[::-1]):
            raise NotYet(
                "All rows are written to the same columns. The piece begins one entry earlier with each query."
            )
        if not np.isclose((dS * relative_shift(T)).sum(), (dT * T).sum()):
            raise NotYet(
                "⟨dS, S⟩ and ⟨dT, T⟩ must be the same number for every T. Where was S[0, 0] read: in which column of T?"
            )


@exercise("5.8")
def slopes_that_learn(answer):
    """Scores with a slope for each head, from Q, K (batch, H, n, d) and slopes (H,), and a pullback with dQ, dK, dslopes."""
    rng = np.random.default_rng(58)
    Q, K = rng.standard_normal((2, 2, 3, 5, 4))
    o = np.arange(5) - np.arange(5)[:, None]
    slopes, t = np.array([0.5, 0.3, 0.1]), np.abs(o)
    S = value(answer, Q, K, slopes)
    wanted = Q @ K.swapaxes(-1, -2) / 2 - slopes[:, None, None] * t
    if np.shape(S) == wanted.shape and not np.allclose(S, wanted):
        if np.allclose(S, wanted + 2 * slopes[:, None, None] * t):
            raise NotYet("What is far has to lose: the distance is subtracted.")
        if any(np.allclose(S, wanted + slopes[:, None, None] * (t + signed)) for signed in (o, -o)):
            raise NotYet("One side is right. On the other the offset changes sign, and |i − j| does not.")
    close(S, wanted, "S is QKᵀ/√d less λ|i − j|. λ (H,) needs two more axes to meet scores (batch, H, n, n).")
    derivative(
        answer,
        Q,
        K,
        slopes,
        hint="S is right, but its gradient is not. A slope is shared by all pairs of its head and all samples.",
    )


@exercise("5.9")
def four_frequencies(answer):
    """Four frequencies: mean cosine at least 0.9 at distance 1, at most 0.6 at distances 10 to 200."""
    given, o = without_nan(array_of(answer, (4,))), np.arange(201)
    if not ((given > 0) & (given < np.pi)).all():
        raise NotYet("A frequency is between 0 and π: beyond, a smaller one gives the same cosines.")
    height = np.cos(np.outer(o, given)).mean(1)
    if height[1] < 0.9:
        raise NotYet(f"At distance 1 it is {height[1]:.2f} already: some pair turns too fast.")
    worst = 10 + int(height[10:].argmax())
    if height[worst] > 0.6:
        raise NotYet(
            f"At distance {worst} it is {height[worst]:.2f}. Which pairs have not turned away yet, or are back?"
        )


def _shaw(Q):
    """Scores of the example of three words, whose keys are zero."""
    a = np.array([[1.0, 0], [0, 0], [0, 2]])
    return pos.Shaw(d=2, clip=1, values=False).scores(ShawParams(a), Q, np.zeros((3, 2)))[0]
