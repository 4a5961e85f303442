"""Where the Aalto thesis slips, in its section on relative positions."""

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.positions.shaw import Shaw, ShawParams


def test_E56_the_attention_matrix_is_another_one():
    """Section 3.3 is called "Non-Attention Improvements", "mechanisms [that] do not try to attempt the problem with the
    self-attention", and opens with relative position representations, (16) and (17).

    An improvement outside of attention would leave the attention matrix as it was. (17) by itself does; (16) does not.
    """
    rng = np.random.default_rng(56)
    n, d, k = 7, 4, 3
    Q, K, V = rng.standard_normal((3, n, d))
    a_k, a_v = rng.standard_normal((2, 2 * k + 1, d))
    _, plain = dot_product_attention(Q, K, V)

    encoding = Shaw(d, k)
    _, values_only = encoding(ShawParams(np.zeros_like(a_k), a_v), Q, K, V)
    _, both = encoding(ShawParams(a_k, a_v), Q, K, V)

    np.testing.assert_allclose(values_only.A, plain.A, rtol=0, atol=1e-14)
    assert np.abs(both.A - plain.A).max() > 0.1
    assert "scores" in encoding.acts_on
