"""Exercises of chapter 14, on graphs."""

import numpy as np

from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    unless,
    value,
    without_a_matrix,
)
from minitransformer.functional import softmax
from minitransformer.related import additive_attention
from minitransformer.related.graph import edges_of
from minitransformer.related.graph_convolution import propagate


def some_edges(n, seed):
    """A mask with loops that is not symmetric."""
    return (np.random.default_rng(seed).random((n, n)) < 0.35) | np.eye(n, dtype=bool)


@exercise("14.1")
def a_star(answer):
    """Averages of a star, plain and symmetric."""
    star = edges_of(np.array([[0, 1], [0, 2], [0, 3], [0, 4]]), 5, both_ways=True, loops=True)
    x = np.array([[0.0], [10], [10], [10], [10]])
    plain, symmetric = (propagate(x, star, scaling=s)[0][:2, 0] for s in ("rows", "symmetric"))
    given = array_of(answer, (2, 2), "Two numbers for each form.")
    unless(given[0], [10, 0], "Every node has a loop, and counts in its own average.", 0.01)
    unless(
        given[0], [20, 5], "Divide by the number of nodes that the one who looks sees, not the one who is seen.", 0.01
    )
    close(given[0], plain, "How many nodes does the middle see, and how many does one of the others?", 0.01)
    unless(given[1], plain, "The symmetric form differs where the two ends see different numbers of nodes.", 0.01)
    close(given[1], symmetric, "The weight at (i, j) is one over the root of the product of both numbers.", 0.01)


@exercise("14.2")
def favourites(answer):
    """How many nodes can be their own favourite."""
    nodes, heads = np.random.default_rng(2).standard_normal((2, 30)), 4
    own = [np.count_nonzero((nodes[0][:, None] + nodes[1]).argmax(1) == np.arange(30)) * h for h in (1, heads)]
    unless(answer, [30, 30], "Node i prefers the j with the largest score, and f_i is the same for every j.", 0.01)
    unless(answer, [own[0], own[0]], "Each head has an order of its own.", 0.01)
    unless(answer, [0, 0], "Somebody is the favourite of all, and sees itself as well.", 0.01)
    given = array_of(answer, (2,), "One number for one head, and one for four.")
    close(given[0], own[0], "In one head all thirty nodes have one order of preference. Who is first in it?", 0.01)
    close(
        given[1],
        own[1],
        "The first is right. How many nodes are first in at least one of four orders, at the most?",
        0.01,
    )


@exercise("14.3")
def two_edges_away(answer):
    """A product of the mask with itself."""
    mask = some_edges(9, 3) & some_edges(9, 4)
    wanted = np.zeros((9, 9), bool)
    for i, k, j in np.ndindex(9, 9, 9):
        wanted[i, j] |= mask[i, k] & mask[k, j]
    given = answer(mask)
    if np.array_equal(array_of(given, (9, 9), "It is a mask.") > 0, wanted) and np.asarray(given).dtype != bool:
        raise NotYet("The places are right. But it should be a mask: True or False, not a number of ways.")
    unless(given, mask, "That is one edge: the mask again.")
    unless(given, wanted.T, "The direction is reversed: i sees k, and k sees j.")
    unless(given, wanted | wanted.T, "Edges here need not go both ways.")
    close(given, wanted, "There has to be a k that i sees and that sees j. Loops make one edge count as two.")


@exercise("14.4")
def scores_of_a_convolution(answer):
    """S with softmax proportional to 1/√(N_ii N_jj) on the edges."""
    mask = some_edges(7, 4)
    N = mask.sum(1)

    def weights(scores):
        return softmax(np.where(mask, scores, -np.inf))[0]

    S = array_of(answer(mask), (7, 7), "A score for each pair.")
    if not np.isneginf(S[~mask]).all() or not np.isfinite(S[mask]).all():
        raise NotYet("Where there is no edge the score is −∞, and elsewhere it is a number.")
    given = softmax(S)[0]
    unless(given, weights(0.0 * N), "All nodes that are seen have the same weight: what depends on i alone drops out.")
    unless(given, weights(np.log(N) / 2), "The sign is wrong: a node that sees many should weigh less.")
    unless(given, weights(-np.log(N)), "These weights are 1/N. A root is a half in the logarithm.")
    unless(given, weights(-np.log(mask.sum(0)) / 2), "N counts the nodes that j sees, a row of the mask.")
    for weight in (1 / np.sqrt(N), 1 / np.sqrt(np.outer(N, N))):
        unless(given, weights(weight), "Softmax takes e to the power of the scores: weights want their logarithm.")
    close(given, weights(-np.log(N) / 2), "Weights are e to the power of the scores, divided by their sum.")


