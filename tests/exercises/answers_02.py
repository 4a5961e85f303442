"""Answers to the exercises of chapter 02."""

import numpy as np


def packed(s):
    return (s[:, None] == s) & np.tri(len(s), dtype=bool)


def shortest(K, scores):
    return np.linalg.lstsq(K, scores, rcond=None)[0]


def scaled(Q, K, V, s, *, ds, by_key=lambda dS: dS.swapaxes(1, 2), scale_back=True):
    """Attention with a learned scale, and a pullback that may be wrong in one place."""
    scale, products = s[:, None, None], Q @ K.swapaxes(1, 2)
    E = np.exp(scale * products)
    A = E / E.sum(-1, keepdims=True)

    def pullback(dY):
        dA = dY @ V.swapaxes(1, 2)
        dS = A * (dA - (dA * A).sum(-1, keepdims=True))
        back = scale if scale_back else 1.0
        return back * dS @ K, back * by_key(dS) @ Q, A.swapaxes(1, 2) @ dY, ds(dS, products)

    return A @ V, pullback


def by_head(dS, products):
    return (dS * products).sum((1, 2))


ANSWERS = {
    "2.1": {
        "right": [0.36, 0.09, 0.18, 0.36],  # off by 1 % of the largest, as numbers found by hand may be
        "wrong": [[4 / 7, 1 / 7, 2 / 7, 4 / 7], [4 / 7, 1 / 7, 2 / 7], [4, 1, 2, 4], "4/11"],
    },
    "2.2": {
        "wrong": [
            [0, 0, 2 / 11, 0],  # A ⊙ dA
            [-2 / 11, -2 / 11, 9 / 11, -2 / 11],  # the bracket alone
            [8 / 121, 2 / 121, -18 / 121, 8 / 121],  # downhill
            [-4, -1, 9, -4],
            [0, 0, 18 / 121, 0],  # as of a sigmoid
            [-0.1, -0.1, 0.3, -0.1],
        ]
    },
    "2.3": {
        "wrong": [
            [False, False, False, False, True],
            [True, True, False, False, True],
            [True, False, True, False, True],
            [True, False, False, True, True],
            [True, False, False, False, False],
            [1, 0, 0, 0, 1],
            True,
        ]
    },
    "2.4": {
        "also": [lambda s: [[bool(a == b and j <= i) for j, b in enumerate(s)] for i, a in enumerate(s)]],
        "right": packed,
        "wrong": [
            lambda s: s[:, None] == s,
            lambda s: np.tri(len(s), dtype=bool),
            lambda s: (s[:, None] == s) & np.tri(len(s), k=-1, dtype=bool),
            lambda s: (s[:, None] == s) | np.tri(len(s), dtype=bool),
            lambda s: (s[:, None] == s) & ~np.tri(len(s), k=-1, dtype=bool),
            lambda s: (s[:, None] == s) * np.tri(len(s)),
            lambda s: ~packed(s),
            lambda s: np.ones(len(s), bool),
        ],
    },
    "2.5": {
        "also": [lambda K, a: (K.T @ np.linalg.solve(K @ K.T, np.sqrt(K.shape[1]) * np.log(a / a[0]))).tolist()],
        "wrong": [
            lambda K, a: shortest(K, np.log(a)),
            lambda K, a: shortest(K, np.sqrt(K.shape[1]) * a),
            lambda K, a: shortest(K, np.sqrt(K.shape[1]) * np.log2(a)),
            lambda K, a: shortest(K, K.shape[1] * np.log(a)),
            lambda K, a: shortest(K, np.log(a) / np.sqrt(K.shape[1])),
            lambda K, a: K.T @ np.log(a),
            lambda K, a: np.log(a),
        ],
    },
    "2.6": {
        "also": [lambda Q, heads: np.hsplit(Q, heads)],
        "right": lambda Q, heads: Q.reshape(len(Q), heads, -1).swapaxes(0, 1),
        "wrong": [
            lambda Q, heads: Q.reshape(heads, len(Q), -1),
            lambda Q, heads: Q.reshape(len(Q), -1, heads).transpose(2, 0, 1),
            lambda Q, heads: Q.reshape(len(Q), heads, -1),
            lambda Q, heads: Q.T.reshape(heads, len(Q), -1),
        ],
    },
    "2.7": {
        "wrong": [
            lambda Q, K, V, s: scaled(Q, K, V, s, ds=lambda dS, _: dS.sum((1, 2))),
            lambda Q, K, V, s: scaled(Q, K, V, s, ds=lambda dS, products: np.full(len(dS), (dS * products).sum())),
            lambda Q, K, V, s: scaled(Q, K, V, s, ds=lambda dS, products: s * by_head(dS, products)),
            lambda Q, K, V, s: scaled(Q, K, V, s, ds=by_head, scale_back=False),
            lambda Q, K, V, s: scaled(Q, K / np.sqrt(5), V, s, ds=by_head),
            lambda Q, K, V, s: scaled(Q, K, V, s, ds=by_head)[0],
        ]
    },
    "2.8": {"right": "params.b_k", "also": [" params.b_k", "p.b_k"], "wrong": ["params.b_q", "params.b_v", "b_k", 0]},
    "2.9": {
        "right": [0.26, 0.0155],  # more than 2.5 standard deviations off, with a thousand rows of one set of keys
        "wrong": [[0.11, 0.01], [0.25, 0.25], [0.9, 0.7], [1 / 16, 1 / 1024], [0.25, 0.018], 0.25],
    },
}
