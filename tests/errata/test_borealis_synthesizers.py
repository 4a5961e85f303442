"""Where Borealis II slips on synthesizers and routing: what is printed fails, what we use holds."""

import numpy as np

from minitransformer.attention import dot_product_attention
from minitransformer.functional import softmax
from minitransformer.related import Synthesizer, SynthesizerParams
from minitransformer.related.synthesizer_logits import DenseParams

PRINTED = (
    r"\bf Softmax\left[\bf Relu[\mathbf{X}\boldsymbol\Phi_{1}]\boldsymbol\Phi_{2}]\right] \mathbf{X}\boldsymbol\Phi_{v}"
)


def test_E20_a_bracket_that_nothing_opens():
    """Borealis II, after (21), second line: Softmax[Relu[X Φ_1] Φ_2]] X Φ_v.

    Two brackets open there, and three close.
    """
    plain = PRINTED.replace(r"\left[", "[").replace(r"\right]", "]")
    assert (plain.count("["), plain.count("]")) == (2, 3)
    mended = plain.replace(r"\Phi_{2}]]", r"\Phi_{2}]")
    assert mended.count("[") == mended.count("]") == 2


def test_E20_without_biases_a_token_of_zeros_weighs_all_alike():
    """ReLU(0 Φ_1) Φ_2 = 0, so a token of zeros can't prefer a place, and a longer token only is more sure of what it prefers.

    With the biases of the paper a token of zeros prefers the places of b_2.
    """
    rng = np.random.default_rng(20)
    n, D, d = 6, 4, 5
    Phi_1, Phi_2, b_2 = rng.standard_normal((D, d)), rng.standard_normal((d, n)), rng.standard_normal(n)
    x = rng.standard_normal(D)

    def logits(token, bias):
        return np.maximum(token @ Phi_1, 0) @ Phi_2 + bias

    assert np.array_equal(softmax(logits(np.zeros(D), 0))[0], np.full(n, 1 / n))
    np.testing.assert_allclose(logits(3 * x, 0), 3 * logits(x, 0))  # the same order of places, whatever the length

    core = Synthesizer(heads=1, d=d, longest=n)
    Q = np.zeros((1, n, d))
    _, pullback = core(SynthesizerParams(DenseParams(Phi_2[None], b_2[None])), Q, Q, rng.standard_normal((1, n, 2)))
    np.testing.assert_allclose(pullback.A[0, 0], softmax(b_2)[0], rtol=1e-12)
    assert np.ptp(pullback.A[0, 0]) > 0.1


def test_E20_MLP_of_X_is_n_by_n_only_for_one_n():
    """Softmax[MLP[X]] has as many columns as Φ_2. For n tokens that are n, so the equation as printed is for one length alone.

    With columns for the longest text, of which n tokens use the first n, each text is a prefix of a longer one: what the
    first tokens say does not change when more are hidden behind them.
    """
    rng = np.random.default_rng(2)
    core = Synthesizer(heads=2, d=3, longest=9)
    params = core.init(rng, np.float64)
    Q, V = rng.standard_normal((2, 2, 7, 3))
    there = np.arange(7) < 5
    long, _ = core(params, Q, Q, V, mask=there[None])
    short, _ = core(params, Q[:, :5], Q[:, :5], V[:, :5])
    np.testing.assert_allclose(long[:, :5], short, rtol=0, atol=1e-13)


def test_E74_an_output_takes_a_row_of_weights():
    """Borealis II, figure 11: a[x_i, x_j] is to relate the i-th value to the j-th output.

    In (7) and (8) the query comes first, and softmax is over rows. With those letters the caption gives output j the weights
    of column j, which don't sum to one; what (1) computes is a sum of the j-th values for the i-th output.
    """
    rng = np.random.default_rng(74)
    Q, K, V = rng.standard_normal((3, 4, 3))
    Y, pullback = dot_product_attention(Q, K, V)
    a = pullback.A

    printed, meant = np.zeros((2, 4, 3))
    for i in range(4):
        for j in range(4):
            printed[j] += a[i, j] * V[i]
            meant[i] += a[i, j] * V[j]
    np.testing.assert_allclose(meant, Y, rtol=1e-12)
    assert np.abs(printed - Y).max() > 0.1
    assert np.abs(a.sum(0) - 1).max() > 0.1
