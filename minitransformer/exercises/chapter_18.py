"""Exercises of chapter 18, on the models of today."""

import numpy as np

from minitransformer.attention import dot_product_attention, softmax_with_sink
from minitransformer.exercises.check import NotYet, array_of, close, derivative, exercise, real, unless, value
from minitransformer.functional import sigmoid, softmax
from minitransformer.machine import peak_memory
from minitransformer.typing import Array


@exercise("18.1")
def a_sink_and_the_same_twice(answer):
    """Output and gate of two keys beside a sink, and the output beside two sinks."""
    one, K, V = np.ones((1, 1)), np.log(np.array([[2.0], [6]])), np.array([[3.0], [1]])
    sinks = None, np.array(np.log(4.0)), np.array(np.log(8.0))
    plain, once, twice = (dot_product_attention(one, K, V, None, b, scale=1.0)[0].item() for b in sinks)
    given = array_of(answer, (3,), "Three numbers.")
    unless(given[0], plain, "That is without the sink.", 0.01)
    unless(
        given[0], 12 / (np.log(4) + 8), "The sink is a score, too: e to the power of it is in the denominator.", 0.01
    )
    close(given[0], once, "What are the three terms of the denominator, and which of them have a value?", 0.01)
    unless(given[1], 1 - once / plain, "That is what the sink takes. The gate is what it leaves.", 0.01)
    close(given[1], once / plain, "The gate is what is left of the output without a sink.", 0.01)
    close(given[2], twice, "If both add it, it is in the denominator twice.", 0.01)


@exercise("18.2")
def rows_of_a_pooled_query(answer):
    """Six tokens and two blocks; what is between them is lost."""
    i, block, window = 44, 16, 6
    blocks = (i + 1) // block
    lost = i + 1 - block * blocks - window
    given = array_of(answer, (2,), "Two numbers: rows, and tokens.")
    unless(given[0], blocks + 1 + window, "The third block is not complete.", 1e-6)
    unless(given[0], block * blocks + window, "A block is one row.", 1e-6)
    close(given[0], blocks + window, "Which blocks are over at 44, and which tokens are in the window?", 1e-6)
    unless(given[1], i + 1 - blocks - window, "A block has something of all its tokens.", 1e-6)
    unless(given[1], lost - 1, "Places are counted from 0: query 44 is the 45th.", 1e-6)
    close(given[1], lost, "Behind the last complete block, and before the window.", 1e-6)


@exercise("18.3")
def four_times_the_keys(answer):
    """By how much L grows."""
    unless(answer, 4, "The sum grows fourfold. L is its logarithm.", 0.01)
    unless(answer, 2, "The logarithm here is that of base e.", 0.01)
    unless(answer, np.log(256), "That is the logarithm of how many keys there are. By how much has it grown?", 0.01)
    close(answer, np.log(256 / 64), "What becomes of the sum of exponentials, and what of its logarithm?", 0.05)


@exercise("18.4")
def latents_against_states(answer):
    """Where 61 latents weigh as much as 36 states and 12 layers of keys."""
    latent, state, keys = 61 * 576 * 2, 36 * 32 * 128 * 128 * 4, 12 * 2 * 2 * 256 * 2
    unless(answer, state / (latent - keys / 2), "There are keys and values.", 0.01)
    unless(answer, state / latent, "The other model grows with the text as well, in 12 of its layers.", 0.01)
    unless(answer, state / 2 / (latent - keys), "A number of the state has four bytes.", 0.01)
    unless(answer, state / (2 * latent - keys), "A latent is one row: keys and values are both made of it.", 0.01)
    close(
        answer,
        state / (latent - keys),
        "Bytes that one more token adds, for both, and the bytes of the state: where do the lines cross?",
        0.01,
    )


