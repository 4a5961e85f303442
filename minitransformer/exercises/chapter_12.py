"""Exercises of chapter 12, on recurrence."""

import numpy as np

from minitransformer.attention.flash import Found, join
from minitransformer.attention.ring import contiguous, striped, zigzag
from minitransformer.exercises.check import NotYet, alone, array_of, close, derivative, exercise, expect, unless, value
from minitransformer.models.transformer_xl import reach
from minitransformer.models.universal import combine, halting


@exercise("12.1")
def who_is_just_sure(answer):
    """N and R of p = ½, ½, ½, for two ε."""
    p, wanted = np.full((3, 1), 0.5), []
    for eps in (0.01, 0.0):
        (_, R), pullback = halting(p, eps=eps)
        wanted.append([pullback.N[0], R[0]])
    unless(answer, [wanted[0], wanted[0]], "Is a sum of exactly 1 more than 1 − ε, if ε is zero?")
    close(
        answer, wanted, "A token halts when the sum is more than 1 − ε. R is one minus the sum before that step.", 0.01
    )


@exercise("12.2")
def smallest_memory(answer):
    """The smallest M whose reach is far enough."""
    array_of(answer, (), "It is one number.")
    wanted = next(M for M in range(1, 21) if reach(3, 8, M) >= 20)
    unless(
        answer,
        7,
        "That is 20/3, rounded up. But a row of the memory lies in a segment, whose start is where the next layer counts from.",
    )
    close(answer, wanted, "Go down by (12.4) for your M and for M − 1, and compare with −20.", 0.01)


@exercise("12.3")
def half_a_cache(answer):
    """The n at which one full layer and five windows hold half of six full ones."""
    w = 1024.0
    unless(answer, w, "There a window is full, and nothing has been saved yet: all six hold the same.", 0.01)
    unless(answer, 5 * w / 3, "The sixth layer holds n positions as well.", 0.01)
    unless(answer, 5 * w, "Half of six layers are three.", 0.01)
    close(answer, 5 * w / 2, "Count positions: six layers with n each, against one with n and five with 1,024.", 0.01)


@exercise("12.4")
def to_remember(answer):
    """The last M rows of what was there and what has come."""
    rng = np.random.default_rng(12)
    before, X = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 4, 5))
    rows = np.concatenate([before, X], 1)
    close(answer(before, X, 5), rows[:, 2:], "Rows are the last axis but one, and the newest are at the end.")
    close(answer(None, X, 3), X[:, 1:], "Before the first segment, the memory is None.")
    for memory, seen in ((before, rows), (None, X)):
        few = (
            f"With {seen.shape[1]} rows in all and M = {seen.shape[1] + 1}: while there are fewer than M, all are kept."
        )
        close(answer(memory, X, seen.shape[1] + 1), seen, few)
    for memory in (before[:, :0], None):
        close(answer(memory, X, 0), X[:, :0], "What is rows[-0:], if no row is to be remembered?")
    alone(answer, rows[0, 2:], before[0], X[0], 5, pullback=False)
    alone(answer, X[0, 1:], None, X[0], 3, pullback=False)


@exercise("12.5")
def a_mask_with_a_memory(answer):
    """Attention of a segment behind a memory: query i sees j ≤ i + M."""
    rng = np.random.default_rng(5)
    for n, M in ((5, 3), (4, 6), (6, 1), (5, 0)):
        X, memory, W_v = rng.standard_normal((n, 4)), rng.standard_normal((M, 4)), rng.standard_normal((4, 2))
        W_q, W_k = rng.standard_normal((2, 4, 6))
        rows, wanted, shifted = np.concatenate([memory, X]), [], []
        for i in range(n):
            for seen, found in ((rows[: i + 1 + M], wanted), (rows[: i + 1], shifted)):
                S = seen @ W_k @ (X[i] @ W_q) / np.sqrt(6)
                found.append(np.exp(S) @ seen @ W_v / np.exp(S).sum())
        given = answer(X, memory, W_q, W_k, W_v)
        if M:
            unless(given, shifted, f"Which rows does the first query see? Print the mask for n = {n} and M = {M}.")
        told = "All other lines were right. Query i stands in row M + i, and sees itself."
        close(given, wanted, f"{told} This is with n = {n} and M = {M}.")


