"""Answers to the exercises of chapter 03."""

import numpy as np

from minitransformer.functional import layer_norm
from minitransformer.models import NormParams


def size(D, depth, vocabulary, context):
    return (vocabulary + context) * D + depth * (12 * D**2 + 9 * D) + 2 * D


def top_p(P, p, keep, share=True):
    order = np.argsort(-P)
    chosen = order[keep(np.cumsum(P[order]), P[order], p)]
    kept = np.zeros_like(P)
    kept[chosen] = P[chosen]
    return kept / kept.sum() if share else kept


def reaching(reached, P, p):
    return reached - P < p


def attended(q, K, V, scale=0.5):
    E = np.exp(scale * K @ q)
    return E / E.sum() @ V


def in_a_list(q, k, v, state):
    """The state is a list of pairs, to which each call adds its own."""
    state = [*(state or ()), (k, v)]
    weights = [np.exp(q @ key / len(q) ** 0.5) for key, _ in state]
    return sum(weight * value for weight, (_, value) in zip(weights, state, strict=True)) / sum(weights), state


def forgets(q, k, v, state):
    return v, (k, v)


def without_itself(q, k, v, state):
    K, V = (k[None], v[None]) if state is None else state
    y = attended(q, K, V)
    return (y, (K, V)) if state is None else (y, (np.vstack([K, k]), np.vstack([V, v])))


def keeps(q, k, v, state, scale=0.5, keep=99):
    K, V = (k[None], v[None]) if state is None else (np.vstack([state[0], k]), np.vstack([state[1], v]))
    return attended(q, K, V, scale), (K[-keep:], V[-keep:])


def rms(X, gamma, eps, *, mean=False, through_r=True, axes=lambda ndim: tuple(range(ndim - 1)), root=True):
    """RMS norm, and a pullback that may be wrong in one place."""
    r = np.sqrt((X**2).mean(-1, keepdims=True) + eps) if root else np.sqrt((X**2).mean(-1, keepdims=True)) + eps
    Xhat = X / r

    def pullback(dY):
        G = dY * gamma
        dX = G - mean * G.mean(-1, keepdims=True) - through_r * Xhat * (G * Xhat).mean(-1, keepdims=True)
        return dX / r, (dY * Xhat).sum(axes(X.ndim))

    return gamma * Xhat, pullback


def post(layer, p, norm, X, *, around=lambda dY, dsum: dsum, through=True, on_branch=False, eps=1e-5):
    """A branch with the norm behind, and a pullback that may be wrong in one place."""
    F, back_layer = layer(p, X)
    Y, back_norm = layer_norm(F if on_branch else X + F, norm.gamma, norm.beta, eps=eps)

    def pullback(dY):
        dsum, *dnorm = back_norm(dY)
        dp, dX = back_layer(dsum)
        return dp, NormParams(*dnorm), around(dY, dsum) + through * dX

    return (X + Y if on_branch else Y), pullback


def pre(layer, p, norm, X):
    N, back_norm = layer_norm(X, norm.gamma, norm.beta)
    F, back_layer = layer(p, N)

    def pullback(dY):
        dp, dN = back_layer(dY)
        dX, *dnorm = back_norm(dN)
        return dp, NormParams(*dnorm), dY + dX

    return X + F, pullback


