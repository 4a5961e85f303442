"""Answers to the exercises of chapter 19."""

import numpy as np

BEFORE, OTHER = np.random.default_rng(1).standard_normal((2, 3, 6, 4))


def hears(changed, rows=slice(-1), row=-1):
    def test(attend):
        after = BEFORE.copy()
        for part in changed:
            after[part, row] = OTHER[part, row]
        return bool(np.allclose(attend(*BEFORE)[rows], attend(*after)[rows]))

    return test


def hears_anything(attend):
    return all(hears((0, 1, 2), slice(k), slice(k, None))(attend) for k in range(1, len(BEFORE[0])))


def hears_of_no_later_key(attend):
    return all(hears((1, 2), slice(k), slice(k, None))(attend) for k in range(1, len(BEFORE[0])))


def scale(of=lambda y, d: np.log(y / (1 - y))):
    return lambda attend, d: of(attend(np.eye(1, d), np.eye(2, d), np.array([[1.0], [0]])).item(), d)


def epsilon(norm):
    x = np.array([[-1.0, 1, -1, 1]])
    if norm(100 * x).std() > 2:
        return "twice"
    odds = [y / (1 - y) for y in (norm(size * x).std() for size in (1e-3, 2e-3))]
    return "outside" if abs(odds[1] / odds[0] - 2) < 1e-6 else "inside"


def one_small_row(norm):
    x = np.array([[-1.0, 1, -1, 1]])
    if norm(100 * x).std() > 2:
        return "twice"
    return "outside" if norm(1e-3 * x).std() > 0.5 else "inside"


def gradient(draw=lambda rng, shape: rng.standard_normal(shape), directions=np.eye, step=1e-6, tolerance=1e-6):
    def test(function, X):
        Y, pullback = function(X)
        dY = draw(np.random.default_rng(0), Y.shape)
        for direction in directions(X.size):
            v = step * direction.reshape(X.shape)
            numeric = ((function(X + v)[0] - function(X - v)[0]) * dY).sum() / 2 / step
            if abs(numeric - (pullback(dY) * v).sum() / step) > tolerance:
                return False
        return True

    return test


ANSWERS = {
    "19.1": {
        "right": [[0.06] * 4, [0.06, 0.13, 0.25, 0.5]],  # with two decimals
        "wrong": [
            [[1 / 20] * 4, [1 / 16, 1 / 8, 1 / 4, 1 / 2]],
            [[1 / 16, 1 / 8, 1 / 4, 1 / 2], [1 / 16] * 4],
            [[1 / 16] * 4, [1 / 2, 1 / 4, 1 / 8, 1 / 16]],
            [[1 / 16] * 4, [1 / 16, 1 / 16, 1 / 8, 1 / 4]],
            [[1 / 8] * 4, [1 / 16, 1 / 8, 1 / 4, 1 / 2]],
            [[1 / 16] * 4, [1 / 4] * 4],
            [1 / 16] * 4,
        ],
    },
    "19.2": {"wrong": [[0.00099, 0.0222], [0.000493, 0.00099], [0.0222, 0.0222], [0.001, 0.00099], 0.0222]},
    "19.3": {
        "right": lambda Q, K, V: np.tril(Q @ K.T) @ V / np.tril(Q @ K.T).sum(1)[:, None],
        "wrong": [
            lambda Q, K, V: np.tril(Q @ K.T) @ V / np.tril(Q @ K.T).sum(0)[:, None],
            lambda Q, K, V: np.tril(Q @ K.T) / np.tril(Q @ K.T).sum(0) @ V,
            lambda Q, K, V: np.tril(Q @ K.T) @ V / (Q @ K.T).sum(1)[:, None],
            lambda Q, K, V: np.tril(Q @ K.T) @ V / np.tril(Q @ K.T).sum(),
            lambda Q, K, V: Q @ K.T @ V / (Q @ K.T).sum(1)[:, None],
        ],
    },
    "19.4": {
        "right": hears_anything,
        "wrong": [
            hears((0, 1, 2)),
            hears((1,)),
            hears((2,)),
            hears((0, 1, 2), slice(None)),
            hears((0, 1, 2), slice(1), slice(1, None)),  # the first row, and no other
            hears((0, 1, 2), slice(2), slice(2, None)),
            hears_of_no_later_key,
            lambda attend: 1,
        ],
    },
    "19.5": {
        "wrong": [
            lambda attend, d: 1 / np.sqrt(d),
            lambda attend, d: attend(np.eye(1, d), np.eye(2, d), np.eye(2)),
            scale(lambda y, d: np.log(y)),
            scale(lambda y, d: np.log((1 - y) / y)),
            scale(lambda y, d: 1 / np.log(y / (1 - y))),
        ]
    },
    "19.6": {
        "right": lambda norm: f" {epsilon(norm).title()}",
        "wrong": [one_small_row, lambda norm: "inside", lambda norm: "below"],
    },
    "19.7": {
        "right": gradient(),
        "wrong": [
            gradient(draw=lambda rng, shape: np.ones(shape)),
            lambda function, X: gradient(draw=lambda rng, shape: function(X)[0])(function, X),
            gradient(directions=lambda size: np.ones((1, size))),
            gradient(directions=lambda size: np.eye(size)[:1]),
            gradient(tolerance=1.0),
            lambda function, X: function(X)[1](function(X)[0]).shape == X.shape,
        ],
    },
}
