"""Aalto 3.3.2 and 3.3.3: the memory that has no equation there, and the two equations of the Universal Transformer."""

import math

import numpy as np

from minitransformer.attention import MultiHeadAttention
from minitransformer.models import Block, FeedForward, LanguageModel, MemoryStack
from minitransformer.models.universal import UniversalStack
from minitransformer.pullback import random_like, tree_map


def random_params(layer, seed):
    rng = np.random.default_rng(seed)
    return tree_map(lambda a: 0.6 * a, random_like(layer.init(rng, np.float64), rng))


def layer_norm(x, p):
    mean = sum(x) / len(x)
    variance = sum((a - mean) ** 2 for a in x) / len(x)
    return np.array([(a - mean) / math.sqrt(variance + 1e-5) for a in x]) * p.gamma + p.beta


def test_aalto_transformer_xl():
    """Aalto 3.3.2, named there (E57):

        h̃ = [SG(memory); h],    q = h W_q,    k, v = h̃ W_k, h̃ W_v
        S_ij = [(q_i + u)·k_j + (q_i + v)·W_kr r_{i−j}]/√d,    j ≤ i + M

    One layer of one head, without norm or feed-forward network, segment after segment; the memory is what the layer was given,
    which a stack keeps for each of its blocks.
    """
    D, n, M = 4, 3, 2
    layer = MultiHeadAttention(
        D, 1, bias=False, core=LanguageModel(width=D, heads=1, positions="transformer-xl").body.blocks[0].attention.core
    )
    p = random_params(layer, 1)
    text = np.random.default_rng(2).standard_normal((3 * n, D))
    u, v = p.core.u[0], p.core.v[0]

    stack = MemoryStack((Block(layer),), memory=M)
    params = random_params(stack, 3)

    memory, kept = np.zeros((0, D)), None
    for start in range(0, 3 * n, n):
        h = text[start : start + n]
        joined = np.concatenate([memory, h])  # h̃
        before = len(memory)
        wanted = np.zeros((n, D))
        for i in range(n):
            q = h[i] @ p.W_q
            weights = []
            for j in range(i + before + 1):
                distance = i + before - j
                angles = [distance / 10000 ** (2 * f / D) for f in range(D // 2)]
                r = np.array([*map(math.sin, angles), *map(math.cos, angles)]) @ p.core.W_kr
                weights.append(math.exp(((q + u) @ (joined[j] @ p.W_k) + (q + v) @ r) / math.sqrt(D)))
            wanted[i] = sum(w / sum(weights) * (joined[j] @ p.W_v) for j, w in enumerate(weights)) @ p.W_o
        Y, _ = layer(p, h, memory=memory, causal=True)
        np.testing.assert_allclose(Y, wanted, rtol=0, atol=1e-13)
        memory = joined[-M:]

        _, pullback = stack(params, h, kept)
        kept = pullback.memory
        np.testing.assert_array_equal(kept, [memory])


def universal(seed, T=3, D=6):
    """A stack of one head, and its parameters."""
    stack = UniversalStack((Block(MultiHeadAttention(D, 1), FeedForward(D, 5), order="post"),) * T, halting="fixed")
    return stack, random_params(stack, seed)


def attend(Z, p):
    """One head over all rows: softmax(Q Kᵀ/√d) V W_o."""
    Q, K, V = Z @ p.W_q + p.b_q, Z @ p.W_k + p.b_k, Z @ p.W_v + p.b_v
    rows = []
    for q in Q:
        weights = [math.exp(sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q))) for k in K]
        rows.append(sum(w / sum(weights) * v for w, v in zip(weights, V, strict=True)) @ p.W_o + p.b_o)
    return np.array(rows)


def timestep(m, D, t):
    """P^t[i, 2f] = sin(ω_f i) + sin(ω_f t), and cosines in the odd columns."""
    P = np.zeros((m, D))
    for i in range(m):
        for f in range(D // 2):
            omega = 10000 ** (-2 * f / D)
            P[i, 2 * f] = math.sin(omega * i) + math.sin(omega * t)
            P[i, 2 * f + 1] = math.cos(omega * i) + math.cos(omega * t)
    return P


def test_aalto_eq_18_the_transition():
    """Aalto (18):    H^t = LayerNorm(A^t + Transition(A^t)),    two affine maps with a ReLU between them."""
    stack, params = universal(18, T=1)
    H = np.random.default_rng(3).standard_normal((5, 6))
    own = params.block

    Z = H + timestep(5, 6, 1)
    A = np.array([layer_norm(x, own.attention_norm) for x in Z + attend(Z, own.attention)])
    wanted = []
    for a in A:
        hidden = [max(x, 0) for x in a @ own.ffn.W_1 + own.ffn.b_1]
        wanted.append(layer_norm(a + np.array(hidden) @ own.ffn.W_2 + own.ffn.b_2, own.ffn_norm))

    np.testing.assert_allclose(stack(params, H)[0], wanted, rtol=0, atol=1e-12)


def test_aalto_eq_19_the_same_block_again():
    """Aalto (19):    A^t = LayerNorm((H^{t−1} + P^t) + MultiHeadSelfAttention(H^{t−1} + P^t)),    t = 1 … T

    with the same weights at every t. "H^t ∈ R^{m×d} for all input positions m": m is how many positions there are.
    """
    T, m, D = 3, 5, 6
    stack, params = universal(19, T)
    H = first = np.random.default_rng(4).standard_normal((m, D))
    own = params.block

    for t in range(1, T + 1):
        Z = H + timestep(m, D, t)
        A = np.array([layer_norm(x, own.attention_norm) for x in Z + attend(Z, own.attention)])
        H = np.array(
            [
                layer_norm(a + np.maximum(a @ own.ffn.W_1 + own.ffn.b_1, 0) @ own.ffn.W_2 + own.ffn.b_2, own.ffn_norm)
                for a in A
            ]
        )

    np.testing.assert_allclose(stack(params, first)[0], H, rtol=0, atol=1e-11)
