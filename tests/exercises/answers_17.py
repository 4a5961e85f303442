"""Answers to the exercises of chapter 17."""

import numpy as np


def tiles(first=-np.inf, shrinks=(True, True), most=True, clip=np.inf, cap=np.inf, largest=np.maximum, of=np.max):
    def function(Q, K, V):
        Q, top, total, y = Q / np.sqrt(Q.shape[1]), first, 0, 0
        for j in range(0, len(K), 4):
            S = np.clip(Q @ K[j : j + 4].T, -clip, clip)
            new = np.minimum(largest(top, of(S, 1, keepdims=True)), cap) if most else 0
            P, shrink = np.exp(S - new), np.exp(top - new)
            total = (shrink if shrinks[0] else 1) * total + P.sum(1, keepdims=True)
            top, y = new, (shrink if shrinks[1] else 1) * y + P @ V[j : j + 4]
        return y / total

    return function


def counted(n, rho, b, before=0):
    total = 0
    for k in range(-(-n // b)):
        total += k - max(k * b - rho - before, 0) // b + 1
    return total


def from_a_matrix(n, rho, b):
    i, j = np.nonzero(np.tri(n) - np.tri(n, k=-rho - 1))
    return len(np.unique(i // b * n + j // b))


def in_two_passes(Q, K, V):
    Q, parts = Q / np.sqrt(Q.shape[1]), [slice(j, j + 4) for j in range(0, len(K), 4)]
    top = np.max([(Q @ K[part].T).max(1) for part in parts], 0)[:, None]
    P_and_V = [(np.exp(Q @ K[part].T - top), V[part]) for part in parts]
    return sum(P @ v for P, v in P_and_V) / sum(P.sum(1, keepdims=True) for P, _ in P_and_V)


def all_at_once(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max(1, keepdims=True))
    return P @ V / P.sum(1, keepdims=True)


def query_by_query(Q, K, V):
    Y = []
    for q in Q / np.sqrt(Q.shape[1]):
        top, total, y = -np.inf, 0.0, 0.0
        for k, v in zip(K, V, strict=True):
            new = max(top, q @ k)
            p, shrink = np.exp(q @ k - new), np.exp(top - new)
            top, total, y = new, shrink * total + p, shrink * y + p * v
        Y.append(y / total)
    return Y


def largest_of_all(Q, K, V):
    S = Q @ K.T / np.sqrt(Q.shape[1])
    P = np.exp(S - S.max())
    return P @ V / P.sum(1, keepdims=True)


def merged(w_of=lambda L_1, L_2: 1 / (1 + np.exp(L_2 - L_1)), added=np.logaddexp, of_w=1.0, of_L=1.0):
    def function(Y_1, L_1, Y_2, L_2):
        L = added(L_1, L_2)
        w = w_of(L_1, L_2)
        Y = w[:, None] * Y_1 + (1 - w[:, None]) * Y_2

        def pullback(d):
            dY, dL = d
            dw = of_w * w * (1 - w) * (dY * (Y_1 - Y_2)).sum(1)
            return w[:, None] * dY, of_L * w * dL + dw, (1 - w[:, None]) * dY, of_L * (1 - w) * dL - dw

        return (Y, L), pullback

    return function


def naive(L_1, L_2):
    return np.log(np.exp(L_1) + np.exp(L_2))


def by_the_largest(L_1, L_2):
    most = max(L_1.max(), L_2.max())  # of all queries
    return overflowing(L_1 - most, L_2 - most)


def overflowing(L_1, L_2):
    return np.exp(L_1) / (np.exp(L_1) + np.exp(L_2))


def overflows_on_the_way_back(Y_1, L_1, Y_2, L_2):
    return merged()(Y_1, L_1, Y_2, L_2)[0], merged(overflowing)(Y_1, L_1, Y_2, L_2)[1]


def without_L(Y_1, L_1, Y_2, L_2):
    (Y, _), pullback = merged()(Y_1, L_1, Y_2, L_2)
    return Y, pullback


def in_lists(Y_1, L_1, Y_2, L_2):
    """Rows, and what belongs to each query, in lists."""
    (Y, L), pullback = merged()(Y_1, L_1, Y_2, L_2)
    return [Y.tolist(), L.tolist()], lambda d: [part.tolist() for part in pullback(d)]


HARMONIC = {n: sum(1 / k for k in range(1, n + 1)) for n in (64, 4096)}

ANSWERS = {
    "17.1": {
        "wrong": [
            [[4, 3], [7, 8], [11, 11]],
            [[4 / 3, 1], [7 / 6, 4 / 3], [5 / 2, 7 / 3]],
            [[4 / 3, 1], [7 / 6, 4 / 3], [11 / 6, 7 / 3]],
            [[1, 1 / 3], [1, 1 / 6], [2, 1 / 2]],
            [[4 / 3, 3 / 4], [7 / 6, 8 / 7], [11 / 6, 1]],
            [[4 / 3, 1], [7 / 6, 4 / 3], [11 / 6, 1]],
            [4 / 3, 1],
        ]
    },
    "17.2": {
        "wrong": [
            [HARMONIC[4096], HARMONIC[64]],
            [HARMONIC[4096] - 1, HARMONIC[64]],
            [2047.5, 31.5],
            [12, 6],
            [10, 3],
            [HARMONIC[4096] - 1, (HARMONIC[4096] - 1) / 64],
            [HARMONIC[4096] - 1, HARMONIC[4096] - 1],
        ]
    },
    "17.3": {"right": [142.6, 57.0], "wrong": [[14.26, 14.26], [1.426, 3.565], [570, 228], [57, 143]]},
    "17.4": {"wrong": [[1024, 128], [2047, 255], [65504, 3.39e38], [2048, 2048]]},
    "17.5": {"wrong": [7, 8, 10, 24]},
    "17.6": {
        "right": query_by_query,
        "wrong": [
            tiles(0),
            tiles(-1000),
            tiles(-10_000),
            largest_of_all,
            all_at_once,
            in_two_passes,  # which keeps the tiles of all keys
            tiles(shrinks=(True, False)),
            tiles(shrinks=(False, True)),
            tiles(0, most=False),
            tiles(0, clip=700),
            tiles(cap=0),
            tiles(largest=lambda top, new: new),  # of the tile alone
            tiles(of=np.min),
        ],
    },
    "17.7": {
        "right": counted,
        "wrong": [
            lambda n, rho, b: (-(-n // b)) ** 2,
            lambda n, rho, b: -(-n // b) * (-(-n // b) + 1) // 2,
            lambda n, rho, b: -(-n // b) * (-(-rho // b) + 1),
            lambda n, rho, b: counted(n, rho, b, 1),
            lambda n, rho, b: counted(n // b * b, rho, b),
            from_a_matrix,
            lambda n, rho, b: sum(min(rho + 1, i + 1) for i in range(n)) // b**2,
        ],
    },
    "17.8": {
        "right": in_lists,
        "wrong": [
            merged(overflowing, naive),
            merged(added=naive),
            merged(by_the_largest),
            merged(lambda L_1, L_2: overflowing(np.minimum(L_1, 700), np.minimum(L_2, 700))),
            merged(added=lambda L_1, L_2: naive(np.minimum(L_1, 700), np.minimum(L_2, 700))),
            merged(added=np.add),
            merged(added=np.maximum),
            merged(lambda L_1, L_2: L_1 / (L_1 + L_2)),
            merged(lambda L_1, L_2: 0 * L_1 + 0.5),
            merged(lambda L_1, L_2: 0 * L_1 + 1),
            lambda Y_1, L_1, Y_2, L_2: ((Y_1 + Y_2, np.logaddexp(L_1, L_2)), lambda d: d),
            overflows_on_the_way_back,
            merged(of_w=0),
            merged(of_L=0),
            without_L,
        ],
    },
}
