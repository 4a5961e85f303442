"""Memory as gradient descent: every rule is one step down the slope of its loss, S − η ∂ℓ/∂S. The map k ↦ kᵀ S learns pairs.

A loss is written as it reads, its slope is taken by difference quotients, and the step is compared with the rule of the package.
"""

import numpy as np
import pytest

from minitransformer.attention import (
    delta_rule_step,
    dot_product_attention,
    gated_delta_step,
    gated_linear_step,
    kernel_state,
)

D, DV = 4, 3
rng = np.random.default_rng(0)
S, k, v = rng.standard_normal((D, DV)), rng.standard_normal(D), rng.standard_normal(DV)
alpha, channels, beta = 0.7, rng.uniform(0.2, 1, D), 0.6
K, V = rng.standard_normal((9, D)), rng.standard_normal((9, DV))


def slope(loss, at):
    """∂ℓ/∂S, entry by entry, by central differences: exact for a loss of degree two."""
    found = np.zeros(at.shape)
    for entry in np.ndindex(at.shape):
        step = np.zeros(at.shape)
        step[entry] = 0.5
        found[entry] = loss(at + step) - loss(at - step)
    return found


def agreement(S):
    """⟨kᵀ S, v⟩, in loops."""
    return sum(k[c] * S[c, i] * v[i] for c in range(D) for i in range(DV))


def error(S):
    """½ ‖kᵀ S − v‖², in loops."""
    return sum((sum(k[c] * S[c, i] for c in range(D)) - v[i]) ** 2 for i in range(DV)) / 2


def one(x):
    """A batch of one position."""
    return np.asarray(x, float)[None]


def test_linear_attention():
    """ℓ = −⟨kᵀ S, v⟩:  S + k vᵀ"""
    assert np.allclose(S - slope(lambda S: -agreement(S), S), S + kernel_state(one(k), one(v)).S)


def test_retnet_and_mamba_2():
    """ℓ = −⟨kᵀ S, v⟩ + (1 − α)/2 ‖S‖²:  α S + k vᵀ"""
    step = S - slope(lambda S: -agreement(S) + (1 - alpha) / 2 * (S**2).sum(), S)
    assert np.allclose(step, gated_linear_step(one(k), one(k), one(v), np.log(one(alpha)), S)[1])


def test_gated_linear_attention():
    """ℓ = −⟨kᵀ S, v⟩ + ½ ‖Diag(√(1 − α)) S‖²:  Diag(α) S + k vᵀ"""
    step = S - slope(lambda S: -agreement(S) + ((1 - channels)[:, None] * S**2).sum() / 2, S)
    assert np.allclose(step, gated_linear_step(one(k), one(k), one(v), np.log(one(channels)), S)[1])


def test_delta_rule():
    """ℓ = ½ ‖kᵀ S − v‖², η = β:  S + β k (v − kᵀ S)ᵀ"""
    step = S - beta * slope(error, S)
    assert np.allclose(step, delta_rule_step(one(k), one(k), one(v), one(beta), S)[1])


@pytest.mark.parametrize("decay", [alpha, channels], ids=["Gated DeltaNet", "Kimi"])
def test_gated_delta_rule(decay):
    """The same, at S̄ = Diag(α) S. With the decay as a term of the loss it is another rule."""
    left = (decay * np.ones(D))[:, None] * S
    rule = gated_delta_step(one(k), one(k), one(v), one(beta), np.log(one(decay)), S)[1]
    assert np.allclose(left - beta * slope(error, left), rule)
    together = S - slope(lambda S: beta * error(S) + ((1 - decay * np.ones(D))[:, None] * S**2).sum() / 2, S)
    assert abs(together - rule).max() > 0.01


def test_longhorn():
    """The S that minimises ½ ‖S′ − S‖² + β ℓ(S′): a delta rule with ε = β / (1 + β ‖k‖²)"""
    epsilon = beta / (1 + beta * k @ k)
    after = delta_rule_step(one(k), one(k), one(v), one(epsilon), S)[1]
    assert np.allclose(slope(lambda new: ((new - S) ** 2).sum() / 2 + beta * error(new), after), 0, atol=1e-12)


def titans(theta, momentum, decay):
    """Z ← momentum · Z − θ ∂ℓ/∂S, S ← (1 − decay) S + Z, with the delta rule's ℓ, over all pairs."""
    memory, Z = np.zeros((D, DV)), np.zeros((D, DV))
    for key, value in zip(K, V, strict=True):
        Z = momentum * Z - theta * np.outer(key, key @ memory - value)
        memory = (1 - decay) * memory + Z
    return memory


def in_batches(size, eta):
    """TTT: every gradient of a batch is taken at the state before it."""
    memory = np.zeros((D, DV))
    for a in range(0, len(K), size):
        memory = memory - eta * K[a : a + size].T @ (K[a : a + size] @ memory - V[a : a + size])
    return memory


def test_titans_without_momentum_and_decay_is_the_delta_rule():
    rule = delta_rule_step(K, K, V, np.full(9, 0.3), np.zeros((D, DV)))[1]
    assert np.allclose(titans(0.3, 0, 0), rule)
    assert abs(titans(0.3, 0.5, 0) - rule).max() > 0.1


def test_test_time_training_in_batches_of_one_and_of_all():
    """One pair: the delta rule. All pairs from S = 0: η Kᵀ V, linear attention."""
    rule = delta_rule_step(K, K, V, np.full(9, 0.3), np.zeros((D, DV)))[1]
    assert np.allclose(in_batches(1, 0.3), rule)
    assert np.allclose(in_batches(9, 0.3), 0.3 * kernel_state(K, V).S)


