"""Exercises of chapter 06, on encodings of positions compared."""

import numpy as np

from minitransformer.exercises.check import alone, choice, derivative, exercise, expect, likely, several, with_pullback
from minitransformer.functional import softmax
from minitransformer.positions import rotate, t5_buckets
from minitransformer.positions.rope_scaling import Llama3, rope_frequencies


@exercise("6.1")
def a_bias_as_a_series(answer):
    """The weight t steps back, as a function of the slope and of t."""
    for slope in (0.3, 1.1):
        t = np.arange(7)
        A, _ = softmax(-slope * np.arange(2000.0))
        found = [answer(slope, int(step)) for step in t]
        expect(
            found,
            A[:7],
            "Divide by the sum of all weights: it is a geometric series.",
            (np.exp(-slope * t), "These numbers do not sum to one. What is their sum over all t?"),
            (slope * np.exp(-slope * t), "That is an integral over t in place of the sum."),
            (
                (1 - np.exp(-slope)) * np.exp(-slope * (t + 1)),
                "The query's own token is t = 0, and it has a score too.",
            ),
        )
    slope = 1e-6  # 1/λ is the length over which a weight fades
    expect(
        answer(slope, 3),
        -np.expm1(-slope) * np.exp(-3 * slope),
        "For a slope of 1e-6 it is another number: a million tokens matter. Is a text summed that is shorter than that?",
    )


@exercise("6.2")
def how_wide_is_a_slope(answer):
    """How many tokens hold half of the weight, for the slopes 1/2 and 1/256."""
    right = [
        int((softmax(-slope * np.arange(20_000.0))[0].cumsum() < 0.5).sum())
        + 1  # those before it, and the one that passes it
        for slope in (1 / 2, 1 / 256)
    ]
    expect(
        answer,
        right,
        "Sum the weights of 6.1 from t = 0 to w − 1. From which whole w on is it at least a half?",
        (
            np.subtract(right, 1),
            "That many tokens hold less than a half. What is the first number that holds a half or more?",
        ),
        ([2, 256], "At 1/λ a weight has fallen to 1/e of the first. Half of the sum is reached elsewhere."),
        tolerance=1e-9,
    )


@exercise("6.3")
def angles_that_were_never_seen(answer):
    """How many pairs of a wide head have not gone round in training."""
    angles = 4096 * rope_frequencies(64)
    expect(
        answer,
        (angles < 2 * np.pi).sum(),
        "By what angle has pair f turned after 4,096 tokens?",
        ((angles >= 2 * np.pi).sum(), "That many pairs have gone all the way round, and are not in trouble."),
        ((angles < 1).sum(), "Once around is an angle of 2π, not of 1."),
        (32, "The first pair has gone round hundreds of times. Is any angle new to it?"),
        tolerance=1e-9,
    )


@exercise("6.4")
def a_cache_of_turned_keys(answer):
    """Which remedy changes the frequencies while a text grows."""
    choice(answer, "dynamic ntk", "What must stay the same for a turned key to stay right is every ω. When is s known?")


@exercise("6.5")
def what_the_row_hides(answer):
    """The profile of offsets in an attention matrix."""
    rng = np.random.default_rng(65)
    n = 7
    r, f = rng.standard_normal(n), rng.standard_normal(2 * n - 1)
    S = np.array([[f[j - i + n - 1] for j in range(n)] for i in range(n)])
    A, _ = softmax(S + r[:, None])
    found, right = answer(A), f - f[n - 1]
    logs = np.log(A)
    means = np.array([np.diagonal(logs, o).mean() for o in range(1 - n, n)])
    expect(
        found,
        right,
        "Compare two entries of one row: what belongs to the row is in both.",
        (right[::-1], "The order is reversed: the first offset is −(n − 1), a key far behind the query."),
        (np.exp(right), "These are ratios of weights. The profile is in their logarithm."),
        (means, "The mean of a diagonal still holds the numbers of its rows."),
        (
            means - means[n - 1],
            "Two diagonals cross different rows, so what belongs to a row does not cancel between them.",
        ),
    )


