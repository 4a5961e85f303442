"""Learned sparsity, equation by equation: spans and hashes as printed, and the three systems that are named, in loops."""

import math

import numpy as np

from minitransformer.attention.selected import (
    AdaptiveSpan,
    adaptive_span_attention,
    lsh_attention,
    routing_attention,
    sinkhorn_attention,
)
from minitransformer.attention.selected.adaptive_span import SpanParams, log_ramp
from minitransformer.attention.selected.reformer import hash_buckets
from minitransformer.positions import Shaw

N, D = 10, 4


def arrays(seed=0):
    return np.random.default_rng(seed).standard_normal((3, N, D))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def average(scores, values):
    """Σ exp s v / Σ exp s."""
    weights = [math.exp(s) for s in scores]
    return sum(w / sum(weights) * v for w, v in zip(weights, values, strict=True))


def m_z(x, z, R):
    return min(max((R + z - x) / R, 0), 1)


def test_aalto_eq_6_the_soft_mask():
    """Aalto (6):    m_z(x) = min[max[(R + z − x)/R, 0], 1]."""
    R, S = 3, N
    for z in (0.0, 1.7, 4.0):
        b, _, _ = log_ramp(np.array([z]), R, S, 1, N + 1)  # one query, at position N
        for x in range(1, N + 1):
            wanted = m_z(x, z, R)
            if wanted > 0:
                assert math.isclose(math.exp(b[0, N - x]), wanted, rel_tol=1e-14)


def test_aalto_eq_7_attention_with_a_span():
    """Aalto (7):    a_tr = m_z(t − r) exp s_tr / Σ_{q = t−S}^{t−1} m_z(t − q) exp s_tq."""
    Q, K, _ = arrays()
    z, R, S = 2.6, 3, 5

    wanted = np.zeros((N, N))
    for t in range(N):
        before = range(max(t - S, 0), t)
        masked = {q: m_z(t - q, z, R) * math.exp(dot(Q[t], K[q]) / math.sqrt(D)) for q in before}
        for r in before:
            wanted[t, r] = masked[r] / sum(masked.values())

    _, pullback = adaptive_span_attention(Q[None], K[None], K[None], np.array([z]), ramp=R, longest=S)
    np.testing.assert_allclose(pullback.A[0], wanted, rtol=0, atol=1e-14)


def test_aalto_eq_8_scores_of_content_and_distance():
    """Aalto (8):    s_tr = x_tᵀ W_qᵀ (W_k x_r + p_{t−r}),    and divided by √d, as in the authors' code (E50)."""
    rng = np.random.default_rng(1)
    X, W_q, W_k = rng.standard_normal((N, D)), *rng.standard_normal((2, D, D))
    p = rng.standard_normal((N, D))  # a row for each distance

    queries = [[dot(x, W_q[:, a]) for a in range(D)] for x in X]
    keys = [[dot(x, W_k[:, a]) for a in range(D)] for x in X]
    wanted = np.zeros((N, N))
    for t in range(1, N):
        scores = [dot(queries[t], [keys[r][a] + p[t - r, a] for a in range(D)]) / math.sqrt(D) for r in range(t)]
        wanted[t, :t] = average(scores, np.eye(t))

    table = np.zeros((2 * N + 1, D))  # by offset r − t, from −N to N
    for x in range(N):
        table[N - x] = p[x]
    encoding = Shaw(D, N, values=False)
    own = encoding.init(rng, np.float64)._replace(a_k=table)
    span = AdaptiveSpan(1, N, encoding=encoding)
    _, pullback = span(SpanParams(np.ones(1), own), (X @ W_q)[None], (X @ W_k)[None], X[None])
    np.testing.assert_allclose(pullback.A[0], wanted, rtol=0, atol=1e-13)


def test_aalto_eq_9_the_hash():
    """Aalto (9):    h(x) = argmax([xR; −xR]),    R of size d_k × b/2 (E51)."""
    X, b = arrays()[0], 6
    R = np.random.default_rng(2).standard_normal((D, b // 2))

    wanted = []
    for x in X:
        products = [dot(x, R[:, c]) for c in range(b // 2)]
        both = [*products, *(-product for product in products)]
        wanted.append(max(range(b), key=lambda c: both[c]))

    np.testing.assert_array_equal(hash_buckets(X, R[None])[0], wanted)


def test_borealis_routing_transformer():
    """Borealis II names it: each centroid takes the queries and keys nearest to it, softmax within, the mean over clusters."""
    Q, K, V = arrays()
    mu, w = np.random.default_rng(3).standard_normal((3, D)), 4

    def normed(x):
        mean = sum(x) / D
        return [(a - mean) / math.sqrt(sum((c - mean) ** 2 for c in x) / D + 1e-5) for a in x]

    Q_hat, K_hat = ([normed(x) for x in X] for X in (Q, K))
    answers = [[] for _ in range(N)]
    for centroid in mu:
        queries, keys = (sorted(range(N), key=lambda i: -dot(X[i], centroid))[:w] for X in (Q_hat, K_hat))
        for i in queries:
            answers[i].append(average([dot(Q_hat[i], K_hat[j]) / math.sqrt(D) for j in keys], V[keys]))
    wanted = [sum(found) / len(found) if found else np.zeros(D) for found in answers]

    Y, _ = routing_attention(Q, K, V, centroids=mu, window=w)
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-13)


def test_borealis_reformer():
    """Borealis II names it: keys are queries of length one; sort by bucket, see one's bucket in two chunks, not oneself."""
    Q, _, V = arrays()
    R, chunk = np.random.default_rng(4).standard_normal((D, 1)), 2

    bucket = [int(dot(q, R[:, 0]) < 0) for q in Q]
    order = sorted(range(N), key=lambda i: (bucket[i], i))
    place = {i: k // chunk for k, i in enumerate(order)}
    wanted = np.zeros((N, D))
    for i in range(N):
        seen = [j for j in range(N) if j != i and bucket[j] == bucket[i] and place[i] - place[j] in (0, 1)] or [i]
        keys = [Q[j] / math.sqrt(dot(Q[j], Q[j]) + D * 1e-6) for j in seen]
        wanted[i] = average([dot(Q[i], k) / math.sqrt(D) for k in keys], V[seen])

    Y, _ = lsh_attention(Q, V, rotations=R[None], chunk=chunk)
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-13)


def test_borealis_sinkhorn():
    """Borealis II names it: rows and columns of exp R made to sum to one in turn; a query sees its block and a mixture."""
    Q, K, V = arrays()
    B, blocks = 5, 2
    R = np.random.default_rng(5).standard_normal((blocks, blocks))

    P = np.exp(R)
    for _ in range(3):
        for u in range(blocks):
            P[u] = P[u] / sum(P[u])
        for s in range(blocks):
            P[:, s] = P[:, s] / sum(P[:, s])
    wanted = np.zeros((N, D))
    for i in range(N):
        u = i // B
        own = range(u * B, (u + 1) * B)
        keys = [sum(P[u, s] * K[s * B + t] for s in range(blocks)) for t in range(B)] + [K[j] for j in own]
        values = [sum(P[u, s] * V[s * B + t] for s in range(blocks)) for t in range(B)] + [V[j] for j in own]
        wanted[i] = average([dot(Q[i], k) / math.sqrt(D) for k in keys], values)

    Y, _ = sinkhorn_attention(Q, K, V, R, block=B, iterations=3)
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-13)
