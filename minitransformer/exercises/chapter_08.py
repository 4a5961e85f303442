"""Exercises of chapter 08, on patterns of pairs."""

import itertools

import numpy as np

from minitransformer.attention import Window, dot_product_attention
from minitransformer.attention.sparse.graph import Graph
from minitransformer.exercises.check import (
    NotYet,
    alone,
    close,
    derivative,
    exercise,
    expect,
    likely,
    several,
    with_pullback,
    without_a_matrix,
)
from minitransformer.machine import peak_memory


@exercise("8.1")
def back_through_a_window(answer):
    """What four values get of the first row's gradient, without and with a global word."""
    near = np.abs(np.arange(4)[:, None] - np.arange(4)) <= 1
    everywhere = near.copy()
    everywhere[3], everywhere[:, 3] = True, True
    A, B = (mask / mask.sum(1, keepdims=True) for mask in (near, everywhere))
    expect(
        answer,
        [A[0], B[0]],
        "y₁ is a mean of those values that word 1 sees. How much of y₁ is each of them?",
        (
            [A[:, 0], B[:, 0]],
            "That is the first column of A, what the value 1 gives to each output. Which row is sent back?",
        ),
        ([A[0], A[0]], "A global word is seen by all, also by word 1."),
        (
            [np.full(4, 1 / 4), np.full(4, 1 / 4)],
            "Word 1 does not see all four. A pair that is left out has the weight 0.",
        ),
        tolerance=0.01,
    )


@exercise("8.2")
def where_494_comes_from(answer):
    """The pairs that one global word adds to a window."""
    for n, rho in ((30, 4), (41, 7), (12, 11)):
        count = [Window(rho, global_tokens=g)(n, n, causal=False).mask.sum() for g in (0, 1)]
        found = answer(n, rho)
        expect(
            found,
            count[1] - count[0],
            "Which pairs of row 1 and of column 1 are not in the window?",
            (2 * n - 1, "That is its whole row and column. The window had some of these pairs before."),
            (2 * (n - rho), "The pair (1, 1) is in the row and in the column, and in the window as well."),
            (n - 1 - rho, "The word sees, and it is seen."),
            (2 * n - 2 - 4 * rho, "The first word has no neighbours to its left."),
            tolerance=1e-9,
        )


@exercise("8.3")
def doubling(answer):
    """Distance reached by doubled steps, by single ones, and the number of ways to one of them."""
    reached = [sum(steps) for steps in itertools.product(*((0, 2**layer) for layer in range(10)))]
    right = [max(reached), 10, reached.count(1000)]
    if np.shape(answer) != (3,):
        raise NotYet("Three whole numbers are asked for.")
    for given, number, hint in zip(
        answer,
        right,
        (
            "Sum the ten steps. The last layer, u = 9, looks 512 places back.",
            "Each layer of the second kind adds one place.",
            "Each layer takes its step or stays. Write 1,000 in binary digits.",
        ),
        strict=True,
    ):
        close(given, number, hint, 1e-9)


@exercise("8.4")
def what_stands_where_in_the_ring(answer):
    """The words in a ring of w places after word t."""
    for t, w in ((11, 5), (12, 4), (4, 5), (2, 5), (0, 1)):
        ring = np.full(w, -1)
        for j in range(t + 1):
            ring[j % w] = j
        expect(
            answer(t, w),
            ring,
            f"For t = {t} and w = {w}: write the words 0, 1, 2, … one after the other. What stands at each place then?",
            (
                np.arange(t - w + 1, t + 1),
                "These are the words in the order of the text. In which place does each stand?",
            ),
            (np.roll(ring, 1), "All of them stand one place too far."),
            (np.maximum(ring, 0), "0 is the number of a word. A place where nothing has been written yet gets −1."),
            (np.where(ring == t, t - w, ring), "Word t has been written, and has taken the place of word t − w."),
            (
                t - (t - np.arange(w)) % w,
                "Some of these words come before the first, where nothing has been written yet.",
            ),
            tolerance=1e-9,
        )


