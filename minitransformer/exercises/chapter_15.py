"""Exercises of chapter 15, on convolution and gating."""

import numpy as np

from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    unless,
    value,
    yes_or_no,
)
from minitransformer.functional import glu
from minitransformer.related import convolve_with_heads, lightweight_convolution


@exercise("15.1")
def heads_without_a_frame(answer):
    """Three heads as a kernel; at the border one of them takes the mean."""
    text, kernel = np.array([3.0, 6, 12, 9]), np.array([1.0, -2, 1])
    unless(
        answer,
        np.convolve(text, kernel, "same"),
        "A head can't say nothing: where its neighbour is missing it takes the mean.",
    )
    ends = np.convolve(np.pad(text, 1, "edge"), kernel, "valid")
    unless(answer, ends, "A head whose neighbour is missing takes the mean, not the token at the end once more.", 1e-3)
    around = np.roll(text, 1) - 2 * text + np.roll(text, -1)
    unless(answer, around, "The text is not a ring: the last token has nobody after it.")
    wanted = convolve_with_heads(text[:, None], kernel, (4,))[:, 0]
    close(answer, wanted, "A row is what comes after, less twice the token, plus what comes before.", 1e-3)


@exercise("15.2")
def a_sharper_picture(answer):
    """Twice the picture, minus its blur."""
    itself, blur = np.zeros((3, 3)), np.outer([1, 2, 1], [1, 2, 1]) / 16
    itself[1, 1] = 1
    expect(
        answer,
        2 * itself - blur,
        "Which kernel leaves a picture as it is?",
        (itself - blur, "That is what the blur has taken away. The picture itself is to be added."),
        (2 - blur, "The picture itself is not a kernel of ones: that would add up all nine pixels."),
        (2 * itself - 16 * blur, "The weights of a blur sum to one."),
        tolerance=0.01,
    )


