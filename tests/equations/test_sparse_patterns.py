"""Sparse attention, equation by equation: which pairs there are, in loops, and then softmax over these and no others."""

import math

import numpy as np

from minitransformer.attention import (
    ETC,
    BigBird,
    Fixed,
    Local,
    Longformer,
    MultiHeadAttention,
    SoftmaxAttention,
    Strided,
    Window,
    block_sparse_attention,
)
from minitransformer.attention.sparse.etc import ETCParams
from minitransformer.pullback import NoParams


def over(Q, K, V, sees):
    """Softmax of ⟨q_i, k_j⟩ / √d over the keys that query i sees, and the average of their values."""
    n, d = Q.shape
    Y = np.zeros((n, V.shape[1]))
    for i in range(n):
        seen = [j for j in range(n) if sees(i, j)]
        weights = [math.exp(sum(Q[i, a] * K[j, a] for a in range(d)) / math.sqrt(d)) for j in seen]
        for w, j in zip(weights, seen, strict=True):
            Y[i] += w / sum(weights) * V[j]
    return Y


def arrays(n=12, d=3, seed=0):
    return np.random.default_rng(seed).standard_normal((3, n, d))


def test_aalto_eq_4_local_heads():
    """Aalto (4):    Â_ij = Q_i K_jᵀ  if ⌊j/N⌋ = ⌊i/N⌋,  otherwise −∞;   N a block here, and j ≤ i (E46, E47, E48)."""
    Q, K, V = arrays()
    N = 5

    wanted = over(Q, K, V, lambda i, j: math.floor(j / N) == math.floor(i / N) and j <= i)

    Y, _ = block_sparse_attention(Q, K, V, Fixed(N, part="near")(12, 12, causal=True))
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-14)


def test_aalto_eq_5_strided_heads():
    """Aalto (5):    Â_ij = Q_i K_jᵀ  if (i − j) mod N = 0,  otherwise −∞;   N a stride here, and j ≤ i (E46, E48)."""
    Q, K, V = arrays()
    N = 5

    wanted = over(Q, K, V, lambda i, j: (i - j) % N == 0 and j <= i)

    Y, _ = block_sparse_attention(Q, K, V, Strided(N, part="far")(12, 12, causal=True))
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-14)


def test_borealis_local_attention():
    """Borealis II, figures 6 and 7: "disjoint groups of neighbours", each "passed through a separate self-attention"."""
    Q, K, V = arrays()
    B = 4

    wanted = np.zeros((12, 3))
    for first in range(0, 12, B):
        block = slice(first, first + B)
        wanted[block] = over(Q[block], K[block], V[block], lambda i, j: True)

    Y, _ = SoftmaxAttention(Local(B))(NoParams(), Q, K, V)
    np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-14)


def test_borealis_convolutional_and_dilated():
    """Borealis II, figure 8: "nearest preceding inputs", and "dilated convolutions with different dilation rates"."""
    Q, K, V = arrays()
    for rate in (1, 2, 3):
        wanted = over(Q, K, V, lambda i, j, rate=rate: 0 <= i - j <= 2 * rate and (i - j) % rate == 0)

        Y, _ = block_sparse_attention(Q, K, V, Window(2, rate)(12, 12, causal=True))
        np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-14)


def test_borealis_longformer():
    """Borealis II, figure 9a: a convolutional structure, but some inputs "interact with all of the others".

    The rows of those have projections of their own: X W_q′, X W_k′, X W_v′.
    """
    rng = np.random.default_rng(1)
    n, D = 9, 4
    layer = MultiHeadAttention(D, 1, bias=False, core=Longformer(D, radius=1, global_tokens=2))
    params = layer.init(rng, np.float64)._replace(W_o=np.eye(D))
    params = params._replace(
        streams={name: p._replace(W=rng.standard_normal((D, D))) for name, p in params.streams.items()}
    )
    X = rng.standard_normal((n, D))

    near = over(X @ params.W_q, X @ params.W_k, X @ params.W_v, lambda i, j: abs(i - j) <= 1 or j < 2)
    everything = over(*(X @ params.streams[name].W for name in ("q_g", "k_g", "v_g")), lambda i, j: True)

    Y, _ = layer(params, X)
    np.testing.assert_allclose(Y[:2], everything[:2], rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y[2:], near[2:], rtol=0, atol=1e-13)


