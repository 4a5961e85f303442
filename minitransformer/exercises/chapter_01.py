"""Exercises of chapter 01, from GRU to attention."""

import numpy as np

from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    expect,
    likely,
    real,
    several,
    unless,
    value,
    with_pullback,
    without_nan,
)
from minitransformer.functional import softmax
from minitransformer.related import GRU, gru_coefficients


@exercise("1.1")
def weights_of_a_constant_gate(answer):
    """The weights of h_0, c_1 … c_4 in h_4, if all gates are one half; five numbers."""
    C, _ = gru_coefficients(np.full((4, 1), 0.5))
    hint = "Each candidate enters with 1 − u and passes every gate after it. h_0 has passed four, and entered whole."
    given = without_nan(array_of(answer, (5,), hint))
    unless(given, C[4, ::-1, 0], "These are the five weights from the newest to the oldest. h_0 comes first.")
    if not abs(given.sum() - 1) < 0.03:  # five that are each off by 1 % of one half
        raise NotYet(f"The five sum to {given.sum():.3f}. An average of averages is an average. {hint}")
    close(given, C[4, :, 0], hint, 0.01)


@exercise("1.2")
def steps_until_forgotten(answer):
    """After how many further steps a candidate weighs less than 1 %: for a gate of one half, and of 0.9."""
    wanted, without = [], []
    for u in (0.5, 0.9):
        faded = u ** np.arange(100)
        wanted.append(int(np.argmax((1 - u) * faded < 0.01)))
        without.append(int(np.argmax(faded < 0.01)))
    given = array_of(answer, (2,), "Two whole numbers are wanted.").tolist()
    if given == without:
        raise NotYet("That is for a candidate that enters with the weight 1. With what weight does it enter?")
    if given == [right + 1 for right in wanted]:
        raise NotYet("Both are one too many. Do not count the step at which it enters.")
    for one, right, u in zip(given, wanted, (0.5, 0.9), strict=True):
        if one != right:
            raise NotYet(f"For u = {u} the number is different. What is the weight after s further steps?")


@exercise("1.3")
def layers_of_windows(answer):
    """How many layers of windows of width 3 from row 1000 to token 1: plain, and spread by a factor of two."""
    far, plain, spread, reached = 1000 - 1, 1000 - 1, 0, 0
    while reached < far:
        reached += 2**spread
        spread += 1
    given, doubled = array_of(answer, (2,), "Two whole numbers are wanted.")
    if given == far + 1:
        raise NotYet("The first number: from token 1 to token 1000 there are fewer steps than tokens.")
    if given != plain:
        raise NotYet(
            "The first number: how many tokens further does a row see with each layer, and how many does it have to cross?"
        )
    if doubled != spread:
        raise NotYet(
            "The second number: the reach of a stack is a sum over its layers, 1 + 2 + 4 + … What is that sum?"
        )


@exercise("1.4")
def room_for_a_factor(answer):
    """1 − ρ, if ρ^126 is one half."""
    room = 1 - 0.5 ** (1 / (127 - 1))
    hint = (
        "From n = 2 to n = 128 the gradient passes some more times through ρ. How often? That power of ρ is one half."
    )
    given = float(array_of(answer, ()))
    if abs(given - (1 - room)) < 0.001:
        raise NotYet("That is ρ itself. 1 − ρ is wanted.")
    if 0.004 < abs(given / room - 1) < 0.03:
        raise NotYet("Nearly. Give three digits, and count the steps again: at n = 2 it has passed once already.")
    close(answer, room, hint, 0.004)


@exercise("1.5")
def without_a_beginning(answer):
    """From which i on the factor 1 − u^i is 1.000, if u = 0.8."""
    factor = 1 - 0.8 ** np.arange(200)
    right = int(np.argmax(factor >= 0.9995))
    given = array_of(answer, (), "A whole number is wanted.")
    if given != right and (abs(given - right) <= 1 or given == np.argmax(factor >= 0.999)):
        raise NotYet("Nearly. A number is 1.000 to three decimals from 0.9995 on.")
    if given != right:
        raise NotYet("What do the weights of c_1 … c_i in h_i sum to, in the GRU, and what in softmax?")


