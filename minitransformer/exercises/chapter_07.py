"""Exercises of chapter 07, on attention matrices with fewer columns."""

import numpy as np

from minitransformer.attention.compressed import fourier_mix, linformer_attention
from minitransformer.exercises.check import (
    NotYet,
    alone,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    likely,
    real,
    several,
    with_pullback,
    without_nan,
)
from minitransformer.functional import softmax


@exercise("7.1")
def one_key_for_two(answer):
    """Merged keys that have the right weight for the query 1, and for the query 2."""
    right = [np.log((1 + 4**q) / 2) / q for q in (1, 2)]
    expect(
        answer,
        right,
        "What do the keys 0 and ln 4 weigh together, for this query? A merged key weighs twice eˣ.",
        ([np.log(1 + 4**q) / q for q in (1, 2)], "The merged key counts for two, as every block does."),
        ([right[0], 2 * right[1]], "The query 2 multiplies the merged key too, before the exponential is taken."),
        (
            [np.log(4) / 2] * 2,
            "That is the mean of both keys, which gives the block 4 for the query 1. What should it get?",
        ),
        tolerance=0.01,
    )


@exercise("7.2")
def twice_as_fast(answer):
    """The length from which a block needs half of the multiplications."""
    for D, k in ((768, 256), (512, 64), (32, 128)):
        found = answer(D, k)
        expect(
            found,
            6 * D + 4 * k,
            "Set the ratio (7.3) to 2, and solve it for n: every term has a factor n D.",
            (4 * k, "From there on attention alone needs half. A block has 12 n D² besides, which stay."),
            (6 * D, "That leaves out what Linformer's own attention costs."),
            (6 * D + 2 * k, "All of the lower line is doubled, the term with k as well."),
            tolerance=1e-3,
        )


@exercise("7.3")
def flat_and_causal(answer):
    """The rank of causal attention with equal scores."""
    A, _ = softmax(np.where(np.tri(64) > 0, 0.0, -np.inf))
    expect(
        answer,
        np.linalg.matrix_rank(A),
        "What is the determinant of a triangular matrix?",
        (1, "All rows would have to be multiples of one row. Where does row 1 have its zeros, and where row 2?"),
        (63, "Is there a row that is a sum of others? Subtract multiples of one row from the next."),
        tolerance=1e-9,
    )


@exercise("7.4")
def what_fnet_lets_through(answer):
    """The rank of the Fourier mixer on five tokens of six channels."""
    Y, _ = fourier_mix(np.eye(30).reshape(30, 5, 6))
    expect(
        answer,
        np.linalg.matrix_rank(Y.reshape(30, 30)),
        "Y depends on X plus X reversed. How many pairs of places?",
        (30, "Then X could be recovered from Y. What about an X that changes its sign under reversal?"),
        (15, "Half of them, except for places that reversal leaves where they are."),
        (18, "Reversal moves a to −a among five rows: only one of them stays. How many of six columns do?"),
        tolerance=1e-9,
    )


@exercise("7.5")
def a_text_at_half_speed(answer):
    """A matrix for texts in which each token stands twice, made from that for the plain ones."""
    rng = np.random.default_rng(75)
    Q, K, V = rng.standard_normal((3, 2, 7, 4))
    E = rng.standard_normal((3, 7))
    found = real(answer(E))
    if found.shape != (3, 14):
        raise NotYet(f"The shape is {found.shape}, and a matrix of {E.shape} should become one of (3, 14).")
    likely(
        found,
        (
            np.repeat(E, 2, 1),
            "Now every key is mixed in twice. What would dense attention say to a key that stands there twice?",
        ),
        (np.tile(E, 2) / 2, "That is for a text that is read twice, one time after the other."),
        (np.pad(E, ((0, 0), (0, 7))), "That reads the first half of the text, and each of its tokens has two columns."),
    )
    Q_2, K_2, V_2 = (np.repeat(X, 2, 1) for X in (Q, K, V))
    Y, _ = linformer_attention(Q_2, K_2, V_2, found)
    plain, _ = linformer_attention(Q, K, V, E)
    close(Y, np.repeat(plain, 2, 1), "Row r of E K is a sum over columns. Which two columns meet token j now?")


@exercise("7.6")
def how_many_rows(answer):
    """Rows of a random projection for an error of a half: a P that moves tokens, and one that averages."""
    if np.shape(answer) != (2,):
        raise NotYet("Two numbers are asked for.")
    four_times = (2 * (512 + 1), "The error falls with √k: half of it takes four times as many rows.")
    mover, averager = answer
    hint = "Sum the variance over k terms and over all rows. What are ‖P‖² and ‖P w‖² if P moves every token?"
    all_of_it = (
        4 * 512,
        "That is without the second part of the variance. Here it is small, but it is there.",
    )
    expect(mover, 4 * (512 + 1), hint, four_times, all_of_it, tolerance=0.0003)
    expect(
        averager,
        4 * 2,
        "What are ‖P‖², ‖w‖² and ‖P w‖² if every entry of P is 1/n, and w is all ones?",
        (4, "Here the part of the variance that (7.5) leaves out is as large as the other."),
        (
            2,
            "Here the part of the variance that (7.5) leaves out is as large as the other; and half an error needs more.",
        ),
        tolerance=0.003,
    )


