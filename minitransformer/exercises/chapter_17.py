"""Exercises of chapter 17, on speed."""

import math

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.exercises.check import (
    NotYet,
    array_of,
    close,
    derivative,
    exercise,
    real,
    unless,
    value,
    without_a_matrix,
)
from minitransformer.machine import peak_memory


def harmonic(n):
    """1 + 1/2 + … + 1/n."""
    return sum(1 / k for k in range(1, n + 1))


@exercise("17.1")
def two_parts_of_four_keys(answer):
    """t and u of two parts and of both."""
    s, v = np.log([3.0, 1, 6, 1]), np.array([1.0, 0, 1, 2])
    wanted = []
    for keys in (slice(0, 2), slice(2, 4), slice(0, 4)):
        w = np.exp(s[keys] - s[keys].max())
        wanted.append([w.sum(), w @ v[keys]])
    given = array_of(answer, (3, 2), "Two numbers for each part, and for the whole.")
    raw = [[np.exp(s[k]).sum(), np.exp(s[k]) @ v[k]] for k in (slice(0, 2), slice(2, 4))]
    for place in (slice(0, 2), slice(2, 3)):
        averages = [[t, u / t] for t, u in wanted[place]]
        unless(given[place], averages, "u is not yet divided by t: it is the sum of the weighted values.", 0.01)
    unless(given[:2], raw, "The largest score of the part is subtracted before the exponential.", 0.01)
    close(given[:2], wanted[:2], "In a part, the key with the largest score has the weight 1.", 0.01)
    unless(
        given[2], np.sum(wanted[:2], 0), "Before they are added, both parts need the same m: one of them shrinks.", 0.01
    )
    close(given[2], wanted[2], "The part whose m is smaller shrinks, by e to the difference; t and u alike.", 0.01)


