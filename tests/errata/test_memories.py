"""Where reports on memories with gates slip: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.attention import gated_delta_step


def test_kimi_linear_how_much_is_left_from_i_to_r():
    """The Kimi Linear report defines γ^{i→r} as the product of α_i … α_r. Its equations (3) to (5) need α_{i+1} … α_r.

    A chunk multiplies the state by P = Diag(γ^{1→C}) − Σ_i Diag(γ^{i→C}) k_i w_iᵀ. What was written at i has not faded at i: it
    came in after α_i had done its work. With α_i in the product, w and P are those of no recurrence.
    """
    rng = np.random.default_rng(0)
    n, d = 6, 4
    K, alpha, beta = rng.standard_normal((n, d)), rng.uniform(0.3, 1, (n, d)), rng.uniform(0.3, 1, n)
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
    rng = np.random.default_rng(1)
    d, beta = 4, 0.6
    k, v, before = rng.standard_normal(d), rng.standard_normal(3), rng.standard_normal((d, 3))
    best = np.linalg.solve(np.eye(d) + beta * np.outer(k, k), before + beta * np.outer(k, v))

    epsilon = beta / (1 + beta * k @ k)
    one = np.ones(1)
    _, ours = gated_delta_step(k[None], k[None], v[None], epsilon * one, 0 * one, before)
    printed = before - epsilon * np.outer(k, k @ before) + beta * np.outer(k, v)

    assert np.allclose(ours, best, atol=1e-12)
    assert abs(printed - best).max() > 0.1