def test_a_batch_need_not_make_its_states():
    """The dual form: y_i = q_iᵀ S − η Σ_{j ≤ i} ⟨q_i, k_j⟩ (k_jᵀ S − v_j)"""
    Q, eta = np.random.default_rng(1).standard_normal((9, D)), 0.3
    wrong = K @ S - V
    Y = Q @ S - eta * np.tril(Q @ K.T) @ wrong
    for i in range(9):
        memory = S - eta * sum(np.outer(K[j], wrong[j]) for j in range(i + 1))
        assert np.allclose(Y[i], Q[i] @ memory)


def test_least_squares_is_a_delta_rule_with_a_matrix_for_its_step():
    """All pairs at once, (λ I + Kᵀ K)⁻¹ Kᵀ V, one after the other: S + P k (v − kᵀ S)ᵀ / (1 + kᵀ P k)"""
    penalty = 0.1
    P, memory = np.eye(D) / penalty, np.zeros((D, DV))
    for key, value in zip(K, V, strict=True):
        gain = P @ key / (1 + key @ P @ key)
        memory = memory + np.outer(gain, value - key @ memory)
        P = P - np.outer(gain, key @ P)
    assert np.allclose(memory, np.linalg.solve(penalty * np.eye(D) + K.T @ K, K.T @ V))


def test_a_hopfield_network_steps_its_query():
    """E(ξ) = −ln Σ_j exp(β ⟨k_j, ξ⟩) / β + ½ ‖ξ‖²: one step of size one down its slope is attention to the keys."""
    xi, sharp, tiny = np.random.default_rng(2).standard_normal(D), 0.8, 1e-5

    def energy(x):
        return -np.log(sum(np.exp(sharp * key @ x) for key in K)) / sharp + x @ x / 2

    down = [(energy(xi + tiny * unit) - energy(xi - tiny * unit)) / (2 * tiny) for unit in np.eye(D)]
    Y, _ = dot_product_attention(one(xi), K, K, scale=sharp)
    assert np.allclose(xi - down, Y[0], atol=1e-9)


def test_softmax_attention_is_least_squares_with_a_constant():
    """y_i minimises Σ_j exp S_ij ‖y − v_j‖²: at the average, the weighted errors sum to zero."""
    Q = np.random.default_rng(3).standard_normal((2, D))
    Y, _ = dot_product_attention(Q, K, V)
    for i in range(2):
        left = sum(np.exp(Q[i] @ K[j] / np.sqrt(D)) * (Y[i] - V[j]) for j in range(9))
        assert np.allclose(left, 0, atol=1e-9)


# ---------------------------------------------------------------------------- where a report prints it otherwise


def test_kimi_linear_how_much_is_left_from_i_to_r():
    """The Kimi Linear report defines γ^{i→r} as the product of α_i … α_r. Its equations (3) to (5) need α_{i+1} … α_r.

    A chunk multiplies the state by P = Diag(γ^{1→C}) − Σ_i Diag(γ^{i→C}) k_i w_iᵀ. What was written at i has not faded at i: it
    came in after α_i had done its work. With α_i in the product, w and P are those of no recurrence.
    """
    draw = np.random.default_rng(7)
    n, d = 6, 4
    K, alpha, beta = draw.standard_normal((n, d)), draw.uniform(0.3, 1, (n, d)), draw.uniform(0.3, 1, n)
    K /= np.linalg.norm(K, axis=-1, keepdims=True)

    def chunk(first):
        """P, with the product from i + first on."""

        def left(i, r):
            return alpha[i + first : r + 1].prod(0)

        whole, w = alpha.cumprod(0), np.zeros((n, d))
        for r in range(n):
            w[r] = beta[r] * (whole[r] * K[r] - sum(w[i] * (K[i] @ (left(i, r) * K[r])) for i in range(r)))
        return np.diag(whole[-1]) - sum(np.outer(left(i, n - 1) * K[i], w[i]) for i in range(n))

    nothing = np.zeros((n, d))
    _, recurrence = gated_delta_step(nothing, K, nothing, beta, np.log(alpha), np.eye(d))

    assert np.allclose(chunk(first=1), recurrence, atol=1e-12)
    assert abs(chunk(first=0) - recurrence).max() > 0.01


def test_kimi_linear_how_far_longhorn_writes():
    """Table 7 of the Kimi Linear report prints Longhorn as S = (I − ε k kᵀ) S + β k vᵀ, with ε = β / (1 + β ‖k‖²).

    Longhorn takes the S that minimises ½ ‖S − S_before‖² + β/2 ‖kᵀ S − v‖². Its derivative is zero where
    (I + β k kᵀ) S = S_before + β k vᵀ, and that has ε in both places: a delta rule whose step is ε.
    """
    draw = np.random.default_rng(8)
    d, beta = 4, 0.6
    k, v, before = draw.standard_normal(d), draw.standard_normal(3), draw.standard_normal((d, 3))
    best = np.linalg.solve(np.eye(d) + beta * np.outer(k, k), before + beta * np.outer(k, v))

    epsilon = beta / (1 + beta * k @ k)
    one = np.ones(1)
    _, ours = gated_delta_step(k[None], k[None], v[None], epsilon * one, 0 * one, before)
    printed = before - epsilon * np.outer(k, k @ before) + beta * np.outer(k, v)

    assert np.allclose(ours, best, atol=1e-12)
    assert abs(printed - best).max() > 0.1