@exercise("18.5")
def borders_that_move(answer):
    """Tokens that the last one hears of, through four layers of chunks."""
    i, j = np.arange(64)[:, None], np.arange(64)

    def heard(shifts):
        hears = np.eye(64)[-1]
        for shift in reversed(shifts):
            hears = hears @ ((i >= j) & ((i + shift) // 8 == (j + shift) // 8))
        return np.count_nonzero(hears)

    unless(answer, heard((0, 0, 0, 0)), "That is with borders that stay.", 1e-6)
    unless(
        answer,
        heard((4, 0, 4, 0)),
        "The moved chunks are in the second and in the fourth layer, counted from below.",
        1e-6,
    )
    unless(answer, 4 * 7 + 1, "That is with windows.", 1e-6)
    close(
        answer,
        heard((0, 4, 0, 4)),
        "Begin at the top: in which chunk is token 63, and in which chunk, one layer below, is the first of them?",
        1e-6,
    )


@exercise("18.6")
def a_sink_of_any_size(answer):
    """Weights beside a sink, for large scores and large sinks."""
    rng = np.random.default_rng(6)
    S = rng.standard_normal((2, 3, 5))
    e = np.exp(S - S.max(-1, keepdims=True))
    given = answer(S, 0.5)
    unless(
        given,
        e / (np.exp(0.5) + e.sum(-1, keepdims=True)),
        "All scores were made smaller by the largest. What about b?",
    )
    unless(given, softmax(S)[0], "There is no sink here at all.")
    close(given, softmax_with_sink(S, np.array(0.5))[0], "Try scores of 0 only, and compare with (18.1).")
    for b, shift, told in (
        (1000.0, 0.0, "b = 1,000"),
        (0.5, 1000.0, "scores near 1,000"),
        (0.5, -1000.0, "scores near −1,000"),
        (1000.0, 1000.0, "scores near 1,000 and b = 1,000"),
        (-1000.0, np.array([[-1000.0], [0], [1000]]), "scores near ±1,000 and b = −1,000"),
        (0.5, np.array([-1000.0, 0, 1000, 0, -1000]), "scores near 0 and ±1,000 in each row"),
    ):
        found = real(answer(S + shift, b))
        if not np.isfinite(found).all():
            raise NotYet(f"With {told} it is NaN. Is one exponential too large for a float, or are all of a row 0?")
        wanted, _ = softmax_with_sink(S + shift, np.array(b))
        close(found + 1, wanted + 1, f"With {told} the weights are different.")
    hidden = np.full((1, 4), -np.inf)
    close(
        1 + np.nan_to_num(answer(hidden, 0.5), nan=9.0),
        1 + np.zeros((1, 4)),
        "If every key is hidden, all weights are zero.",
    )


@exercise("18.7")
def one_sink_of_two(answer):
    """Two halves that both have the sink, put together with one."""
    rng = np.random.default_rng(7)
    for b in (0.7, -1.3):
        S, V = rng.standard_normal((4, 6)), rng.standard_normal((6, 3))
        halves = []
        for keys in (slice(0, 2), slice(2, 6)):
            total = np.exp(b) + np.exp(S[:, keys]).sum(1)
            halves += [np.exp(S[:, keys]) @ V[keys] / total[:, None], np.log(total)]
        (Y_1, L_1, Y_2, L_2), e = halves, np.exp(S)
        given = answer(*halves, b)
        unless(given, e @ V / (2 * np.exp(b) + e.sum(1))[:, None], "Now the sink is in it twice.")
        unless(given, e @ V / e.sum(1)[:, None], "Now no sink is left: one of the two stays.")
        unless(given, Y_1 + Y_2, "Each Y has been divided already, by another sum.")
        once = np.exp(L_1), np.exp(L_2) - np.exp(b)
        wrong = (once[0][:, None] * Y_1 + once[1][:, None] * Y_2) / sum(once)[:, None]
        unless(given, wrong, "The denominator is right. In the numerators the sink was never there.")
        hint = "Which sums over keys are in Y and in L? Write both with numerator and denominator."
        close(given, e @ V / (np.exp(b) + e.sum(1))[:, None], hint)


def too_large_for_keys(rng: np.random.Generator) -> tuple[Array, ...]:
    """q, C, W_uk and W_uv whose keys and values are beyond float64, though y is not; and y."""
    C, (W_uk, W_uv) = rng.standard_normal((7, 8)), rng.standard_normal((2, 4, 8, 4))
    q = np.array([[1.0, 0, 0, 0]] * 4)
    C[3] = -(2.0**16) * np.linalg.pinv(W_uk[:, :, 0]).sum(1)  # every head gives it the weight 0, and its value is large
    A, _ = softmax(W_uk[:, :, 0] @ C.T / 2)
    right = np.einsum("hr,hrd->hd", A @ C, W_uv)
    W_uk[:, :, 1:] *= 2.0**20  # a query is 0 there
    return 2.0**-1020 * q, 2.0**512 * C, 2.0**508 * W_uk, 2.0**500 * W_uv, 2.0**1012 * right


@exercise("18.8")
def absorbed(answer):
    """One token's attention in the space of the latents."""
    rng = np.random.default_rng(8)
    q, C, (W_uk, W_uv) = rng.standard_normal((3, 4)), rng.standard_normal((7, 5)), rng.standard_normal((2, 3, 5, 4))
    S = np.einsum("hd,hnd->hn", q, C @ W_uk)
    given = answer(q, C, W_uk, W_uv)

    def read(scores):
        return np.einsum("hn,hnd->hd", softmax(scores)[0], C @ W_uv)

    unless(given, read(S), "Scores are divided by √d, whatever they are made of.")
    unless(
        given,
        read(S / np.sqrt(5)),
        "It is the width d of a head that counts, not r: the scores are the same as before.",
    )
    way = "Bring the query to the latents, by the transposed matrix, and the average of the latents to the head."
    close(given, read(S / 2), way)
    q, C = 0.1 * rng.standard_normal((4, 512)), rng.standard_normal((2000, 8))
    W_uk, W_uv = rng.standard_normal((2, 4, 8, 512))
    with peak_memory() as peak:
        given = answer(q, C, W_uk, W_uv)
        if peak() > 2000 * 512 * 2:  # a quarter of the keys of one head
            raise NotYet("It is right, but keys or values of a head are made on the way: change the brackets.")
    A, _ = softmax(np.einsum("hd,hrd->hr", q, W_uk) @ C.T / np.sqrt(512))
    close(given, np.einsum("hr,hrd->hd", A @ C, W_uv), f"{way} This is with 4 heads of d = 512, n = 2,000 and r = 8.")
    q, C, W_uk, W_uv, right = too_large_for_keys(rng)
    one_by_one = "Keys or values are made on the way, even if one token at a time. Here they overflow, and y does not."
    close(answer(q, C, W_uk, W_uv), right, one_by_one)


@exercise("18.9")
def a_gate_for_each_head(answer):
    """Z = Y ⊙ σ(X W_g), a number for each head, and its gradient."""
    rng = np.random.default_rng(9)
    Y, X, W_g = rng.standard_normal((2, 5, 3)), rng.standard_normal((5, 4)), rng.standard_normal((4, 2))
    given = value(answer, Y, X, W_g)
    unless(given, Y * (X @ W_g).T[..., None], "There is a sigmoid between the linear layer and the product.")
    close(given, Y * sigmoid(X @ W_g)[0].T[..., None], "Column h of X W_g is the gate of head h, for each token.")
    derivative(
        answer,
        Y,
        X,
        W_g,
        hint="All d channels of a head share one gate: it hears from all of them, and σ′ = σ (1 − σ).",
    )
