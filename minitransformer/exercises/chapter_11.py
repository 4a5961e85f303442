"""Exercises of chapter 11, on memories of fixed size."""

import numpy as np

from minitransformer.attention import delta_rule_step, gated_linear_attention, short_convolution
from minitransformer.exercises.check import (
    NotYet,
    alone,
    array_of,
    choice,
    close,
    derivative,
    exercise,
    expect,
    likely,
    real,
    several,
    with_pullback,
)
from minitransformer.functional import sigmoid, silu
from minitransformer.measurements.rows import unit


@exercise("11.1")
def two_keys_that_share_something(answer):
    """What two keys read: after the sum, one pass of the delta rule, and infinitely many."""
    K, V = np.array([[1.0, 0], [0.5, np.sqrt(0.75)]]), np.array([[1.0], [0]])
    total = K @ (K.T @ V)
    _, S = delta_rule_step(K, K, V, np.ones(2), np.zeros((2, 1)))
    once = K @ S
    for _ in range(40):
        _, S = delta_rule_step(K, K, V, np.ones(2), S)
    right = [x[:, 0] for x in (total, once, K @ S)]
    expect(
        answer,
        right,
        "What does k₂ hold before its value is written, and what is then added under k₂? How much of that does k₁ read?",
        ([right[0], right[2], right[2]], "The write for k₂ changes what k₁ reads, too: one pass is not the end."),
        ([[1, 0], right[1], right[2]], "In a sum, k₂ reads half of what stands under k₁."),
        (
            [right[0], [1 / 2, 0], right[2]],
            "−1/2 is written under k₂. k₁ reads half of that, for the keys have the product 1/2.",
        ),
        tolerance=0.01,
    )


@exercise("11.2")
def keys_of_another_length(answer):
    """The β that is exact for a key of length c, and the one from which on nothing gets nearer."""
    for c in (2.0, 0.7):
        k, v = np.array([[c, 0.0]]), np.ones((1, 1))

        def error(beta, k=k, v=v):
            _, S = delta_rule_step(k, k, v, np.array([float(beta)]), np.zeros((2, 1)))
            return np.abs(k @ S - v).item()

        found = answer(c)
        if np.shape(found) != (2,):
            raise NotYet("The function should return two numbers.")
        likely(
            found,
            ([1, 2], "That is for keys of norm one."),
            ([1 / c, 2 / c], "The length comes in twice: when the key writes and when it reads."),
            (
                [1 / c**2, 1 / c**2],
                "Between the two there are rates that go too far, but still come nearer with every step.",
            ),
        )
        exact, last = found
        if not error(exact) < 1e-6:
            raise NotYet("What does the key read after a write? Put (11.2) into kᵀ S_t, with kᵀk = c².")
        if not (error(0.999 * last) < 1 < error(1.001 * last)):
            raise NotYet("The first is right. By what is the error multiplied at each write, and when is that −1?")


@exercise("11.3")
def how_many_passes(answer):
    """The error of the first key after p passes over two keys with the product c."""
    for c in (0.9, 0.5):  # at a half, 1 − c is c
        K, V, S = np.array([[1.0, 0], [c, np.sqrt(1 - c**2)]]), np.array([[1.0], [0]]), np.zeros((2, 1))
        passes, right = np.arange(1, 5), []
        for _ in passes:
            _, S = delta_rule_step(K, K, V, np.ones(2), S)
            right.append(np.abs(K[0] @ S - 1).item())
        expect(
            [answer(c, int(p)) for p in passes],
            right,
            f"For c = {c} and p = 1: k₁ is exact, and what does writing k₂ do to it? Then follow that error for p = 2.",
            (c**passes, "A pass has two writes, and each hands on c times the error."),
            (1 - c ** (2 * passes), "That is what the key reads. How far is it from 1?"),
            (c ** (2 * passes - 1), "When k₁ is written, k₂ is off by c. Then k₂ is written."),
            (c ** (2 * passes + 1), "That is one write more: k₂ is the last of a pass."),
        )


