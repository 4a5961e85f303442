"""Exercises of chapter 02, on self-attention."""

import numpy as np

from minitransformer.attention import MultiHeadAttention, causal_mask, dot_product_attention, scores, split_heads
from minitransformer.checker import GradientError, check_pullback
from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    real,
    unless,
    value,
    without_nan,
    yes_or_no,
)
from minitransformer.functional import softmax
from minitransformer.pullback import random_like


@exercise("2.1")
def a_fourth_token(answer):
    """Row 1 of the weights, if a fourth token equals the first; four numbers."""
    A, _ = softmax(np.log([4.0, 1, 2, 4]))
    close(answer, A, "The fourth token scores as the first does. What do four weights sum to?", 0.01)


@exercise("2.2")
def its_gradient(answer):
    """The row of dS for dA = (0, 0, 1, 0); four numbers."""
    dA = np.array([0.0, 0, 1, 0])
    A, pullback = softmax(np.log([4.0, 1, 2, 4]))
    given = without_nan(array_of(answer, (4,)))
    unless(given, A * dA, "You have A ⊙ dA. The average of dA along the row has to be taken off first.", 0.01)
    unless(given, dA - A[2], "That is the bracket of (2.3). What stands in front of it?", 0.01)
    unless(given, -pullback(dA), "Every sign is reversed: that way the loss falls, and dS says how it rises.", 0.01)
    if not abs(given.sum()) < 0.01:
        raise NotYet("A constant added to the row changes nothing. So what do the four numbers sum to?")
    close(given, pullback(dA), "In (2.3) the average ⟨dA, A⟩ is one number for the row. What stands in front?", 0.01)


@exercise("2.3")
def what_changes(answer):
    """Five times True or False: does Y change?"""
    rng = np.random.default_rng(23)
    Q, K, V = rng.standard_normal((3, 5, 4))
    c, order = rng.standard_normal(4), np.roll(np.arange(5), 2)
    Y, _ = dot_product_attention(Q, K, V)
    tried = (
        (dot_product_attention(Q + c, K, V)[0], "Write out ⟨q + c, k_j⟩: what is added, and is it the same for all j?"),
        (dot_product_attention(Q / 2, 2 * K, V)[0], "What does a score know of q and of k, besides their product?"),
        (
            softmax(scores(Q, K)[0] + c[[0, 1, 2, 3, 0], None])[0] @ V,
            "What does softmax make of a constant along its row?",
        ),
        (
            dot_product_attention(Q, K[order], V[order])[0],
            "A moves its columns. But Y is a sum over j: does a sum have an order?",
        ),
        (dot_product_attention(Q[order], K, V)[0], "Row i of Y belongs to query i. Where is it now?"),
    )
    for number, (given, (moved, hint)) in enumerate(zip(yes_or_no(answer, 5), tried, strict=True), 1):
        if given == np.allclose(moved, Y):
            raise NotYet(f"Number {number} is wrong. {hint}")


@exercise("2.4")
def packed_sentences(answer):
    """A function of the numbers of the sentences (n,): the mask (n, n), causal within each."""
    for s in (np.array([0, 0, 0, 1, 1]), np.array([7, 7, 2, 5, 5, 5])):
        mask = np.asarray(answer(s))
        same, earlier = s[:, None] == s, causal_mask(len(s))
        if mask.shape != same.shape:
            raise NotYet(
                f"For n = {len(s)} the mask has shape {mask.shape}. "
                "A comparison of sentence[:, None] with sentence has both axes."
            )
        if mask.dtype != bool:
            raise NotYet(f"A mask is boolean, and this is {mask.dtype}. The operators & and | work on booleans.")
        if np.array_equal(mask, same):
            raise NotYet("The sentences are kept apart, but a token sees what comes after it.")
        if np.array_equal(mask, earlier):
            raise NotYet("No token sees what comes after it, but a sentence sees the ones before it.")
        if np.array_equal(mask, ~(same & earlier)):
            raise NotYet("True is where query i may see key j, and here it is the other way round.")
        if not np.diagonal(mask).all():
            raise NotYet("A token may see itself: j ≤ i, and not j < i.")
        if np.array_equal(mask, same & earlier.T):
            raise NotYet("Rows are queries and columns are keys: here a token sees what comes after it.")
        if not np.array_equal(mask, same & earlier):
            raise NotYet("Two things are asked of each pair, and both must hold: the same sentence, and not after i.")


