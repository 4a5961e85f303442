"""Weights that are made without comparing tokens: Borealis II on hypernetworks, the synthesizer and routing, in loops.

Borealis projects X with Φ_1 and Φ_2 (our W_1, which a head calls W_q, and W_2) and Φ_v (our W_v).
"""

import math

import numpy as np

from minitransformer.functional import softmax
from minitransformer.related import Capsules, CapsulesParams, Synthesizer, SynthesizerParams, attention_weights
from minitransformer.related.synthesizer_logits import DenseParams, RandomParams

n, D, d, dv = 5, 4, 3, 2


def test_borealis_figure_11_attention_is_a_network_whose_weights_the_text_makes():
    """Borealis II, "Attention as a hypernetwork" and figure 11, with I = 3 tokens of D = 4 numbers:

        every x_i goes through the same Φ_v; output i is Σ_j a[x_i, x_j] x_j Φ_v

    So number a of output i is a sum over all numbers of all tokens: Σ_jb M_(i a)(j b) X_jb with M_(i a)(j b) = A_ij Φ_ba.
    """
    rng = np.random.default_rng(11)
    tokens, width = 3, 4
    X, Phi_v = rng.standard_normal((tokens, width)), rng.standard_normal((width, width))
    A, _ = softmax(rng.standard_normal((tokens, tokens)))

    Y = np.zeros((tokens, width))
    for i in range(tokens):
        for a in range(width):
            for j in range(tokens):
                for b in range(width):
                    Y[i, a] += A[i, j] * Phi_v[b, a] * X[j, b]

    values, _ = attention_weights(np.eye(tokens), Phi_v)  # figure 11b: one block for each token, all the same
    mixing, _ = attention_weights(A, np.eye(width))  # figure 11c: multiples of the identity
    both, _ = attention_weights(A, Phi_v)
    np.testing.assert_allclose(mixing @ values, both, rtol=0, atol=1e-14)
    for found in (both @ X.ravel(), (A @ X @ Phi_v).ravel()):
        np.testing.assert_allclose(found.reshape(tokens, width), Y, rtol=0, atol=1e-14)


def test_borealis_synthesizer():
    """Borealis II, after (21), without a number:

        Synthesizer[X] = Softmax[MLP[X]] X Φ_v = Softmax[Relu[X Φ_1] Φ_2] X Φ_v

    and with the biases of the paper. Row i of the weights is made of x_i; its entry j is for place j.
    """
    rng = np.random.default_rng(21)
    longest = 7  # columns of Φ_2; five tokens use five
    X, Phi_1, Phi_2, Phi_v = (rng.standard_normal(s) for s in ((n, D), (D, d), (d, longest), (D, dv)))
    b_1, b_2 = rng.standard_normal(d), rng.standard_normal(longest)

    Y = np.zeros((n, dv))
    for i in range(n):
        hidden = [max(0, sum(X[i, c] * Phi_1[c, a] for c in range(D)) + b_1[a]) for a in range(d)]
        logits = [sum(hidden[a] * Phi_2[a, j] for a in range(d)) + b_2[j] for j in range(n)]
        total = sum(math.exp(logit) for logit in logits)
        for j in range(n):
            for b in range(dv):
                Y[i, b] += math.exp(logits[j]) / total * sum(X[j, c] * Phi_v[c, b] for c in range(D))

    core = Synthesizer(heads=1, d=d, longest=longest)
    params = SynthesizerParams(DenseParams(Phi_2[None], b_2[None]))
    Q, V = X @ Phi_1 + b_1, X @ Phi_v
    ours, _ = core(params, Q[None], Q[None], V[None])
    np.testing.assert_allclose(ours[0], Y, rtol=0, atol=1e-13)


def test_borealis_random_synthesizer():
    """Borealis II, "Attention as routing" and figure 13a: "pre-determined random values or learned values" in place of the MLP,

        Y = Softmax[R] X Φ_v

    The same weights for every text: nothing but R is asked.
    """
    rng = np.random.default_rng(13)
    R, X, Phi_v = (rng.standard_normal(s) for s in ((n, n), (2, n, D), (D, dv)))

    Y = np.zeros((2, n, dv))
    for text in range(2):
        for i in range(n):
            total = sum(math.exp(R[i, j]) for j in range(n))
            for j in range(n):
                for b in range(dv):
                    Y[text, i, b] += math.exp(R[i, j]) / total * sum(X[text, j, c] * Phi_v[c, b] for c in range(D))

    V = (X @ Phi_v)[:, None]
    for learned in (True, False):
        core = Synthesizer(heads=1, d=dv, longest=n, kind="random", learned=learned)
        ours, pullback = core(SynthesizerParams(RandomParams(R[None])), V, V, V)
        np.testing.assert_allclose(ours[:, 0], Y, rtol=0, atol=1e-13)
        assert pullback.A.shape == (1, n, n)  # there is one for both texts


def test_borealis_capsules():
    """Borealis II, "Attention as routing": capsules, in which "the higher levels of the network compete with each other".

    u_j|i = u_i W_ij,   c_i = softmax of b_i over j,   v_j = squash(Σ_i c_ij u_j|i),   b_ij ← b_ij + ⟨u_j|i, v_j⟩
    """
    rng = np.random.default_rng(17)
    inputs, outputs, width, wide, rounds = 4, 3, 2, 5, 3
    u, W = rng.standard_normal((inputs, width)), rng.standard_normal((inputs, outputs, width, wide))

    vote = np.zeros((inputs, outputs, wide))
    for i, j, a in np.ndindex(vote.shape):
        vote[i, j, a] = sum(u[i, b] * W[i, j, b, a] for b in range(width))
    b = np.zeros((inputs, outputs))
    for _ in range(rounds):
        v = np.zeros((outputs, wide))
        for i in range(inputs):
            total = sum(math.exp(b[i, j]) for j in range(outputs))  # over outputs: they compete for input i
            for j in range(outputs):
                v[j] += math.exp(b[i, j]) / total * vote[i, j]
        for j in range(outputs):
            length = math.sqrt(sum(x * x for x in v[j]))
            v[j] = length / (1 + length**2) * v[j]
        for i, j in np.ndindex(inputs, outputs):
            b[i, j] += sum(vote[i, j, a] * v[j, a] for a in range(wide))

    layer = Capsules(inputs, outputs, width, wide, rounds)
    ours, _ = layer(CapsulesParams(W), u)
    np.testing.assert_allclose(ours, v, rtol=0, atol=1e-13)