def test_borealis_etc():
    """Borealis II, figure 9b: "new content embeddings which attend to all", with "special relative position embeddings …
    for mapping to, from, and between" them.

        S_ij = (⟨q_i, k_j + r_ℓ⟩ + b_ℓ) / √d,   ℓ the label of (i, j)
    """
    rng = np.random.default_rng(2)
    g, n, d, clip = 2, 7, 3, 1
    Q, K, V = arrays(g + n, d)
    R, b = rng.standard_normal((2 * clip + 4, d)), rng.standard_normal(2 * clip + 4)

    wanted = np.zeros((g + n, d))
    for i in range(g + n):
        weights = {}
        for j in range(g + n):
            if i < g and j < g:
                label = 2 * clip + 3  # between
            elif i < g:
                label = 2 * clip + 2  # from a global token to a word
            elif j < g:
                label = 2 * clip + 1  # from a word to a global token
            elif abs(i - j) <= 2:
                label = max(-clip, min(clip, j - i)) + clip
            else:
                continue
            weights[j] = math.exp((sum(Q[i, a] * (K[j, a] + R[label, a]) for a in range(d)) + b[label]) / math.sqrt(d))
        for j, w in weights.items():
            wanted[i] += w / sum(weights.values()) * V[j]

    core = ETC(d, 1, radius=2, global_tokens=g, clip=clip)
    Y, _ = core(ETCParams(R[None], b[None]), Q[None], K[None], V[None])
    np.testing.assert_allclose(Y[0], wanted, rtol=0, atol=1e-14)


def test_borealis_bigbird():
    """Borealis II, figure 9c: global tokens, a convolutional pattern, and "sparse random connections". Blocks of two here."""
    Q, K, V = arrays(16)
    pattern = BigBird(random=1, block=2)
    drawn = {row + 1: blocks for row, blocks in enumerate(pattern.drawn(8)[0])}

    def sees(i, j):
        t, k = i // 2, j // 2
        return abs(t - k) <= 1 or t in (0, 7) or k in (0, 7) or k in drawn[t]

    Y, _ = block_sparse_attention(Q, K, V, pattern(16, 16, causal=False))
    np.testing.assert_allclose(Y, over(Q, K, V, sees), rtol=0, atol=1e-14)


def test_lecture_graph_attention():
    """Lecture notes C.3:    ATTN_D(X)_i = x_i + Σ_h σ(Q_h(x_i) K_h(X_N(i))ᵀ) · V_h(X_N(i))

    N(i): out-neighbours of node i. σ is softmax, and the scale 1/√d belongs inside (E42).
    """
    rng = np.random.default_rng(3)
    n, D, H = 12, 4, 2
    d = D // H
    X = rng.standard_normal((n, D))
    layer = MultiHeadAttention(D, H, bias=False, core=SoftmaxAttention(BigBird(block=1, random=1)))
    params = layer.init(rng, np.float64)
    graph = BigBird(block=1, random=1).graph(n)

    wanted = X.copy()
    for i in range(n):
        N = graph.neighbours(i)
        for h in range(H):
            own = slice(h * d, (h + 1) * d)
            scores = (X[i] @ params.W_q[:, own]) @ (X[N] @ params.W_k[:, own]).T / math.sqrt(d)
            A = np.exp(scores) / np.exp(scores).sum()
            V_h = params.W_v[:, own] @ params.W_o[own]  # (D, D): a value is as wide as a token
            wanted[i] += A @ (X[N] @ V_h)

    Y, _ = layer(params, X)
    np.testing.assert_allclose(X + Y, wanted, rtol=0, atol=1e-14)