ANSWERS = {
    "3.1": {
        "right": [[-2, -2, -2, 6], [0, 0, 0, 1]],  # any two of the plane
        "wrong": [
            [[1, 1, 1, 1], [2, 2, 2, 2]],
            [[1, 1, 1, 1], [1, -1, 0, 0]],
            [[0, 0, 0, 0], [1, 1, 1, 1]],
            [[1, 1, 1, 1]],
            [[1, 1, 1, 1], ["a", 0, 0, 0]],
        ],
    },
    "3.2": {
        "wrong": [
            lambda D, depth, V, n: size(D, depth, V, n) + V * D,
            lambda D, depth, V, n: size(D, depth, V, n) - 2 * D,
            lambda D, depth, V, n: size(D, depth, V, n) - n * D,
            lambda D, depth, V, n: (V + n) * D + depth * 12 * D**2,
            lambda D, depth, V, n: size(D, depth, V, n) - 5 * depth * D,
            lambda D, depth, V, n: size(D, depth, V, n) + 4 * depth * D,
            lambda D, depth, V, n: size(D, depth, V, n) - (2 * depth + 1) * D,  # norms without a bias
            lambda D, depth, V, n: size(D, depth, V, n) - (2 * depth + 1) * 2 * D,  # no norms
            lambda D, depth, V, n: size(D, depth, V, n) - depth * 2 * D,  # one of two norms
            lambda D, depth, V, n: size(D, depth, V, n) - depth * 4 * D,  # no biases of the hidden layer
            lambda D, depth, V, n: size(D, depth, V, n) - depth * 4 * D**2,  # no attention
            lambda D, depth, V, n: size(D, depth, V, n) - depth * D**2,  # no W_o
        ]
    },
    "3.3": {
        "right": [3, 0.12],  # off by far less than 1 % of the larger one
        "wrong": [[-np.log2(17 / 64), 17 / 64], [3, 17 / 64], [3 * np.log(2), 1 / 8], [6, 1 / 64], [3, 0.1], 3],
    },
    "3.4": {"wrong": [1, 0.1, 0, 0.9, -1 / 19, 1 / 10.5]},
    "3.5": {
        "right": 0.69,  # nearly three standard deviations below, with 20,000 places
        "wrong": [0.5, 8.72, 0, 0.9, -0.72, [0.72]],
    },
    "3.6": {
        "right": lambda P, p: top_p(P, p, reaching),
        "wrong": [
            lambda P, p: top_p(P, p, lambda reached, P, p: reached <= p),
            lambda P, p: top_p(P, p, reaching, share=False),
            lambda P, p: top_p(P, p, lambda reached, P, p: reached - P <= p),
            lambda P, p: top_p(P, p, lambda reached, P, p: reached - 2 * P < p),
            lambda P, p: np.where(P >= 0.1, P, 0) / P[P >= 0.1].sum(),
            lambda P, p: -np.sort(-top_p(P, p, reaching)),
            lambda P, p: np.sqrt(top_p(P, p, reaching)) / np.sqrt(top_p(P, p, reaching)).sum(),
        ],
    },
    "3.7": {
        "also": [in_a_list],
        "wrong": [
            forgets,
            without_itself,
            lambda q, k, v, state: keeps(q, k, v, state, scale=1.0),
            lambda q, k, v, state: keeps(q, k, v, state, keep=2),
            lambda q, k, v, state: keeps(q, k, v, state)[0],
            lambda q, k, v, state: (np.zeros(3), ()),
        ],
    },
    "3.8": {
        "wrong": [
            lambda X, gamma, eps: rms(X, gamma, eps, mean=True),
            lambda X, gamma, eps: rms(X, gamma, eps, through_r=False),
            lambda X, gamma, eps: rms(X, gamma, eps, axes=lambda ndim: 0),
            lambda X, gamma, eps: rms(X, gamma, eps, axes=lambda ndim: (0, 1)),  # of three axes alone
            lambda X, gamma, eps: rms(X, gamma, eps, axes=lambda ndim: tuple(range(ndim - 1)) if ndim > 2 else ()),
            lambda X, gamma, eps: rms(X, gamma, eps, root=False),
            lambda X, gamma, eps: rms(X - X.mean(-1, keepdims=True), gamma, eps),
        ]
    },
    "3.9": {
        "wrong": [
            pre,
            lambda *args: post(*args, around=lambda dY, dsum: dY),
            lambda *args: post(*args, around=lambda dY, dsum: 0 * dY),
            lambda *args: post(*args, through=False),
            lambda *args: post(*args, on_branch=True),
            lambda *args: post(*args, eps=0.0),
            lambda layer, p, norm, X: post(lambda p, X: (layer(p, X)[0] - X, None), p, norm, X),  # LN(F(X))
        ]
    },
}
