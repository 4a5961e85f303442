"""Answers to the exercises of chapter 09."""

import numpy as np

from minitransformer.attention import dot_product_attention


def best(S, k, causal=True, mended=True):
    n = S.shape[-1]
    past = np.where(np.tri(n) > 0, S, -np.inf) if causal else S
    order = np.argsort(np.argsort(-past, -1), -1)
    return (order < k) & ((np.tri(n) > 0) | (not mended))


def put_together(mend):
    def answer(S, V, sees):
        parts = np.where(sees, S - mend(sees), -np.inf)
        L = np.log(np.exp(parts).sum(-1))
        Y = np.exp(parts - L[..., None]) @ V
        alpha = np.exp(L) / np.exp(L).sum(0)
        return (alpha[..., None] * Y).sum(0)

    return answer


def often(sees):
    return np.maximum(sees.sum(0), 1)


def mean_of_rounds(S, V, sees):
    parts = np.where(sees, np.exp(S), 0)
    return (parts / parts.sum(-1, keepdims=True) @ V).mean(0)


def backwards(F, G, Y_1, Y_2, dY_1, dY_2, mistake=None):
    added, back_G = G(Y_2 if mistake == "place" else Y_1)
    X_2 = Y_2 - added
    dX_1 = dY_1 + {"sign": -1, "dX_1": 0}.get(mistake, 1) * back_G(dY_2)
    added, back_F = F(Y_2 if mistake == "late" else X_2)
    dX_2 = dY_2 + {"dX_2 sign": -1, "dX_2": 0}.get(mistake, 1) * back_F(dY_1 if mistake == "old" else dX_1)
    return Y_1 + added if mistake == "added" else Y_1 - added, X_2, dX_1, dX_2


def exchanged(F, G, Y_1, Y_2, dY_1, dY_2):
    return backwards(G, F, Y_1, Y_2, dY_1, dY_2)


def backwards_twice(F, G, Y_1, Y_2, dY_1, dY_2):
    X_2 = Y_2 - G(Y_1)[0]
    dX_1 = dY_1 + G(Y_1)[1](dY_2)
    return Y_1 - F(X_2)[0], X_2, dX_1, dY_2 + F(X_2)[1](dX_1)


def shared(forward="right", backward="right"):
    def answer(Q, V):
        length = np.linalg.norm(Q, axis=-1, keepdims=True)
        K = Q / length if forward != "long keys" else Q
        mask = ~np.eye(Q.shape[-2], dtype=bool) if forward not in ("itself", "late") else None
        asks = K if forward == "short queries" else Q
        Y, back = dot_product_attention(asks, K, V, mask=mask, scale=1.0 if forward == "no root" else None)
        if forward == "late":
            Y = Y - np.einsum("...ii->...i", back.A)[..., None] * V
        if forward == "no softmax":
            Y = Q @ K.swapaxes(-1, -2) @ V

        def pullback(dY):
            dQ, dK, dV = back(dY)
            across = dK - (dK * K).sum(-1, keepdims=True) * K
            as_key = {"query": 0, "along": dK, "over length": dK / length, "length": across}.get(
                backward, across / length
            )
            return as_key if backward == "key" else dQ + as_key, dV

        return Y, pullback

    return answer


def at_least_the_kth(S, k):
    """All places with −∞ are level, so a row with too few keys gets them all."""
    past = np.where(np.tri(S.shape[-1]) > 0, S, -np.inf)
    return past >= np.sort(past)[..., -min(k, S.shape[-1]), None]


def ratio(R, tau):
    """p/(1 − p) is the root of what no iteration changes."""
    E = np.exp(R / tau)
    root = np.sqrt(E[0, 0] * E[1, 1] / (E[0, 1] * E[1, 0]))
    return root / (1 + root)


def iterated(R, tau):
    P = np.exp(R / tau)
    for _ in range(1000):
        P = P / P.sum(1, keepdims=True)
        P = P / P.sum(0)
    return P[0, 0]