@exercise("11.4")
def counting_modulo_m(answer):
    """The angle of two mirrors that are back after m tokens."""
    for m in (4, 6, 3, 2):
        angle = array_of(answer(m), (), "An angle is one number.").item()
        K = np.tile([[np.cos(angle), np.sin(angle)], [1.0, 0.0]], (m, 1))
        nothing, held, back = np.zeros((2, 2)), np.eye(2), []
        for t in range(m):
            _, held = delta_rule_step(K[2 * t : 2 * t + 2], K[2 * t : 2 * t + 2], nothing, np.full(2, 2.0), held)
            back.append(np.allclose(held, np.eye(2), atol=1e-5))
        if True in back[:-1]:
            raise NotYet(
                f"For m = {m} the memory is back after {back.index(True) + 1} already. By which angle do two mirrors turn?"
            )
        if not back[-1]:
            degrees = angle > 7
            raise NotYet(
                "The angle should be in radians."
                if degrees
                else f"For m = {m} the memory is not back after {m} tokens. Two mirrors turn by twice their angle."
            )


@exercise("11.5")
def a_mask_with_closed_gates(answer):
    """What is left at i of what was written at j, with gates that may be closed."""
    rng = np.random.default_rng(115)
    alpha = rng.uniform(0.2, 1, 7)
    alpha[[2, 5]] = 0
    right, early, ahead = np.zeros((3, 7, 7))
    for i, j in np.ndindex(7, 7):
        if j <= i:
            right[i, j], early[i, j], ahead[i, j] = (
                np.prod(alpha[a:b]) for a, b in ((j + 1, i + 1), (j, i + 1), (j, i))
            )
    with np.errstate(divide="ignore", invalid="ignore"):
        given = answer(np.log(alpha))
    found = real(given)
    if np.isnan(found).any():
        raise NotYet(
            "There are NaNs: neither −∞ − (−∞) nor 0/0 is a number. Which gates are multiplied for the pair (i, j)?"
        )
    if np.isinf(found).any():
        raise NotYet("There are infinities. An entry of L is a product of gates, from 0 to 1, and not its logarithm.")
    expect(
        found,
        right,
        "Look at column j: a 1 on the diagonal, and below it one more factor in each row.",
        (early, "Token j comes in after its own gate has done its work: the product begins with α of j + 1."),
        (ahead, "The gate of token i works before i reads, and that of j before j is written."),
        (right.T, "Rows are readers: what is above the diagonal lies ahead, and is 0."),
        (right + np.triu(np.ones((7, 7)), 1), "Above the diagonal is the future, and it is 0."),
    )
    hint = "Right to six digits, and no further: beside a very large number a sum of logarithms loses its last digits."
    if np.asarray(given).dtype != np.float32:  # which has no more digits
        close(found, right, hint, 1e-10)


@exercise("11.6")
def taps_while_writing(answer):
    """A short convolution, one row at a time."""
    rng = np.random.default_rng(116)
    for taps in (4, 2, 1):
        X, theta = rng.standard_normal((6, 5)), rng.standard_normal((taps, 5))
        whole, _ = short_convolution(X, theta)
        padded = np.pad(X, ((taps - 1, 0), (0, 0)))
        raw, turned = (
            np.stack([(way * padded[t : t + taps]).sum(0) for t in range(6)]) for way in (theta, theta[::-1])
        )
        before = np.zeros((taps - 1, 5))
        for t in range(6):
            row, before = several(answer(X[t], before, theta), "the new row", "what is kept")
            expect(
                row,
                whole[t],
                f"With τ = {taps}, row {t}: in each channel taps times rows, oldest first and x last, are summed, then swish.",
                (raw[t], "Swish is missing: x σ(x) of what comes out."),
                (sigmoid(raw[t])[0], "That is σ(x) alone. Swish is x σ(x)."),
                (silu(turned[t])[0], "The taps are in the other order: the last is that of x itself."),
            )
            kept, right = real(before), padded[t + 1 : t + taps]
            if kept.size == right.size == 0:  # a list of no rows has no shape
                kept = right
            if kept.shape != right.shape:
                raise NotYet(
                    f"With τ = {taps}, what is kept has the shape (τ − 1, d) = {right.shape}, and not {kept.shape}."
                )
            expect(
                kept,
                right,
                "What is kept are the last τ − 1 rows that came in, and x is the newest of them.",
                (
                    np.vstack([padded[t + 1 : t + taps - 1], whole[t]])[: taps - 1],
                    "The next steps need x, not what came out.",
                ),
            )
            before = kept


