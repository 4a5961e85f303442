"""Exercises of chapter 09, on patterns that the text chooses."""

import itertools

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.attention.selected import sinkhorn
from minitransformer.exercises.check import (
    NotYet,
    alone,
    choice,
    derivative,
    exercise,
    expect,
    likely,
    several,
    with_pullback,
)
from minitransformer.functional import linear, softmax, tanh


@exercise("9.1")
def rounds(answer):
    """Rounds until two vectors at 60° have met, and how likely two at 120° have met by then."""
    if np.shape(answer) != (2,):
        raise NotYet("Two numbers are asked for.")
    near, far = ((1 - angle / 180) ** 2 for angle in (60, 120))
    count = int(np.ceil(np.log(0.01) / np.log(1 - near)))
    expect(
        answer[0],
        count,
        "One round misses with probability 1 − p. With what probability do all M of them miss?",
        (count - 1, "That many rounds miss in more than 1 % of the cases."),
        (5, "With four buckets p is the square of what it is with two."),
        tolerance=1e-9,
    )
    expect(
        answer[1],
        1 - (1 - far) ** count,
        "The rounds are right. At 120° one round has a different p, and they should meet in at least one of them.",
        (count * far, "Probabilities of several rounds do not add up: two vectors can meet in more than one."),
        ((1 - far) ** count, "That is the probability that they never meet."),
        tolerance=0.01,
    )


@exercise("9.2")
def nobodys_tokens(answer):
    """The share of queries that no cluster takes, if each takes a C-th at random."""
    for C in (8, 50, 2):
        expect(
            answer(C),
            (1 - 1 / C) ** C,
            "How likely is one cluster to leave a query out? And all C, which do not know of each other?",
            (1 - 1 / C, "That is one cluster. There are C of them."),
            (0, "As many places as queries are not enough if some queries get two."),
            (np.exp(-1), "That is what it approaches, for many clusters."),
        )


@exercise("9.3")
def who_may_choose(answer):
    """The layer in which a later word changes what an earlier query sees."""
    choice(
        answer, "key", "Who competes with whom? Ask it for each: can a later word take a place from an earlier query?"
    )


@exercise("9.4")
def the_k_best_keys(answer):
    """The k largest scores of the past, for each query."""
    rng = np.random.default_rng(94)
    for k in (1, 3, 9):
        S = rng.standard_normal((2, 3, 7, 7))
        past = np.where(np.tri(7) > 0, S, -np.inf)
        right, all_of, by_key = np.zeros((3, *S.shape), bool)
        for row in np.ndindex(2, 3, 7):
            right[row][np.argsort(past[row])[::-1][: min(k, row[-1] + 1)]] = True
            all_of[row][np.argsort(S[row])[::-1][:k]] = True
            by_key[(*row[:2], slice(None), row[-1])][np.argsort(S[(*row[:2], slice(None), row[-1])])[::-1][:k]] = True
        found = np.asarray(answer(S, k))
        if found.dtype != bool:
            raise NotYet(f"A boolean array is wanted, and this is {found.dtype}.")
        expect(
            found,
            right,
            "Row 0 sees itself, and row i sees the k largest of its first i + 1 scores.",
            (all_of, "Some rows see what comes later."),
            (
                all_of & (np.tri(7) > 0),
                "The k best were chosen among all keys, and later ones taken away: early rows have too few.",
            ),
            *(
                (wrong, "Where there are fewer than k keys, no later one should fill the place.")
                for wrong in (np.argsort(np.argsort(-past)) < k, past >= np.sort(past)[..., -min(k, 7), None])
            ),
            (by_key & (np.tri(7) > 0), "That is the k best queries of each key. A query chooses along its row."),
        )
        alone(lambda S, k=k: answer(S, k), right[0, 0], S[0, 0], pullback=False)


@exercise("9.5")
def an_order_of_two(answer):
    """The first entry of the order of two blocks."""
    rng = np.random.default_rng(95)
    for tau in (0.7, 2.0):
        R = rng.standard_normal((2, 2))
        P, _ = sinkhorn(R / tau, iterations=200)
        stay, change = R[0, 0] + R[1, 1], R[0, 1] + R[1, 0]
        expect(
            answer(R, tau),
            P[0, 0],
            "P begins as exp(R/τ), and each step multiplies a row or a column. Which ratio of all four stays the same?",
            (1 / (1 + np.exp(-(R[0, 0] - R[0, 1]) / tau)), "That is the first row by itself, after half a step."),
            (
                1 / (1 + np.exp(-(stay - change) / tau)),
                "p²/(1 − p)² is that exponential, so there is a root to be taken.",
            ),
            (
                1 / (1 + np.exp(-tau * (stay - change) / 2)),
                "The logits are divided by τ: the colder, the harder the choice.",
            ),
            (1 / (1 + np.exp((stay - change) / tau / 2)), "This is the probability of changing places."),
        )
    R = np.array([[0.0, -30], [10, 8]])  # after k iterations P₀₀ is still 1/2k too small
    expect(
        answer(R, 1.0),
        1 / (1 + np.exp(-14)),
        f"It is right for small logits. For R = {R.tolist()} and τ = 1 it is another number. Is something iterated?",
    )