@exercise("6.6")
def a_counter_with_a_focus(answer):
    """The score of the first token at which positions 100 and 101 differ most."""
    s = np.log(np.sqrt(99 * 100))  # where the derivative of a/(a + 99) − a/(a + 100) is zero
    expect(
        answer,
        s,
        "With a = exp(z) the head writes a/(a + i − 1) at position i. Where is the difference largest?",
        (np.exp(s), "That is the factor by which the first token weighs more. The score is its logarithm."),
        (0.0, "At equal scores the difference is 1/100 − 1/101. Try z = 1 and z = 3."),
        tolerance=0.01,
    )


@exercise("6.7")
def the_ramp_of_llama_3(answer):
    """Frequencies whose ramp is a straight line in the number of turns."""
    for length, s in ((512, 8.0), (4096, 4.0)):
        omega = rope_frequencies(32)
        right, _ = Llama3(s, length)(32, 10000.0, length)
        found = answer(omega, length, s)
        rho = np.clip((4 - length * omega) / 3, 0, 1)
        expect(
            found,
            right,
            "Try it with one ω that turns exactly four times in L₀ tokens, and one that turns once.",
            (
                omega * (1 - rho + rho / s),
                "This is the listing as printed. Which ω turns exactly once within the trained length?",
            ),
            (omega / s, "Then every pair is slower, and the fast ones should stay as they were."),
        )


@exercise("6.8")
def frequencies_that_learn(answer):
    """RoPE whose frequencies have a gradient: (X, ω) to (Y, pullback)."""
    rng = np.random.default_rng(68)
    X, omega, dY = rng.standard_normal((2, 3, 5, 6)), rng.uniform(0.2, 1, 3), rng.standard_normal((2, 3, 5, 6))
    angles = np.arange(5)[:, None] * omega
    (right, _), (other, _) = (rotate(X, angles=sign * angles) for sign in (1, -1))
    Y, pullback = with_pullback(answer, X, omega)
    expect(
        Y,
        right,
        "Y: the pair f of row i is channels 2f and 2f + 1, and the first row is not turned.",
        (other, "Y is turned the wrong way: look at the sign of the sine."),
    )
    found = several(pullback(dY), "dX", "dω")
    dX, domega = found
    likely(dX, (rotate(dY, angles=angles)[0], "dX is turned forwards once more. What undoes a turn?"))
    dangles = right[..., 0::2] * dY[..., 1::2] - right[..., 1::2] * dY[..., 0::2]
    total = np.einsum("bhif,i->f", dangles, np.arange(5.0))
    likely(
        domega,
        (dangles.sum((0, 1, 2)), "dω: the angle of row i is i ω, so a change of ω counts i times there."),
        (-total, "dω has the wrong sign: a larger angle moves y_a by −y_b, and y_b by y_a."),
        (
            np.einsum("bhif,i->bhf", dangles, np.arange(5.0)),
            "One ω serves all samples and heads, so its gradient is their sum.",
        ),
    )
    derivative(answer, X, omega, hint="What happens to y_a and y_b if the angle grows a little?")
    alone(answer, right[0, 0], X[0, 0], omega)


@exercise("6.9")
def buckets_that_nobody_trained(answer):
    """T5's table, with the last bucket that was trained in those behind it."""
    rng = np.random.default_rng(69)
    for n in (64, 40):
        table = rng.standard_normal((3, 32))
        last = t5_buckets(-np.arange(n), causal=True).max()
        right, late = table.copy(), table.copy()
        right[:, last + 1 :] = table[:, [last]]
        late[:, last + 2 :] = table[:, [last + 1]]
        zeros = table.copy()
        zeros[:, last + 1 :] = 0
        expect(
            answer(table, n),
            right,
            "Which buckets do the offsets 0, −1, …, −(n − 1) use, if the model is causal?",
            (table, "The table that comes back is the one that was handed in."),
            (late, "That begins one bucket too late. The longest offset of n tokens is n − 1."),
            (zeros, "A bucket of zeros is a number too, and no nearer to what far offsets have learned."),
        )