@exercise("14.5")
def average_along_edges(answer):
    """The mean of the sources of each destination."""
    rng = np.random.default_rng(5)
    mask = rng.random((6, 6)) < 0.5
    mask[[2, 5]] = False  # one of them the last
    i, j = np.nonzero(mask)
    order, X = rng.permutation(len(i)), rng.standard_normal((6, 3))
    number = mask.sum(1, keepdims=True)
    wanted = mask @ X / np.maximum(number, 1)
    given = array_of(answer(X, i[order], j[order]), (6, 3), "A row for each node.")
    if np.isnan(given).any():
        raise NotYet("Somebody sees nobody, and 0/0 is not a number. Such a node gets zeros.")
    last = np.zeros((6, 3))
    last[i[order]] = X[j[order]]
    unless(
        given,
        last / np.maximum(number, 1),
        "Y[destinations] += … writes once for each node; repeated ends are lost. np.add.at adds.",
    )
    unless(given, mask @ X, "These are sums, and a mean is wanted.")
    unless(
        given,
        mask.T @ X / np.maximum(mask.sum(0)[:, None], 1),
        "It goes the wrong way: what the source has goes to the destination.",
    )
    close(
        given, wanted, "Add what each source has to its destination, and divide by the number of edges that end there."
    )
    ring, X = np.arange(2000), rng.standard_normal((2000, 2))
    without_a_matrix(2000, answer, X, ring, ring[::-1])


@exercise("14.6")
def a_head_of_gat(answer):
    """Additive attention on a mask, and its gradient."""
    rng = np.random.default_rng(6)
    f, g, V = 0.3 * rng.standard_normal(7), rng.standard_normal(7), rng.standard_normal((7, 3))
    mask = some_edges(7, 6)
    one = np.ones((1, 1))
    Y, _ = additive_attention(f[None, :, None], g[None, :, None], V[None], one, mask=mask)
    close(value(answer, f, g, V, mask), Y[0], "The value was right in the listing.")
    hint = "Look at the gradient that is named here, and ask along which edges, and which way, it has to go."
    derivative(answer, f, g, V, mask, hint=hint)


@exercise("14.7")
def layers_of_a_ring(answer):
    """Layers until the slowest wave on a ring of forty is a hundredth."""

    def layers(shrinks):
        return np.ceil(np.log(0.01) / np.log(shrinks))

    turn = np.cos(2 * np.pi / 40)
    unless(answer, layers(turn), "Every node has a loop: it sees three.", 1e-4)
    unless(answer, layers((1 + turn) / 2), "A node sees three: itself and both neighbours, each with a third.", 1e-4)
    unless(answer, layers((1 + 2 * turn) / 3) - 1, "After so many it is not yet below one hundredth.", 1e-4)
    unless(answer, layers((1 + 2 * turn) / 3) + 1, "One layer fewer is enough.", 1e-4)
    unless(
        answer, layers((1 + 2 * turn) / 3) / 2, "After so many it is about a tenth, and a hundredth is asked for.", 0.01
    )
    close(
        answer,
        layers((1 + 2 * turn) / 3),
        "Let P act in a loop, and count; or find what one layer does to a cosine.",
        1e-4,
    )


@exercise("14.8")
def largest_neighbour(answer):
    """The largest of what is seen, and its gradient."""
    X, mask = np.random.default_rng(8).standard_normal((6, 3)), some_edges(6, 8)
    given = value(answer, X, mask)
    wanted = np.array([X[mask[i]].max(0) for i in range(6)])
    unless(given, np.array([X[mask[:, i]].max(0) for i in range(6)]), "Row i of the mask says whom i sees.")
    unless(given, np.array([X.max(0)] * 6), "Only nodes that i sees may win.")
    unless(
        given,
        np.where(mask[..., None], X, 0).max(1),
        "Who is not seen takes part with a zero, and wins where all numbers that are seen are negative.",
    )
    close(given, wanted, "The largest of what i sees, itself included, and each channel has a winner of its own.")
    derivative(answer, X, mask, hint="Only the winner gets a gradient, from every node at which it has won.")
    unseen = "A node that i does not see gets no gradient from i, even if its number equals the winner's."
    derivative(answer, X[[0, 0, 1]], np.eye(3, dtype=bool), hint=unseen)


@exercise("14.9")
def without_phi(answer):
    """Causal weights that are e^g, by running sums."""
    rng = np.random.default_rng(9)
    f, g, V = rng.standard_normal(7), rng.standard_normal(7), rng.standard_normal((7, 3))
    S = f[:, None] + g
    seen = np.tri(7) > 0
    wanted = softmax(np.where(seen, S, -np.inf))[0] @ V
    given = answer(f, g, V)
    unless(given, softmax(np.where(seen, np.where(S > 0, S, 0.2 * S), -np.inf))[0] @ V, "Here φ is gone.")
    unless(given, softmax(S)[0] @ V, "It is causal: row i sees j ≤ i.")
    unless(given, np.cumsum(np.exp(g)[:, None] * V, 0), "These sums have to be divided by those of the weights.")
    unless(given, np.cumsum(np.exp(g)[:, None] * V, 0) / np.exp(g).sum(), "Row i divides by the weights up to i.")
    close(given, wanted, "Write a row of the softmax as a fraction, and cancel what is in all of its terms.")
    long = rng.standard_normal(2000)
    without_a_matrix(2000, answer, long, long, rng.standard_normal((2000, 2)))
