"""The errata of From GRU to attention, measured: one function for each that has consequences, named after its number."""

import math
from typing import NamedTuple

import numpy as np

from minitransformer import experiments
from minitransformer.attention import MultiHeadAttention
from minitransformer.errata.reading import Reading, relative_error
from minitransformer.functional import softmax
from minitransformer.positions import sinusoids
from minitransformer.pullback import random_like
from minitransformer.related import GRU, LSTM, After, GRUParams, LSTMParams
from minitransformer.typing import Array


class Steps(NamedTuple):
    """Gates and candidates (n,) of a state of width one."""

    u: Array
    c: Array

    def state(self) -> float:
        """h_n, step by step from h_0 = 0."""
        h = 0.0
        for u, c in zip(self.u, self.c, strict=True):
            h = u * h + (1 - u) * c
        return h

    def printed_weights(self) -> Array:
        """∏_{j=1…n−i+1} u_j · ∏_{k=1…i−1} (1 − u_k) for i = 1 … n, as the post has it."""
        n = len(self.u)
        return np.array([self.u[: n - i + 1].prod() * (1 - self.u[: i - 1]).prod() for i in range(1, n + 1)])

    def weights(self) -> Array:
        """(∏_{k=i+1…n} u_k)(1 − u_i) for i = 1 … n."""
        n = len(self.u)
        return np.array([self.u[i:].prod() * (1 - self.u[i - 1]) for i in range(1, n + 1)])


THREE = Steps(np.array([0.9, 0.5, 0.8]), np.array([1.0, -1.0, 2.0]))  # those of chapter 01


def e61() -> Reading:
    """The unrolled sum for the three steps of chapter 01."""
    weights, state = THREE.printed_weights(), THREE.state()
    printed = float(weights @ THREE.c)
    numbers = {"sum": float(weights.sum()), "printed": printed, "meant": state}
    return Reading(numbers, relative_error(np.array(printed), np.array(state)))


def e62() -> Reading:
    """A GRU whose gate means the opposite, and one that reads the token before."""
    rng = np.random.default_rng(62)
    D, d, n = 3, 4, 5
    gru = GRU(D, d)
    p = random_like(gru.init(rng, np.float64), rng)
    X = rng.standard_normal((n, D))
    H, _ = gru(p, X)

    def later(X: Array, shift: int) -> Array:
        h, states, tokens = np.zeros(d), [], np.vstack([np.zeros(D), X])
        for t in range(1, n + 1):
            x = tokens[t - shift]
            u = 1 / (1 + np.exp(-(x @ p.W_u + h @ p.U_u + p.b_u)))
            h = u * np.tanh(x @ p.W_c + h @ p.U_c + p.b_c) + (1 - u) * h
            states.append(h)
        return np.array(states)

    other = np.vstack([X[:-1], X[-1:] + 1])
    numbers = {
        "convention": relative_error(later(X, 0), H),
        "unread": float(np.abs(later(other, 1)[-1] - later(X, 1)[-1]).max()),
        "read": float(np.abs(gru(p, other)[0][-1] - H[-1]).max()),
    }
    return Reading(numbers, numbers["convention"])


def e64() -> Reading:
    """Rows of weights of one word at two places, where the query has the key's position and where it has its own."""
    rng = np.random.default_rng(64)
    n, d = 5, 4
    f, p = rng.standard_normal((2, n, d))
    W_q, W_k, W_v = rng.standard_normal((3, d, d)) / math.sqrt(d)
    f[3] = f[0]
    K, V = (f + p) @ W_k, (f + p) @ W_v
    printed = np.array([[K[i] @ ((f[t] + p[i]) @ W_q) for i in range(n)] for t in range(n)])
    A, meant = (softmax(S / math.sqrt(d))[0] for S in (printed, (f + p) @ W_q @ K.T))
    numbers = {"printed": float(np.abs(A[3] - A[0]).max()), "meant": float(np.abs(meant[3] - meant[0]).max())}
    return Reading(numbers, relative_error(A @ V, meant @ V))


def e65() -> Reading:
    """Channels of sinusoids that leave what 512 positions have shown; and bits for a byte at twice the length of training."""
    trained, width = 512, 64
    table = sinusoids(2 * trained, width)
    seen, unseen = table[:trained], table[trained:]
    outside = (unseen.max(0) > seen.max(0) + 0.05) | (unseen.min(0) < seen.min(0) - 0.05)
    record = experiments.load("positions")
    bits = [r["scores"] for trial, r in record if (trial.task, trial.positions) == ("text", "sinusoidal")]
    same, twice, *_ = np.mean(bits, axis=0)
    return Reading({"channels": outside.sum(), "of": width, "bits": float(same), "twice": float(twice)})


def e66() -> Reading:
    """What the part of the output that belongs to the first head feels of the second: with g on every head, and with W_o."""
    rng = np.random.default_rng(66)
    n, d, heads = 5, 6, 2
    g, H = After(d, 7, heads), rng.standard_normal((n, d))
    dY = np.where(np.arange(d) < d // 2, rng.standard_normal((n, d)), 0)
    _, pullback = g(random_like(g.init(rng, np.float64), rng), H)
    alone = np.abs(pullback(dY)[1][:, d // 2 :]).max()
    attention = MultiHeadAttention(d, heads, bias=False)
    p = random_like(attention.init(rng, np.float64), rng)
    silent = p._replace(W_v=np.where(np.arange(d) < d // 2, p.W_v, 0))  # the second head says nothing
    (Y, _), (Z, _) = attention(p, H), attention(silent, H)
    return Reading({"printed": float(alone), "meant": relative_error(Z[:, : d // 2], Y[:, : d // 2])})


def e80() -> Reading:
    """The states of an LSTM and those of the printed update, with the same weights; and what they hold where all is near 1."""
    rng, n = np.random.default_rng(80), 9
    lstm = LSTM(3, 4)
    p = random_like(lstm.init(rng, np.float64), rng)
    X = rng.standard_normal((n, 3))
    printed, _ = GRU(3, 4)(GRUParams(*p.c, *p.u), X)
    near_one = p.c._replace(W=0 * p.c.W, U=0 * p.c.U, b=np.full(4, 9.0))
    _, pullback = lstm(LSTMParams(near_one, near_one, near_one, near_one), X)
    average, _ = GRU(3, 4)(GRUParams(*near_one, *near_one), X, np.ones(4))
    states = relative_error(printed, lstm(p, X)[0])
    return Reading({"states": states, "cell": pullback.cells[-1, 0], "tokens": n, "average": average[-1, 0]})
