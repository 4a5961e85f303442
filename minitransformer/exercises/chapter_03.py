"""Exercises of chapter 03, on the transformer."""

import numpy as np

from minitransformer.attention import dot_product_attention
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
    unless,
    value,
    without_nan,
)
from minitransformer.functional import layer_norm, linear, rms_norm
from minitransformer.models import NormParams, next_token_distribution


@exercise("3.1")
def nothing_through_the_norm(answer):
    """Two directions of dY, (2, 4), of which the norm of (0, 0, 0, 10) passes nothing."""
    given = without_nan(array_of(answer, (2, 4), "Two rows of four numbers are wanted."))
    _, pullback = layer_norm(np.array([[0.0, 0, 0, 10]]), np.ones(4), np.zeros(4), eps=0.0)
    for number, dY in enumerate(given, 1):
        if not dY.any():
            raise NotYet("Zeros pass no gradient anywhere. Which other vectors?")
        if np.abs(pullback(dY[None])[0]).max() > 0.01 * np.abs(dY).max() / (7.5 / np.sqrt(3)):
            raise NotYet(f"Something of row {number} comes through. What can be done to the row without a change of Y?")
    if np.linalg.matrix_rank(given, tol=1e-3 * np.abs(given).max()) < 2:
        raise NotYet("The two are multiples of each other. One is a number added to all entries; and the other?")


@exercise("3.2")
def count_of_parameters(answer):
    """A function of D, depth, vocabulary and context: the parameters of the chapter's model."""
    for D, depth, vocabulary, context in ((12, 5, 40, 7), (32, 2, 256, 32)):
        given = array_of(answer(D, depth, vocabulary, context), ())
        attention, norm = 4 * D * D, D + D
        network = D * 4 * D + 4 * D + 4 * D * D + D
        tables = (vocabulary + context) * D
        right = tables + depth * (attention + network + 2 * norm) + norm
        for missing, hint in (
            (-vocabulary * D, "E is counted twice: the same table reads and writes."),
            (context * D, "The positions are learned, too."),
            (norm, "A pre-norm stack ends with one more norm."),
            (depth * 2 * norm + norm, "Each norm has a gain and a bias."),
            ((depth * 2 * norm + norm) // 2, "Each norm has a gain and a bias."),
            (depth * 2 * norm, "In each block 4D are missing: two norms have as many, and so have the hidden biases."),
            (depth * norm, "There are two norms in each block."),
            (depth * 5 * D, "The two layers of the feed-forward network have biases: 4D and D numbers."),
            (depth * 4 * D * D, "Have you counted four matrices of attention, and two of the feed-forward network?"),
            (depth * D * D, "Attention has four matrices: W_q, W_k, W_v and W_o."),
            (-depth * 4 * D, "The projections of attention have no biases here."),
        ):
            if given == right - missing:
                raise NotYet(f"For D = {D} and {depth} blocks it is off by {abs(missing)}. {hint}")
        if given != right:
            raise NotYet(f"For D = {D} and {depth} blocks the number is different. Count a block first, part by part.")


@exercise("3.3")
def bits_of_two_kinds_of_places(answer):
    """Bits per byte for 1/2 and 1/32, half of the places each, and the probability that costs as much."""
    P = np.array([1 / 2, 1 / 32])
    bits = -np.log2(P).mean()
    given, as_much = array_of(answer, (2,))
    likely(
        given,
        (-np.log2(P.mean()), "The loss is the mean of the surprises, and not the surprise of the mean probability."),
        (bits * np.log(2), "That is in nats. A bit is ln 2 of them."),
        tolerance=0.01,
    )
    unless(as_much, P.mean(), "The second is the plain mean of the two. How many bits does it cost?", 0.01)
    close(given, bits, "Find the surprise at each kind of place, in bits, and then the mean.", 0.01)
    close(as_much, 2**-bits, "The bits are right. Which probability costs as many?", 0.05)


@exercise("3.4")
def adam_of_a_gradient_that_turns(answer):
    """The length of Adam's step, in rates, if the gradient is 1 and −1 in turns."""
    mean = 0.0
    for t in range(400):
        mean = 0.9 * mean + 0.1 * (-1) ** t
    hint = "What is ḡ after a step up, if it was −a before? And what is the mean of the squares?"
    expect(
        answer,
        abs(mean),
        hint,
        (1.0, f"One rate is for a gradient that keeps its sign. {hint}"),
        (0.1, f"0.1 is what one gradient adds to ḡ, and there is something there already. {hint}"),
        tolerance=0.01,
    )


@exercise("3.5")
def bits_of_a_fresh_model(answer):
    """Bits above 8 if 256 logits are independent normal numbers."""
    logits = np.random.default_rng(35).standard_normal((4000, 256))
    nats = np.log(np.exp(logits).sum(1)).mean() - np.log(256)
    expect(
        answer,
        nats / np.log(2),
        "The surprise is log Σ exp ℓ − ℓ of the byte that comes. Take its mean over many places.",
        (nats, "That is in nats. A bit is ln 2 of them."),
        (nats / np.log(2) + 8, "That is all of it. How much is above 8?"),
        (0.0, "Some bytes get more than their share and some less. But the mean of −log₂ P is above 8."),
        tolerance=0.05,
    )


@exercise("3.6")
def the_fewest_that_reach(answer):
    """A function of P (vocabulary,) and p: what top-p leaves, and how it shares the whole."""
    tried = np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.3, 0.5, 0.15], [0.1, 0.6, 0.02, 0.28], [4, 1, 8, 3]])
    tried[3] /= 16  # numbers that are exact: two of them reach 3/4, and no more than that
    for P, p in zip(tried, (0.9, 0.4, 0.85, 0.75), strict=True):
        given, wanted = without_nan(real(answer(P, p))), next_token_distribution(np.log(P), top_p=p)
        kept, right = np.flatnonzero(given), np.flatnonzero(wanted)
        if given.shape == P.shape:
            if len(kept) < len(right):
                raise NotYet(
                    f"Of {P} you keep {P[kept].sum():.2f}, which does not reach {p}. Which token makes it reach?"
                )
            if len(kept) > len(right):
                raise NotYet(f"Of {P} you keep {len(kept)}. Fewer reach {p}.")
            unless(
                given, np.where(wanted > 0, P, 0), "Those that are kept share the whole: they have to sum to one again."
            )
            if np.array_equal(kept, right):
                close(
                    given, wanted, f"Of {P} you keep the right ones. They share in proportion to their probabilities."
                )
        close(
            given, wanted, f"Of {P}, for p = {p}, other tokens are kept, or those that are kept have left their places."
        )


