"""Exercises of chapter 10, on attention as a kernel."""

import numpy as np

from minitransformer.attention import dot_product_attention, kernel_attention, linear
from minitransformer.exercises.check import (
    NotYet,
    alone,
    array_of,
    choice,
    derivative,
    exercise,
    expect,
    likely,
    real,
    several,
    with_pullback,
    without_a_matrix,
)


@exercise("10.1")
def seven_numbers(answer):
    """S, z and what a query reads, for features of degree 2 in one dimension."""
    F, V = np.array([[1, x, x**2 / np.sqrt(2)] for x in (1, -1)]), np.array([2.0, 4])
    S, z = F.T @ V, F.sum(0)
    right = [*S, *z, F[0] @ S / (F[0] @ z)]
    expect(
        answer,
        right,
        "S sums each feature of a key times the key's value, and z the features alone.",
        ([*S, *z, F[0] @ S], "The last number is to be divided by what the query reads from z."),
        ([6, -2, 6, 2, 0, 2, 5 / 2], "The third feature of 1 is 1/√2."),
        ([*z, *S, right[-1]], "S comes first, and then z."),
        tolerance=0.002,
    )


@exercise("10.2")
def distances_that_fit(answer):
    """Products of something of i and something of j, for the square of a distance, and for x γˣ."""
    x = np.subtract.outer(np.arange(9.0), np.arange(9.0))
    square, fading = (np.linalg.matrix_rank(g, tol=1e-6) for g in (x**2, x * 0.8**x))
    expect(
        answer,
        [square, fading],
        "Multiply out, and collect what belongs to i and what belongs to j.",
        ([fading, square], "These are the two numbers in the other order."),
        ([1, fading], "(i − j)² is a product of i − j with itself, and neither factor is of i alone."),
        ([2, fading], "There is a term −2 i j between i² and j²."),
        ([square, 1], "γˣ is one product. What does the factor i − j in front of it do?"),
        tolerance=1e-9,
    )


@exercise("10.3")
def the_pairs_that_matter(answer):
    """Directions for a weight as large as its error: a query with its own key, and with the opposite one."""
    if np.shape(answer) != (2,):
        raise NotYet("Two numbers are asked for.")
    same, opposite = answer
    expect(
        same,
        np.exp(16) - 1,
        "Relative to κ², the variance is exp(‖a + b‖²) − 1. What is ‖a + b‖² if a = b?",
        (np.exp(8), "That is a typical pair, with a and b at a right angle."),
        (2 * np.exp(8), "‖a + b‖² is in the exponent."),
        (np.exp(4), "‖2a‖² is four times ‖a‖², which is 4 here."),
        tolerance=0.01,
    )
    if not 0 <= array_of(opposite, ()) <= 1:  # the variance is zero, and one direction the fewest
        raise NotYet("The first is right. Which variance is left if a + b is zero?")


@exercise("10.4")
def which_of_them_will_do(answer):
    """The functions of ⟨a, b⟩ that are products of features and never negative."""
    found = (
        "".join(sorted(filter(str.isalpha, answer.lower().replace("and", "")))) if isinstance(answer, str) else answer
    )
    if isinstance(found, str) and "b" in found:
        raise NotYet("(b): ‖φ(x) − φ(−x)‖² follows from the products alone. What is it for x = 1?")
    if isinstance(found, str) and "c" in found:
        raise NotYet("(c) is a product of features. Is it never negative?")
    choice(found, "ad", "Expand each in powers of t. Which coefficients are negative, and where is the function?")


