"""The four terms of a score with positions: against their sum, their loops and special cases, and the checker."""

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention import MultiHeadAttention
from minitransformer.positions import ALiBi, NoParams, sinusoids
from minitransformer.positions.four_terms import TERMS, four_terms
from minitransformer.positions.shaw import Shaw, ShawParams
from tests.peaks import peak

B, n, D, E, d = 2, 5, 6, 7, 4
SUBSETS = [("cc",), ("cp",), ("pc",), ("pp",), ("cc", "pp"), ("cc", "cp"), ("cc", "cp", "pc"), TERMS]


def some(rng, relative, tied, n=n):
    """X, P, W_q, W_k, and U_q, U_k for a wider P if positions are untied."""
    width = D if tied else E
    X, P = rng.standard_normal((B, n, D)), rng.standard_normal((2 * n - 1 if relative else n, width))
    W, U = rng.standard_normal((2, D, d)), rng.standard_normal((2, width, d))
    return X, P, *W, *([] if tied else U)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("terms", SUBSETS, ids=" ".join)
def test_terms_are_loops_and_scores_their_sum(rng, relative, tied, terms):
    X, P, W_q, W_k, *U = some(rng, relative, tied)
    U_q, U_k = U or (W_q, W_k)
    S, pullback = four_terms(X, P, W_q, W_k, *U, terms=terms, relative=relative)
    loops = {term: np.zeros((B, n, n)) for term in TERMS}
    for b, i, j in np.ndindex(B, n, n):
        of_key = P[j - i + n - 1] if relative else P[j]
        of_query = P[i - j + n - 1] if relative else P[i]
        loops["cc"][b, i, j] = (X[b, i] @ W_q) @ (X[b, j] @ W_k) / 2
        loops["cp"][b, i, j] = (X[b, i] @ W_q) @ (of_key @ U_k) / 2
        loops["pc"][b, i, j] = (of_query @ U_q) @ (X[b, j] @ W_k) / 2
        loops["pp"][b, i, j] = (of_query @ U_q) @ (of_key @ U_k) / 2
    for term in TERMS:  # all can be looked at, also those that are switched off
        np.testing.assert_allclose(np.broadcast_to(getattr(pullback, term), S.shape), loops[term], rtol=0, atol=1e-12)
    np.testing.assert_allclose(S, sum(loops[term] for term in terms), rtol=0, atol=1e-12)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("terms", SUBSETS, ids=" ".join)
def test_gradients(rng, relative, tied, terms):
    X, P, *matrices = some(rng, relative, tied)
    names = [] if tied else ["U_q", "U_k"]
    used = {"X": "cc cp pc", "P": "cp pc pp", "W_q": "cc cp", "W_k": "cc pc", "U_q": "pc pp", "U_k": "cp pp"}
    if tied:  # what positions use is W
        used["W_q"] += " pc pp"
        used["W_k"] += " cp pp"
    zero = [name for name in ("X", "P", "W_q", "W_k", *names) if not set(used[name].split()) & set(terms)]

    def scores(X, P, W_q, W_k, U_q, U_k):
        return four_terms(X, P, W_q, W_k, U_q, U_k, terms=terms, relative=relative)

    check_pullback(scores, X, P, *matrices, *([None, None] if tied else []), zero=zero)


def test_positions_as_wide_as_tokens_need_no_matrices_of_their_own(rng):
    X, P, W = rng.standard_normal((n, 300)), rng.standard_normal((n, 300)), rng.standard_normal((300, d))
    S, _ = four_terms(X, P, W, W)
    np.testing.assert_allclose(S, (X + P) @ W @ W.T @ (X + P).T / d**0.5, atol=1e-9)


@pytest.mark.parametrize("one", ["U_q", "U_k"])
def test_gradients_with_one_matrix_for_positions(rng, one):
    X, P, W_q, W_k = some(rng, False, True)

    def scores(X, P, W_q, W_k, U):
        return four_terms(X, P, W_q, W_k, **{one: U})

    check_pullback(scores, X, P, W_q, W_k, rng.standard_normal((D, d)))