@exercise("2.5")
def a_query_for_weights(answer):
    """A function of K (m, d) and weights a (m,): a query (d,) that gives them."""
    rng = np.random.default_rng(25)
    for m, d in ((4, 6), (3, 9)):
        K, a = rng.standard_normal((m, d)), rng.dirichlet(np.ones(m))
        q = real(answer(K, a))
        if q.shape != (d,):
            raise NotYet(f"The query has shape {q.shape}, and ({d},) is wanted: it is met by each of the {m} keys.")
        S = K @ q
        if np.allclose(softmax(S)[0], a):
            raise NotYet("Without the √d these would be the weights. The scores are Kq/√d.")
        if np.allclose(S, np.sqrt(d) * a):
            raise NotYet("These scores are the weights. Softmax takes exp of its scores, so what are the scores of a?")
        hint = (
            "The scores are ln a, but for a factor: e^x undoes ln and no other logarithm, and Kq is divided by √d once."
        )
        expect(
            softmax(S / np.sqrt(d))[0],
            a,
            "The query does not give these weights. Which scores does softmax turn into a?",
            *((softmax(factor * np.log(a))[0], hint) for factor in (1 / np.log(2), 1 / np.log(10), np.sqrt(d), 1 / d)),
        )


@exercise("2.6")
def cut_into_heads(answer):
    """A function of Q (n, D) and heads: (heads, n, d), each with its own columns."""
    rng = np.random.default_rng(26)
    for n, D, heads in ((5, 12, 3), (4, 8, 2)):
        Q, d = rng.standard_normal((n, D)), D // heads
        expect(
            answer(Q, heads),
            split_heads(Q, heads),
            "Cut the columns first, (n, H, d), and then bring the axis of the heads to the front.",
            (
                Q.reshape(heads, n, d),
                "reshape never moves a number: head 0 gets the first rows, all columns. Whose columns are they?",
            ),
            (
                Q.reshape(n, d, heads).transpose(2, 0, 1),
                "Head h has every H-th column. It owns d columns that stand side by side.",
            ),
        )


@exercise("2.7")
def a_learned_scale(answer):
    """Attention of H heads with a scale s (H,): Y, and a pullback with dQ, dK, dV, ds."""
    rng = np.random.default_rng(27)
    Q, K, V = (rng.standard_normal(shape) for shape in ((3, 4, 5), (3, 6, 5), (3, 6, 2)))
    s = np.array([0.3, 0.5, 0.9])
    Y = value(answer, Q, K, V, s)
    right = np.stack([dot_product_attention(q, k, v, scale=one)[0] for q, k, v, one in zip(Q, K, V, s, strict=True)])
    close(
        Y,
        right,
        "Y is not softmax(s QKᵀ)V. s (H,) meets scores (H, n, m), so it needs two more axes; and no √d is left.",
    )
    derivative(
        *(answer, Q, K, V, s),
        hint="Y is right, but its gradient is not. sₕ stands beside Q and K in S, and all pairs of its head share it.",
    )


@exercise("2.8")
def a_bias_without_effect(answer):
    """The path of the parameter whose gradient is always zero."""
    if not isinstance(answer, str):
        raise NotYet("The answer is a path in quotes, such as the checker prints.")
    rng = np.random.default_rng(28)
    attention = MultiHeadAttention(6, 2)
    params = random_like(attention.init(rng, np.float64), rng)
    try:
        _, dot, path = answer.strip().partition(".")  # "p.b_k", of one who called it from a function of theirs
        check_pullback(attention, params, rng.standard_normal((2, 4, 6)), zero=[f"params{dot}{path}"], entries=4)
    except GradientError:
        raise NotYet(
            "With that path in zero= the checker still complains. Call it without zero=, and read its line."
        ) from None


@exercise("2.9")
def the_largest_weight(answer):
    """The largest of n weights on average, for n = 16 and 1024 at d = 64."""
    rng = np.random.default_rng(48)  # with this seed the means are those of 150,000 rows, to 0.3 %
    wanted = []
    for n in (16, 1024):
        Q, K = rng.standard_normal((8, 200, 64)), rng.standard_normal((8, 64, n))
        wanted.append(softmax(Q @ K / 8)[0].max(-1).mean())
    given = array_of(answer, (2,))
    if given[0] > 0.5:
        raise NotYet("The larger number is above one half. Are the scores divided by √64 = 8?")
    for one, right, n in zip(given, wanted, (16, 1024), strict=True):
        close(
            one,
            right,
            f"At n = {n} we find a different number. Take the largest weight of each row, then the mean.",
            0.07,  # a thousand rows of one set of keys are off by 2 % one time in three; entries of ±1 give 5 % less
        )