@exercise("17.2")
def how_often_a_maximum_grows(answer):
    """Records among 4,096 keys, and among 64 tiles."""
    n, b = 4096, 64
    given = array_of(answer, (2,), "Two numbers.")
    unless(given[0], harmonic(n), "The first key does not count: nothing was there before.", 0.01)
    unless(
        given[0],
        (n - 1) / 2,
        "Half of the keys? The more one has seen, the harder it is to be larger than all of them.",
        0.01,
    )
    unless(given[0], math.log2(n), "It grows like a logarithm, but not like that of base 2.", 0.01)
    close(given[0], harmonic(n) - 1, "With what probability is key number k the largest of the first k?", 0.01)
    unless(
        given[1],
        (harmonic(n) - 1) / b,
        "Of the tiles, only the largest score of each counts. How many tiles are there?",
        0.01,
    )
    unless(given[1], harmonic(b), "The first tile does not count.", 0.01)
    close(
        given[1],
        harmonic(n // b) - 1,
        "With what probability does tile number k have the largest score of the first k tiles?",
        0.01,
    )


@exercise("17.3")
def wide_enough(answer):
    """d with B d/p = F."""
    F, B = 154.0, 10.8
    given = array_of(answer, (2,), "Two widths.")
    unless(given, [F / B, F / B], "That is the intensity that is needed. For long texts it is d/p.", 0.01)
    unless(given, [F / B / 10, F / B / 4], "More passes need a wider head, not a narrower one.", 0.01)
    unless(
        given,
        [40 * F / B, 16 * F / B],
        "The bytes of float32 are in (17.4) already: four in the numerator, four below.",
        0.01,
    )
    close(given, [10 * F / B, 4 * F / B], "Put the limit of (17.4) into (17.5), and ask when B · I is F.", 0.01)


@exercise("17.4")
def a_sum_that_stands_still(answer):
    """Where 1 no longer counts, in 11 and in 8 binary digits."""
    t = np.float16(0)
    while t + np.float16(1) > t:
        t += np.float16(1)
    wanted = [float(t), float(t) / 2 ** (11 - 8)]
    unless(
        answer,
        np.array(wanted) / 2,
        "The next odd number after these is exact as well: t can still grow by one.",
        1e-4,
    )
    unless(
        answer,
        np.array(wanted) - 1,
        "This number is the last odd one that is exact. The next can still be reached.",
        1e-4,
    )
    unless(answer, [65504, 2.0**128 - 2.0**120], "That is where numbers end. A sum stands still long before.", 0.01)
    close(answer, wanted, "How far apart are neighbours of a number with so many digits? When is 1 half of that?", 1e-4)


@exercise("17.5")
def degree_of_a_longer_interval(answer):
    """The degree for rests from 0 to 1."""

    def error(g, low, high):
        r = np.linspace(low, high, 10_001)
        series = sum((r * math.log(2)) ** i / math.factorial(i) for i in range(g + 1))
        return np.abs(series / 2**r - 1).max()

    wanted = next(g for g in range(7, 20) if error(g, 0, 1) <= error(7, -0.5, 0.5))
    unless(answer, 7, "That is the degree for remainders from −½ to ½. Try what it does at r = 1.", 1e-4)
    unless(answer, wanted + 1, "A series of degree g has g + 1 terms.", 1e-4)
    unless(
        answer, wanted - 1, "With this degree the error is below the rounding of float32, but larger than it was.", 1e-4
    )
    close(answer, wanted, "Take the largest relative error over all r, degree by degree.", 1e-4)


@exercise("17.6")
def nothing_to_begin_with(answer):
    """Tiles that are right for scores far below zero, too."""
    rng = np.random.default_rng(6)
    Q, K, V = rng.standard_normal((6, 3)), rng.standard_normal((10, 3)), rng.standard_normal((10, 2))
    close(
        answer(Q, K, V), dot_product_attention(Q, K, V)[0], "On random numbers the listing was right, and yours is not."
    )
    for low in (1000, 1_000_000):
        Q[:, 0], K[:, 0] = 40, -low * math.sqrt(3) / 40
        wanted, _ = dot_product_attention(Q, K, V)
        given = real(answer(Q, K, V))
        if np.isnan(given).any():
            raise NotYet(f"Scores near −{low:,} still give NaN. What are top, new and P after the first tile?")
        close(given, wanted, "No NaN, and yet it is not attention: subtracting the largest score has to be exact.")
    K[:, 0] /= 1000
    Q[:, 0] *= -1
    for near in (10, 4, 3):  # all keys, the first tile alone, and three of its four keys
        K[near:, 0] = 0
        close(answer(Q, K, V), dot_product_attention(Q, K, V)[0], "Scores near +1,000 were right before.")
    Q[::2, 0] *= -1  # the largest scores of every other query are near 0
    given = answer(Q, K, V)
    close(given, dot_product_attention(Q, K, V)[0], "Queries differ: of each row its own largest score is subtracted.")
    Q, K = rng.standard_normal((32, 3)), rng.standard_normal((4096, 3))
    with peak_memory() as peak:
        answer(Q, K, K)
        if peak() > 32 * 4096 * 8:  # all scores
            raise NotYet("It is right, but all scores are there at once. Repair the tiles, and keep them.")


@exercise("17.7")
def tiles_of_a_window(answer):
    """Tiles with a pair in them, counted one by one."""
    for n, rho, b in ((64, 16, 8), (50, 13, 8), (30, 0, 7), (20, 99, 6), (41, 9, 8)):
        i = np.arange(n)
        seen = (i[:, None] >= i) & (i[:, None] - i <= rho)
        blocks = -(-n // b)
        padded = np.zeros((blocks * b, blocks * b), bool)
        padded[:n, :n] = seen
        rows = padded.reshape(blocks, b, blocks, b).any((1, 3)).sum(1)  # tiles of each row
        wanted = rows.sum()
        given = answer(n, rho, b)
        told = f"For n = {n}, ρ = {rho}, b = {b} yours gives {given}. "
        mistakes = {
            blocks**2: "That is all tiles.",
            blocks * (blocks + 1) // 2: "That is all tiles up to the diagonal, however far back.",
            rows[: n // b].sum(): "The last tiles of a text are made, too, if they are not full.",
            blocks * (-(-rho // b) + 1): "The first rows of tiles have fewer: there is nothing before the text.",
        }
        for mistake, hint in mistakes.items():
            if mistake != wanted:
                unless(given, mistake, told + hint)
        close(given, wanted, told + "In row k of the tiles, which is the first key that its first query sees?")
    without_a_matrix(2000, answer, 2000, 5, 8)


@exercise("17.8")
def merged_parts(answer):
    """Y and L of two parts, and the gradient."""
    rng = np.random.default_rng(8)
    Y, L = rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 5))
    w = np.exp(L[0]) / np.exp(L).sum(0)
    whole = w[:, None] * Y[0] + (1 - w[:, None]) * Y[1]
    given = value(answer, Y[0], L[0], Y[1], L[1])
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise NotYet("The value is a pair, Y and L of the whole.")
    unless(given[0], Y.sum(0), "Each Y is an average already; it counts by the sum of its weights.")
    unless(given[0], Y.mean(0), "The two parts do not have the same weight.")
    unless(
        given[0],
        (L[..., None] * Y).sum(0) / L.sum(0)[:, None],
        "L is the logarithm of a sum of weights; e to the L is the sum.",
    )
    close(given[0], whole, "What share of all weight has each part, if e to the L is the sum over its keys?")
    unless(given[1], L.sum(0), "Sums of exponentials are added, not their logarithms.")
    close(given[1], np.log(np.exp(L).sum(0)), "L of the whole is the logarithm of the sum over all keys.")
    far = np.array([1000.0, 0, 1000, 500, 0])  # another constant for each query
    large = answer(Y[0], L[0] + far, Y[1], L[1] + far)[0]
    if not all(np.isfinite(real(part)).all() for part in large):
        raise NotYet(
            "It is right, but e to the power of 1,000 overflows. "
            "Subtract the larger of both L first, for each query by itself; the L of the whole gets it back."
        )
    close(large[0], whole, "A constant added to both L changes nothing in Y.")
    hint = "A constant added to both L is added to the L of the whole, too."
    close(real(large[1]) - far, np.log(np.exp(L).sum(0)), hint)
    hint = "Write w for the share of the first part. Y depends on each L by way of w, and so does L."
    derivative(answer, Y[0], L[0], Y[1], L[1], hint=hint)
    back = answer(Y[0], L[0] + far, Y[1], L[1] + far)[1]((Y[0], L[0]))
    if not all(np.isfinite(real(part)).all() for part in back):
        raise NotYet("It is right, but in the pullback e to the power of 1,000 overflows: w is known by then.")