@exercise("9.6")
def a_bound_in_the_place_of_a_mean(answer):
    """The largest score that a key between two corners can have."""
    rng = np.random.default_rng(96)
    q, ends = rng.standard_normal(4), np.sort(rng.standard_normal((2, 5, 4)), 0)
    corners = [
        [q @ np.where(where, *block) for where in itertools.product((True, False), repeat=4)]
        for block in zip(*ends, strict=True)
    ]
    low, high = ends
    expect(
        answer(q, low, high),
        np.max(corners, 1),
        "Which corner between low and high has the largest product with q? Choose channel by channel.",
        (high @ q, "Where q is negative, a small key makes the product large."),
        (np.maximum(low @ q, high @ q), "A key may be low in one channel and high in another."),
        ((np.maximum(np.abs(low), np.abs(high)) @ np.abs(q)), "No key exceeds that, but there is a smaller bound."),
        ((low + high) @ q / 2, "The middle of a block says what a mean says. Some key may have a larger score."),
    )


@exercise("9.7")
def rounds_that_overlap(answer):
    """Several rounds put together, in which pairs are seen more than once."""
    rng = np.random.default_rng(97)
    S, V = rng.standard_normal((6, 6)), rng.standard_normal((6, 3))
    sees = rng.random((3, 6, 6)) < 0.5
    sees |= np.eye(6, dtype=bool)
    times = sees.sum(0)
    right, twice, cut = (
        np.exp(S) * weight / (np.exp(S) * weight).sum(1, keepdims=True) @ V
        for weight in (times > 0, times, times * np.exp(-times.astype(float)))
    )
    each = [np.exp(S) * part / (np.exp(S) * part).sum(1, keepdims=True) @ V for part in sees]
    expect(
        answer(S, V, sees),
        right,
        "What weight does a pair get that two rounds see? It should have the one that it has in a single softmax.",
        (twice, "As printed, a pair that N rounds see weighs N times as much as it should."),
        (cut, "Subtracting N from a score divides its weight by e to the N, and not by N."),
        (np.mean(each, 0), "Rounds do not weigh the same: the more they see, the more they count."),
    )


@exercise("9.8")
def back_without_a_memory(answer):
    """A reversible block backwards, from its outputs."""
    rng = np.random.default_rng(98)
    W = rng.standard_normal((2, 4, 4))
    calls = []

    def half(name, W):
        def function(X):
            calls.append(name)
            Z, back_linear = linear(X, W.astype(X.dtype))
            Y, back_tanh = tanh(Z)
            return Y, lambda dY: back_linear(back_tanh(dY))[0]

        return function

    F, G = half("F", W[0]), half("G", W[1])
    X_1, X_2, dY_1, dY_2 = rng.standard_normal((4, 2, 5, 4))
    Y_1 = X_1 + F(X_2)[0]
    Y_2 = X_2 + G(Y_1)[0]
    calls.clear()
    found = several(answer(F, G, Y_1, Y_2, dY_1, dY_2), "X_1", "X_2", "dX_1", "dX_2")
    if sorted(calls) != ["F", "G"]:
        raise NotYet(f"F should be called once and G once. Here it was {', '.join(calls) or 'none of them'}.")
    expect(
        found[1],
        X_2,
        "X_2: what had been added to it, and from what was that computed?",
        (Y_2 - F(Y_1)[0], "X_2: it was G that added to it, and not F."),
    )
    expect(
        found[0],
        X_1,
        "X_1: what was added is F of X_2, which is known again by now.",
        (Y_1 - F(Y_2)[0], "X_1: F read X_2, and not what G made of it."),
    )
    dX_1 = dY_1 + G(Y_1)[1](dY_2)
    expect(
        found[2],
        dX_1,
        "dX_1: X_1 is in Y_1, and Y_1 is read by G.",
        (dY_1, "dX_1: and what comes through G, from dY_2?"),
    )
    expect(
        found[3],
        dY_2 + F(X_2)[1](dX_1),
        "dX_2: X_2 is in Y_2, and F read it.",
        (dY_2 + F(X_2)[1](dY_1), "dX_2: F was added to Y_1. Is dY_1 all that has come there?"),
        (dY_2, "dX_2: and what comes through F?"),
    )


@exercise("9.9")
def query_and_key_at_once(answer):
    """Attention with shared queries and keys, in which no word sees itself: (Q, V) to (Y, pullback)."""
    rng = np.random.default_rng(99)
    Q, V, dY = rng.standard_normal((3, 2, 3, 5, 4))
    length = np.linalg.norm(Q, axis=-1, keepdims=True)
    K, others = Q / length, ~np.eye(5, dtype=bool)
    Y, pullback = with_pullback(answer, Q, V)
    right, back = dot_product_attention(Q, K, V, mask=others)
    A, _ = softmax(Q @ K.swapaxes(-1, -2) / 2)
    expect(
        Y,
        right,
        "Y: keys have length one, queries do not, and the diagonal of A is zero.",
        (A @ V, "Y: every query still sees itself."),
        ((A * others) @ V, "Y: a row's own weight was removed after the softmax, and the others no longer sum to one."),
        (dot_product_attention(Q, Q, V, mask=others)[0], "Y: keys should be brought to length one."),
        (dot_product_attention(K, K, V, mask=others)[0], "Y: only keys are brought to length one."),
        (dot_product_attention(Q, K, V, mask=others, scale=1.0)[0], "Y: the scores have to be divided by √d."),
    )
    found = several(pullback(dY), "dQ", "dV")
    as_query, as_key, _ = back(dY)
    likely(
        found[0],
        (as_query, "dQ: that is the gradient as a query. The same row is also a key."),
        *(
            (as_query + back_to_q, "dQ: the key is q over its length, and moving q along itself does not change it.")
            for back_to_q in (as_key, as_key / length)
        ),
        (
            as_query + as_key - (as_key * K).sum(-1, keepdims=True) * K,
            "dQ: the longer q is, the less its direction turns. Divide by its length.",
        ),
    )
    derivative(answer, Q, V, hint="Add what a row gets as a query and what it gets as a key.")
    alone(answer, right[0, 0], Q[0, 0], V[0, 0])
