"""Answers to the exercises of chapter 00."""

import numpy as np


def gain(X, g, dX=lambda dY, g: dY * g, dg=lambda products: products.sum(tuple(range(products.ndim - 1)))):
    return X * g, lambda dY: (dX(dY, g), dg(dY * X))


def matrix(X, W, dW):
    return X @ W, lambda dY: (dY @ W.T, dW(X, dY))


def rowwise(X):
    """All rows of all samples, one under the other."""
    return X.reshape(-1, X.shape[-1])


def table(X, W, dW, dX=lambda dY, W: dY @ W @ W.T):
    return X @ W @ W.T, lambda dY: (dX(dY, W), dW(X, W, dY))


def in_lists(X, W):
    """Through the matrix W Wᵀ, whose gradient is used with its transpose."""

    def pullback(dY):
        dM = X.T @ dY
        return [(dY @ W @ W.T).tolist(), ((dM + dM.T) @ W).tolist()]

    return (X @ (W @ W.T)).tolist(), pullback


def both(X, W, dY):
    return X.T @ dY @ W + dY.T @ X @ W


def rows(f, x):
    y, pullback = f(x)
    return np.stack([pullback(row) for row in np.eye(len(y))])


def quotients(f, x, h=1e-5):
    return np.stack([(f(x + h * v)[0] - f(x - h * v)[0]) / (2 * h) for v in np.eye(len(x))], 1)


def at_once(f, x):
    y, pullback = f(x)
    return pullback(np.ones_like(y))


ANSWERS = {
    "0.1": {
        "wrong": [
            [[8, 11], [1, -6]],  # transposed
            [[5, -2], [10, -4]],  # the first row alone
            [[8, 1], [11, 6]],
            [[2, -2], [2, 2]],
            [8, 1, 11, -6],
        ]
    },
    "0.2": {
        "wrong": [
            [False, True, False, True, False, True],
            [True, False, False, True, False, True],
            [True, True, True, True, False, True],
            [True, True, False, False, False, True],
            [True, True, False, True, True, True],
            [True, True, False, True, False, False],
            [1, 1, 0, 1, 0, 1],
        ]
    },
    "0.3": {"wrong": [540, 81, 648, 27, 339.738624, 180, 288, 216, "many"]},
    "0.4": {
        "wrong": [
            lambda X, g: gain(X, g, dg=lambda products: products.sum(0)),
            lambda X, g: gain(X, g, dg=lambda products: products.mean(tuple(range(products.ndim - 1)))),
            lambda X, g: gain(X, g, dg=lambda products: products.sum((0, 1) if X.ndim > 2 else 0)),  # one batch axis
            lambda X, g: gain(X, g, dX=lambda dY, g: dY),
            lambda X, g: gain(X, g)[0],
            lambda X, g: gain(X, g * g),
            lambda X, g: gain(X, g, dg=lambda products: products.reshape(-1, 3).sum(0)),  # for three columns alone
        ]
    },
    "0.5": {
        "right": lambda X, W: matrix(X, W, lambda X, dY: rowwise(X).T @ rowwise(dY)),
        "wrong": [
            lambda X, W: matrix(X, W, lambda X, dY: X.swapaxes(-1, -2) @ dY),  # no sum
            lambda X, W: matrix(X, W, lambda X, dY: rowwise(X).T @ rowwise(dY) / X[..., 0, 0].size),  # a mean
            lambda X, W: matrix(X, W, lambda X, dY: np.outer(rowwise(X).sum(0), rowwise(dY).sum(0))),
            lambda X, W: matrix(X, W, lambda X, dY: rowwise(dY).T @ rowwise(X)),
            lambda X, W: matrix(rowwise(X), W, lambda X, dY: X.T @ dY),  # the batch is lost
        ],
    },
    "0.6": {
        "also": [in_lists],
        "wrong": [
            lambda X, W: table(X, W, lambda X, W, dY: X.T @ dY @ W),
            lambda X, W: table(X, W, lambda X, W, dY: dY.T @ X @ W),
            lambda X, W: table(X, W, lambda X, W, dY: 2 * X.T @ dY @ W),
            lambda X, W: table(X, W, lambda X, W, dY: X.T @ dY @ W - dY.T @ X @ W),
            lambda X, W: table(X, W, both, dX=lambda dY, W: dY @ W),
            lambda X, W: (X @ W, lambda dY: (dY @ W.T, X.T @ dY)),
        ],
    },
    "0.7": {
        "also": [lambda f, x: (lambda y, back: [back(2 * row) / 2 for row in np.identity(len(y))])(*f(x))],
        "wrong": [
            lambda f, x: rows(f, x).T,
            quotients,
            at_once,
            lambda f, x: rows(f, x)[::-1],
            lambda f, x: rows(f, x) @ np.diag(x),
        ],
    },
    "0.8": {"wrong": [[2, -3], [4, -5], [4, 3], [4, -2], [3, -3], [4, -6], [3.97, -3], [4, 0.001], 4]},
}
