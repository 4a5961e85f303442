"""Exercises of chapter 19, on errata."""

from collections.abc import Callable
from typing import Any

import numpy as np

from minitransformer.exercises.check import NotYet, array_of, choice, close, exercise, unless
from minitransformer.functional import layer_norm, softmax
from minitransformer.related import gru_coefficients


@exercise("19.1")
def gates_of_a_half(answer):
    """The weights of E61, printed and meant."""
    u, steps = np.full(5, 0.5), range(1, 5)
    printed = [u[1 : 4 - i + 2].prod() * (1 - u[1:i]).prod() for i in steps]
    C, _ = gru_coefficients(u[1:, None])
    meant = C[4, 1:, 0]
    given = array_of(answer, (2, 4), "Four weights as printed, and four as they should be.")
    unless(given[::-1], [printed, meant], "The printed weights come first, the meant ones second.", 0.01)
    close(
        given[0],
        printed,
        "How many gates u, and how many 1 − u, are multiplied for candidate i, as it is printed?",
        0.01 * meant.max() / max(printed),  # 1 % of the largest of the eight
    )
    unless(given[1], meant[::-1], "The first candidate is the oldest: it has been gated most often.", 0.01)
    unless(given[1], C[4, :4, 0], "These are the weights of h₀ and of the first three candidates.", 0.01)
    close(given[1], meant, "Candidate i comes in by 1 − u, and passes all the later gates.", 0.01)


@exercise("19.2")
def where_norms_give_up(answer):
    """σ at which each norm gives 0.99."""
    y, eps = 0.99, 1e-5
    inside, outside = np.sqrt(eps / (1 / y**2 - 1)), eps / (1 / y - 1)
    unless(answer, [outside, inside], "The other way round: inside the root first.", 0.01)
    unless(answer, [inside**2, outside], "That is the variance. A root is missing.", 0.01)
    given = array_of(answer, (2,), "One σ for each norm.")
    close(given[0], inside, "Solve σ = 0.99 √(σ² + ε) for σ.", 0.01)
    close(given[1], outside, "Solve σ = 0.99 (σ + ε) for σ.", 0.01)


@exercise("19.3")
def rows_sum_to_one(answer):
    """Causal kernel attention with its denominator."""
    rng = np.random.default_rng(3)
    Q, K, V = rng.random((5, 3)), rng.random((5, 3)), rng.standard_normal((5, 2))
    full = Q @ K.T
    A = np.tril(full)
    given = answer(Q, K, V)
    unless(given, A @ V / A.sum(0)[:, None], "Try V = 1 everywhere: what should come out, and what does?")
    unless(given, A @ V / full.sum(1)[:, None], "These sums hear of later keys.")
    unless(given, (A / A.sum(0)) @ V, "Now columns sum to one.")
    unless(given, full @ V / full.sum(1)[:, None], "Rows sum to one, but each token now hears of later ones.")
    close(given, A @ V / A.sum(1)[:, None], "Each row is divided by the sum of its own weights.")


# ------------------------------------------------------------------------------------ layers that a test has to judge


def attention(hide: Callable, *, late: bool = False, keys: Callable = lambda K: K) -> Callable:
    """attend(Q, K, V) with something done to its scores, or to its weights, that hides pairs."""

    def attend(Q: Any, K: Any, V: Any) -> Any:
        S = Q @ keys(K).T / np.sqrt(Q.shape[1])
        return (hide(softmax(S)[0]) if late else softmax(hide(S))[0]) @ V

    return attend


def below(S: Any, value: float, ahead: int = 0) -> Any:
    """S, and a value where j > i + ahead."""
    return np.where(np.tri(len(S), k=ahead) > 0, S, value)


def blocks(size: int, moved: int = 0) -> Callable:
    """S, and −∞ where i and j are not in one block; the first block is shorter by the tokens by which all are moved."""

    def hide(S: Any) -> Any:
        block = (np.arange(len(S)) + moved) // size
        return np.where(block[:, None] == block, S, -np.inf)

    return hide


ATTENTIONS = (
    (True, "has −∞ in place of every score with j > i", attention(lambda S: below(S, -np.inf))),
    (False, "hides nothing", attention(lambda S: S)),
    (False, "puts later weights to zero, after the softmax", attention(lambda A: below(A, 0), late=True)),
    (False, "has zero in place of later scores", attention(lambda S: below(S, 0))),
    (False, "lets i see j ≤ i + 1", attention(lambda S: below(S, -np.inf, 1))),
    (True, "is causal, and has scores twice as large", attention(lambda S: below(2 * S, -np.inf))),
    (
        False,
        "divides keys by their deviation over the whole text",
        attention(lambda S: below(S, -np.inf), keys=lambda K: K / K.std()),
    ),
    (False, "looks at all of its block of five", attention(blocks(5))),
    (False, "looks at all of its block of two", attention(blocks(2))),
    (False, "looks at all of its block of two, the first token at itself alone", attention(blocks(2, 1))),
    (
        False,
        "divides each weight by the sum of its column, in which there are later queries",
        lambda Q, K, V: np.tril(np.exp(Q @ K.T)) / np.tril(np.exp(Q @ K.T)).sum(0) @ V,
    ),
    (True, "is a causal sum without any softmax", lambda Q, K, V: np.tril(Q @ K.T) @ V),
)


