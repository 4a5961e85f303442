"""Attention as a recurrent network: its state, written in loops, and weights that a network writes itself."""

import numpy as np

from minitransformer.attention import delta_rule, elu_features, kernel_attention, kernel_attention_step, kernel_state

D, DV = 4, 3
rng = np.random.default_rng(0)
K, V = rng.standard_normal((9, D)), rng.standard_normal((9, DV))


def test_borealis_self_attention_as_an_rnn():
    """(21) and figure 10: a network whose hidden state is A_i and b_i.

    A_i = A_{i−1} + z(k_i)ᵀ v_i,   b_i = b_{i−1} + z(k_i)ᵀ,   y_i = z(q_i) A_i / z(q_i) b_i
    """
    Q = np.random.default_rng(4).standard_normal((9, D))
    FQ, FK = elu_features(Q)[0], elu_features(K)[0]
    whole, _ = kernel_attention(FQ, FK, V, causal=True)
    A, b, state = np.zeros((D, DV)), np.zeros(D), kernel_state(FK[:0], V[:0])
    for i in range(9):
        for a in range(D):
            b[a] += FK[i, a]
            for c in range(DV):
                A[a, c] += FK[i, a] * V[i, c]
        y = [sum(FQ[i, a] * A[a, c] for a in range(D)) / sum(FQ[i, a] * b[a] for a in range(D)) for c in range(DV)]
        step, state = kernel_attention_step(FQ[i : i + 1], FK[i : i + 1], V[i : i + 1], state)
        assert np.allclose(y, whole[i])
        assert np.allclose(step, y)
        assert np.allclose(state.S, A)
        assert np.allclose(state.z, b)


def test_borealis_fast_weights():
    """Weights that the network writes itself: added up, W_{t−1} + v_t k_tᵀ; corrected, W_{t−1} + β (v_t − W_{t−1} k_t) k_tᵀ.

    W is Sᵀ, read by y_t = W_t q_t. Added up, it is attention without a denominator, with the weights ⟨q_t, k_j⟩.
    """
    Q, step = np.random.default_rng(5).standard_normal((9, D)), np.random.default_rng(6).random(9)
    added, _ = kernel_attention(Q, K, V, causal=True, normalise=False)
    corrected, _ = delta_rule(Q, K, V, step)
    W, U = np.zeros((DV, D)), np.zeros((DV, D))
    for t in range(9):
        held = [sum(U[c, a] * K[t, a] for a in range(D)) for c in range(DV)]
        for c in range(DV):
            for a in range(D):
                W[c, a] += V[t, c] * K[t, a]
                U[c, a] += step[t] * (V[t, c] - held[c]) * K[t, a]
        weights = [sum(Q[t, a] * K[j, a] for a in range(D)) for j in range(t + 1)]
        assert np.allclose(W @ Q[t], added[t])
        assert np.allclose(added[t], sum(w * V[j] for j, w in enumerate(weights)))
        assert np.allclose(U @ Q[t], corrected[t])