@exercise("15.3")
def layers_to_see_far(answer):
    """Layers of seven taps for a hundred places."""
    plain, dilated = -(-100 // 6), 1
    while sum(6 * 7**layer for layer in range(dilated)) < 100:
        dilated += 1
    given = array_of(answer, (2,), "Two numbers of layers.")
    unless(given[0], -(-100 // 7), "One of the seven taps is the token itself.", 0.01)
    unless(given[0], 100 // 6, "After so many layers four places are missing.", 0.01)
    close(given[0], plain, "How far back does one layer reach, and how far do two?", 0.01)
    unless(given[1], 2, "Two layers reach 6 + 42 places.", 0.01)
    close(given[1], dilated, "The six taps before the token reach 6 times as far as their distance.", 0.01)


@exercise("15.4")
def moved_by_one(answer):
    """Who has the same outputs for a text that is moved."""
    kinds = (
        (True, "A lightweight convolution has one weight for each offset. Where does the place come in?"),
        (True, "The weights of a dynamic convolution are made from the token, which takes them along when it moves."),
        (False, "A random synthesizer has a number for each pair of places: R at (3, 5) is not R at (4, 6)."),
        (False, "M has a row for each place, causal or not. What does place 7 take from place 5, and place 8 from 6?"),
        (True, "The same number along each diagonal is a number for each offset, and b is the same at every place."),
    )
    for said, (wanted, hint) in zip(yes_or_no(answer, 5), kinds, strict=True):
        if said != wanted:
            raise NotYet(hint)


@exercise("15.5")
def not_turned_around(answer):
    """The causal lightweight convolution of one channel."""
    rng = np.random.default_rng(5)
    for n, K in ((9, 4), (6, 3)):
        x, S = rng.standard_normal(n), rng.standard_normal((1, K))
        a = np.exp(S[0]) / np.exp(S).sum()
        expect(
            answer(x, a),
            lightweight_convolution(x[:, None], S, causal=True)[0][:, 0],
            f"The last tap is the token itself, the first is the one K − 1 places before. This is with n = {n}, K = {K}.",
            (np.convolve(x, a)[:n], "With a = (1, 0, 0), which token does it take, and which should it take?"),
            (np.convolve(x, a[::-1])[-n:], "This looks ahead. The first output is made of the first token alone."),
            (np.convolve(x, a[::-1], "same"), "This has the token in the middle of the taps, and so it looks ahead."),
        )


@exercise("15.6")
def nine_pixels(answer):
    """β at which e to the entropy is nine."""

    def pixels(beta, n=64):
        p = np.append(np.exp(beta), np.ones(n - 1)) / (np.exp(beta) + n - 1)
        return np.exp(-(p * np.log(p)).sum())

    beta = float(array_of(answer, (), "It is one number."))
    low, high = 0.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if pixels(middle) > 9 else (low, middle)
    unless(beta, np.log(9), "e to the power of this is nine. But it is a score among 63 others, not an entropy.", 0.01)
    unless(beta, np.log(63 / 8), "Then the pixel has an eighth of what all others have together.", 0.01)
    close(beta, low, f"With your number it looks at {pixels(min(beta, 700.0)):.1f} pixels.", 0.01)


@exercise("15.7")
def taps_as_a_matrix(answer):
    """A_ij = a_i,j−i+ℓ where there is such a tap."""
    rng = np.random.default_rng(7)
    for K, before in ((3, 2), (4, 1)):
        a = rng.random((6, K))
        wanted, turned, kept, wrapped = np.zeros((4, 6, 6))
        for i, t in np.ndindex(6, K):
            if 0 <= (j := i - before + t) < 6:
                wanted[i, j] = a[i, t]
            if 0 <= (j := i + before - t) < 6:
                turned[i, j] = a[i, t]
            kept[i, min(max(i - before + t, 0), 5)] += a[i, t]
            if (j := i - before + t) < 6:
                wrapped[i, j] = a[i, t]
        given = answer(a, before)
        unless(given, turned, "The taps are turned around: the first falls on the token ℓ places before.")
        unless(given, wanted.T, "Row i has the weights of token i.")
        unless(given, kept, "Beyond the ends are zeros, and not the first and the last token once more.")
        unless(given, wrapped, "In NumPy an index of −1 is the last column. A tap before the text falls on nothing.")
        unless(
            given,
            wanted / wanted.sum(1, keepdims=True),
            "Nothing is renormalised: a row at the end may sum to less than one.",
        )
        close(given, wanted, f"Tap t of token i falls on token i − ℓ + t. This is with K = {K} and ℓ = {before}.")


@exercise("15.8")
def a_gate_that_learns(answer):
    """SwiGLU and its gradient."""
    rng = np.random.default_rng(8)
    X, (U_1, U_2) = rng.standard_normal((5, 3)), rng.standard_normal((2, 3, 4))
    given = value(answer, X, U_1, U_2)
    unless(given, glu(X, U_1, U_2)[0], "This is the GLU with a sigmoid. In SwiGLU, a multiplies it.")
    unless(given, glu(X, U_2, U_1, gate="silu")[0], "U_1 makes what goes through f, and U_2 the rest.")
    close(given, glu(X, U_1, U_2, gate="silu")[0], "f acts on one of the two maps, and the product is entry by entry.")
    derivative(answer, X, U_1, U_2, hint="f is a product, so f′ has two terms. And X is in both maps.")


@exercise("15.9")
def one_number_a_diagonal(answer):
    """G = M Z with M_ij = w_i−j, and its gradient."""
    rng = np.random.default_rng(9)
    w, Z = rng.standard_normal(7), rng.standard_normal((5, 3))
    wanted, ahead = (
        np.array([sum(w[abs(i - j)] * Z[j] for j in range(5) if (i - j) * sign >= 0) for i in range(5)])
        for sign in (1, -1)
    )
    given = value(answer, w, Z)
    unless(given, ahead, "This looks ahead: i takes from j ≤ i.")
    close(given, wanted, "Row i is the sum of w_o times row i − o of Z, over all o from 0 to i.")
    derivative(
        answer, w, Z, hint="w_o stands in all rows from o on, and hears from all of them; Z_j is in row i with w_i−j."
    )
