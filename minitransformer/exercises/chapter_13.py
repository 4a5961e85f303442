"""Exercises of chapter 13, on hypernetworks and routing."""

import numpy as np

from minitransformer.exercises.check import NotYet, alone, array_of, close, derivative, exercise, unless, value
from minitransformer.functional import softmax
from minitransformer.related import route


def two_inputs(a):
    """Votes of the example: both a for output 1, a and −a for output 2."""
    return np.array([[[a], [a]], [[a], [-a]]])


@exercise("13.1")
def rank_of_a_mean(answer):
    """The rank of M if all rows of A are the same."""
    rng = np.random.default_rng(1)
    A, _ = softmax(rng.standard_normal(5))
    wanted = np.linalg.matrix_rank(np.kron(np.tile(A, (5, 1)), rng.standard_normal((4, 4))))
    unless(answer, 1, "That is the rank of A. But a token has four numbers, and each of them gets through.")
    unless(answer, 20, "M can't be inverted: two texts with the same mean give the same outputs.")
    close(answer, wanted, "How many numbers about the text are left in Y? Think of the mean of the values.", 0.01)


@exercise("13.2")
def second_round(answer):
    """c and v of output 1 in the second round."""
    v, pullback = route(two_inputs(2.0), iterations=2)
    c, before = pullback.C[1][0, 0], route(two_inputs(2.0), iterations=1)[0][0, 0]
    wrong = 1 / (1 + np.exp(-before))
    array_of(answer, (2,), "Two numbers, c and v.")
    unless(answer[0], wrong, "The logit grows by a product: the vote times the outcome, not the outcome alone.", 0.01)
    unless(
        answer[0],
        0.5,
        "That is so in round 1. In round 2 it is so only if softmax runs over the inputs, which agree; it runs over the outputs.",
        0.01,
    )
    close(
        answer[0],
        c,
        "After round 1 the logits are the products of the votes 2, 2 and of v; what is v of output 2?",
        0.01,
    )
    unless(answer[1], 4 * c, "That is s. The outcome is squashed, and shorter than one.", 0.01)
    close(answer[1], v[0, 0], "s is the sum of both votes with their weights; then squash it.", 0.01)


@exercise("13.3")
def two_layers_of_rows(answer):
    """Rows of A in the second layer that change with token 4."""
    wanted = [np.count_nonzero(sees[:, 4]) for sees in (np.ones((9, 9)), np.tri(9))]
    unless(answer, [1, 1], "That is so in the first layer. Whose outputs have changed there?", 0.01)
    unless(answer, [9, 9], "A token that comes before token 4 does not see it.", 0.01)
    unless(answer, [9, 4], "Token 4 itself has changed as well.", 0.01)
    close(
        answer,
        wanted,
        "A row of the second layer is made of its own token's input, and that is an output of the first.",
        0.01,
    )


@exercise("13.4")
def copies_the_token_before(answer):
    """R whose softmax is a shift by one."""
    R = array_of(answer, (16, 16), "R has a row for each place that looks, and a column for each that is seen.")
    if np.isposinf(R).any():
        raise NotYet("Softmax would subtract infinity from infinity, which is not a number. A large one will do.")
    for n in range(2, 17):
        A, _ = softmax(R[:n, :n])
        if np.diagonal(A, 1).min() > 0.9:
            raise NotYet("This one takes the token after it. Rows look, columns are seen.")
        if np.diagonal(A).min() > 0.9:
            raise NotYet("With this one every token keeps its own value.")
        if not np.diagonal(A, -1).min() >= 0.999:
            raise NotYet(
                f"With {n} tokens, a token takes {np.diagonal(A, -1).min():.5f} of the one before. How high is high?"
            )


@exercise("13.5")
def weights_of_many_heads(answer):
    """M of a layer with several heads."""
    rng = np.random.default_rng(5)
    A, W_v, W_o, X = (rng.standard_normal(s) for s in ((3, 4, 4), (3, 2, 5), (3, 5, 2), (4, 2)))
    M = array_of(answer(A, W_v, W_o), (8, 8), "M has n D rows and columns, here for n = 4 and D = 2.")
    maps = W_v @ W_o
    Y = (A @ X @ maps).sum(0)
    unless(
        M @ X.ravel(),
        (A @ X @ maps.mT).sum(0).ravel(),
        "A row of X stands left of its matrix, vec(X) right of M: transpose.",
    )
    if np.allclose((M @ X.T.ravel()), Y.T.ravel()):
        raise NotYet(
            "This is right for columns one after another. Rows one after another want the factors in the other order."
        )
    close(
        M @ X.ravel(),
        Y.ravel(),
        "Block (i, j) of M is the sum over the heads of A_ij times the transposed product of both matrices.",
    )