@exercise("7.7")
def the_best_matrix_for_one_text(answer):
    """E with the smallest error of A EᵀE."""
    rng = np.random.default_rng(77)
    for k in (1, 3):
        Q, K = 2 * rng.standard_normal((2, 8, 5))
        A, _ = softmax(Q @ K.T)
        left, sizes, right = np.linalg.svd(A)
        E = real(answer(A, k))
        if E.shape != (k, 8):
            raise NotYet(f"The shape is {E.shape}, and E should be (k, n) = {(k, 8)}.")
        error = np.linalg.norm(A - A @ E.T @ E)
        if np.allclose(np.abs(E), np.abs(left.T[:k])):
            raise NotYet("These are left singular vectors. E mixes what stands on the right of A.")
        if np.allclose(np.abs(E), np.abs(right.T[:k])):
            raise NotYet("The third matrix of `svd` has a right singular vector in each row. These are its columns.")
        close(
            error,
            np.sqrt((sizes[k:] ** 2).sum()),
            "There is an E with a smaller error. Which k directions does A need most?",
        )


@exercise("7.8")
def an_iteration_that_moves_away(answer):
    """The pseudo-inverse of a softmax, by products alone."""
    rng = np.random.default_rng(78)
    for n, liked, own in ((6, 3, 1), (40, 6, 3)):  # with few tokens ‖M‖ would do for c
        M, _ = softmax(rng.standard_normal((n, n)) + liked * (np.arange(n) == 2) + own * np.eye(n))
        with np.errstate(all="ignore"):
            start, Z = (array_of(answer(M, steps), (n, n)) for steps in (0, 30))
        without_nan(start)
        likely(
            start,
            (
                M.T,
                "As printed, Z begins with Mᵀ/1, for the rows of a softmax sum to one. What does (7.8) say of c?",
            ),
            (
                M / M.sum(0).max(),
                "Z should begin with the transpose of M: M Mᵀ has no negative eigenvalue, and M M may.",
            ),
        )
        G = M @ start
        if np.allclose(G @ M, M):
            raise NotYet("Before the first step M Z M is M already: something else than (7.8) has found the inverse.")
        one = start @ (13 * np.eye(n) - G @ (15 * np.eye(n) - G @ (7 * np.eye(n) - G))) / 4
        close(answer(M, 1), one, "The first step is not that of (7.8). Put a number g in place of G: where does it go?")
        if not np.isfinite(Z).all():
            raise NotYet(
                "For some M the numbers grow without bound. Look at G = M Z at the start: is it near enough to I?"
            )
        close(M @ Z @ M, M, "The first step is right, but after 30 of them M Z M should be M.", 1e-5)


@exercise("7.9")
def a_pooling_that_averages(answer):
    """Averages of neighbours with learned weights: (X, u) to (means, pullback)."""
    rng = np.random.default_rng(79)
    X, u, dmeans = rng.standard_normal((2, 3, 8, 5)), rng.standard_normal(4), rng.standard_normal((2, 3, 2, 5))
    w, _ = softmax(u)
    blocks = X.reshape(2, 3, 2, 4, 5)
    means, pullback = with_pullback(answer, X, u)
    expect(
        means,
        np.einsum("...btd,t->...bd", blocks, w),
        "The averages: block b holds the tokens b s to b s + s − 1.",
        (np.einsum("...btd,t->...bd", blocks, u), "The weights are softmax(u), and sum to one."),
        (
            np.einsum("...tbd,t->...bd", X.reshape(2, 3, 4, 2, 5), w),
            "A block is s tokens in a row; these are n/s apart.",
        ),
    )
    found = several(pullback(dmeans), "dX", "du")
    each = np.einsum("xhbd,xhbtd->xht", dmeans, blocks)
    likely(
        found[1],
        (each.sum((0, 1)), "That is dw. From w to u there is a softmax, which has a gradient of its own."),
        (w * each.sum((0, 1)), "The softmax of one number depends on all: something is missing after w ⊙ dw."),
        (
            w * (each - (each * w).sum(-1, keepdims=True)),
            "One u serves all samples and heads, so its gradient is their sum.",
        ),
    )
    derivative(answer, X, u, hint="Look again at what stands beside δx and beside δw.")
    alone(answer, np.asarray(means)[0, 0], X[0, 0], u)