@exercise("12.6")
def busy_workers(answer):
    """Pairs, by W times the sum over the steps of the largest number of them."""

    def counted(own, mask, W):
        return np.array([[mask[np.ix_(own[k], own[(k - t) % W])].sum() for k in range(W)] for t in range(W)])

    rng = np.random.default_rng(3)
    for n, W, owners in ((12, 3, striped), (16, 4, zigzag), (13, 3, striped)):
        own, mask = owners(n, W), rng.random((n, n)) < 0.6
        mask[own[0]] &= rng.random((len(own[0]), n)) < 0.3
        pairs, given = counted(own, mask, W), answer(own, mask)
        unless(given, pairs.sum() / pairs.max(1).sum(), "All W workers are paid for the whole of each step.")
        unless(
            given,
            pairs.sum() / (W**2 * pairs.max()),
            "A step waits for its own slowest worker, not for that of all steps.",
        )
        unless(given, (pairs.mean(1) / pairs.max(1)).mean(), "Steps are not equally long: add times before you divide.")
        close(
            given, pairs.sum() / (W * pairs.max(1).sum()), "Count the pairs of each worker in each step first, (W, W)."
        )
    own, mask = contiguous(12, 3), (np.tri(12) - np.tri(12, k=-4)) > 0
    pairs = counted(own, mask, 3)
    hint = "In the last of three steps nobody has a pair here. It takes no time, and 0/0 is not a number."
    close(answer(own, mask), pairs.sum() / (3 * pairs.max(1).sum()), hint)


@exercise("12.7")
def pages_in_all(answer):
    """Pages of a prompt and b continuations, counted one by one."""
    cases, wanted = ((7, 3, 4, 5), (10, 2, 4, 5), (9, 4, 1, 4), (11, 2, 1, 4), (3, 1, 20, 8)), []
    for p, b, t, B in cases:
        pages = {(-1, k) for k in range(p // B)}  # the full ones of the prompt
        for text in range(b):
            pages |= {(text, k) for k in range(p // B, -(-(p + t) // B))}
        wanted.append(len(pages))
    given = array_of([answer(*case) for case in cases], (len(cases),), "The function should return one number.")
    p, b, t, B = cases[(given != wanted).argmax()]  # the first that is wrong
    told = f"For p = {p}, b = {b}, t = {t}, B = {B} yours gives {answer(p, b, t, B)}."
    p, b, t, B = np.array(cases).T
    full, begun, whole = p // B, -(-p // B), -(-(p + t) // B)
    expect(
        given,
        wanted,
        f"{told} Which pages are shared by all, and how many more does each text have?",
        (full + b * ((p + t) // B + 1 - full), f"{told} A text that ends where a page ends needs no page more."),
        (b * whole, f"{told} Full pages of the prompt are there once."),
        (begun + b * (whole - full), f"{told} One continuation needs no copy of the page that is not full."),
        (
            begun + b * (whole - begun),
            f"{told} Only one text can go on in the page that is not full; what of the others?",
        ),
        (begun + b * -(-t // B), f"{told} A continuation fills the room in the prompt's page first."),
    )


@exercise("12.8")
def two_parts(answer):
    """(12.11), with scores that overflow and queries that found nothing."""
    rng = np.random.default_rng(10)
    m, total, a = rng.standard_normal((2, 6)), 1 + rng.random((2, 6)), rng.standard_normal((2, 6, 3))
    m[:, 1] += 1000
    for nothing in ((0, 3), (1, 4), (slice(None), 2)):  # in the first part, in the second, and in both
        m[nothing], total[nothing], a[nothing] = -np.inf, 0, 0
    wanted = join(Found(m[0], total[0], a[0]), Found(m[1], total[1], a[1]))
    given = answer(m[0], total[0], a[0], m[1], total[1], a[1])
    if not isinstance(given, (tuple, list)) or len(given) != 3:
        raise NotYet("Three arrays are wanted: m (n,), total (n,) and a (n, d).")
    unless(given[1], total.sum(0), "Each sum was made with a largest score of its own; bring both to the same.")
    lost = np.isnan(array_of(given[1], (6,), "A sum for each query."))
    if lost[1:2].any():
        raise NotYet(
            "e to the power of 1,000 is too large a number. The largest score is subtracted before, not after."
        )
    if lost[2:3].any():
        raise NotYet("Where neither part has found anything, −∞ is subtracted from −∞.")
    scaled = "The weighted sums are of the same kind as the sums: they need the same factors."
    if not np.allclose(array_of(given[0], (6,), "A largest score for each query."), wanted.m):
        raise NotYet("The first of the three is the larger of the two.")
    close(given[1], wanted.total, "What was divided by e to the m has to be divided by e to the larger m.")
    close(given[2], wanted.sum, scaled)


@exercise("12.9")
def a_running_mixture(answer):
    """y = w h + (1 − w) y, over the steps, and its gradient."""
    rng = np.random.default_rng(9)
    w, h = rng.random((4, 3)), rng.standard_normal((4, 3, 2))
    given = value(answer, w, h)
    unless(given, (w[..., None] * h).sum(0), "That is the other rule, the accumulated one.")
    close(given, combine(w, h, rule="basic")[0], "y starts with zeros, and each step keeps 1 − w of it.")
    derivative(
        answer,
        w,
        h,
        hint="Go from the last step to the first, and write down what δw, δh and the δy of the step before do to y. "
        "A weight has two effects: more of h, and less of what was there.",
    )
