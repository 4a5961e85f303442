"""Answers to the exercises of chapter 07."""

import numpy as np


def iteration(M, steps, c=None, start=None, thirteen=13):
    one = np.eye(len(M))
    Z = (M.T if start is None else start) / (M.sum(0).max() if c is None else c)
    for _ in range(steps):
        G = M @ Z
        Z = Z @ (thirteen * one - G @ (15 * one - G @ (7 * one - G))) / 4
    return Z


def newton(M, steps):
    """An iteration of order two, which comes to the same end."""
    Z = iteration(M, 0)
    for _ in range(steps):
        Z = Z @ (2 * np.eye(len(M)) - M @ Z)
    return Z


def listing(M, steps):
    return iteration(M, steps, c=M.sum(1).max())


def pooling(
    forward="softmax", through_softmax=True, mean_part=True, together=True, dX_weights=True, apart=False, axes=-2
):
    def answer(X, u):
        w = {"softmax": np.exp(u) / np.exp(u).sum(), "u": u, "mean": 0 * u + 1 / len(u)}[forward]
        blocks = X.reshape(*X.shape[:-2], -1, len(u), X.shape[-1])
        if apart:
            blocks = X.reshape(*X.shape[:-2], len(u), -1, X.shape[-1]).swapaxes(-2, -3)

        def pullback(dmeans):
            spread = dmeans[..., None, :] * (w[:, None] if dX_weights else np.ones((len(u), 1)))
            dw = (dmeans[..., None, :] * blocks).sum(-1)
            dw = dw.reshape(-1, len(u)).sum(0) if together else dw.sum(axes)
            du = w * (dw - ((dw * w).sum(-1, keepdims=True) if mean_part else 0))
            return spread.reshape(X.shape), du if through_softmax else dw

        return (blocks * w[:, None]).sum(-2), pullback

    return answer


ANSWERS = {
    "7.1": {"wrong": [[np.log(5), np.log(17) / 2], [0.916, 2.14], [0.693, 0.693], [0.916, 0.916], 0.916]},
    "7.2": {
        "right": lambda D, k: 6 * D + 4 * k,
        "wrong": [
            lambda D, k: 4 * k,
            lambda D, k: 6 * D,
            lambda D, k: 6 * D + 2 * k,
            lambda D, k: 12 * D + 4 * k,
            5632,
        ],
    },
    "7.3": {"wrong": [1, 63, 32, "full"]},
    "7.4": {"wrong": [30, 15, 18, 14]},
    "7.5": {
        "also": [lambda E: (E @ np.repeat(np.eye(E.shape[1]), 2, 1) * np.tile([0.3, 0.7], E.shape[1])).tolist()],
        "right": lambda E: np.kron(E, [[1.0, 0]]),
        "wrong": [
            lambda E: np.repeat(E, 2, 1),
            lambda E: np.tile(E, 2) / 2,
            lambda E: np.pad(E, ((0, 0), (0, E.shape[1]))),
            lambda E: E,
            lambda E: np.repeat(E, 2, 1) / 4,
        ],
    },
    "7.6": {"wrong": [[2048, 4], [2048, 8], [1026, 4], [2052, 4], [2052, 2], [2052, 16], [8, 2052], [512, 1], 2052]},
    "7.7": {
        "also": [lambda A, k: -np.linalg.eigh(A.T @ A)[1][:, : -k - 1 : -1].T],
        "wrong": [
            lambda A, k: np.linalg.svd(A)[0][:, :k].T,
            lambda A, k: np.linalg.svd(A)[2][:, :k].T,
            lambda A, k: np.linalg.svd(A)[2][-k:],
            lambda A, k: np.eye(len(A))[:k],
            lambda A, k: np.linalg.svd(A)[2],
        ],
    },
    "7.8": {
        "right": iteration,
        "also": [
            lambda M, steps: iteration(M, steps, c=(M**2).sum()),
            lambda M, steps: iteration(M, steps, c=np.linalg.norm(M, 1) * np.linalg.norm(M, np.inf)),
        ],
        "wrong": [
            listing,
            lambda M, steps: iteration(M, steps, start=M),
            lambda M, steps: iteration(M, steps, thirteen=15),
            lambda M, steps: iteration(M, min(steps, 1)),
            lambda M, steps: np.linalg.pinv(M),
            lambda M, steps: np.linalg.inv(M) if steps else iteration(M, 0),
            newton,
            lambda M, steps: M.T / M.sum(0).max(),
            lambda M, steps: iteration(M, steps, c=np.linalg.norm(M)),
        ],
    },
    "7.9": {
        "right": pooling(),
        "wrong": [
            pooling(forward="u"),
            pooling(through_softmax=False),
            pooling(apart=True),
            pooling(forward="mean"),
            pooling(mean_part=False),
            pooling(together=False),
            pooling(together=False, axes=(0, 1, -2)),
            pooling(dX_weights=False),
            lambda X, u: X,
        ],
    },
}