def test_added_positions_are_all_four(rng):
    """(8): all four terms of a head are its scores of X + Π."""
    layer = MultiHeadAttention(D, 2, bias=False)
    params = layer.init(rng, np.float64)
    X, Pi = rng.standard_normal((B, n, D)), sinusoids(n, D)
    _, attention = layer(params, X + Pi)
    for head in range(2):
        columns = slice(3 * head, 3 * head + 3)
        S, _ = four_terms(X, Pi, params.W_q[:, columns], params.W_k[:, columns])
        A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
        np.testing.assert_allclose(attention.A[:, head], A, rtol=0, atol=1e-12)


def test_no_positions_is_content_alone(rng):
    X, P, *matrices = some(rng, False, False)
    S, _ = four_terms(X, np.zeros_like(P), *matrices)
    np.testing.assert_array_equal(S, four_terms(X, P, *matrices, terms=("cc",))[0])


def test_untied_positions_do_not_depend_on_content(rng):
    """(9): content–content and position–position; the difference of two sentences knows nothing of positions."""
    X, P, *matrices = some(rng, False, False)
    Z = rng.standard_normal(X.shape)
    pair = [four_terms(M, P, *matrices, terms=("cc", "pp"))[0] for M in (X, Z)]
    content = [four_terms(M, P, *matrices, terms=("cc",))[0] for M in (X, Z)]
    np.testing.assert_allclose(pair[0] - pair[1], content[0] - content[1], rtol=0, atol=1e-13)


def test_shaw_is_two_terms_with_vectors_in_the_space_of_keys(rng):
    """(10): a relative content–position term, whose projection is the identity."""
    X, _, W_q, W_k = some(rng, True, True)
    a_k = rng.standard_normal((2 * n - 1, d))
    S, _ = four_terms(X, a_k, W_q, W_k, np.eye(d), np.eye(d), terms=("cc", "cp"), relative=True)
    shaw, _ = Shaw(d, n - 1, values=False).scores(ShawParams(a_k), X @ W_q, X @ W_k)
    np.testing.assert_allclose(S, shaw, rtol=0, atol=1e-13)


def test_relative_position_position_is_a_bias_for_each_offset(rng):
    """(11), and ALiBi: with relative vectors the fourth term is one number for each offset."""
    X, P, *matrices = some(rng, True, False)
    _, pullback = four_terms(X, P, *matrices, relative=True)
    for offset in range(1 - n, n):
        assert np.ptp(np.diagonal(pullback.pp, offset)) < 1e-13

    bias, _ = ALiBi(1).bias(NoParams(), n, n, causal=True)
    one = np.array([[1.0]])  # vectors of width one: r_{i−j} r_{j−i} is a bias if one of each pair is 1
    r = np.where(np.arange(1 - n, n) <= 0, bias[0], 1.0)[:, None]
    S, _ = four_terms(X[..., :1], r, one, one, one, one, terms=("pp",), relative=True, scale=1.0)
    rows, columns = np.tril_indices(n, -1)
    np.testing.assert_allclose(S[0][rows, columns], -np.abs(rows - columns) / 256, rtol=0, atol=1e-15)


def test_deberta_drops_one_term(rng):
    """(13), with its two indices: x_i Φ_q Ψ_kᵀ π_{i−j}ᵀ and π_{j−i} Ψ_q Φ_kᵀ x_jᵀ, scaled by 1/√(3d)."""
    X, P, W_q, W_k, U_q, U_k = some(rng, True, False)
    S, _ = four_terms(X, P, W_q, W_k, U_q, U_k, terms=("cc", "cp", "pc"), relative=True, scale=1 / np.sqrt(3 * d))
    pi = P[::-1]  # π_{i−j} stands in row i − j + n − 1
    for b, i, j in np.ndindex(B, n, n):
        q, k = X[b, i] @ W_q, X[b, j] @ W_k
        score = q @ k + q @ (pi[i - j + n - 1] @ U_k) + (pi[j - i + n - 1] @ U_q) @ k
        assert np.isclose(S[b, i, j], score / np.sqrt(3 * d), rtol=0, atol=1e-12)