@exercise("19.4")
def hears_nothing_later(answer):
    """A test of causality, held against twelve layers."""
    for wanted, name, attend in ATTENTIONS:
        judged(answer(attend), wanted, f"an attention that {name}")


def judged(said: Any, wanted: bool, what: str) -> None:
    """Whether a reader's test says of a layer what is so."""
    said = said.item() if isinstance(said, np.bool_) else said
    if not isinstance(said, bool):
        raise NotYet(f"The test should return True or False; it returned {type(said).__name__}.")
    if said != wanted:
        raise NotYet(f"Your test says {said} of {what}.")


@exercise("19.5")
def scale_from_outside(answer):
    """The scale of an attention, from what it says."""
    for d, scale in ((9, 0.9), (16, 1 / 4), (16, 1 / 16), (64, 2 / 64**0.5), (5, 0.3)):
        found = answer(lambda Q, K, V, s=scale: softmax(s * Q @ K.T)[0] @ V, d)
        given = array_of(found, (), "s is one number.")
        told = f"For one layer of width d = {d} yours finds {given:.4f}. "
        unless(given, 1 / scale, told + "That is what is divided by; s multiplies.", 1e-4)
        unless(given, -scale, told + "The sign: which of your two keys is the one that fits?", 1e-4)
        close(
            given,
            scale,
            told + "With two keys, y is 1/(1 + e^−x), and x is s times the difference of both products.",
            1e-4,
        )


@exercise("19.6")
def where_is_epsilon(answer):
    """A norm's ε: inside the root, outside, or under a second root."""

    def norm(kind: str, eps: float) -> Callable:
        def normalised(X: Any) -> Any:
            X = X - X.mean(-1, keepdims=True)
            sigma = X.std(-1, keepdims=True)
            by = {"inside": np.sqrt(sigma**2 + eps), "outside": sigma + eps, "twice": np.sqrt(sigma + eps)}
            return X / by[kind]

        return normalised

    for eps in (1e-5, 1e-2, 1e-6, 1e-3):
        for kind in ("inside", "outside", "twice"):
            said = answer(norm(kind, eps))
            said = said.strip().lower() if isinstance(said, str) else ""
            if said not in ("inside", "outside", "twice"):
                raise NotYet("The answer is one of the three words.")
            told = f"For an ε of {eps:.0e}, yours takes {kind} for {said}."
            choice(said, kind, f"{told} What does each do to a row with σ = 100, and to two small rows?")


def functions() -> list[tuple[bool, str, Callable]]:
    """Layers with their gradients, some of which are wrong."""

    def with_gradient(value: Callable, gradient: Callable) -> Callable:
        return lambda X: (value(X), lambda dY: gradient(X, value(X), dY))

    def weights(X: Any) -> Any:
        return softmax(X)[0]

    def sums(X: Any) -> Any:
        return np.cumsum(X, 0)

    def turned(X: Any) -> Any:
        return np.roll(X, 1, axis=1)

    def norm(X: Any) -> Any:
        return layer_norm(X, np.ones(X.shape[-1]), np.zeros(X.shape[-1]), eps=0.1)[0]

    return [
        (
            True,
            "softmax with its gradient",
            with_gradient(weights, lambda X, A, dA: A * (dA - (dA * A).sum(-1, keepdims=True))),
        ),
        (False, "softmax whose gradient has no sum", with_gradient(weights, lambda X, A, dA: A * dA)),
        (True, "running sums", with_gradient(sums, lambda X, Y, dY: np.cumsum(dY[::-1], 0)[::-1])),
        (
            False,
            "running sums whose gradient runs the same way",
            with_gradient(sums, lambda X, Y, dY: np.cumsum(dY, 0)),
        ),
        (
            True,
            "the sum of each row",
            with_gradient(lambda X: X.sum(1), lambda X, Y, dY: np.tile(dY[:, None], X.shape[1])),
        ),
        (
            False,
            "a turn of the columns whose gradient turns the same way",
            with_gradient(turned, lambda X, Y, dY: turned(dY)),
        ),
        (True, "tanh", with_gradient(np.tanh, lambda X, Y, dY: (1 - Y * Y) * dY)),
        (False, "tanh with 1 − Y for its slope", with_gradient(np.tanh, lambda X, Y, dY: (1 - Y) * dY)),
        (False, "tanh whose gradient takes Y for dY", with_gradient(np.tanh, lambda X, Y, dY: (1 - Y * Y) * Y)),
        (False, "a gradient of twice the size", with_gradient(lambda X: X * X, lambda X, Y, dY: 4 * X * dY)),
        (
            True,
            "a layer norm",
            lambda X: (norm(X), lambda dY: layer_norm(X, np.ones(4), np.zeros(4), eps=0.1)[1](dY)[0]),
        ),
        (
            False,
            "a gradient that is wrong in the last row alone",
            with_gradient(np.sin, lambda X, Y, dY: np.cos(X) * dY * (1 + (np.arange(3) == 2)[:, None])),
        ),
    ]


@exercise("19.7")
def a_test_of_gradients(answer):
    """A reader's checker, held against twelve layers."""
    X = np.random.default_rng(7).standard_normal((3, 4))
    for wanted, name, function in functions():
        judged(answer(function, X), wanted, f"{name}, for X {X.shape}")