@exercise("1.6")
def products_of_gates(answer):
    """A function of the gates (n,): the coefficients (n + 1, n + 1) of (1.9)."""
    for n in (1, 2, 6):
        u = np.random.default_rng(n).uniform(0.1, 0.9, n)
        C, wanted = without_nan(real(answer(u))), gru_coefficients(u[:, None])[0][..., 0]
        if C.shape == wanted.shape:
            if np.triu(C, 1).any():
                raise NotYet("A candidate has a weight before it has entered: C[i, j] is zero for j > i.")
            if not np.allclose(np.diagonal(C), np.diagonal(wanted)):
                raise NotYet("Look at C[i, i], a candidate that has just entered. No gate has come after it.")
            if not np.allclose(C.sum(1), 1):
                raise NotYet(f"The rows sum to {C.sum(1).round(3)}, with gates {u.round(3)}. Which gates did c_j pass?")
        close(C, wanted, "Between entering at step j and h_i lie the gates u_{j+1} … u_i. A slice ends before its end.")


@exercise("1.7")
def free_weights(answer):
    """A function of X, c (n, D) and W_q (D, D): the states of (1.11)."""
    rng = np.random.default_rng(17)
    for n, D in ((6, 4), (3, 5)):
        X, c, W_q = rng.standard_normal((n, D)), rng.standard_normal((n, D)), rng.standard_normal((D, D))
        S, past = X @ W_q @ c.T, np.tri(n, dtype=bool)
        hidden = np.where(past, softmax(S / np.sqrt(D))[0], 0)
        expect(
            answer(X, c, W_q),
            softmax(S / np.sqrt(D), mask=past)[0] @ c,
            "In the first row only c_1 may count, with the weight 1. Then which scores, over what, and what is averaged?",
            (softmax(S / np.sqrt(D))[0] @ c, "Each row averages over all candidates. The sums of (1.11) end at k = i."),
            (
                hidden @ c,
                "Later candidates have no weight, but they still stand in the denominator: row 1 sums to less than 1.",
            ),
            (softmax(S, mask=past)[0] @ c, "The scores are not divided by √D."),
            (
                softmax(c @ W_q @ X.T / np.sqrt(D), mask=past)[0] @ c,
                "Here the candidate asks and the token is asked. In (1.11) row i belongs to x_i.",
            ),
        )


@exercise("1.8")
def gates_and_candidates(answer):
    """A function of u and c (batch, n, D): the states of (1.6) from h_0 = 0, and a pullback with du, dc."""
    rng = np.random.default_rng(18)
    u, c = rng.uniform(0.1, 0.9, (2, 5, 3)), rng.standard_normal((2, 5, 3))
    h = value(answer, u, c)
    wanted, state = [], np.zeros((2, 3))
    for i in range(5):
        state = u[:, i] * state + (1 - u[:, i]) * c[:, i]
        wanted.append(state)
    close(
        h,
        np.stack(wanted, 1),
        "h is not (1.6): u keeps the state before, 1 − u takes the candidate, and h_0 = 0 is not returned.",
    )
    dY, arriving, dh = rng.standard_normal(h.shape), np.zeros_like(h), np.zeros((2, 3))
    for i in reversed(range(5)):
        arriving[:, i] = dh = dY[:, i] + dh
        dh = dh * u[:, i]
    du, _ = several(with_pullback(answer, u, c)[1](dY), "du", "dc")
    likely(
        du,
        (arriving * (1 - u), "The first is dc. The gradients come in the order of the arguments: du, dc."),
        (arriving * (np.stack(wanted, 1) - c), "du: u_i multiplies the state before, and not h_i."),
    )
    hint = "h is right, but its gradient is not. What reaches h_i comes from outside and, times a gate, from the state after."
    derivative(answer, u, c, hint=hint)


@exercise("1.9")
def a_bias_for_the_gate(answer):
    """The whole b_u for which x_1 reaches row 64 most."""
    b_u = float(array_of(answer, ()))
    if b_u not in range(9):
        raise NotYet("A whole number from 0 to 8 is wanted.")
    here, less, more = (_reach(one) for one in (b_u, b_u - 1, b_u + 1))
    if more > here:
        raise NotYet(
            f"With {b_u + 1:.0f} it reaches further, in the median of seven seeds. The gradient passes 63 gates."
        )
    if less > here:
        raise NotYet(
            f"With {b_u - 1:.0f} it reaches further, in the median of seven seeds. With what factor does x_1 come in?"
        )


def _reach(b_u: float) -> float:
    """‖∂y_64/∂x_1‖/√D of a random GRU of width 16, the median of seven."""
    found, gru = [], GRU(16, 16)
    for seed in range(7):
        rng = np.random.default_rng([seed, 19])
        params = gru.init(rng, np.float64)._replace(b_u=np.full(16, b_u))
        X = np.repeat(rng.standard_normal((1, 64, 16)), 16, axis=0)
        Y, pullback = gru(params, X)
        dY = np.zeros_like(Y)
        dY[:, -1] = np.eye(16)
        found.append(np.linalg.norm(pullback(dY)[1][:, 0]) / 4)
    return float(np.median(found))
