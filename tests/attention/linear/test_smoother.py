"""Kernel smoother: the definition in loops for three similarities, softmax as a special case, what is hidden, gradients."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import causal_mask, dot_product_attention, kernel_attention, padding_mask
from minitransformer.attention.linear import Smoother, exponential, gaussian, kernel_smoother, polynomial
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, M, D, DV = 2, 3, 4, 6, 5, 7
SIMILARITIES = {"exponential": exponential, "gaussian": gaussian, "polynomial": polynomial}
every = pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)


@pytest.fixture
def heads(rng):
    return [rng.standard_normal(shape) for shape in ((B, H, N, D), (B, H, M, D), (B, H, M, DV))]


ONE_PAIR = {
    "exponential": lambda q, k: math.exp(sum(q * k) / math.sqrt(D)),
    "gaussian": lambda q, k: math.exp(-sum((q - k) ** 2) / math.sqrt(D) / 2),
    "polynomial": lambda q, k: (1 + sum(q * k) / math.sqrt(D)) ** 2,
}


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("causal", [False, True])
def test_against_loops(name, causal, heads):
    """y_i = Σ_j sim(q_i, k_j) v_j / Σ_j sim(q_i, k_j), one pair at a time."""
    Q, K, V = heads
    Y, pullback = kernel_smoother(Q, K, V, SIMILARITIES[name], causal=causal)
    for b, h, i in np.ndindex(B, H, N):
        seen = range(i + M - N + 1) if causal else range(M)
        weights = [ONE_PAIR[name](Q[b, h, i], K[b, h, j]) for j in seen]
        y = sum(w * V[b, h, j] for w, j in zip(weights, seen, strict=True)) / sum(weights)
        assert np.allclose(Y[b, h, i], y, rtol=1e-12)
    assert np.allclose(pullback.A.sum(-1), 1)
    assert np.allclose(pullback.A @ V, Y)


# ------------------------------------------------------------------------------------------- limiting cases


@pytest.mark.parametrize("causal", [False, True])
def test_with_exp_it_is_softmax_attention(causal, heads):
    Y, pullback = kernel_smoother(*heads, exponential, causal=causal)
    want, dense = dot_product_attention(*heads, causal=causal)
    assert np.allclose(Y, want, rtol=1e-13)
    for ours, theirs in zip(pullback(want), dense(want), strict=True):
        assert np.allclose(ours, theirs, atol=1e-14)


def test_of_keys_of_one_length_the_gaussian_is_softmax_too(heads):
    """exp(−s ‖q − k‖²/2) is exp(s ⟨q, k⟩), a factor of the query, and a factor of the key: with ‖k‖ constant both cancel."""
    Q, K, V = heads
    K = 2 * K / np.linalg.norm(K, axis=-1, keepdims=True)
    assert np.allclose(kernel_smoother(Q, K, V, gaussian)[0], dot_product_attention(Q, K, V)[0], rtol=1e-12)


def test_a_product_of_features_is_kernel_attention(rng):
    class Products:
        def __init__(self, Q, K):
            self.Q, self.K = Q, K

        def __call__(self, dW):
            return dW @ self.K, dW.mT @ self.Q

    FQ, FK, V = rng.random((B, N, D)), rng.random((B, M, D)), rng.standard_normal((B, M, DV))
    Y, pullback = kernel_smoother(FQ, FK, V, lambda Q, K: (Q @ K.mT, Products(Q, K)), causal=True)
    want, kernel = kernel_attention(FQ, FK, V, causal=True)
    assert np.allclose(Y, want, rtol=1e-13)
    for ours, theirs in zip(pullback(want), kernel(want), strict=True):
        assert np.allclose(ours, theirs, atol=1e-13)


def test_a_narrow_gaussian_finds_the_nearest_key(heads):
    Q, K, V = heads
    nearest = ((Q[..., :, None, :] - K[..., None, :, :]) ** 2).sum(-1).argmin(-1)
    _, pullback = kernel_smoother(Q, K, V, partial(gaussian, scale=40.0))
    found = np.take_along_axis(pullback.A, nearest[..., None], -1)
    assert (pullback.A.argmax(-1) == nearest).all()
    assert found.mean() > 0.9


def test_of_degree_one_it_is_an_average_by_scores(heads):
    Q, K, _ = heads
    W, _ = polynomial(Q, K, degree=1, scale=0.1)
    assert np.allclose(W, 1 + 0.1 * Q @ K.mT)


# ------------------------------------------------------------------------------------------- what is hidden


@every
def test_what_is_hidden_does_not_count(similarity, heads):
    """Neither a later key nor padding, nor NaN in its value; a query that sees nothing gives zeros."""
    Q, K, V = heads
    mask = padding_mask(np.array([M, 0]), M)[:, None] & causal_mask(N, M)
    V[0, :, M - 1] = np.nan
    Y, pullback = kernel_smoother(Q, K, V, similarity, mask=mask)
    alone, _ = kernel_smoother(Q[:1, :, :3], K[:1, :, :5], V[:1, :, :5], similarity, causal=True)
    assert np.allclose(Y[0, :, :3], alone[0], rtol=1e-12)
    assert not Y[1].any()
    assert not pullback.A[1].any()


@every
def test_later_keys_change_no_bit(similarity, heads):
    Q, K, V = heads
    before, _ = kernel_smoother(Q, K, V, similarity, causal=True)
    K[..., 4:, :] += 3
    V[..., 4:, :] -= 3
    after, _ = kernel_smoother(Q, K, V, similarity, causal=True)
    assert np.array_equal(before[..., :2, :], after[..., :2, :])
    assert (before[..., 2:, :] != after[..., 2:, :]).all()


# ------------------------------------------------------------------------------------------------ gradients


@every
@pytest.mark.parametrize("causal", [False, True])
def test_gradient(similarity, causal, heads):
    check_pullback(lambda Q, K, V: kernel_smoother(Q, K, V, similarity, causal=causal), *heads, entries=30)


@pytest.mark.parametrize(
    "similarity",
    [exponential, gaussian, polynomial, partial(gaussian, scale=2.0), partial(polynomial, degree=3, scale=0.3)],
)
def test_gradient_of_a_similarity(similarity, heads):
    check_pullback(similarity, *heads[:2], entries=30)


@pytest.mark.parametrize("name", SIMILARITIES)
@pytest.mark.parametrize("causal", [False, True])
def test_the_core_is_the_function(name, causal, tier, heads):
    mask = padding_mask(np.array([M, 5]), M)[:, None]
    with mt.backend("numpy"):
        want, smoother = kernel_smoother(*heads, SIMILARITIES[name], causal=causal, mask=mask)
    Y, pullback = Smoother(name)(NoParams(), *heads, causal=causal, mask=mask)
    assert np.allclose(Y, want, rtol=1e-11)
    assert np.allclose(pullback.A, smoother.A, rtol=1e-11)
    for ours, theirs in zip(pullback(want)[1:], smoother(want), strict=True):
        assert np.allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("name", SIMILARITIES)
def test_gradient_of_the_core(name, heads):
    check_pullback(partial(Smoother(name), causal=True), NoParams(), *heads, entries=20)


def test_the_core_is_safe_where_all_weights_are_too_small_for_float32(heads):
    """Queries and keys thirty apart: as a number each weight is e^(−200) or less, their ratios are ordinary."""
    Q, K, V = heads
    exact, _ = Smoother()(NoParams(), Q + 30, K, V)
    single, _ = Smoother()(NoParams(), *(X.astype(np.float32) for X in (Q + 30, K, V)))
    assert np.allclose(single, exact, atol=2e-3)
    assert not kernel_smoother(*(X.astype(np.float32) for X in (Q + 30, K, V)), gaussian)[0].any()


# -------------------------------------------------------------------------------------------------- errors


def test_what_does_not_fit(heads):
    Q, K, V = heads
    with pytest.raises(ValueError, match=r"similarity: gave weights .*, which should be \(2, 3, 4, 6\)"):
        kernel_smoother(Q, K, V, lambda Q, K: (np.ones((N, M)), gaussian(Q, K)[1]))
    with pytest.raises(ValueError, match="mask"):
        kernel_smoother(Q, K, V, gaussian, mask=np.ones((N, M + 1), bool))
    with pytest.raises(ValueError, match="Q: 6 queries"):
        kernel_smoother(K, Q, Q, gaussian, causal=True)


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (lambda W, back: W, "^similarity: should return its value and a pullback, .* it returned ndarray"),
        (lambda W, back: (W.tolist(), back), "^similarity: gave weights of list, which should be an array of float64"),
        (lambda W, back: (W > 0, back), "^similarity: gave weights of bool, which should be an array of float64"),
        (lambda W, back: (W[..., :1], back), "^similarity: gave weights"),
        (
            lambda W, back: (W, lambda dW: dW),
            "^similarity: its pullback should give 2 gradients, dQ and dK, and gives ndarray",
        ),
        (lambda W, back: (W, lambda dW: back(dW)[:1]), "^similarity: its pullback should give 2 gradients, .* gives 1"),
    ],
)
def test_a_similarity_that_gives_something_else_is_refused_in_words(heads, spoilt, said):
    with pytest.raises((TypeError, ValueError), match=said):  # noqa: PT012  (either way may tell)
        Y, pullback = kernel_smoother(*heads, lambda Q, K: spoilt(*gaussian(Q, K)))
        pullback(Y)
