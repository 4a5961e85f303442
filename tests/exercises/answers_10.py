"""Answers to the exercises of chapter 10."""

import numpy as np


def pairs_of(X, off=1.0, own=0.5**0.5, first=1.0):
    s, t = np.triu_indices(X.shape[-1])
    pairs = X[..., s] * X[..., t] * np.where(s == t, own, off)
    return np.concatenate([first * np.ones_like(X[..., :1]), X, pairs], -1)


def both_orders(X):
    two = (X[..., :, None] * X[..., None, :] / np.sqrt(2)).reshape(*X.shape[:-1], -1)
    return np.concatenate([np.ones_like(X[..., :1]), X, two], -1)


def one_by_one(X):
    """In another order, and with every sign changed."""
    x = [X[..., c] for c in range(X.shape[-1])]
    products = [a * b for c, a in enumerate(x) for b in x[:c]]
    return -np.stack([a * a / np.sqrt(2) for a in x] + products + x + [np.ones_like(x[0])], -1)


def of_four(X):
    """The pairs of the first four entries."""
    s, t = np.triu_indices(4)
    return np.concatenate([np.ones_like(X[..., :1]), X, X[..., s] * X[..., t] / np.where(s == t, np.sqrt(2), 1)], -1)


def window(late=0, z_too=True, leave=True, z=True):
    def answer(FQ, FK, V, w):
        S, total, said = np.zeros((FK.shape[1], V.shape[1])), np.zeros(FK.shape[1]), []
        for i in range(len(FQ)):
            S, total, gone = S + np.outer(FK[i], V[i]), total + FK[i], i - w - late
            if gone >= 0 and leave:
                S = S - np.outer(FK[gone], V[gone])
                total = total - FK[gone] * z_too
            said.append(FQ[i] @ S / (FQ[i] @ total if z else 1))
        return np.array(said)

    return answer


def differences(FQ, FK, V, w):
    """All sums from the beginning, less those that were there w tokens before."""
    products = FK[:, :, None] * np.append(V, np.ones((len(V), 1)), 1)[:, None, :]
    sums = np.concatenate([np.zeros_like(products[:1]), np.cumsum(products, 0)])
    ends = np.arange(1, len(FQ) + 1)
    Y = np.einsum("nr,nrd->nd", FQ, sums[ends] - sums[np.maximum(ends - w, 0)])
    return Y[:, :-1] / Y[:, -1:]


def anew(FQ, FK, V, w):
    """For each query the sums over its window, from the first key to the last."""
    windows = [slice(max(0, i - w + 1), i + 1) for i in range(len(FQ))]
    return [q @ (FK[s].T @ V[s]) / (q @ FK[s].sum(0)) for q, s in zip(FQ, windows, strict=True)]


def by_a_band(FQ, FK, V, w):
    k, v = (np.pad(X, ((w - 1, 0), (0, 0))) for X in (FK, V))
    k, v = (np.lib.stride_tricks.sliding_window_view(X, w, 0) for X in (k, v))
    W = np.einsum("nr,nrw->nw", FQ, k)
    return np.einsum("nw,ndw->nd", W, v) / W.sum(1, keepdims=True)


def by_a_matrix(FQ, FK, V, w):
    W = FQ @ FK.T * (np.tri(len(FQ)) - np.tri(len(FQ), k=-w))
    return W @ V / W.sum(1, keepdims=True)


def chunks(first="read", inside=0):
    def answer(FQ, FK, V, c):
        S, z, said = np.zeros((FK.shape[1], V.shape[1])), np.zeros(FK.shape[1]), []
        for t in range(0, len(FQ), c):
            q, k, v = (X[t : t + c] for X in (FQ, FK, V))
            W = np.tril(q @ k.T, inside)
            if first == "write":
                S, z = S + k.T @ v, z + k.sum(0)
            said.append((q @ S + W @ v) / np.maximum(q @ z + W.sum(1), 1e-300)[:, None])
            if first == "read":
                S, z = S + k.T @ v, z + k.sum(0)
        return np.concatenate(said)

    return answer


def in_one_chunk(FQ, FK, V, c):
    return chunks()(FQ, FK, V, len(FQ))


def a_token_at_a_time(FQ, FK, V, c):
    return chunks()(FQ, FK, V, 1)


