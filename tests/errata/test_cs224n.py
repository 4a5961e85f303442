"""Where the CS224N notes slip: what is printed fails, what we use holds.

Half a page that somebody wrote for themselves. It says the right things; these are the places where a reader who types
it in will stumble.
"""

import math

import numpy as np
import pytest

from minitransformer.attention import MultiHeadAttention, aggregate, attend, dot_product_attention, scores
from minitransformer.checker import check_pullback
from minitransformer.functional import layer_norm, layer_norm_outside, linear, relu, softmax
from minitransformer.models import FeedForward
from minitransformer.positions.shaw import Shaw, ShawParams
from minitransformer.pullback import tree_size


def test_E67_rows_or_columns_but_not_both():
    """CS224N, matrix form.

    printed  Q = W^(Q) x, K = W^(K) x, V = W^(V) x, then Out = softmax(Q Kᵀ/√d_k) V.
    wrong    If W x is to make sense, tokens are columns, and Q is d × n. Then Q Kᵀ is d × d, 3 × 3 for five tokens:
             it compares channels, not tokens.
    holds    All in columns, with Qᵀ K and V Aᵀ, or all in rows, with x W and Q Kᵀ. The book uses rows.
    """
    rng = np.random.default_rng(1)
    n, D, d = 5, 4, 3
    x = rng.standard_normal((D, n))  # tokens as columns
    W_Q, W_K, W_V = rng.standard_normal((3, d, D))
    Q, K, V = W_Q @ x, W_K @ x, W_V @ x

    assert (Q @ K.T).shape == (d, d)  # as printed: no token is compared with any other
    assert (Q.T @ K).shape == (n, n)  # in columns this is what is meant

    in_columns = V @ softmax(Q.T @ K / math.sqrt(d))[0].T  # d × n
    in_rows, _ = dot_product_attention(*(linear(np.ascontiguousarray(x.T), W.T)[0] for W in (W_Q, W_K, W_V)))
    np.testing.assert_allclose(in_rows, in_columns.T, rtol=0, atol=1e-13)


def test_E68_epsilon_outside_the_root_is_a_variant():
    """CS224N, layernorm.

    printed  (x − μ)/(σ + ε). The other sources have √(σ² + ε).
    wrong    Both are in use, and both are right, but for σ = ε = 1e-5 one gives a deviation of 1/2 and the other of
             0.003, and the gradients differ by a factor above 50: copy weights from one to the other and the small
             rows change.
    holds    Either, and for ordinary rows nobody can tell them apart.
    """
    rng = np.random.default_rng(2)
    D, eps = 8, 1e-5
    one, zero = np.ones(D), np.zeros(D)
    ordinary = rng.standard_normal((3, D))
    ordinary = (ordinary - ordinary.mean(-1, keepdims=True)) / ordinary.std(-1, keepdims=True)
    dY = rng.standard_normal((3, D))

    def both(X):
        inside, inside_pullback = layer_norm(X, one, zero, eps=eps)
        outside, outside_pullback = layer_norm_outside(X, one, zero, eps=eps)
        return inside, outside, inside_pullback(dY)[0], outside_pullback(dY)[0]

    inside, outside, dX_inside, dX_outside = both(ordinary)
    np.testing.assert_allclose(inside, outside, rtol=1e-4)
    np.testing.assert_allclose(dX_inside, dX_outside, rtol=0, atol=1e-3)

    inside, outside, dX_inside, dX_outside = both(eps * ordinary)  # σ = ε
    assert outside.std() == pytest.approx(1 / 2, rel=1e-9)  # ε / (ε + ε)
    assert inside.std() == pytest.approx(math.sqrt(eps), rel=1e-3)  # ε / √(ε² + ε), near √ε = 0.003
    assert np.linalg.norm(dX_outside) > 50 * np.linalg.norm(dX_inside)

    # each has the gradient of its own forward function
    gamma, beta = rng.standard_normal((2, D))
    for function in (layer_norm, layer_norm_outside):
        assert check_pullback(function, ordinary, gamma, beta).error < 1e-6


