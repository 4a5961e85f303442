"""Attention as memory retrieval, system by system, with the sums visible: neurons, energies, and the update that is attention."""

import math

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.related import (
    classical_energy,
    classical_recall,
    dense_recall,
    hebbian,
    hopfield_attention,
    hopfield_energy,
)


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def signs(*shape):
    return np.random.default_rng(0).choice([-1.0, 1.0], shape)


def test_borealis_hopfield_binary():
    """W_ab = (1/d) Σ_j X_ja X_jb without a diagonal;   E = −½ Σ_ab s_a W_ab s_b;   s_a ← sign Σ_b W_ab s_b, one by one."""
    X, s = signs(3, 7), signs(10)[3:]
    m, d = X.shape

    W = np.zeros((d, d))
    for a in range(d):
        for b in range(d):
            if a != b:
                W[a, b] = sum(X[j, a] * X[j, b] for j in range(m)) / d
    E = -sum(s[a] * W[a, b] * s[b] for a in range(d) for b in range(d)) / 2
    after = s.copy()
    for a in range(d):
        field = sum(W[a, b] * after[b] for b in range(d))
        if field != 0:
            after[a] = math.copysign(1, field)

    assert np.allclose(hebbian(X), W)
    assert np.isclose(classical_energy(W, s), E)
    assert np.array_equal(classical_recall(W, s).states[1], after)


def test_borealis_hopfield_dense():
    """E = −Σ_j F(⟨x_j, s⟩), F(z) = z³ or exp z; a neuron takes the side on which E is lower."""
    X, s = signs(4, 6), signs(9)[3:]

    for power, F in ((3, lambda z: z**3), (None, math.exp)):
        after = s.copy()
        for a in range(6):
            energies = {}
            for side in (-1, 1):
                after[a] = side
                energies[side] = -sum(F(dot(x, after)) for x in X)
            after[a] = 1 if energies[1] < energies[-1] else -1 if energies[-1] < energies[1] else s[a]
        assert np.array_equal(dense_recall(X, s, power=power).states[1], after)


def retrieval(q, K, beta, steps):
    """ξ ← Σ_j p_j k_j,   p_j = exp(β⟨k_j, ξ⟩) / Σ_l exp(β⟨k_l, ξ⟩);   all states, and the weights of the last."""
    states = [q]
    for _ in range(steps):
        weights = [math.exp(beta * dot(k, states[-1])) for k in K]
        states.append(sum(w / sum(weights) * k for w, k in zip(weights, K, strict=True)))
    weights = [math.exp(beta * dot(k, states[-1])) for k in K]
    return states, np.array(weights) / sum(weights)


def test_borealis_hopfield_update():
    """ξ ← Kᵀ softmax(β K ξ) is attention whose values are its keys."""
    Q, K = np.random.default_rng(1).standard_normal((2, 5, 4))
    Y, _ = hopfield_attention(Q, K, K, steps=1)
    assert np.array_equal(Y, dot_product_attention(Q, K, K)[0])
    for q, y in zip(Q, Y, strict=True):
        states, _ = retrieval(q, K, 1 / math.sqrt(4), 1)
        assert np.allclose(states[1], y)


def test_borealis_hopfield_retrieval():
    """Figure 15: the output is fed back as a query until it is stable; the values are read by the last weights."""
    Q, K, V = np.random.default_rng(2).standard_normal((3, 5, 4))
    Y, pullback = hopfield_attention(Q, K, V, 0.8, steps=200, tolerance=1e-9)
    assert pullback.settled.all()
    for i, q in enumerate(Q):
        _, p = retrieval(q, K, 0.8, 300)
        y = sum(p[j] * V[j] for j in range(5))
        assert np.allclose(Y[i], y, atol=1e-7)
        assert pullback.steps[i] < 200


def test_borealis_hopfield_energy():
    """E = −(1/β) ln Σ_j exp(β⟨k_j, ξ⟩) + ½‖ξ‖² + (1/β) ln m + ½ max_j ‖k_j‖², which an update lowers by ½‖Δξ‖² or more."""
    q, *K = np.random.default_rng(3).standard_normal((8, 4))
    beta, m = 1.3, len(K)

    states, _ = retrieval(q, K, beta, 6)
    energies = []
    for xi in states:
        E = -math.log(sum(math.exp(beta * dot(k, xi)) for k in K)) / beta + dot(xi, xi) / 2
        energies.append(E + math.log(m) / beta + max(dot(k, k) for k in K) / 2)
    assert np.allclose(hopfield_energy(np.array(states), np.array(K), beta)[0], energies)
    for t in range(6):
        change = states[t + 1] - states[t]
        assert energies[t + 1] <= energies[t] - dot(change, change) / 2 + 1e-12
