"""Answers to the exercises of chapter 06."""

import numpy as np

from minitransformer.positions import rotate


def listing(omega, L_0, s):
    turns = L_0 * omega
    rho = np.clip((4 - turns) / (4 - 1), 0, 1)
    return omega * ((1 - rho) + rho / s)


def repaired(omega, L_0, s):
    return listing(omega, L_0 / (2 * np.pi), s)


def ramp_the_other_way(omega, L_0, s):
    rho = np.clip((L_0 * omega / (2 * np.pi) - 1) / 3, 0, 1)
    return omega * ((1 - rho) + rho / s)


def diagonal_means(A):
    n = len(A)
    f = np.array([np.diagonal(np.log(A), o).mean() for o in range(1 - n, n)])
    return f - f[n - 1]


def first_column_and_row(A):
    return np.concatenate([A[::-1, 0] / np.diagonal(A)[::-1], A[0, 1:] / A[0, 0]])


def learned_frequencies(sign=1, factor=True, together=True, back=-1, first=0, slope=1, axes=None):
    def answer(X, omega):
        places = first + np.arange(X.shape[-2])
        angles = places[:, None] * omega
        Y, _ = rotate(X, angles=sign * angles)

        def pullback(dY):
            dangles = slope * (Y[..., 0::2] * dY[..., 1::2] - Y[..., 1::2] * dY[..., 0::2])
            domega = np.einsum("...if,i->...f", dangles, places if factor else np.ones_like(places))
            if together:
                domega = domega.sum((0, 1)) if axes == 4 else domega.reshape(-1, len(omega)).sum(0)
            return rotate(dY, angles=back * angles)[0], domega

        return Y, pullback

    return answer


def in_place(table, n):
    table[:, 27:] = table[:, 26:27]


def both_sides(table, n):
    table[:, 16:] = table[:, 15:16]
    return table


def sum_over_a_text(slope, t):
    weights = np.exp(-slope * np.arange(100_000))
    return weights[t] / weights.sum()


ANSWERS = {
    "6.1": {
        "also": [
            lambda m, t: np.exp(-m * t) - np.exp(-m * (t + 1)),
            lambda m, t: 2 * np.sinh(m / 2) * np.exp(-m * (t + 1 / 2)),
        ],
        "wrong": [
            lambda m, t: np.exp(-m * t),
            lambda m, t: m * np.exp(-m * t),
            lambda m, t: (1 - np.exp(-m)) * np.exp(-m * (t + 1)),
            lambda m, t: (1 - m) * np.exp(-m * t),
            sum_over_a_text,
            0.3,
        ],
    },
    "6.2": {"wrong": [[1, 177], [2, 256], [2, 177], [1.386, 177.4], 178]},
    "6.3": {"wrong": [23, 3, 32, 10, "nine"]},
    "6.4": {"also": ["Dynamic_NTK", "dynamic-ntk"], "wrong": ["interpolation", "ntk", "yarn", 3]},
    "6.5": {
        "also": [lambda A: np.log(np.concatenate([A[-1] / A[-1, -1], A[0, 1:] / A[0, 0]]))],
        "wrong": [
            diagonal_means,
            first_column_and_row,
            lambda A: [np.diagonal(np.log(A), o).mean() for o in range(1 - len(A), len(A))],
            lambda A: np.log(np.concatenate([A[::-1, 0] / np.diagonal(A)[::-1], A[0, 1:] / A[0, 0]]))[::-1],
            lambda A: np.log(np.concatenate([A[::-1, 0], A[0, 1:]])),
            lambda A: np.log(A[0] / A[0, 0]),
        ],
    },
    "6.6": {"right": 4.6, "wrong": [99.5, 0, np.log(50), 100]},
    "6.7": {
        "also": [lambda omega, L_0, s: omega * np.interp(L_0 * omega / (2 * np.pi), [1, 4], [1 / s, 1])],
        "right": repaired,
        "wrong": [
            listing,
            ramp_the_other_way,
            lambda omega, L_0, s: omega / s,
            lambda omega, L_0, s: listing(omega, L_0 / 6, s),
        ],
    },
    "6.8": {
        "right": learned_frequencies(),
        "wrong": [
            learned_frequencies(sign=-1),
            learned_frequencies(factor=False),
            learned_frequencies(together=False),
            learned_frequencies(back=1),
            learned_frequencies(first=1),
            learned_frequencies(slope=-1),
            learned_frequencies(slope=2),
            learned_frequencies(axes=4),
            lambda X, omega: X,
        ],
    },
    "6.9": {
        "wrong": [
            lambda table, n: table,
            lambda table, n: np.where(np.arange(32) > 27, table[:, 27:28], table),
            lambda table, n: np.where(np.arange(32) > 26, 0, table),
            lambda table, n: np.where(np.arange(32) > 26, table[:, 26:27], table),  # whatever n
            both_sides,
        ]
    },
}