def test_E69_the_variance_of_the_sum_and_its_root():
    """CS224N, scaling.

    printed  "the mean of variance is sum of variance, so for dimension d, the resulting one-variant layer becomes
             d-variant. so, we normalize our attention by d_k". The formula has √d_k.
    wrong    Divided by d = 64, a score has a variance of 1/64.
    holds    It is the variance of a sum of independent terms that is the sum of the variances, so a score has
             variance d, and √d makes it 1.
    """
    rng = np.random.default_rng(3)
    d, draws = 64, 20_000
    q, k = rng.standard_normal((2, draws, d))
    terms = q * k

    variances = terms.var(axis=0)
    of_the_sum = terms.sum(axis=1).var()
    assert of_the_sum == pytest.approx(variances.sum(), rel=0.05)  # variance of the sum = sum of the variances
    assert variances.mean() == pytest.approx(1, rel=0.05)  # the mean of the variances is another number

    by_d, by_root = (terms.sum(axis=1) / d).var(), (terms.sum(axis=1) / math.sqrt(d)).var()
    assert by_d == pytest.approx(1 / d, rel=0.05)
    assert by_root == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(scores(q[:, None], k[:, None])[0].ravel(), terms.sum(axis=1) / math.sqrt(d), atol=1e-12)


def test_E70_relative_positions_go_to_the_keys():
    """Relative positions, printed: they "are LEARNED and added to the self-attention outputs".

    An addition to the outputs is what the values' half of the method amounts to. It cannot change who attends to whom.
    The half that does stands in the keys: e_ij = q_i · (k_j + a_{j−i}) / √d.
    """
    rng = np.random.default_rng(4)
    n, d = 6, 4
    Q, K, V = rng.standard_normal((3, n, d))
    a_K, a_V = rng.standard_normal((2, 2 * n - 1, d))  # one vector for each offset j − i
    a_K[n] *= 20  # offset +1 matters: a word should be able to look for its neighbour

    def offset(table, i, j):
        return table[j - i + n - 1]

    S, _ = scores(Q, K)
    A, _ = softmax(S)
    Y, _ = aggregate(A, V)
    added_to_outputs = np.array([Y[i] + sum(A[i, j] * offset(a_V, i, j) for j in range(n)) for i in range(n)])
    in_the_values = np.array([sum(A[i, j] * (V[j] + offset(a_V, i, j)) for j in range(n)) for i in range(n)])
    np.testing.assert_allclose(added_to_outputs, in_the_values, rtol=0, atol=1e-13)  # so the phrase means the values

    in_the_keys = np.array([[Q[i] @ (K[j] + offset(a_K, i, j)) for j in range(n)] for i in range(n)]) / math.sqrt(d)
    A_keys, _ = softmax(in_the_keys)
    to_neighbour = [np.diagonal(M, 1) for M in (A, A_keys)]
    assert np.abs(to_neighbour[1] - to_neighbour[0]).max() > 0.5  # this changes who looks at whom

    # with content alone, shuffled words look at each other as before: outputs know of offsets, the weights do not
    order = rng.permutation(n)
    np.testing.assert_allclose(softmax(scores(Q[order], K[order])[0])[0], A[order][:, order], rtol=0, atol=1e-14)