@exercise("10.5")
def half_of_the_features(answer):
    """Features of degree 2 without doubles."""
    rng = np.random.default_rng(105)
    for d in (5, 4):
        A, B = rng.standard_normal((2, 2, 3, d))
        FA, FB = (real(answer(X)) for X in (A, B))
        if FA.shape != (2, 3, 1 + d + d * (d + 1) // 2):
            raise NotYet(
                f"For X {A.shape} the shape is {FA.shape}, and 1 + d + d(d + 1)/2 features are wanted for each row."
            )
        t = np.vecdot(A, B)
        square, own = t**2, np.vecdot(A**2, B**2)
        expect(
            np.vecdot(FA, FB),
            1 + t + square / 2,
            "The products are not 1 + t + t²/2. How often does a₁a₂ b₁b₂ stand in t²?",
            (
                1 + t + (square + own) / 4,
                "All pairs are divided by √2. Those of two different entries stood there twice.",
            ),
            (1 + t + (square + own) / 2, "All pairs have the factor 1. A square stood there once, with 1/√2."),
            (t + square / 2, "The first feature is 1."),
        )
    alone(answer, FA[0], A[0], pullback=False)


@exercise("10.6")
def a_window_of_sums(answer):
    """Attention with features to the last w keys, by sums."""
    rng = np.random.default_rng(106)
    for w in (1, 3, 20):
        FQ, FK, V = (rng.random((9, width)) for width in (4, 4, 2))
        behind = np.arange(9)[:, None] - np.arange(9)
        W = FQ @ FK.T

        def seen(numerator, denominator, V=V, W=W):
            return (W * numerator) @ V / (W * denominator).sum(1, keepdims=True)

        near, wider, past = ((behind >= 0) & (behind < last) for last in (w, w + 1, 9))
        expect(
            answer(FQ, FK, V, w),
            seen(near, near),
            "When token i comes, token i − w leaves: which two sums does it leave?",
            (seen(wider, wider), "The window has one key too many: its own is one of the w."),
            (seen(near, past), "What leaves S has to leave z as well."),
            (seen(past, past), "Nothing has left the sums."),
            (W * near @ V, "The sums over weights, z, are missing."),
        )
    FQ, FK, V = (rng.random((2000, width)) for width in (4, 4, 2))
    without_a_matrix(2000, answer, FQ, FK, V, 3)
    huge = np.concatenate([np.full((1, 2), 1e30), V[1:]])  # a sum rounds what is small beside 1e30 away, for ever
    before, after = (real(answer(FQ, FK, values, 3))[3:] for values in (V, huge))
    if np.allclose(before, after):
        raise NotYet(
            "It is right, but each query goes through all keys of its window. Running sums keep what they hold."
        )
    without_a_matrix(2000, answer, FQ, FK, V, 1000, of="(n, w)")


@exercise("10.7")
def chunks_of_sums(answer):
    """Causal attention with features in chunks."""
    rng = np.random.default_rng(107)
    FQ, FK, V = (rng.random((11, width)) for width in (4, 4, 3))
    W = FQ @ FK.T
    for c in (4, 1, 11, 30):
        own = np.arange(11) // c
        same, before = own[:, None] == own, own[:, None] > own
        printed, all_of, none_of = (
            W * (before + here) for here in (same + np.tri(11) * same, same, np.tri(11, k=-1) * same)
        )
        cases = [
            (weights @ V) / np.maximum(weights.sum(1, keepdims=True), 1e-300) for weights in (printed, all_of, none_of)
        ]
        right, _ = kernel_attention(FQ, FK, V, causal=True)
        expect(
            answer(FQ, FK, V, c),
            right,
            "Which tokens are in S when the queries of a chunk read it, and which of them are in the small matrix too?",
            (cases[0], "As printed. Which tokens does S hold when the first chunk reads it?"),
            (cases[1], "Now every token is counted once, but some of them are later than the query."),
            (cases[2], "A query sees its own key, too."),
        )
    FQ, FK, V = (rng.random((2000, width)) for width in (4, 4, 3))
    without_a_matrix(2000, answer, FQ, FK, V, 16)
    if np.array_equal(answer(FQ, FK, V, 16), answer(FQ, FK, V, 500)):  # sums of other parts are rounded otherwise
        raise NotYet("It is right, and c changes no bit of it. Where is the small matrix of a chunk?")


@exercise("10.8")
def where_the_performer_loses(answer):
    """The largest size of queries and keys at which random features are nearer than the average."""
    Q, K, V = np.random.default_rng(1).standard_normal((3, 64, 16))
    W = linear.gaussian_rows(np.random.default_rng(0), (256, 16))
    nearer = []
    for c in np.arange(1, 16) / 10:
        right, _ = dot_product_attention(c * Q, c * K, V)
        Y, _ = linear.performer_attention(c * Q, c * K, V, W=W)
        if np.linalg.norm(Y - right) < np.linalg.norm(V.mean(0) - right):
            nearer.append(c)
    expect(
        answer,
        max(nearer),
        "Print both errors for every c. Softmax, too, gets c Q and c K.",
        (min(nearer), "That is the smallest c of those at which it is nearer."),
        (max(nearer) + 0.1, "There the average is nearer already."),
        tolerance=1e-6,
    )


@exercise("10.9")
def a_width_that_learns(answer):
    """A Gaussian smoother with a learned width: (Q, K, V, w) to (Y, pullback)."""
    rng = np.random.default_rng(109)
    Q, K, V, dY = (rng.standard_normal((2, 3, *shape)) for shape in ((5, 4), (6, 4), (6, 3), (5, 3)))
    w = np.array([1.3])
    D = ((Q[..., :, None, :] - K[..., None, :, :]) ** 2).sum(-1)
    W = np.exp(-D / (2 * w**2))
    total = W.sum(-1, keepdims=True)
    Y, pullback = with_pullback(answer, Q, K, V, w)
    one_w = np.exp(-D / (2 * w))
    expect(
        Y,
        W @ V / total,
        "Y: is every row of weights divided by its sum?",
        (W @ V, "Y: the weights are to be divided by their sum."),
        (one_w @ V / one_w.sum(-1, keepdims=True), "Y: the squared distance is divided by 2 w²."),
    )
    found = several(pullback(dY), "dQ", "dK", "dV", "dw")
    dN = dY / total
    half = dN @ V.swapaxes(-1, -2)
    E, E_half = ((dW * W / w**2) for dW in (half - (dN * (W @ V / total)).sum(-1, keepdims=True), half))
    dQ, dQ_half = (E @ K - E.sum(-1, keepdims=True) * Q for E in (E, E_half))
    likely(
        found[0],
        (dQ_half, "dQ: the weights are in the denominator, too. What does (10.1) add to ⟨dN_i, v_j⟩?"),
        (-dQ, "dQ: the sign is wrong. A larger distance makes a smaller weight."),
    )
    likely(
        found[3],
        ((E * D).sum((0, 1, 2, 3), keepdims=True).ravel() * w, "dw: how does 1/2w² change with w?"),
        ((E * D).sum((-2, -1)) / w, "dw: one width serves all samples and heads, so its gradient is their sum."),
        ((E_half * D).sum().reshape(1) / w, "dw: the weights are in the denominator, too."),
    )
    derivative(answer, Q, K, V, w, hint="Write δU for a small change of q, of k and of w.")
    alone(answer, (W @ V / total)[0, 0], Q[0, 0], K[0, 0], V[0, 0], w)
