"""Where the CS224N notes slip, on relative positions."""

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.positions.shaw import Shaw, ShawParams


def test_E70_what_is_added_to_the_outputs_has_looked_nowhere_else():
    """Relative positions, printed: they "are LEARNED and added to the self-attention outputs".

    Taken at its word that is Shaw without vectors for the keys. Then a learned vector can say where the words stood that
    one has looked at, but never where to look: a head that should attend to the previous word can't learn it.
    With a vector in the keys it can, whatever the words are.
    """
    rng = np.random.default_rng(70)
    n, d, k = 8, 4, 2
    Q, K, V = rng.standard_normal((3, n, d))
    Q[:, 0] = 1  # one feature that all queries have, as a bias would give them
    a_k, a_v = np.zeros((2, 2 * k + 1, d))
    a_v[:] = rng.standard_normal(a_v.shape)
    encoding = Shaw(d, k)

    def weight_of_the_previous_word(A):
        return np.diagonal(A, -1)

    Y, as_printed = encoding(ShawParams(a_k, a_v), Q, K, V)
    plain, attention = dot_product_attention(Q, K, V)
    T = np.array([[sum(A_i[j] for j in range(n) if np.clip(j - i, -k, k) == c - k) for c in range(2 * k + 1)]
                  for i, A_i in enumerate(attention.A)])  # fmt: skip
    np.testing.assert_allclose(Y, plain + T @ a_v, rtol=0, atol=1e-13)  # added to the outputs, indeed
    np.testing.assert_allclose(as_printed.A, attention.A, rtol=0, atol=1e-14)
    assert weight_of_the_previous_word(as_printed.A).min() < 0.2

    a_k[k - 1, 0] = 40  # offset −1
    _, in_the_keys = encoding(ShawParams(a_k, a_v), Q, K, V)
    assert weight_of_the_previous_word(in_the_keys.A).min() > 0.99