@exercise("13.6")
def a_causal_synthesizer(answer):
    """(13.3) without biases, causal, for a batch and fewer tokens than places."""
    rng = np.random.default_rng(6)
    X, W_1, W_2, W_v = (rng.standard_normal(s) for s in ((2, 5, 3), (3, 4), (4, 7), (3, 3)))
    seen = np.tri(5) > 0

    def with_logits(S, mask):
        return softmax(np.where(mask, S, -np.inf))[0] @ X @ W_v

    S = np.maximum(X @ W_1, 0) @ W_2
    given = answer(X, W_1, W_2, W_v)
    for A in (softmax(S[..., :5])[0], softmax(S)[0][..., :5]):
        hidden = np.where(seen, A, 0) @ X @ W_v
        unless(given, hidden, "Weights hidden after the softmax leave rows that do not sum to one.")
    zeros = with_logits(np.where(seen, S[..., :5], 0), True)
    unless(given, zeros, "A logit of 0 hides nothing: e to the power of 0 is 1.")
    unless(given, with_logits(S[..., :5], True), "This is the synthesizer, but it looks ahead.")
    unless(given, with_logits(S[..., :5], seen.T), "The mask is the other way round: i sees j ≤ i.")
    unless(given, with_logits(S[..., -5:], seen), "Column j of the logits belongs to place j, from the first on.")
    unless(given, with_logits((X @ W_1 @ W_2)[..., :5], seen), "Something has to stand between the two matrices.")
    close(
        given,
        with_logits(S[..., :5], seen),
        "Five tokens use the first five of seven columns of W_2; no 1/√d, and a ReLU. Rows sum to one, and W_v makes the values.",
    )
    few = "A text of three tokens should give what the first three of five give: the text says n, and W_2 the longest."
    close(answer(X[:, :3], W_1, W_2, W_v), np.asarray(given)[:, :3], few)
    alone(answer, np.asarray(given)[0], X[0], W_1, W_2, W_v, pullback=False)


@exercise("13.7")
def rounds_that_remember(answer):
    """Routing by agreement, for three rounds."""
    votes = np.random.default_rng(7).standard_normal((5, 3, 2))
    for T in (1, 2, 3, 4):
        wanted, _ = route(votes, iterations=T)
        where = "The listing is right there, and only the last line of its loop is to change."
        if T > 1:
            where = "Compare the last line of the loop with the last formula."
        close(answer(votes, T), wanted, f"With T = {T} it is not yet (13.8). {where}")


@exercise("13.8")
def how_loud(answer):
    """The vote at which output 1 has 95 % in the third round."""

    def part(a, rounds=3):
        return route(two_inputs(a), iterations=rounds)[1].C[rounds - 1][0, 0]

    def found(rounds):
        low, high = 0.1, 10.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if part(middle, rounds) < 0.95 else (low, middle)
        return low

    a = array_of(answer, (), "It is one number.")
    unless(answer, found(2), "That is the second round. In round 1 all weights are equal.", 0.01)
    unless(answer, found(4), "That is the fourth round. In round 1 all weights are equal.", 0.01)
    close(answer, found(3), f"With your number it gets {part(float(a)):.1%}.", 0.01)


@exercise("13.9")
def factors_of_logits(answer):
    """S_ij = β_ip γ_ir with j = p m₂ + r, and its gradient."""
    rng = np.random.default_rng(9)
    beta, gamma = rng.standard_normal((3, 2)), rng.standard_normal((3, 4))
    S = np.array([[beta[i, j // 4] * gamma[i, j % 4] for j in range(8)] for i in range(3)])
    given = value(answer, beta, gamma)
    unless(
        given,
        S.reshape(3, 2, 4).swapaxes(1, 2).reshape(3, 8),
        "Place j = p m₂ + r: it is γ that runs fast, and β that is repeated.",
    )
    close(given, S, "Place j has the entry j // m₂ of β and the entry j % m₂ of γ.")
    derivative(answer, beta, gamma, hint="One entry of β is in m₂ logits, one of γ in m₁: add up what they send back.")
