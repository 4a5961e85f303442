"""Answers to the exercises of chapter 16."""

import numpy as np

from minitransformer.functional import softmax


def sweep(sign=1, now=True, tie=0.0, power=lambda p: p):
    def function(X, s, p):
        s, before = s.copy(), s.copy()
        for a in range(len(s)):
            up, down = (s if now else before).copy(), (s if now else before).copy()
            up[a], down[a] = 1, -1
            gain = ((X @ up) ** power(p) - (X @ down) ** power(p)).sum()
            s[a] = np.sign(sign * gain) if gain else tie or s[a]
        return s

    return function


def to_rest(X, s, p):
    while not np.array_equal(s, new := sweep()(X, s, p)):
        s = new
    return s


def by_the_slope(X, s, p):
    s = s.copy()
    for a in range(len(s)):
        field = (X[:, a] * (X @ s - X[:, a] * s[a]) ** (p - 1)).sum()
        s[a] = np.sign(field) or s[a]
    return s


def together(Q, K, V, beta, tolerance):
    xi = Q
    while True:
        p, _ = softmax(beta * xi @ K.T)
        if (np.linalg.norm(p @ K - xi, axis=-1) < tolerance).all():
            return p @ V
        xi = p @ K


def any_still(Q, K, V, beta, tolerance):
    xi = Q
    while True:
        p, _ = softmax(beta * xi @ K.T)
        if (np.linalg.norm(p @ K - xi, axis=-1) < tolerance).any():
            return p @ V
        xi = p @ K


def one_by_one(Q, K, V, beta, tolerance):
    found = []
    for xi in Q:
        p, _ = softmax(beta * K @ xi)
        while np.linalg.norm(p @ K - xi) >= tolerance:
            xi = p @ K
            p, _ = softmax(beta * K @ xi)
        found.append(p @ V)
    return found


def largest_entry(Q, K, V, beta, tolerance):
    found = []
    for xi in Q:
        p, _ = softmax(beta * K @ xi)
        while np.abs(p @ K - xi).max() >= tolerance:
            xi = p @ K
            p, _ = softmax(beta * K @ xi)
        found.append(p @ V)
    return np.array(found)


def energy(front=0.5, inside=2.0, sign=-1, of_key=1.0, of_query=1.0, square=0.5):
    def function(xi, K):
        p, _ = softmax(inside * xi @ K.T)
        total = np.exp(inside * xi @ K.T).sum(1)

        def pullback(dE):
            return dE[:, None] * (xi - of_query * p @ K), -of_key * (dE[:, None] * p).T @ xi

        return sign * front * np.log(total) + square * (xi * xi).sum(1), pullback

    return function


def over_the_queries(xi, K):
    return -np.log(np.exp(2 * xi @ K.T).sum()) / 2 + (xi * xi).sum(1) / 2, lambda dE: (xi, K)


def rest(solved=True, values=1.0, keys=1.0, times=300, beta=1):
    def function(K):
        xi = np.ones_like(K[0])
        for _ in range(times):
            p, _ = softmax(beta * K @ xi)
            xi = p @ K
        J = K.T @ (p[:, None] * K) - np.outer(xi, xi)

        def pullback(g):
            u = np.linalg.solve(np.eye(len(g), dtype=K.dtype) - J, g) if solved else g
            return values * np.outer(p, u) + keys * np.outer(p * (K @ u - p @ (K @ u)), xi)

        return xi, pullback

    return function


def unrolled(K):
    xi, passed = np.ones_like(K[0]), []
    for _ in range(300):
        p, _ = softmax(K @ xi)
        passed.append((xi, p))
        xi = p @ K

    def pullback(g):
        dK = np.zeros_like(K)
        for before, p in reversed(passed):
            dS = p * (K @ g - p @ (K @ g))
            dK += np.outer(p, g) + np.outer(dS, before)
            g = dS @ K
        return dK

    return xi, pullback


def unrolled_later(K):
    return rest()(K)[0], lambda g: unrolled(K)[1](g)


def by_differences(K, h=1e-5):
    """Of each entry of K, with the whole way to the end twice."""

    def pullback(g):
        dK = np.zeros_like(K)
        for place in np.ndindex(K.shape):
            moved = np.zeros_like(K)
            moved[place] = h
            dK[place] = g @ (rest()(K + moved)[0] - rest()(K - moved)[0]) / (2 * h)
        return dK

    return rest()(K)[0], pullback


def in_a_series(K):
    """u = g + J g + J² g + …, where J is not formed."""
    xi, _ = rest()(K)
    p, _ = softmax(K @ xi)

    def pullback(g):
        u = g
        for _ in range(300):
            Ku = K @ u
            u = g + (p * (Ku - p @ Ku)) @ K
        Ku = K @ u
        return np.outer(p, u) + np.outer(p * (Ku - p @ Ku), xi)

    return xi, pullback


ANSWERS = {
    "16.1": {"wrong": [[1, 1, -1, -1], [-1, -1, -1, 1 / 3], [-1, -1, 1, -1 / 3], [-1, -1, 1]]},
    "16.2": {
        "wrong": [[True] * 5, [True, False, True, False, True], [True, False, True, True, False], [False] * 5, True]
    },
    "16.3": {"wrong": [2, 1 / 4, 1 / 8, 1]},
    "16.4": {
        "right": sweep(),
        "wrong": [
            sweep(now=False),
            sweep(sign=-1),
            sweep(tie=1.0),
            sweep(tie=-1.0),
            by_the_slope,
            to_rest,
            sweep(power=lambda p: 2),
        ],
    },
    "16.5": {
        "right": one_by_one,
        "wrong": [
            lambda Q, K, V, beta, tolerance: one_by_one(Q, K, V, beta, 0.04),
            lambda Q, K, V, beta, tolerance: one_by_one(Q, K, V, 0.9, tolerance),
            together,
            any_still,
            largest_entry,
            lambda Q, K, V, beta, tolerance: softmax(beta * Q @ K.T)[0] @ V,
        ],
    },
    "16.6": {"wrong": [[91, 8], [92, 10], [1, 2], 300]},
    "16.7": {
        "wrong": [
            energy(front=1),
            energy(sign=1),
            energy(inside=1),
            energy(front=1, inside=1),
            energy(square=0),
            energy(square=1),
            over_the_queries,
            energy(of_key=2),
            energy(of_query=0.5),
        ]
    },
    "16.8": {
        "also": [in_a_series],
        "wrong": [
            rest(solved=False),
            rest(values=0),
            rest(keys=0),
            rest(times=1),
            rest(beta=2),
            unrolled,
            unrolled_later,
            by_differences,
        ],
    },
}
