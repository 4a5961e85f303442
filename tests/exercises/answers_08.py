"""Answers to the exercises of chapter 08."""

import numpy as np

from minitransformer.attention import Window, dot_product_attention


def rolled(repair):
    def answer(Q, K, V, b):
        q, k, v = (X.reshape(-1, b, X.shape[-1]) for X in (Q, K, V))
        k, v = (np.concatenate([np.roll(X, 1, 0), X, np.roll(X, -1, 0)], 1) for X in (k, v))
        S = q @ k.swapaxes(1, 2) / np.sqrt(Q.shape[-1])
        around = np.zeros(S.shape, bool)
        around[0, :, :b], around[-1, :, -b:] = True, True
        if repair == "wrong ends":
            around = around[:, :, ::-1]
        if repair in ("right", "wrong ends"):
            S = np.where(around, -np.inf, S)
        if repair == "alone":
            S[..., :b] = S[..., -b:] = -np.inf
        if repair == "zero":
            S = np.where(around, 0, S)
        A = np.exp(S - S.max(-1, keepdims=True))
        A /= A.sum(-1, keepdims=True)
        if repair == "after":
            A = np.where(around, 0, A)
        return (A @ v).reshape(len(Q), -1)

    return answer


def banded(add=True, hide=True, own=1, scaled=True, step=1):
    def answer(Q, K, V, rho):
        n, scale = Q.shape[-2], 1 / np.sqrt(Q.shape[-1]) if scaled else 1
        near = np.arange(n)[:, None] - step * np.arange(rho + own)
        there, near = (near >= 0) & (near < n), np.clip(near, 0, n - 1)
        S = (Q[..., None, :] * K[..., near, :]).sum(-1) * scale
        S = np.where(there, S, -np.inf if hide else 0)
        A = np.exp(S - S.max(-1, keepdims=True))
        A /= A.sum(-1, keepdims=True)
        A = A * there

        def pullback(dY):
            dA = (dY[..., None, :] * V[..., near, :]).sum(-1)
            dS = A * (dA - (dA * A).sum(-1, keepdims=True)) * scale
            dK, dV = np.zeros(K.shape), np.zeros(V.shape)
            for of, sent in ((dK, dS[..., None] * Q[..., None, :]), (dV, A[..., None] * dY[..., None, :])):
                if add:
                    np.add.at(of, (..., near, slice(None)), sent)
                else:
                    of[..., near, :] += sent
            return (dS[..., None] * K[..., near, :]).sum(-2), dK, dV

        return (A[..., None] * V[..., near, :]).sum(-2), pullback

    return answer


def with_a_matrix(Q, K, V, rho):
    i, j = np.ogrid[: Q.shape[-2], : Q.shape[-2]]
    return dot_product_attention(Q, K, V, mask=(j <= i) & (i - j <= rho))


def with_a_matrix_on_the_way_back(Q, K, V, rho):
    Y, _ = banded()(Q, K, V, rho)
    return Y, lambda dY: with_a_matrix(Q, K, V, rho)[1](dY)


def block_by_block(Q, K, V, b):
    """Each block with the keys from the block before it to the one after it."""
    said = []
    for start in range(0, len(Q), b):
        near = slice(max(0, start - b), start + 2 * b)
        said.extend(dot_product_attention(Q[start : start + b], K[near], V[near])[0])
    return said


def dense_under_a_mask(Q, K, V, b):
    own = np.arange(len(Q)) // b
    return dot_product_attention(Q, K, V, mask=np.abs(own[:, None] - own) <= 1)[0]


def query_by_query(Q, K, V, rho):
    """Attention of one query at a time to the keys that it sees."""
    scale, said, kept = 1 / np.sqrt(Q.shape[-1]), [], []
    for i in range(Q.shape[-2]):
        seen = slice(max(0, i - rho), i + 1)
        q, k, v = Q[..., i, :], K[..., seen, :], V[..., seen, :]
        E = np.exp(scale * (k @ q[..., None])[..., 0])
        A = E / E.sum(-1, keepdims=True)
        said.append((A[..., None, :] @ v)[..., 0, :])
        kept.append((seen, q, k, v, A))

    def pullback(dY):
        dQ, dK, dV = (np.zeros(X.shape) for X in (Q, K, V))
        for i, (seen, q, k, v, A) in enumerate(kept):
            dA = (v @ dY[..., i, :, None])[..., 0]
            dS = scale * A * (dA - (dA * A).sum(-1, keepdims=True))
            dQ[..., i, :] = (dS[..., None, :] @ k)[..., 0, :]
            dK[..., seen, :] += dS[..., None] * q[..., None, :]
            dV[..., seen, :] += A[..., None] * dY[..., i, None, :]
        return dQ, dK, dV

    return np.stack(said, -2), pullback


