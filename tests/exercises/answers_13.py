"""Answers to the exercises of chapter 13."""

import numpy as np

from minitransformer.functional import softmax
from minitransformer.related import route, squash


def synthesizer(hide=lambda S: np.where(np.tri(S.shape[-1]) > 0, S, -np.inf), columns=slice, relu=True):
    def function(X, W_1, W_2, W_v):
        hidden = np.maximum(X @ W_1, 0) if relu else X @ W_1
        return softmax(hide((hidden @ W_2)[..., columns(X.shape[-2])]))[0] @ X @ W_v

    return function


def hidden_late(X, W_1, W_2, W_v):
    A, _ = softmax(np.maximum(X @ W_1, 0) @ W_2[:, : X.shape[-2]])
    return np.tril(A) @ X @ W_v


def of_all_places(X, W_1, W_2, W_v):
    A, _ = softmax(np.maximum(X @ W_1, 0) @ W_2)
    return np.tril(A[..., : X.shape[-2]]) @ X @ W_v


def rounds(axis, add):
    def function(votes, T):
        b = np.zeros(votes.shape[:2])
        for _ in range(T):
            c = np.exp(b) / np.exp(b).sum(axis, keepdims=True)
            v, _ = squash((c[..., None] * votes).sum(0))
            b = (votes * v).sum(-1) + add * b
        return v

    return function


def loudness(rounds=3, wanted=0.95):
    a = 0.1
    while route(np.array([[[a], [a]], [[a], [-a]]]), iterations=rounds)[1].C[-1][0, 0] < wanted:
        a += 0.001
    return a


def factors(by_beta=(2,), by_gamma=(1,), order=(0, 1, 2)):
    def function(beta, gamma):
        S = beta[:, :, None] * gamma[:, None]

        def pullback(dS):
            dS = dS.reshape(S.transpose(order).shape).transpose(order)
            dbeta, dgamma = dS * gamma[:, None], dS * beta[:, :, None]
            return dbeta.sum(by_beta) if by_beta else dbeta[..., 0], dgamma.sum(by_gamma) if by_gamma else dgamma[:, 0]

        return S.transpose(order).reshape(len(beta), -1), pullback

    return function


def heads(one):
    return lambda A, W_v, W_o: sum(one(*each) for each in zip(A, W_v, W_o, strict=True))


ANSWERS = {
    "13.1": {"wrong": [1, 5, 20, 16]},
    "13.2": {"wrong": [[0.69, 0.88], [0.5, 0.8], [0.832, 3.328], [0.832, 0.8], [0.7, 0.8], 0.832]},
    "13.3": {"right": [9, 5], "wrong": [[1, 1], [9, 9], [9, 4], [9, 1]]},
    "13.4": {
        "wrong": [
            20 * np.eye(16, k=1),
            2 * np.eye(16, k=-1),
            20 * np.eye(16),
            20 * np.eye(15, k=-1),
            np.where(np.eye(16, k=-1), np.inf, 0),
        ]
    },
    "13.5": {
        "wrong": [
            heads(lambda a, v, o: np.kron(a, v @ o)),
            heads(lambda a, v, o: np.kron((v @ o).T, a)),
            heads(lambda a, v, o: np.kron(a.T, (v @ o).T)),
            lambda A, W_v, W_o: heads(lambda a, v, o: np.kron(a, (v @ o).T))(A[:2], W_v[:2], W_o[:2]),
            lambda A, W_v, W_o: np.kron(A.sum(0), (W_v @ W_o).sum(0).T),
            lambda A, W_v, W_o: np.einsum("hij,hcd->ijdc", A, W_v @ W_o),  # with four axes
        ]
    },
    "13.6": {
        "right": synthesizer(),
        "wrong": [
            hidden_late,
            of_all_places,
            synthesizer(np.tril),
            synthesizer(lambda S: S),
            synthesizer(lambda S: np.where(np.tri(S.shape[-1]).T > 0, S, -np.inf)),
            synthesizer(columns=lambda n: slice(-n, None)),
            synthesizer(relu=False),
            synthesizer(lambda S: np.where(np.tri(S.shape[-1], k=5 - S.shape[-1]) > 0, S, -np.inf)),  # of five tokens
            lambda X, W_1, W_2, W_v: synthesizer()(X, W_1, W_2, np.eye(len(W_v))),
            synthesizer(lambda S: np.where(np.tri(S.shape[-1]) > 0, S, -np.inf) / np.sqrt(3)),
        ],
    },
    "13.7": {"wrong": [rounds(1, 0), rounds(0, 1), lambda votes, T: rounds(1, 1)(votes, T + 1)]},
    "13.8": {"right": loudness(), "wrong": [loudness(2), loudness(4), 2, loudness(3, 0.9), [2, 2]]},
    "13.9": {
        "wrong": [
            factors(by_beta=()),
            factors(by_gamma=()),
            factors(order=(0, 2, 1)),
            lambda beta, gamma: factors()(beta, 1 + gamma),
        ]
    },
}
