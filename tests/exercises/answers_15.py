"""Answers to the exercises of chapter 15."""

import numpy as np

ITSELF, BLUR = 1.0 * (np.arange(9) == 4).reshape(3, 3), np.outer([1, 2, 1], [1, 2, 1]) / 16


def nine_pixels():
    beta, p = 0.0, np.ones(64) / 64
    while np.exp(-(p * np.log(p)).sum()) > 9:
        beta += 0.001
        p = np.append(np.exp(beta), np.ones(63)) / (np.exp(beta) + 63)
    return beta


def matrix(place=lambda i, t, before: i - before + t, clip=False):
    def function(a, before):
        n, A = len(a), np.zeros((len(a), len(a)))
        for i, t in np.ndindex(a.shape):
            j = place(i, t, before)
            j = min(max(j, 0), n - 1) if clip else j
            if 0 <= j < n:
                A[i, j] += a[i, t]
        return A

    return function


def renormalised(a, before):
    A = matrix()(a, before)
    return A / A.sum(1, keepdims=True)


def gate(slope, silu=True):
    def function(X, U_1, U_2):
        L, R = X @ U_1, X @ U_2
        s = 1 / (1 + np.exp(-L))

        def pullback(dY):
            f = L * s if silu else s
            dL, dR = dY * R * slope(L, s), dY * f
            return dL @ U_1.T + dR @ U_2.T, X.T @ dL, X.T @ dR

        return (L * s if silu else s) * R, pullback

    return function


def toeplitz(back=lambda M: M.T, whole=True, sign=-1):
    def function(w, Z):
        n = len(Z)
        M = sum(w[o] * np.eye(n, k=sign * o, dtype=w.dtype) for o in range(n))

        def pullback(dG):
            dM, dw = dG @ Z.T, np.zeros_like(w)
            dw[:n] = [np.trace(dM, sign * o) if whole else dM[o, 0] for o in range(n)]
            return dw, back(M) @ dG

        return M @ Z, pullback

    return function


ANSWERS = {
    "15.1": {"wrong": [[0, 3, -9, -6], [9, 3, -9, -3], [3, 3, -9, 3], [7.5, 3, -9, -6], [7.5, 3, -9]]},
    "15.2": {
        "right": [[-0.06, -0.13, -0.06], [-0.13, 1.75, -0.13], [-0.06, -0.13, -0.06]],  # with two decimals
        "wrong": [ITSELF - BLUR, 2 - BLUR, 2 * ITSELF - 16 * BLUR, 2 * ITSELF - 1 / 9, BLUR, 1],
    },
    "15.3": {"wrong": [[15, 3], [16, 3], [17, 2], [17, 17], [34, 3], 17]},
    "15.4": {
        "right": [True, True, False, False, True],
        "wrong": [
            [True, False, False, False, True],
            [True] * 5,
            [True, True, False, True, True],
            [False, True, False, False, True],
            [True, True, False, False, False],
            [True, False],
        ],
    },
    "15.5": {
        "right": lambda x, a: [sum(a[-1 - o] * x[i - o] for o in range(min(len(a), i + 1))) for i in range(len(x))],
        "wrong": [
            lambda x, a: np.convolve(x, a)[: len(x)],
            lambda x, a: np.convolve(x, a[::-1], "same"),
            lambda x, a: np.convolve(x, a[::-1])[-len(x) :],
            lambda x, a: np.convolve(x, a[::-1])[:9],  # of nine tokens alone
            lambda x, a: np.correlate(np.pad(x, (len(a), 0)), a)[:-1],  # one place too late
        ],
    },
    "15.6": {"right": nine_pixels(), "wrong": [np.log(9), np.log(63 / 8), 12, 0, [9, 55]]},
    "15.7": {
        "right": matrix(),
        "wrong": [
            matrix(lambda i, t, before: i + before - t),
            matrix(lambda i, t, before: i - t),
            matrix(clip=True),
            matrix(lambda i, t, before: i - before + t + 6 * (i - before + t < 0)),  # an index below zero
            renormalised,
            lambda a, before: matrix()(a, before).T,
        ],
    },
    "15.8": {
        "wrong": [
            gate(lambda L, s: s * (1 - s)),
            gate(lambda L, s: s + s * (1 - s)),
            gate(lambda L, s: L * s * (1 - s)),
            gate(lambda L, s: s * (1 - s), silu=False),
            lambda X, U_1, U_2: gate(lambda L, s: s + L * s * (1 - s))(X, U_2, U_1),
            lambda X, U_1, U_2: (np.tanh(X @ U_1) * (X @ U_2), lambda dY: dY),
        ]
    },
    "15.9": {
        "wrong": [toeplitz(lambda M: M), toeplitz(whole=False), toeplitz(sign=1), lambda w, Z: toeplitz()(w[::-1], Z)]
    },
}