def ring(t, w):
    found = t - (t - np.arange(w)) % w
    return np.where(found < 0, -1, found)


def rule(own=True, early=True, all_firsts=False, back=1):
    def mask(n):
        i, j = np.ogrid[:n, :n]
        first = (j % 8 == 0) if all_firsts else (j == i // 8 * 8)
        return ((j <= i) | (not early)) & ((abs(i - j) <= back) & ((i != j) | own) | first)

    return mask


ANSWERS = {
    "8.1": {
        "wrong": [
            [[1 / 2, 1 / 3, 0, 0], [1 / 3, 1 / 4, 0, 1 / 4]],
            [[1 / 2, 1 / 2, 0, 0], [1 / 2, 1 / 2, 0, 0]],
            [[1 / 4] * 4] * 2,
            [[1 / 2, 1 / 2, 0, 0], [1 / 4] * 4],
            [1 / 2, 1 / 2, 0, 0],
        ]
    },
    "8.2": {
        "wrong": [
            lambda n, rho: 2 * n - 1,
            lambda n, rho: 2 * (n - rho),
            lambda n, rho: n - 1 - rho,
            lambda n, rho: 2 * (n - 1 - 2 * rho),
            lambda n, rho: 2 * (n - 1) - rho,
            494,
        ]
    },
    "8.3": {"wrong": [[1024, 10, 1], [1023, 9, 1], [1023, 10, 6], [512, 10, 1], 1023]},
    "8.4": {
        "also": [lambda t, w: [max((j for j in range(t + 1) if j % w == place), default=-1) for place in range(w)]],
        "right": ring,
        "wrong": [
            lambda t, w: np.arange(t - w + 1, t + 1),
            lambda t, w: np.roll(ring(t, w), 1),
            lambda t, w: t - (t - np.arange(w)) % w,
            lambda t, w: np.where(np.arange(w) == t % w, t - w, ring(t, w)),
            lambda t, w: ring(t, w) + 1,
            lambda t, w: np.maximum(ring(t, w), 0),
        ],
    },
    "8.5": {
        "wrong": [
            (rule(), 15),
            (rule(), 14),
            (rule(own=False), 20),
            (rule(early=False), 20),
            (rule(all_firsts=True), 20),
            (rule(back=2), 20),
            (lambda n: np.eye(n), 20),
            (lambda n: Window(1)(n, n, causal=True), 20),  # without .mask
            rule(),
        ]
    },
    "8.6": {
        "wrong": [
            lambda rho: (rho - 1) / (2 * rho - 1),
            lambda rho: 3 / 4,
            lambda rho: (rho - 1) * (3 * rho - 2) / (2 * rho * (2 * rho - 1)),  # fewer than ρ apart
            lambda rho: 3 * rho / (2 * (2 * rho + 1)),
            lambda rho: 3 * (rho - 1) / (4 * rho),
        ]
    },
    "8.7": {
        "also": [lambda rho, L: (1 / (2 * rho + 1) ** L, (L * ((2 * rho + 1) ** 2 - 1) / 12) ** 0.5)],
        "wrong": [
            lambda rho, L: [(2 * rho + 1.0) ** -L, L * np.sqrt(rho * (rho + 1) / 3)],
            lambda rho, L: [(2 * rho + 1.0) ** -L, L * rho * (rho + 1) / 3],
            lambda rho, L: [(2 * rho + 1.0) ** -L, rho * np.sqrt(L)],
            lambda rho, L: [(2 * rho + 1.0) ** -L, (2 * rho + 1) * np.sqrt(L / 12)],
            lambda rho, L: [1 / (2 * L * rho + 1), np.sqrt(L * rho * (rho + 1) / 3)],
            lambda rho, L: L * rho,
        ],
    },
    "8.8": {
        "right": rolled("right"),
        "also": [block_by_block],
        "wrong": [
            rolled("none"),
            rolled("alone"),
            rolled("after"),
            rolled("zero"),
            rolled("wrong ends"),
            dense_under_a_mask,
            lambda Q, K, V, b: V,
        ],
    },
    "8.9": {
        "right": banded(),
        "also": [query_by_query],
        "wrong": [
            lambda Q, K, V, rho: banded()(Q, K, V, 2),
            banded(add=False),
            banded(hide=False),
            banded(own=0),
            banded(scaled=False),
            banded(step=-1),
            with_a_matrix,
            with_a_matrix_on_the_way_back,
            lambda Q, K, V, rho: (with_a_matrix(Q, K, V, rho)[0], lambda dY: (dY, dY, dY)),
        ],
    },
}