@exercise("3.7")
def one_token_at_a_time(answer):
    """A function of q, k, v and the state: y, and the state for the next token."""
    rng = np.random.default_rng(37)
    Q, K, V = (rng.standard_normal(shape) for shape in ((5, 4), (5, 4), (5, 3)))
    wanted, _ = dot_product_attention(Q, K, V, causal=True)
    plain, _ = dot_product_attention(Q, K, V, causal=True, scale=1.0)
    state, hint = None, "The first row sees one key: y is its value."
    for i in range(5):
        found = answer(Q[i], K[i], V[i], state)
        if not (isinstance(found, (tuple, list)) and len(found) == 2):
            raise NotYet("Each call must return two things: y, and the state for the next call.")
        y, state = found
        if i and np.shape(y) == (3,):
            if np.allclose(y, V[i]):
                raise NotYet(f"At token {i + 1} y is the value of this token alone. Where are those before it?")
            if np.allclose(y, dot_product_attention(Q[i : i + 1], K[:i], V[:i])[0][0]):
                raise NotYet(f"Token {i + 1} sees those before it, and not itself: j ≤ i.")
            if np.allclose(y, plain[i]):
                raise NotYet("The scores are not divided by √d.")
        close(y, wanted[i], f"Token {i + 1} gets a different row than in the whole. {hint}")
        hint = "Those before it are right. What does a state have to hold? And what is d in the √d of the scores?"


@exercise("3.8")
def rms_norm_by_hand(answer):
    """RMS norm of X, gamma and eps, and a pullback with dX and dgamma."""
    rng = np.random.default_rng(38)
    X, gamma, eps = rng.standard_normal((2, 2, 3, 5)) + 0.5, rng.standard_normal(5), 0.1
    Y = value(answer, X, gamma, eps)
    close(Y, rms_norm(X, gamma, eps=eps)[0], "Y is not γ ⊙ x/r. No mean is taken off, and ε stands under the root.")
    derivative(
        lambda X, gamma: answer(X, gamma, eps),
        X,
        gamma,
        hint="Y is right, but its gradient is not. x acts directly, and through the r of its row; γ acts in all rows.",
    )
    alone(lambda X, gamma: answer(X, gamma, eps), np.asarray(Y)[0, 0], X[0, 0], gamma)


@exercise("3.9")
def post_norm(answer):
    """LN(X + F(X)) from layer, p, norm and X, and a pullback with dp, dnorm and dX."""
    rng = np.random.default_rng(39)
    W, X, (gamma, beta) = (rng.standard_normal(shape) for shape in ((4, 4), (2, 3, 4), (2, 4)))
    norm = NormParams(gamma, beta)

    def layer(W, X):
        Y, pullback = linear(X, W)
        return Y, lambda dY: pullback(dY)[::-1]

    Y = value(answer, layer, W, norm, X)
    expect(
        Y,
        layer_norm(X + X @ W, gamma, beta)[0],
        "Y is not LN(X + F(X)).",
        (
            X + layer_norm(X, gamma, beta)[0] @ W,
            "This is pre-norm, as in the chapter. Here the norm comes after the sum.",
        ),
        (X + layer_norm(X @ W, gamma, beta)[0], "Here the norm is on the branch alone. It comes after the sum."),
        *(
            (
                layer_norm(X + X @ W, gamma, beta, eps=eps)[0],
                "Only ε differs: in the chapter's `layer_norm` it is 1e-5.",
            )
            for eps in (0.0, 1e-6)
        ),
    )
    derivative(
        lambda p, norm, X: answer(layer, p, norm, X),
        W,
        norm,
        X,
        hint="Y is right, but its gradient is not. Undo the forward lines, the last one first; X stands in two places.",
    )
