"""Answers to the exercises of chapter 12."""

import numpy as np

from minitransformer.attention.flash import Found, join


def remembers(memory, X, M):
    rows = X if memory is None else np.concatenate([memory, X], -2)
    return rows[..., max(rows.shape[-2] - M, 0) :, :]


def never_empty(memory, X, M):
    return (X if memory is None else np.concatenate([memory, X], -2))[..., -M:, :]


def only_new(memory, X, M):
    return X[..., max(X.shape[-2] - M, 0) :, :]


def oldest(memory, X, M):
    return (X if memory is None else np.concatenate([memory, X], -2))[..., :M, :]


def all_at_first(memory, X, M):
    return X if memory is None else remembers(memory, X, M)


def of_three_axes(memory, X, M):
    rows = X if memory is None else np.concatenate([memory, X], -2)
    return rows[:, max(rows.shape[1] - M, 0) :]


def nothing_but_at_first(memory, X, M):
    return X[..., -M:, :] if memory is None else remembers(memory, X, M)


def of_three_axes_at_first(memory, X, M):
    return X[:, max(X.shape[1] - M, 0) :] if memory is None else remembers(memory, X, M)


def counted_from_the_end(memory, X, M):
    rows = X if memory is None else np.concatenate([memory, X], -2)
    return rows[..., rows.shape[-2] - M :, :]


def padded(memory, X, M):
    rows = remembers(memory, X, M)
    return np.pad(rows, ((0, 0), (M - rows.shape[1], 0), (0, 0)))


def with_mask(make):
    def head(X, memory, W_q, W_k, W_v):
        rows = np.concatenate([memory, X])
        S = X @ W_q @ (rows @ W_k).T / np.sqrt(W_q.shape[1])
        A = np.exp(np.where(make(len(X), len(memory)), S, -np.inf))
        return A / A.sum(-1, keepdims=True) @ (rows @ W_v)

    return head


def by_loops(X, memory, W_q, W_k, W_v):
    Y = []
    for i, x in enumerate(X):
        seen = [*memory, *X[: i + 1]]
        weights = [np.exp(x @ W_q @ (row @ W_k) / W_q.shape[1] ** 0.5) for row in seen]
        Y.append(sum(a * (row @ W_v) for a, row in zip(weights, seen, strict=True)) / sum(weights))
    return Y


def counted(owners, mask):
    W = len(owners)
    return np.array([[mask[owners[k]][:, owners[(k - t) % W]].sum() for k in range(W)] for t in range(W)])


def busy(owners, mask):
    pairs = counted(owners, mask)
    return pairs.sum() / len(owners) / pairs.max(1).sum()


def of_equal_parts(owners, mask):
    W, order = len(owners), np.concatenate(owners)
    n = len(order) // W
    pairs = mask[np.ix_(order, order)][: n * W, : n * W].reshape(W, n, W, n).sum((1, 3))
    pairs = np.array([np.roll(pairs, t, 1).diagonal() for t in range(W)])
    return pairs.sum() / W / pairs.max(1).sum()


def mean_of_steps(owners, mask):
    pairs = counted(owners, mask)
    return (pairs.mean(1) / pairs.max(1)).mean()


def weighted_mean_of_steps(owners, mask):
    pairs = counted(owners, mask)
    return np.average(pairs.mean(1) / pairs.max(1), weights=pairs.max(1))


def slowest_of_all(owners, mask):
    pairs = counted(owners, mask)
    return pairs.mean() / pairs.max()


def one_worker(owners, mask):
    pairs = counted(owners, mask)
    return pairs.sum() / pairs.max(1).sum()


def naive(m, total, a, m2, total2, a2):
    M = np.maximum(m, m2)
    one, two = np.exp(m - M), np.exp(m2 - M)
    return M, one * total + two * total2, one[:, None] * a + two[:, None] * a2


def late(m, total, a, m2, total2, a2):
    M = np.maximum(m, m2)
    one, two = np.exp(m) / np.exp(M), np.exp(m2) / np.exp(M)
    return M, one * total + two * total2, one[:, None] * a + two[:, None] * a2


def unscaled(m, total, a, m2, total2, a2):
    return np.maximum(m, m2), total + total2, a + a2


def half_scaled(m, total, a, m2, total2, a2):
    M = np.maximum(m, m2)
    safe = np.where(M == -np.inf, 0, M)
    return M, np.exp(m - safe) * total + np.exp(m2 - safe) * total2, a + a2


