"""Answers to the exercises of chapter 05."""

import numpy as np

from minitransformer.positions import four_terms, rotate


def shaw(X, W_q, W_k, a, U_k=None, terms=("cc", "cp"), **options):
    one = np.eye(a.shape[1])
    return four_terms(X, a, W_q, W_k, one, one if U_k is None else U_k, terms=terms, relative=True, **options)[0]


def with_a_sign_wrong(x, angles):
    y = x.copy()
    y[:, ::2] = x[:, ::2] * np.cos(angles) + x[:, 1::2] * np.sin(angles)
    y[:, 1::2] = x[:, ::2] * np.sin(angles) + x[:, 1::2] * np.cos(angles)
    return y


def overwritten(x, angles):
    y = x.copy()
    a, b = y[:, ::2], y[:, 1::2]
    y[:, ::2] = a * np.cos(angles) - b * np.sin(angles)
    y[:, 1::2] = a * np.sin(angles) + b * np.cos(angles)
    return y


def halves(x, angles):
    y, _ = rotate(x, angles=angles)
    return np.concatenate([y[:, ::2], y[:, 1::2]], axis=1)


def shifted(dS, first, step=-1):
    n = len(dS)
    dT = np.zeros((n, 2 * n))
    for i in range(n):
        start = max(0, first + step * i)
        dT[i, start : start + n] = dS[i]
    return dT


def sloped(Q, K, slopes, *, t=np.abs, sign=-1.0, dslopes=None, transposed=True):
    """ALiBi with slopes that learn, and a pullback that may be wrong in one place."""
    n, d = Q.shape[-2:]
    distance = t(np.arange(n) - np.arange(n)[:, None])

    def pullback(dS):
        back = dS.swapaxes(-1, -2) if transposed else dS
        total = sign * (distance * dS).sum((0, 2, 3))
        return dS @ K / np.sqrt(d), back @ Q / np.sqrt(d), total if dslopes is None else dslopes(distance * dS)

    return Q @ K.swapaxes(-1, -2) / np.sqrt(d) + sign * slopes[:, None, None] * distance, pullback


ANSWERS = {
    "5.1": {
        "right": [0, 0, 1.4],
        "wrong": [[0, 0, 2], [1 / np.sqrt(2), 0, 2 / np.sqrt(2)], [2 / np.sqrt(2), 0, 0], [0, 0, 1], 2],
    },
    "5.2": {
        "right": [[3.5, 0.7], [2.8, 2.1], [2.1, 3.5]],
        "wrong": [
            [[5, 1], [4, 3], [3, 5]],
            np.array([[3, 1], [4, 3], [2, 3]]) / np.sqrt(2),  # no clip
            np.array([[3, 5], [4, 3], [5, 1]]) / np.sqrt(2),  # exchanged
            np.array([[2, 4], [4, 3], [5, 1]]) / np.sqrt(2),
            np.ones((3, 2)),
        ],
    },
    "5.3": {"wrong": [[2, 254], [5, 590], [10, 590], [10, 1178], [9, 1178], [9.21, 1178.9], [10, 10], 10]},
    "5.4": {
        "wrong": [
            [False, False, True, False, False, True],
            [True, True, True, False, False, True],
            [True, False, False, False, False, True],
            [True, False, True, True, False, True],
            [True, False, True, False, True, True],
            [True, False, True, False, False, False],
            "no",
        ]
    },
    "5.5": {
        "wrong": [
            lambda *args: shaw(*args, scale=1.0),
            lambda X, W_q, W_k, a: four_terms(X, a, W_q, W_k, np.eye(3), np.eye(3), relative=True),
            lambda *args: shaw(*args, terms=("cc",)),
            lambda *args: shaw(*args, terms=("cp",)),
            lambda *args: shaw(*args, terms=("cc", "cp", "pp")),
            lambda X, W_q, W_k, a: shaw(X, W_q, W_k, a, U_k=W_k[:3]),
            lambda X, W_q, W_k, a: shaw(X, W_q, W_k, a[::-1].copy()),
        ]
    },
    "5.6": {
        "also": [lambda x, angles: ((x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)).view(float)],
        "right": lambda x, angles: rotate(x, angles=angles)[0],
        "wrong": [
            overwritten,
            halves,
            lambda x, angles: rotate(x, angles=-angles)[0],
            lambda x, angles: rotate(x, angles=angles, layout="halves")[0],
            with_a_sign_wrong,
            lambda x, angles: x,
        ],
    },
    "5.7": {
        "also": [lambda dS: [np.roll(np.pad(row, (0, len(row))), len(row) - 1 - i) for i, row in enumerate(dS)]],
        "wrong": [
            lambda dS: shifted(dS, 0, 0),
            lambda dS: shifted(dS, 0, 1),
            lambda dS: shifted(dS, len(dS)),
            lambda dS: shifted(dS.T, len(dS) - 1),
            lambda dS: np.tile(dS, 2),
            lambda dS: shifted(2 * dS, len(dS) - 1),
        ],
    },
    "5.8": {
        "wrong": [
            lambda *args: sloped(*args, sign=1.0),
            lambda *args: sloped(*args, t=lambda o: o),
            lambda *args: sloped(*args, t=lambda o: -o),
            lambda Q, K, slopes: sloped(Q, K, slopes[:1]),  # one slope for all heads
            lambda *args: sloped(*args, t=lambda o: o**2),
            lambda *args: sloped(*args, dslopes=lambda products: products.sum((0, 2, 3))),
            lambda *args: sloped(*args, dslopes=lambda products: -products.sum((2, 3))),
            lambda *args: sloped(*args, dslopes=lambda products: -products.mean((0, 2, 3))),
            lambda *args: sloped(*args, transposed=False),
        ]
    },
    "5.9": {
        "wrong": [
            10000.0 ** (-np.arange(4) / 4),
            [0.3] * 4,
            [0.1, 0.01, 0.001, 0.0001],
            [2.9, 3.0, 0.04, 0.1],
            [7.0, 0.1, 0.2, 0.3],
            0.5,
        ]
    },
}
