"""What the CS224N notes say of relative positions, written out with its sums visible."""

import math

import numpy as np

from minitransformer.positions.shaw import Shaw, ShawParams


def test_cs224n_relative_positions():
    """CS224N notes, "Relative Position Embeddings": they "are LEARNED and added to the self-attention outputs".

        O_i = Σ_j a_ij v_j + Σ_j a_ij r^V_{j−i}      a learned vector for each offset, added to the outputs,
        e_ij = q_i · (k_j + r^K_{j−i}) / √d          and one in the keys, which the phrase leaves out (E70)

    The first line alone is Shaw with zeros for the keys' vectors; learned means: gradients reach both tables.
    """
    rng = np.random.default_rng(1)
    n, d = 4, 3
    q, k, v = rng.standard_normal((3, n, d))
    r_K, r_V = rng.standard_normal((2, 2 * n - 1, d))  # row j − i + n − 1

    def outputs(r_K):
        O = np.zeros((n, d))  # noqa: E741
        for i in range(n):
            e = [sum(q[i, c] * (k[j, c] + r_K[j - i + n - 1, c]) for c in range(d)) / math.sqrt(d) for j in range(n)]
            total = sum(math.exp(e[j]) for j in range(n))
            for j in range(n):
                for c in range(d):
                    O[i, c] += math.exp(e[j]) / total * v[j, c]
                    O[i, c] += math.exp(e[j]) / total * r_V[j - i + n - 1, c]
        return O

    encoding = Shaw(d, n - 1)
    added, _ = encoding(ShawParams(np.zeros_like(r_K), r_V), q, k, v)
    np.testing.assert_allclose(added, outputs(np.zeros_like(r_K)), rtol=0, atol=1e-13)

    Y, pullback = encoding(ShawParams(r_K, r_V), q, k, v)
    np.testing.assert_allclose(Y, outputs(r_K), rtol=0, atol=1e-13)

    dparams, *_ = pullback(rng.standard_normal((n, d)))
    assert (np.abs(dparams.a_k).max(1) > 1e-4).all()
    assert (np.abs(dparams.a_v).max(1) > 1e-4).all()
