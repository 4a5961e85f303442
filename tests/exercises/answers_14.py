"""Answers to the exercises of chapter 14."""

import numpy as np

from minitransformer.functional import softmax


def averaged(X, destinations, sources):
    Y = np.zeros_like(X)
    np.add.at(Y, destinations, X[sources])
    return Y / np.maximum(np.bincount(destinations, minlength=len(X)), 1)[:, None]


def with_nan(X, destinations, sources):
    Y = np.zeros_like(X)
    np.add.at(Y, destinations, X[sources])
    return Y / np.bincount(destinations, minlength=len(X))[:, None]


def written_once(X, destinations, sources):
    Y = np.zeros_like(X)
    Y[destinations] += X[sources]
    return Y / np.maximum(np.bincount(destinations, minlength=len(X)), 1)[:, None]


def sums(X, destinations, sources):
    Y = np.zeros_like(X)
    np.add.at(Y, destinations, X[sources])
    return Y


def by_a_matrix(X, destinations, sources):
    M = np.zeros((len(X), len(X)))
    M[destinations, sources] = 1
    return M @ X / np.maximum(M.sum(1, keepdims=True), 1)


def gat(axis=1, back=lambda A: A.T, slope=0.2, order=(1, 0), late=False):
    def function(f, g, V, mask):
        L = f[:, None] + g
        S = np.where(L > 0, L, 0.2 * L)
        A = softmax(S)[0] * mask if late else softmax(np.where(mask, S, -np.inf))[0]

        def pullback(dY):
            dA = dY @ V.T
            T = A * (dA - (dA * A).sum(axis, keepdims=True)) * np.where(L > 0, 1, slope).astype(A.dtype)
            return T.sum(order[0]), T.sum(order[1]), back(A) @ dY

        return A @ V, pullback

    return function


def layers(neighbours=2, below=0.01):
    x, count = np.cos(2 * np.pi * np.arange(40) / 40), 0
    while np.abs(x).max() >= below:
        x, count = ((neighbours == 2) * x + np.roll(x, 1) + np.roll(x, -1)) / (1 + neighbours), count + 1
    return count


def largest(seen=lambda mask: mask, add=True, everybody=False):
    def function(X, mask):
        winner = np.where(seen(mask)[..., None], X, -np.inf).argmax(1)
        channel = np.arange(X.shape[1])

        def pullback(dY):
            dX = np.zeros_like(X)
            if everybody:
                return mask.T.astype(X.dtype) @ dY
            if add:
                np.add.at(dX, (winner, channel), dY)
            else:
                dX[winner, channel] = dY
            return dX

        return X[winner, channel], pullback

    return function


def equal_to_a_winner(X, mask):
    """The gradient goes to all whose number is that of the winner, seen or not."""
    Y = np.where(mask[..., None], X, -np.inf).max(1)
    return Y, lambda dY: ((X == Y[:, None]) * dY[:, None]).sum(0)


def one_winner(X, mask):
    winner = np.where(mask, X.sum(1), -np.inf).argmax(1)
    return X[winner], lambda dY: (np.arange(len(X))[:, None] == winner).astype(dY.dtype) @ dY


def dense(phi=lambda S: S, hide=lambda S: np.where(np.tri(len(S)) > 0, S, -np.inf)):
    return lambda f, g, V: softmax(hide(phi(f[:, None] + g)))[0] @ V


ANSWERS = {
    "14.1": {
        "wrong": [
            [[10, 0], [20, 0]],
            [[20, 5], [12.65, 5]],
            [[8, 5], [8, 5]],
            [[2, 5], [12.65, 5]],
            [[8, 5], [10, 5]],
            [8, 5],
        ]
    },
    "14.2": {"wrong": [[30, 30], [1, 1], [0, 0], [15, 30], [1, 30], 1]},
    "14.3": {
        "right": lambda mask: mask @ mask,
        "wrong": [
            lambda mask: mask.astype(int) @ mask,
            lambda mask: mask * mask,
            lambda mask: (mask @ mask).T,
            lambda mask: mask @ mask | (mask @ mask).T,
            lambda mask: mask @ mask[0],
            lambda mask: mask @ mask.T,
            lambda mask: (mask & ~np.eye(len(mask), dtype=bool)) @ (mask & ~np.eye(len(mask), dtype=bool)),
        ],
    },
    "14.4": {
        "wrong": [
            lambda mask: np.where(mask, -np.log(mask.sum(1, keepdims=True)) / 2, -np.inf),
            lambda mask: np.where(mask, np.log(mask.sum(1)) / 2, -np.inf),
            lambda mask: np.where(mask, -np.log(mask.sum(1)), -np.inf),
            lambda mask: np.where(mask, mask.sum(1) ** -0.5, -np.inf),
            lambda mask: np.where(mask, np.outer(mask.sum(1), mask.sum(1)) ** -0.5, -np.inf),
            lambda mask: np.where(mask, -np.log(mask.sum(0)) / 2, -np.inf),
            lambda mask: np.where(mask, -np.log(mask.sum(1)) / 4, -np.inf),
            lambda mask: -np.log(mask.sum(1)) / 2,
            lambda mask: np.where(mask, -np.log(mask.sum(1)) / 2, 0),
        ]
    },
    "14.5": {
        "right": averaged,
        "wrong": [
            with_nan,
            written_once,
            sums,
            by_a_matrix,
            lambda X, i, j: averaged(X, i, j)[: i.max() + 1],  # as np.bincount(i) counts
            lambda X, i, j: averaged(X, j, i),
            lambda X, i, j: X[j],
            lambda X, i, j: X,
        ],
    },
    "14.6": {
        "wrong": [
            gat(back=lambda A: A),
            gat(axis=0),
            gat(slope=1),
            gat(order=(0, 1)),
            gat(late=True),
            lambda f, g, V, mask: V,
        ]
    },
    "14.7": {"right": layers(), "wrong": [372, 746, layers() - 1, layers() + 1, layers(below=0.1), 1]},
    "14.8": {
        "wrong": [
            largest(lambda mask: mask.T),
            largest(lambda mask: mask | True),
            largest(lambda mask: mask & ~np.eye(len(mask), dtype=bool)),
            largest(add=False),
            largest(everybody=True),
            one_winner,
            equal_to_a_winner,
            lambda X, mask: ((mask[..., None] * X).max(1), lambda dY: dY),
        ]
    },
    "14.9": {
        "wrong": [
            dense(),
            dense(phi=lambda S: np.where(S > 0, S, 0.2 * S)),
            dense(hide=lambda S: S),
            lambda f, g, V: np.cumsum(np.exp(g)[:, None] * V, 0) / np.exp(g).sum(),
            lambda f, g, V: np.cumsum(np.exp(g)[:, None] * V, 0),
            lambda f, g, V: np.cumsum(np.exp(f)[:, None] * V, 0) / np.cumsum(np.exp(f))[:, None],
        ]
    },
}