ANSWERS = {
    "9.1": {"wrong": [[7, 0.56], [5, 0.44], [8, 8 / 9], [8, 0.39], [8, 0.5], [6, 0.5], 8]},
    "9.2": {"wrong": [lambda C: 1 - 1 / C, lambda C: 0, lambda C: np.exp(-1), lambda C: 1 / C, 0.37]},
    "9.3": {"wrong": ["query", "block", "none", True]},
    "9.4": {
        "right": best,
        "wrong": [
            lambda S, k: best(S, k, causal=False, mended=False),
            lambda S, k: best(S, k, causal=False),
            lambda S, k: best(S, k, mended=False),
            lambda S, k: (
                best(S.swapaxes(-1, -2), k, causal=False, mended=False).swapaxes(-1, -2) & (np.tri(S.shape[-1]) > 0)
            ),
            lambda S, k: best(S, k + 1),
            lambda S, k: np.where(best(S, k), S, 0),
            at_least_the_kth,
        ],
    },
    "9.5": {
        "also": [ratio, lambda R, tau: np.tanh((R[0, 0] + R[1, 1] - R[0, 1] - R[1, 0]) / (4 * tau)) / 2 + 1 / 2],
        "wrong": [
            iterated,
            lambda R, tau: 1 / (1 + np.exp(-(R[0, 0] - R[0, 1]) / tau)),
            lambda R, tau: 1 / (1 + np.exp(-(R[0, 0] + R[1, 1] - R[0, 1] - R[1, 0]) / tau)),
            lambda R, tau: 1 / (1 + np.exp(-(R[0, 0] + R[1, 1] - R[0, 1] - R[1, 0]) * tau / 2)),
            lambda R, tau: 1 / (1 + np.exp((R[0, 0] + R[1, 1] - R[0, 1] - R[1, 0]) / tau / 2)),
            lambda R, tau: R[0, 0] / (R[0, 0] + R[0, 1]),
        ],
    },
    "9.6": {
        "also": [lambda q, low, high: (low + high) @ q / 2 + (high - low) @ np.abs(q) / 2],
        "wrong": [
            lambda q, low, high: high @ q,
            lambda q, low, high: np.maximum(low @ q, high @ q),
            lambda q, low, high: np.maximum(abs(low), abs(high)) @ abs(q),
            lambda q, low, high: (low + high) @ q / 2,
            lambda q, low, high: np.maximum(q * low, q * high).max(-1),
        ],
    },
    "9.7": {
        "also": [
            lambda S, V, sees: [
                np.average(V, 0, np.where(sees[:, i].any(0), np.exp(row), 0)) for i, row in enumerate(S)
            ]
        ],
        "right": put_together(lambda sees: np.log(often(sees))),
        "wrong": [
            put_together(lambda sees: 0),
            put_together(often),
            mean_of_rounds,
            put_together(lambda sees: np.where(often(sees) > 1, 50, 0)),
            put_together(lambda sees: np.log(len(sees))),
        ],
    },
    "9.8": {
        "wrong": [
            lambda *given: backwards(*given, mistake="place"),
            exchanged,
            lambda *given: backwards(*given, mistake="added"),
            lambda *given: backwards(*given, mistake="late"),
            lambda *given: backwards(*given, mistake="old"),
            lambda *given: backwards(*given, mistake="sign"),
            lambda *given: backwards(*given, mistake="dX_1"),
            lambda *given: backwards(*given, mistake="dX_2"),
            lambda *given: backwards(*given, mistake="dX_2 sign"),
            backwards_twice,
            lambda F, G, Y_1, Y_2, dY_1, dY_2: (Y_1, Y_2),
            lambda F, G, *outputs: outputs,
        ]
    },
    "9.9": {
        "right": shared(),
        "wrong": [
            shared(forward="long keys"),
            shared(forward="itself"),
            shared(forward="no root"),
            shared(forward="late"),
            shared(forward="short queries"),
            shared(forward="no softmax"),
            shared(backward="query"),
            shared(backward="along"),
            shared(backward="over length"),
            shared(backward="length"),
            shared(backward="key"),
        ],
    },
}
