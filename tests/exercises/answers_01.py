"""Answers to the exercises of chapter 01."""

import numpy as np


def coefficients(u, gates, factor=lambda u, j: 1 - u[j]):
    """Products of the gates in a slice, for every pair."""
    n, u = len(u), np.concatenate([[0.0], u])
    C = np.zeros((n + 1, n + 1))
    for i in range(n + 1):
        for j in range(i + 1):
            C[i, j] = u[gates(j, i)].prod() * factor(u, j)
    return C


def weighted(S, c, mask=True):
    E = np.where(mask, np.exp(S), 0)
    return E / E.sum(1, keepdims=True) @ c


def past(X):
    return np.tri(len(X), dtype=bool)


def gated(u, c, *, du=lambda g, before, c: g * (before - c), carried=lambda g, u: g * u, swapped=False, after=False):
    """The states of a GRU, and a pullback that may be wrong in one place."""
    h = [np.zeros_like(c[:, 0])]
    for i in range(u.shape[1]):
        keep = 1 - u[:, i] if swapped else u[:, i]
        h.append(keep * h[-1] + (1 - keep) * c[:, i])

    def pullback(dh):
        back_u, back_c, g = np.zeros_like(u), np.zeros_like(c), 0.0
        for i in reversed(range(u.shape[1])):
            g = g + dh[:, i]
            back_u[:, i], back_c[:, i] = du(g, h[i + after], c[:, i]), g * (1 - u[:, i])
            g = carried(g, u[:, i])
        return back_u, back_c

    return np.stack(h[1:], 1), pullback


def in_the_other_order(found):
    """The same, with dc before du."""
    h, pullback = found
    return h, lambda dh: pullback(dh)[::-1]


ANSWERS = {
    "1.1": {
        "right": [0.06, 0.06, 0.12, 0.25, 0.5],  # rounded to two digits; they sum to 0.99
        "wrong": [
            [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16],  # the newest first
            [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2],  # h_0 as a candidate
            [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1],  # nobody enters with 1 − u
            [1 / 5] * 5,
            [1 / 16, 1 / 8, 1 / 4, 1 / 2],
        ],
    },
    "1.2": {"wrong": [[7, 44], [7, 23], [6, 44], [6, 21], [5, 22], 6]},
    "1.3": {"wrong": [[1000, 10], [334, 10], [500, 10], [999, 9], [999, 11], [999, 1000], 999]},
    "1.4": {
        "wrong": [0.5 ** (1 / 126), 1 - 0.5 ** (1 / 128), 1 - 0.5 ** (1 / 127), 1 - 0.5 ** (1 / 125), 0.5, 1 / 126]
    },
    "1.5": {"wrong": [34, 36, 31, 21, "i", 34.1]},
    "1.6": {
        "right": lambda u: coefficients(u, lambda j, i: slice(j + 1, i + 1)),
        "wrong": [
            lambda u: coefficients(u, slice),  # as printed
            lambda u: coefficients(u, lambda j, i: slice(j, i + 1)),
            lambda u: coefficients(u, lambda j, i: slice(j + 1, i)),
            lambda u: coefficients(u, lambda j, i: slice(j + 1, i + 1), lambda u, j: 1.0),
            lambda u: coefficients(u, lambda j, i: slice(j + 1, i + 1))[1:, 1:],  # no h_0
            lambda u: coefficients(u, lambda j, i: slice(j + 1, i + 1)) + np.triu(np.ones((len(u) + 1,) * 2), 1),
        ],
    },
    "1.7": {
        "also": [
            lambda X, c, W_q: [
                np.average(c[: i + 1], 0, np.exp(c[: i + 1] @ q / np.sqrt(len(q)))) for i, q in enumerate(X @ W_q)
            ]
        ],
        "wrong": [
            lambda X, c, W_q: weighted(X @ W_q @ c.T / np.sqrt(X.shape[1]), c),
            lambda X, c, W_q: weighted(X @ W_q @ c.T, c, past(X)),
            lambda X, c, W_q: np.where(past(X), weighted(X @ W_q @ c.T / np.sqrt(X.shape[1]), np.eye(len(X))), 0) @ c,
            lambda X, c, W_q: weighted(np.where(past(X), X @ W_q @ c.T, 0) / np.sqrt(X.shape[1]), c),
            lambda X, c, W_q: weighted(c @ W_q @ X.T / np.sqrt(X.shape[1]), c, past(X)),
            lambda X, c, W_q: weighted(X @ W_q @ c.T / np.sqrt(X.shape[1]), X, past(X)),
        ],
    },
    "1.8": {
        "wrong": [
            lambda u, c: gated(u, c, swapped=True),
            lambda u, c: gated(u, c, du=lambda g, before, c: -g * c),
            lambda u, c: gated(u, c, du=lambda g, before, c: g * (c - before)),
            lambda u, c: gated(u, c, carried=lambda g, u: 0.0),
            lambda u, c: in_the_other_order(gated(u, c)),
            lambda u, c: gated(u, c, after=True),
            lambda u, c: gated(u, c, carried=lambda g, u: g),
            lambda u, c: gated(u, c)[0],
        ]
    },
    "1.9": {"right": 4.0, "wrong": [0, 2, 3, 5, 8, 63, 4.1]},
}