@exercise("11.7")
def a_memory_that_fades_with_a_denominator(answer):
    """Fading sums of values, and of weights."""
    rng = np.random.default_rng(117)
    FQ, FK, V, alpha = rng.random((8, 4)), rng.random((8, 4)), rng.standard_normal((8, 3)), rng.uniform(0.3, 1, 8)
    log_alpha = np.log(alpha)

    def memory(values, gates):
        return gated_linear_attention(FQ, FK, values, gates)[0]

    ones, never = np.ones((8, 1)), np.zeros(8)
    right = memory(V, log_alpha) / memory(ones, log_alpha)
    expect(
        answer(FQ, FK, V, alpha),
        right,
        "Each row of weights should sum to one, and the line of S was right: a value has its whole weight when it comes.",
        (
            memory(V, log_alpha) / memory(ones, never),
            "As printed. Put ones in the place of all values: what is read, and why not 1?",
        ),
        (memory(V, never) / memory(ones, never), "Every row sums to one, and nothing fades any more."),
        (memory(V, log_alpha), "These are sums, not averages."),
    )


@exercise("11.8")
def a_smaller_step(answer):
    """The column of the chapter's table in which a step of three quarters is better than a whole one."""
    better = []
    for task in ("once", "again", "new text"):
        whole, part = (_examined(task, beta) for beta in (1.0, 0.75))
        better += [task] if part < whole else []
    [right] = better
    choice(
        answer,
        right,
        "A whole step corrects all that a key reads, and with it what other pairs have left there. "
        "What stands in the memory, column by column, when a pair is written that will be asked for?",
    )


def _examined(task, beta, d=32, m=8):
    """The error of the delta rule in the chapter's examination, on its texts."""

    def pairs(count):
        return unit(rng.standard_normal((count, d)) / d**0.5 + 0.7 * mean), unit(rng.standard_normal((count, d)))

    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        mean = unit(rng.standard_normal(d))
        asked, said = pairs(m)
        K, V = asked, said
        if task == "again":
            half = rng.permutation(m)[: m // 2]
            said = said.copy()
            said[half] = unit(rng.standard_normal((m // 2, d)))
            K, V = np.vstack([K, K[half]]), np.vstack([V, said[half]])
        if task == "new text":
            K, V = (np.vstack(part) for part in zip(pairs(48), (K, V), strict=True))
        _, S = delta_rule_step(K, K, V, np.full(len(K), beta), np.zeros((d, d)))
        errors.append(np.linalg.norm(asked @ S - said, axis=1).mean())
    return np.mean(errors)


@exercise("11.9")
def a_decay_that_learns(answer):
    """Retention with a learned decay: (Q, K, V, γ) to (Y, pullback)."""
    rng = np.random.default_rng(119)
    Q, K, V, dY = (rng.standard_normal((2, 3, 6, width)) for width in (4, 4, 3, 3))
    gamma = np.array([0.8])
    i, j = np.ogrid[:6, :6]
    behind = i - j
    L = np.where(behind >= 0, 0.8 ** np.maximum(behind, 0), 0)
    S = Q @ K.swapaxes(-1, -2)
    Y, pullback = with_pullback(answer, Q, K, V, gamma)
    expect(
        Y,
        (L * S) @ V,
        "Y: the weight of the pair (i, j) is γ to the power i − j, times ⟨q_i, k_j⟩.",
        ((0.8**behind * S) @ V, "Y: a query sees what is ahead of it, with a weight that grows."),
        ((0.8 ** abs(behind) * S) @ V, "Y: a query sees what is ahead of it."),
        ((L * S / 2) @ V, "Y: there is no 1/√d here."),
        ((0.8 * L * S) @ V, "Y: a token's own value has not faded yet."),
    )
    found = several(pullback(dY), "dQ", "dK", "dV", "dγ")
    each = L * S * (dY @ V.swapaxes(-1, -2)) / 0.8
    likely(
        found[3],
        (each.sum().reshape(1), "dγ: γ to the power i − j has the slope (i − j) γ to the power i − j − 1."),
        (0.8 * (each * behind).sum().reshape(1), "dγ: the slope of a power has a power that is smaller by one."),
        ((each * behind).sum((-2, -1)), "dγ: one γ serves all samples and heads, so its gradient is their sum."),
    )
    P = dY @ V.swapaxes(-1, -2)
    likely(
        found[0],
        (P @ K, "dQ: the mask belongs in the backward pass, too."),
        (L * P @ K / 2, "dQ: there is no 1/√d here."),
    )
    likely(found[1], ((L * P) @ Q, "dK: a key hears from the queries behind it, so it is the transpose."))
    derivative(answer, Q, K, V, gamma, hint="Y is three products; change each factor a little.")
    alone(answer, ((L * S) @ V)[0, 0], Q[0, 0], K[0, 0], V[0, 0], gamma)
