"""Answers to the exercises of chapter 04."""

import numpy as np

from minitransformer.positions import shift_matrix, sinusoids

ROOT = np.sqrt(3) / 2


def packed(table, X, positions, way):
    """X + table[positions], with one way of handing the gradient back to the table."""

    def pullback(dY):
        dtable = np.zeros_like(table)
        way(dtable, positions, dY)
        return dtable, dY

    return X + table[positions], pullback


def write(dtable, positions, dY):
    dtable[positions] += dY


def mean(dtable, positions, dY):
    np.add.at(dtable, positions, dY)
    dtable /= np.maximum(np.bincount(positions, minlength=len(dtable)), 1)[:, None]


def in_order(dtable, positions, dY):
    dtable[: len(np.unique(positions))] += dY[: len(np.unique(positions))]


def everywhere(dtable, positions, dY):
    dtable += dY.sum(0)


def base(X, b, *, factor_i=True, inner=True, sign=1.0, halves=False, batch=True):
    """Sinusoids of a learned base, and a pullback that may be wrong in one place."""
    n, D = X.shape[1:]
    power, i = 2 * np.arange(D // 2) / D, np.arange(n)[:, None]
    omega = b**-power
    Pi = sinusoids(n, D, base=float(b[0]), layout="halves" if halves else "interleaved")

    def pullback(dY):
        g = dY.sum(0) if batch else dY.mean(0)
        domega = Pi[:, 1::2] * g[:, ::2] - sign * Pi[:, ::2] * g[:, 1::2]
        domega = ((i if factor_i else 1) * domega).sum(0)
        return dY, -((power * omega / b if inner else 1) * domega).sum(keepdims=True)

    return X + Pi, pullback


ANSWERS = {
    "4.1": {
        "wrong": [
            [[-1 / 2, -ROOT], [ROOT, -1 / 2]],  # the other way
            [[1 / 2, ROOT], [-ROOT, 1 / 2]],  # one tick
            [[ROOT, -1 / 2], [1 / 2, ROOT]],
            [[-1, 0], [0, -1]],
            [ROOT, -1 / 2],
        ]
    },
    "4.2": {"wrong": [[3, 12], [6, 8], [6, 48], [6, 6], [6, 12], [2 * np.pi, 24], 24]},
    "4.3": {"wrong": [32, 17, 15, 14, 12, 10, 1, 0, "half"]},
    "4.4": {
        "right": [16, 0.7],
        "wrong": [[np.sqrt(512), 1], [256, 1], [16, 16], [16, 16 * np.sqrt(512)], [1, 1 / 16], [16, 0.8], 16],
    },
    "4.5": {
        "also": [lambda W: W[np.argsort(np.arange(len(W)) % 2, kind="stable")].tolist()],
        "right": lambda W: np.concatenate([W[::2], W[1::2]]),
        "wrong": [
            lambda W: W.reshape(2, len(W) // 2, -1).swapaxes(0, 1).reshape(W.shape),  # the way back
            lambda W: W,
            lambda W: np.concatenate([W[1::2], W[::2]]),
            lambda W: np.concatenate([W[:, ::2], W[:, 1::2]], axis=1),
            lambda W: np.concatenate([W[::2], W[1::2]]).T,
            lambda W: W[np.array([0, 2, 4, 6, 1, 3, 5, 7]) % len(W)],  # for eight channels alone
        ],
    },
    "4.6": {
        "also": [lambda D, o: [40 * np.eye(D), shift_matrix(D, o).T * 3]],
        "wrong": [
            lambda D, o: (100 * shift_matrix(D, -o), np.eye(D)),
            lambda D, o: (shift_matrix(D, -o).T, np.eye(D)),
            lambda D, o: (100 * np.eye(D), np.eye(D)),
            lambda D, o: (100 * shift_matrix(D, -1).T, np.eye(D)),
            lambda D, o: 100 * shift_matrix(D, -o).T,
            lambda D, o: (1e300 * shift_matrix(D, -o).T, 1e300 * np.eye(D)),
        ],
    },
    "4.7": {
        "right": lambda *args: packed(*args, np.add.at),
        "wrong": [
            lambda *args: packed(*args, write),
            lambda *args: packed(*args, mean),
            lambda *args: packed(*args, in_order),
            lambda *args: packed(*args, everywhere),
            lambda table, X, positions: (X + table[: len(X)].sum(), lambda dY: (0 * table, dY)),
        ],
    },
    "4.8": {
        "wrong": [
            lambda X, b: base(X, b, factor_i=False),
            lambda X, b: base(X, b, inner=False),
            lambda X, b: base(X, b, sign=-1.0),
            lambda X, b: base(X, b, halves=True),
            lambda X, b: base(X, b, batch=False),
        ]
    },
    "4.9": {"wrong": [20, 120, 400, 100, "many"]},
}
