"""Answers to the exercises of chapter 18."""

import numpy as np

from minitransformer.functional import softmax


def sink(top, divide=True, of=np.max):
    def function(S, b):
        most = top(of(S, -1, keepdims=True), b)
        e = np.exp(S - most)
        return e / (np.exp(b - most if divide else b) + e.sum(-1, keepdims=True))

    return function


def halves(of_first=0.0, of_second=0.0, below=1.0):
    def function(Y_1, L_1, Y_2, L_2, b):
        one, two = np.exp(L_1)[:, None], np.exp(L_2)[:, None]
        above = (one - of_first * np.exp(b)) * Y_1 + (two - of_second * np.exp(b)) * Y_2
        return above / (one + two - below * np.exp(b))

    return function


def latent(width=lambda d, r: d, up=lambda q, W: np.einsum("hd,hrd->hr", q, W)):
    def function(q, C, W_uk, W_uv):
        A, _ = softmax(up(q, W_uk) @ C.T / np.sqrt(width(q.shape[1], C.shape[1])))
        return np.einsum("hr,hrd->hd", A @ C, W_uv)

    return function


def expanded(q, C, W_uk, W_uv):
    K, V = C @ W_uk, C @ W_uv
    A, _ = softmax(np.einsum("hd,hnd->hn", q, K) / np.sqrt(q.shape[1]))
    return np.einsum("hn,hnd->hd", A, V)


def expanded_in_turn(q, C, W_uk, W_uv):
    one = [slice(h, h + 1) for h in range(len(q))]
    return np.concatenate([expanded(q[h], C, W_uk[h], W_uv[h]) for h in one])


def a_quarter_at_a_time(q, C, W_uk, W_uv):
    parts = np.array_split(C, 4)
    S = np.concatenate([np.array([part @ W @ x for x, W in zip(q, W_uk, strict=True)]) for part in parts], 1)
    A = np.array_split(softmax(S / np.sqrt(q.shape[1]))[0], 4, 1)
    return sum(
        np.array([a @ (part @ W) for a, W in zip(each, W_uv, strict=True)]) for each, part in zip(A, parts, strict=True)
    )


def a_token_at_a_time(keys):
    """Values, and keys too."""

    def function(q, C, W_uk, W_uv):
        S = np.einsum("hd,hrd->hr", q, W_uk) @ C.T
        if keys:
            S = np.array([[x @ (c @ W) for c in C] for x, W in zip(q, W_uk, strict=True)])
        A, _ = softmax(S / np.sqrt(q.shape[1]))
        return np.array([sum(a * (c @ W) for a, c in zip(row, C, strict=True)) for row, W in zip(A, W_uv, strict=True)])

    return function


def brackets_of_einsum(q, C, W_uk, W_uv):
    A, _ = softmax(np.einsum("hd,hrd,nr->hn", q, W_uk, C, optimize=True) / np.sqrt(q.shape[1]))
    return np.array([(a @ C) @ W for a, W in zip(A, W_uv, strict=True)])


def gate(slope=lambda g: g * (1 - g), over=lambda x: x.sum(-1), through=True, open_=lambda a: 1 / (1 + np.exp(-a))):
    def function(Y, X, W_g):
        g = open_(X @ W_g).T

        def pullback(dZ):
            dg = over(Y * dZ) * slope(g)
            return g[..., None] * dZ if through else dZ, dg.T @ W_g.T, X.T @ dg.T

        return g[..., None] * Y, pullback

    return function


ANSWERS = {
    "18.1": {
        "wrong": [
            [1.5, 2 / 3, 0.75],
            [1, 1 / 3, 0.75],
            [1, 2 / 3, 0.5],
            [12 / (np.log(4) + 8), 2 / 3, 0.75],
            [0.5, 1 / 3, 0.3],
            [1, 0.5, 0.75],
        ]
    },
    "18.2": {"right": [8, 7], "wrong": [[9, 7], [38, 7], [6, 7], [8, 37], [8, 6], [8, 12], [8]]},
    "18.3": {"wrong": [4, 2, np.log(256), 0]},
    "18.4": {"right": 1652, "wrong": [1302, 1074, 826, 651, 1024]},
    "18.5": {"wrong": [4, 8, 20, 29, 12, 32]},
    "18.6": {
        "wrong": [
            sink(lambda top, b: top, divide=False),
            sink(lambda top, b: top),
            sink(lambda top, b: 0),
            lambda S, b: sink(np.maximum)(S, 0),
            sink(lambda top, b: np.maximum(abs(top), b)),
            lambda S, b: sink(np.maximum)(S, np.minimum(b, 700)),
            sink(lambda top, b: np.maximum(top.max(), b)),  # of all rows
            sink(np.maximum, of=np.min),
            lambda S, b: softmax(S)[0],
        ]
    },
    "18.7": {
        "wrong": [
            halves(below=0),
            halves(below=2),
            halves(of_second=1),
            lambda Y_1, L_1, Y_2, L_2, b: halves()(Y_1, L_1, Y_2, L_2, 0.7),  # of the first example
            lambda Y_1, L_1, Y_2, L_2, b: Y_1 + Y_2,
            lambda Y_1, L_1, Y_2, L_2, b: (Y_1 + Y_2) / 2,
        ]
    },
    "18.8": {
        "right": latent(),
        "also": [brackets_of_einsum, lambda q, *others: latent(width=lambda d, r: 1)(q / np.sqrt(q.shape[1]), *others)],
        "wrong": [
            latent(width=lambda d, r: r),
            latent(width=lambda d, r: 1),
            latent(up=lambda q, W: np.einsum("hd,hrd->hr", q[::-1], W)),
            expanded,
            expanded_in_turn,  # a head at a time
            a_quarter_at_a_time,
            a_token_at_a_time(keys=True),
            a_token_at_a_time(keys=False),
            latent(width=lambda d, r: 4),  # of the first example
        ],
    },
    "18.9": {
        "wrong": [
            gate(slope=lambda g: 1),
            gate(over=lambda x: x[..., 0]),
            gate(through=False),
            gate(open_=lambda a: a, slope=lambda g: 1),
            gate(open_=np.tanh, slope=lambda g: 1 - g * g),
        ]
    },
}