def crossed(m, total, a, m2, total2, a2):
    M = np.maximum(m, m2)
    safe = np.where(M == -np.inf, 0, M)
    one, two = np.exp(m2 - safe), np.exp(m - safe)
    return M, one * total + two * total2, one[:, None] * a + two[:, None] * a2


def m_of_the_first(m, *rest):
    return m, *join(Found(m, *rest[:2]), Found(*rest[2:]))[1:]


def m_of_the_second(m, total, a, m2, *rest):
    return m2, *join(Found(m, total, a), Found(m2, *rest))[1:]


def sum_of_both(m, total, a, m2, total2, a2):
    found = join(Found(m, total, a), Found(m2, total2, a2))
    return m + m2, found.total, found.sum


def mixture(of_w, of_y, rule="basic"):
    def function(w, h):
        y = [np.zeros_like(h[0])]
        for t in range(len(w)):
            y.append(w[t, :, None] * h[t] + (rule == "accumulated" or 1 - w[t, :, None]) * y[-1])

        def pullback(dy):
            dw, dh = np.zeros_like(w), np.zeros_like(h)
            for t in reversed(range(len(w))):
                dw[t], dh[t] = (dy * of_w(h[t], y[t])).sum(-1), w[t, :, None] * dy
                dy = of_y(w[t, :, None]) * dy
            return dw, dh

        return y[-1], pullback

    return function


ANSWERS = {
    "12.1": {"wrong": [[[2, 0.5], [2, 0.5]], [[3, 0], [3, 0]], [[2, 0], [3, 0]], [2, 3]]},
    "12.2": {"wrong": [7, 3, 5, 20, [3, 8]]},
    "12.3": {"wrong": [1024, 5120, 1707, 512]},
    "12.4": {
        "right": remembers,
        "wrong": [
            never_empty,
            nothing_but_at_first,
            counted_from_the_end,
            only_new,
            oldest,
            all_at_first,
            of_three_axes,
            of_three_axes_at_first,
            padded,
            3,
        ],
    },
    "12.5": {
        "right": by_loops,
        "wrong": [
            with_mask(lambda n, M: np.tri(n, M + n, 3) > 0),  # the M of the first example
            with_mask(lambda n, M: np.tri(n, M + n, n - 2) > 0),
            with_mask(lambda n, M: np.tri(n, M + n) > 0),
            with_mask(lambda n, M: np.tri(n, M + n, M - 1) > 0),
            with_mask(lambda n, M: np.ones((n, M + n), bool)),
            with_mask(lambda n, M: np.tri(n, M + n, 2) > 0),
            with_mask(lambda n, M: np.tri(n, M + n, n - M) > 0),
        ],
    },
    "12.6": {
        "right": busy,
        "wrong": [
            mean_of_steps,
            weighted_mean_of_steps,
            slowest_of_all,
            one_worker,
            of_equal_parts,
            lambda owners, mask: mask.mean(),
        ],
    },
    "12.7": {
        "wrong": [
            lambda p, b, t, B: b * -(-(p + t) // B),
            lambda p, b, t, B: -(-p // B) + b * (-(-(p + t) // B) - p // B),
            lambda p, b, t, B: -(-p // B) + b * -(-t // B),
            lambda p, b, t, B: -(-(p + b * t) // B),  # as if they were one text
            lambda p, b, t, B: p // B + b * ((p + t) // B + 1 - p // B),
            lambda p, b, t, B: -(-p // B) + b * (-(-(p + t) // B) - -(-p // B)),
            lambda p, b, t, B: [p, t],
        ]
    },
    "12.8": {
        "wrong": [
            naive,
            late,
            unscaled,
            half_scaled,
            crossed,
            m_of_the_first,
            m_of_the_second,
            sum_of_both,
            lambda *parts: (parts[0], parts[1].sum(), parts[2]),
            lambda *parts: (parts[0].max(), *join(Found(*parts[:3]), Found(*parts[3:]))[1:]),
            lambda *parts: parts[3:5],
        ]
    },
    "12.9": {
        "right": mixture(lambda h, y: h - y, lambda w: 1 - w),
        "wrong": [
            mixture(lambda h, y: h, lambda w: 1 - w),
            mixture(lambda h, y: h - y, lambda w: 1),
            mixture(lambda h, y: h, lambda w: 1, "accumulated"),
            lambda w, h: (w[..., None] * h).sum(0),
            lambda w, h: mixture(lambda h, y: h - y, lambda w: 1 - w)(1 - w, h),
        ],
    },
}