def test_E70_what_is_added_to_the_outputs_has_looked_nowhere_else():
    """CS224N, relative positions.

    printed  They "are LEARNED and added to the self-attention outputs".
    wrong    That is Shaw without vectors for the keys: it can say where the words stood that one has looked at, and
             never where to look. A head that is to find the word before gives it less than 0.2 of its weight
             somewhere.
    holds    With a vector in the keys more than 0.99 everywhere, whatever the words are.
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

    Y, as_printed = attend(encoding, ShawParams(a_k, a_v), Q, K, V)
    plain, attention = dot_product_attention(Q, K, V)
    T = np.array([[sum(A_i[j] for j in range(n) if np.clip(j - i, -k, k) == c - k) for c in range(2 * k + 1)]
                  for i, A_i in enumerate(attention.A)])  # fmt: skip
    np.testing.assert_allclose(Y, plain + T @ a_v, rtol=0, atol=1e-13)  # added to the outputs, indeed
    np.testing.assert_allclose(as_printed.A, attention.A, rtol=0, atol=1e-14)
    assert weight_of_the_previous_word(as_printed.A).min() < 0.2

    a_k[k - 1, 0] = 40  # offset −1
    _, in_the_keys = attend(encoding, ShawParams(a_k, a_v), Q, K, V)
    assert weight_of_the_previous_word(in_the_keys.A).min() > 0.99


def test_E71_one_linear_layer_with_a_relu_cannot_bend_back():
    """Transformer block, printed: "we apply a linear layer with a ReLU after". There are two, and a ReLU between.

    With one layer every output is max(0, w·x + b): never negative, and along any line it rises or falls but cannot do
    both. |x| is out of reach; so is any feature that is large in two places. Two layers with two hidden units make it.
    """
    x = np.array([[-2.0], [-1.0], [0.0], [1.0], [2.0]])
    wanted = np.abs(x)

    best = math.inf
    for w in np.linspace(-3, 3, 61):  # every single layer on a grid
        for b in np.linspace(-3, 3, 61):
            Y, _ = relu(linear(x, np.array([[w]]), np.array([b]))[0])
            best = min(best, float(np.abs(Y - wanted).max()))
    assert best >= 1 - 1e-12  # the best of all is off by 1 somewhere

    two = FeedForward(width=1, hidden=2)
    params = two.init(np.random.default_rng(5), np.float64)
    params = params._replace(W_1=np.array([[1.0, -1.0]]), W_2=np.array([[1.0], [1.0]]))
    np.testing.assert_array_equal(two(params, x)[0], wanted)

    params = params._replace(W_2=-params.W_2)
    assert (two(params, x)[0] <= 0).all()  # and it can say something negative


def test_E72_the_heads_share_the_width():
    """Multi-head, printed: "for each single head, divide by number of heads". Divide what? The width: D/H a head.

    Dividing the output of every head by H is another thing: it changes the numbers, and saves no computation.
    """
    rng = np.random.default_rng(6)
    n, D, H = 5, 12, 3
    X = rng.standard_normal((n, D))

    sizes = {H: tree_size(MultiHeadAttention(D, H, bias=False).init(rng)) for H in (1, 2, 3, 4, 6, 12)}
    assert set(sizes.values()) == {4 * D * D}  # "the same amount of computation": so with the width divided

    attention = MultiHeadAttention(D, H, bias=False)
    params = attention.init(rng, np.float64)
    Y, _ = attention(params, X)

    divided_width, full_width = np.zeros((n, D)), np.zeros((n, D))
    products = {"width divided": 0, "output divided": 0}
    for h in range(H):
        mine = slice(h * D // H, (h + 1) * D // H)
        q, k, v = X @ params.W_q[:, mine], X @ params.W_k[:, mine], X @ params.W_v[:, mine]
        divided_width += dot_product_attention(q, k, v)[0] @ params.W_o[mine]  # the sum of what the heads write
        products["width divided"] += n * n * q.shape[1]

        q, k, v = X @ params.W_q, X @ params.W_k, X @ params.W_v  # every head as wide as the model, its output / H
        full_width += dot_product_attention(q, k, v)[0] @ params.W_o / H
        products["output divided"] += n * n * q.shape[1]

    np.testing.assert_allclose(Y, divided_width, rtol=0, atol=1e-13)
    assert np.abs(Y - full_width).max() > 0.1
    assert products == {"width divided": n * n * D, "output divided": n * n * D * H}