def row_by_row(FQ, FK, V, c):
    """S and z are kept at the start of a chunk, and its small matrix is a row at a time."""
    Y = np.zeros(V.shape)
    for i in range(len(FQ)):
        if i % c == 0:
            S, z = (FK[:i].T @ V[:i], FK[:i].sum(0)) if i else (np.zeros((FK.shape[1], V.shape[1])), 0 * FK[0])
        w = FK[i - i % c : i + 1] @ FQ[i]
        Y[i] = (FQ[i] @ S + w @ V[i - i % c : i + 1]) / (FQ[i] @ z + w.sum())
    return Y


def smoother(share=True, power=3, sign=1, together=True, forward=2, divided=True, share_w=True, axes=None):
    def answer(Q, K, V, w):
        D = ((Q[..., :, None, :] - K[..., None, :, :]) ** 2).sum(-1)
        W = np.exp(-D / (2 * w**forward))
        total = W.sum(-1, keepdims=True) if divided else 1
        Y = W @ V / total

        def pullback(dY):
            dN = dY / total
            dW = dN @ V.swapaxes(-1, -2) - share * (dN * Y).sum(-1, keepdims=True)
            E = sign * dW * W / w**2
            back = E.swapaxes(-1, -2)
            E_w = E if share_w else (dN @ V.swapaxes(-1, -2)) * W / w**2
            dw = (E_w * D).sum((-2, -1)) / w ** (power - 2)
            dQ = E @ K - E.sum(-1, keepdims=True) * Q
            return (
                dQ,
                back @ Q - back.sum(-1, keepdims=True) * K,
                W.swapaxes(-1, -2) @ dN,
                (np.reshape(dw.sum(), 1) if axes is None else dw.sum(axes, keepdims=True)[0]) if together else dw,
            )

        return Y, pullback

    return answer


def by_average(Q, K, V, w):
    return V.mean(-2, keepdims=True) + 0 * Q[..., :1], lambda dY: dY


ANSWERS = {
    "10.1": {
        "wrong": [
            [6, -2, 3 * 2**0.5, 2, 0, 2**0.5, 7],
            [6, -2, 6, 2, 0, 2, 5 / 2],
            [2, 0, 2**0.5, 6, -2, 3 * 2**0.5, 7 / 3],
            [6, -2, 3 * 2**0.5, 2, 0, 2**0.5, 2.24],
            [6, -2, 3 * 2**0.5, 2, 0, 2**0.5],
        ]
    },
    "10.2": {"wrong": [[2, 3], [1, 2], [2, 2], [3, 1], 3]},
    "10.3": {
        "right": [np.exp(16), 1],
        "wrong": [
            [2981, 0],
            [5962, 0],
            [np.exp(4), 0],
            [np.exp(16), 2981],
            [np.exp(16), 2],
            [np.exp(16), -1],
            [16, 0],
            0,
        ],
    },
    "10.4": {"right": "(a) and (d)", "wrong": ["a", "bad", "acd", "d", "and", 2]},
    "10.5": {
        "also": [one_by_one],
        "wrong": [
            lambda X: pairs_of(X, off=np.sqrt(0.5)),
            lambda X: pairs_of(X, own=1.0),
            lambda X: pairs_of(X, first=0.0),
            lambda X: pairs_of(X, off=np.sqrt(2)),
            of_four,
            both_orders,
        ],
    },
    "10.6": {
        "right": window(),
        "also": [differences],
        "wrong": [
            anew,
            by_a_band,
            window(late=1),
            window(z_too=False),
            window(leave=False),
            window(z=False),
            by_a_matrix,
            lambda FQ, FK, V, w: FQ @ (FK.T @ V),
            3,
        ],
    },
    "10.7": {
        "right": chunks(),
        "also": [row_by_row],
        "wrong": [
            chunks("write"),
            chunks("write", -1),
            chunks("read", -1),
            chunks("read", 99),
            chunks("never"),
            in_one_chunk,
            a_token_at_a_time,
        ],
    },
    "10.8": {"wrong": [0.1, 0.2, 0.7, 1.0, 1.5, "0.5"]},
    "10.9": {
        "right": smoother(),
        "wrong": [
            smoother(divided=False),
            smoother(share=False),
            smoother(share_w=False),
            smoother(power=2),
            smoother(power=1),
            smoother(sign=-1),
            smoother(together=False),
            smoother(axes=(0, 1)),
            smoother(forward=1),
            by_average,
        ],
    },
}