@exercise("8.5")
def a_rule_of_your_own(answer):
    """A mask in which one sees oneself, the one before and the first of one's block, and its number of layers."""
    mask, layers = several(answer, "the function", "the number")
    for n in (8, 21):
        i, j = np.ogrid[:n, :n]
        right = (j <= i) & ((i - j <= 1) | (j == i // 8 * 8))
        found = mask(n)
        if hasattr(found, "mask"):
            raise NotYet("These are the tiles of a pattern. Their `.mask` is the boolean array.")
        found = np.asarray(found)
        if found.shape != right.shape or found.dtype != bool:
            raise NotYet(f"A boolean mask of {right.shape} is wanted, and this is {found.dtype} of {found.shape}.")
        if np.triu(found, 1).any():
            raise NotYet("Some word sees what comes later.")
        if not np.diagonal(found).all():
            raise NotYet("Some word does not see itself.")
        if n > 8 and np.array_equal(found, right | ((j <= i) & (j % 8 == 0))):
            raise NotYet("A word sees the first word of its own block, and not of all blocks before.")
        if not np.array_equal(found, right):
            row = np.flatnonzero((found != right).any(1))[0]
            raise NotYet(f"Of {n} words, word {row} sees other words than the rule says.")
    i, j = np.ogrid[:64, :64]
    D = Graph((j <= i) & ((i - j <= 1) | (j == i // 8 * 8))).distances()
    expect(
        layers,
        D[np.tri(64, k=-1) > 0].max(),
        "The mask is right. How does word 63 hear of word 1?",
        (D[63, 0], "That is the distance to word 0. Is there a word that is harder to reach?"),
        tolerance=1e-9,
    )


@exercise("8.6")
def the_clustering_of_a_window(answer):
    """How often two neighbours of a word are neighbours."""
    for rho in (5, 1, 2, 9):
        words = [s for s in range(-rho, rho + 1) if s]
        pairs = list(itertools.combinations(words, 2))
        right, nearer = (sum(abs(a - b) <= far for a, b in pairs) / len(pairs) for far in (rho, rho - 1))
        expect(
            answer(rho),
            right,
            "Count pairs on one side, and pairs on different sides, out of all ρ(2ρ − 1).",
            ((rho - 1) / (2 * rho - 1), "These are the pairs on one side. Two on different sides can be near too."),
            (nearer, "Two words that are exactly ρ apart are next to each other, too."),
            (3 / 4, "That is what it approaches, for a wide window."),
        )


@exercise("8.7")
def how_far_is_heard(answer):
    """The weight at the far end of L equal windows, and the root of the mean squared distance."""
    for rho, L in ((4, 8), (1, 3), (2, 5)):
        weights = np.ones(1)
        for _ in range(L):
            weights = np.convolve(weights, np.full(2 * rho + 1, 1 / (2 * rho + 1)))
        distance = np.arange(-L * rho, L * rho + 1)
        right = [weights[-1], np.sqrt(weights @ distance**2)]
        found = answer(rho, L)
        if np.shape(found) != (2,):
            raise NotYet("The function should return two numbers.")
        close(
            found[0], right[0], "How many ways lead Lρ places to the right, and what weight does each layer put on it?"
        )
        expect(
            found[1],
            right[1],
            "What is the variance of one step, from −ρ to ρ, and of the sum of L independent ones?",
            (L * np.sqrt(rho * (rho + 1) / 3), "Steps that go both ways do not add up like that: their variances do."),
            (right[1] ** 2, "That is the mean of the square. Its root is asked for."),
            (rho * np.sqrt(L), "A step is not always ρ long: it is any number from −ρ to ρ, equally likely."),
        )


@exercise("8.8")
def rolled_around_the_end(answer):
    """Blocks that see themselves and their neighbours, by rolling."""
    rng = np.random.default_rng(88)
    for n, b in ((12, 3), (12, 4), (10, 2)):
        Q, K, V = rng.standard_normal((3, n, 4))
        own = np.arange(n) // b
        apart = np.abs(own[:, None] - own)
        right, _ = dot_product_attention(Q, K, V, mask=apart <= 1)
        found = answer(Q, K, V, b)
        S = Q @ K.T / 2
        rolled = (apart <= 1) | (apart == n // b - 1)
        zero = np.where(apart <= 1, np.exp(S), rolled * 1.0)
        unmended = np.exp(S) * (apart <= 1) / (np.exp(S) * rolled).sum(1, keepdims=True)
        expect(
            found,
            right,
            "Compare it row by row with dense attention under a mask. Which rows differ?",
            (dot_product_attention(Q, K, V, mask=rolled)[0], "As printed. Which blocks does the first block meet?"),
            (dot_product_attention(Q, K, V, mask=apart == 0)[0], "Now no block sees its neighbours."),
            (unmended @ V, "Weights that are removed after the softmax leave rows that no longer sum to one."),
            (
                zero / zero.sum(1, keepdims=True) @ V,
                "A score of 0 is a weight of e⁰ = 1. What is left out has the score −∞.",
            ),
        )
    without_a_matrix(2000, answer, *rng.standard_normal((3, 2000, 4)), 4)


@exercise("8.9")
def a_window_without_a_matrix(answer):
    """Causal attention to the last ρ + 1 keys, with its gradient: (Q, K, V, ρ) to (Y, pullback)."""
    rng = np.random.default_rng(89)
    Q, K, V, dY = rng.standard_normal((4, 2, 3, 7, 4))
    i, j = np.ogrid[:7, :7]
    for rho in (2, 3):
        near = (j <= i) & (i - j <= rho)
        Y, pullback = with_pullback(answer, Q, K, V, rho)
        right, masked = dot_product_attention(Q, K, V, mask=near)
        nobody = np.exp(Q @ K.swapaxes(-1, -2) / 2) * near
        nobody = nobody / (nobody.sum(-1, keepdims=True) + np.maximum(rho - np.arange(7), 0)[:, None])
        expect(
            Y,
            right,
            "Y: compare it with dense attention under the mask 0 ≤ i − j ≤ ρ, first the first rows.",
            (
                dot_product_attention(Q, K, V, mask=near & (i - j < rho))[0],
                "A query sees ρ keys before it and its own.",
            ),
            (dot_product_attention(Q, K, V, mask=near, scale=1.0)[0], "The scores have to be divided by √d."),
            (nobody @ V, "In the first rows, keys that are not there count with a weight of e⁰."),
        )
    found = several(pullback(dY), "dQ", "dK", "dV")
    places = np.arange(7)[:, None] - np.arange(4)
    sent = np.take_along_axis(masked.A, np.maximum(places, 0)[None, None], -1) * (places >= 0)
    once = np.zeros_like(V)
    once[:, :, np.maximum(places, 0)] += sent[..., None] * dY[..., None, :]
    likely(found[2], (once, "A key stands in several windows. An indexed += keeps only one of what they send to it."))
    derivative(lambda Q, K, V: answer(Q, K, V, 3), Q, K, V, hint="Each key is in ρ + 1 windows: whose dS reaches it?")
    alone(lambda Q, K, V: answer(Q, K, V, 3), right[0, 0], Q[0, 0], K[0, 0], V[0, 0])
    n = 2048  # a loop over queries keeps up to 1.7 kB for each of them, and a matrix of booleans takes n bytes
    Q, K, V, dY = rng.standard_normal((4, n, 2))
    with peak_memory() as peak:
        _, pullback = answer(Q, K, V, 2)
        forward = peak()
        pullback(dY)
        if peak() > n * n:
            where = "the pullback" if forward <= n * n else "somewhere it"
            raise NotYet(
                f"It is right, and {where} makes an array of n × n. Which array of n × (ρ + 1) entries could replace it?"
            )