def test_relative_scores_do_not_care_where_the_sentence_stands(rng):
    """The last n of n + 3 words have, among themselves, the scores that they have alone."""
    X, P, *matrices = some(rng, True, False, n + 3)
    S, _ = four_terms(X, P, *matrices, relative=True)
    alone, _ = four_terms(X[:, 3:], P[3:-3], *matrices, relative=True)
    np.testing.assert_allclose(S[:, 3:, 3:], alone, rtol=0, atol=1e-12)


def test_biases_are_a_feature_that_is_always_one(rng):
    """Q = (X + Π) W_q + b_q as in BERT: a column of ones in X, of zeros in Π, and b as the last row of W."""
    X, Pi, W_q, W_k = some(rng, False, True)
    b_q, b_k = rng.standard_normal((2, d))
    ones, zeros = np.ones((B, n, 1)), np.zeros((n, 1))
    S, _ = four_terms(
        np.concatenate([X, ones], -1), np.hstack([Pi, zeros]), np.vstack([W_q, b_q]), np.vstack([W_k, b_k])
    )
    Q, K = (X + Pi) @ W_q + b_q, (X + Pi) @ W_k + b_k
    np.testing.assert_allclose(S, Q @ K.mT / 2, rtol=0, atol=1e-12)


def test_order_of_terms_and_scale(rng):
    arguments = some(rng, False, True)
    S, _ = four_terms(*arguments, terms=("cc", "pc"))
    np.testing.assert_array_equal(four_terms(*arguments, terms=["pc", "cc", "pc"])[0], S)
    np.testing.assert_allclose(four_terms(*arguments, terms=("cc", "pc"), scale=1)[0], 2 * S, rtol=0, atol=1e-12)


def test_one_word(rng):
    """Its offset from itself is zero: relative or not, it is the same."""
    X, P, W = rng.standard_normal((B, 1, D)), rng.standard_normal((1, D)), rng.standard_normal((2, D, d))
    S, pullback = four_terms(X, P, *W)
    relative, relative_pullback = four_terms(X, P, *W, relative=True)
    np.testing.assert_allclose(relative, S, rtol=0, atol=1e-13)
    for ours, theirs in zip(relative_pullback(S), pullback(S), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_no_array_of_pairs_and_features(rng):
    """n · n · d numbers would take 32 MiB here, the scores 2 MiB, a table of n queries and 2n − 1 offsets 4 MiB."""
    length, width = 512, 16
    X, W = rng.standard_normal((1, length, width)), rng.standard_normal((2, width, width))
    P = rng.standard_normal((2 * length - 1, width))

    def both_ways():
        S, pullback = four_terms(X, P, *W, relative=True)
        return pullback(S)

    assert peak(both_ways) < 24e6


def test_bad_arguments(rng):
    X, P, W_q, W_k = some(rng, False, True)
    with pytest.raises(ValueError, match=r"terms: \('cc', 'xx'\) should be one or more of cc, cp, pc, pp"):
        four_terms(X, P, W_q, W_k, terms=("cc", "xx"))
    with pytest.raises(ValueError, match=r"terms: \(\) should be one or more"):
        four_terms(X, P, W_q, W_k, terms=())
    with pytest.raises(TypeError, match="Pi: 4 rows, but 5 tokens have 5 positions"):
        four_terms(X, P[:-1], W_q, W_k)
    with pytest.raises(TypeError, match="Pi: 5 rows, but 5 tokens have 9 offsets"):
        four_terms(X, P, W_q, W_k, relative=True)
    wide = rng.standard_normal((n, E))
    with pytest.raises(TypeError, match="Pi: rows of width 7 need matrices U_q and U_k of their own"):
        four_terms(X, wide, W_q, W_k, rng.standard_normal((E, d)))
    with pytest.raises(TypeError, match="U_k"):
        four_terms(X, wide, W_q, W_k, rng.standard_normal((E, d)), rng.standard_normal((E, d + 1)))
    with pytest.raises(TypeError, match="should have one dtype"):
        four_terms(X, P.astype(np.float32), W_q, W_k)
