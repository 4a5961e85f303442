"""Where the sources slip on attention with a smaller matrix: what is printed fails, what we use holds."""

import math

import numpy as np
import pytest

from minitransformer.attention import dot_product_attention
from minitransformer.attention.compressed import compress, linformer_attention, memory_compressed_attention
from minitransformer.errata.lecture import DOWNSTREAM
from minitransformer.functional import softmax


def test_E1_the_scale_goes_missing_in_14_and_15():
    """Borealis II (1) divides the scores by √d_q, (14) and (15) do not. At d = 64 scores have a deviation of 8 without it.

    The largest of 16 weights is then most of a row on average; with it, a third at most.
    """
    rng = np.random.default_rng(1)
    n, m, d, k = 200, 64, 64, 16
    Q, K, V = rng.standard_normal((n, d)), rng.standard_normal((m, d)), rng.standard_normal((m, 8))
    E = rng.standard_normal((k, m)) / math.sqrt(m)  # rows of E K have the variance of a key
    _, printed = linformer_attention(Q, K, V, E, scale=1.0)
    _, ours = linformer_attention(Q, K, V, E)
    assert printed.A.max(-1).mean() > 0.75
    assert ours.A.max(-1).mean() < 1 / 3


def test_E14_a_convolution_is_more_than_an_average():
    """Borealis II, below (14).

    printed  The effect is "to take a learned weighted average of nearby key/value vectors".
    wrong    An average of s vectors has s numbers as weights. Of what a convolution makes of three vectors of width
             8, more than half (of its length) is no weighted sum of them.
    holds    An s × d × d kernel, whose output need not lie in the space that the vectors span; an average where it is
             a multiple of the identity.
    """
    rng = np.random.default_rng(2)
    s, d = 3, 8
    X, theta = rng.standard_normal((1, s, d)), rng.standard_normal((1, s, d, d))

    block = compress(X, theta)[0][0, 0]
    weights, *_ = np.linalg.lstsq(X[0].T, block, rcond=None)  # the best s numbers
    assert np.linalg.norm(X[0].T @ weights - block) > 0.5 * np.linalg.norm(block)

    w = rng.random(s)  # with multiples of the identity for kernels it is what is said
    as_said = compress(X, w[None, :, None, None] * np.eye(d))[0][0, 0]
    np.testing.assert_allclose(as_said, sum(w[t] * X[0, t] for t in range(s)), rtol=0, atol=1e-14)
    np.testing.assert_allclose(as_said, compress(X, np.repeat(w[None, :, None], d, 2))[0][0, 0], rtol=0, atol=1e-14)


def test_E34_the_projections_have_the_other_shape():
    """Lecture notes, Linformer (and the paper).

    printed  "E_i, F_i ∈ R^{n×k}", and then E_i K W_iK, where K W_iK is n × d.
    wrong    An n × k matrix can't be multiplied by an n × d one, unless k = n: for n = 7 and k = 3, 3 columns meet 7
             rows.
    holds    E_i, F_i of shape k × n; the product is k × d.
    """
    rng = np.random.default_rng(3)
    n, k, d = 7, 3, 4
    Q, K, V = rng.standard_normal((3, n, d))
    as_printed = rng.standard_normal((n, k))

    with pytest.raises(ValueError, match="matmul"):
        as_printed @ K
    with pytest.raises(ValueError, match="7 keys, but E mixes at most 3"):
        linformer_attention(Q, K, V, as_printed)
    Y, pullback = linformer_attention(Q, K, V, np.ascontiguousarray(as_printed.T))
    assert Y.shape == (n, d)
    assert pullback.A.shape == (n, k)


def test_E35_the_quotient_stands_on_the_other_side():
    """Lecture notes, below Theorem 1.

    printed  P = exp(A) D_A⁻¹.
    wrong    A diagonal matrix on the right divides columns: with the sums of the rows in D_A, some row of P is off
             from one by more than 0.2.
    holds    P = D_A⁻¹ exp(A), whose rows sum to one.
    """
    rng = np.random.default_rng(4)
    A = rng.standard_normal((5, 5))
    D_A = np.diag(np.exp(A).sum(1))

    printed, meant = np.exp(A) @ np.linalg.inv(D_A), np.linalg.inv(D_A) @ np.exp(A)
    np.testing.assert_allclose(meant, softmax(A)[0], rtol=0, atol=1e-15)
    assert np.abs(printed.sum(1) - 1).max() > 0.2


def test_E36_keys_and_values_are_projected():
    """Lecture notes, contribution: "two linear projections for query and key". The formula projects keys and values.

    With k queries for n tokens there would be k rows of output; with n values for k keys, no product at all.
    """
    rng = np.random.default_rng(5)
    n, k, d = 7, 3, 4
    Q, K, V = rng.standard_normal((3, n, d))
    E, F = rng.standard_normal((2, k, n))

    A, _ = softmax((E @ Q) @ (F @ K).T / math.sqrt(d))
    assert A.shape == (k, k)
    with pytest.raises(ValueError, match="matmul"):
        A @ V
    assert linformer_attention(Q, K, V, E, F)[0].shape == (n, d)


def test_E36_singular_values_and_not_eigenvalues():
    """Lecture notes, Linformer: a singular value decomposition gives "eigenvalues", which are summed up from the largest on.

    For an attention matrix the two have little to do with each other. Where each token looks at the one before it, all
    eigenvalues but one are 0, as if one number held everything; a matrix of rank one misses nearly all of it.
    """
    n = 32
    P = np.eye(n, k=-1)
    P[0, 0] = 1  # the first looks at itself

    eigenvalues = np.sort(np.abs(np.linalg.eigvals(P)))[::-1]
    U, sigma, Vt = np.linalg.svd(P)
    assert eigenvalues[0] == pytest.approx(1)
    assert eigenvalues[1] < 0.5  # 0, but for rounding of a defective matrix
    assert np.linalg.matrix_rank(P) == n - 1

    missed = np.linalg.norm(P - sigma[0] * U[:, :1] @ Vt[:1]) / np.linalg.norm(P)
    assert missed == pytest.approx(math.sqrt((n - 2) / n))
    assert missed == pytest.approx(math.sqrt((sigma[1:] ** 2).sum() / (sigma**2).sum()))  # Eckart and Young


def test_E37_w_is_a_column():
    """Lecture notes, Theorem 1: w is a column vector of V W_i^V, and the bound is on P̃ wᵀ − P wᵀ. A row can't stand there."""
    P = softmax(np.random.default_rng(6).standard_normal((5, 5)))[0]
    w = np.ones((5, 1))
    with pytest.raises(ValueError, match="matmul"):
        P @ w.T
    np.testing.assert_allclose(P @ w, 1, rtol=0, atol=1e-15)


def test_E37_a_relative_bound_cannot_hold_for_every_w():
    """Lecture notes, Theorem 1.

    printed  For any column w of V W_i^V there is a P̃ = P Rᵀ R with ‖P̃ wᵀ − P wᵀ‖ < ε ‖P wᵀ‖, most likely.
    wrong    A random projection keeps ⟨p, w⟩ to within ε ‖p‖ ‖w‖, and not ε |⟨p, w⟩|. At ε = 1/2 and the k of the
             theorem, the relative error is above ε in all of five draws where w has mean zero, and below where it has
             not.
    holds    P w, and an error of ‖P‖_F ‖w‖/√k.
    """
    rng = np.random.default_rng(7)
    n, d, eps = 1024, 32, 0.5
    k = math.ceil(5 * math.log(n) / (eps**2 - eps**3))
    P, _ = softmax(rng.standard_normal((n, d)) @ rng.standard_normal((d, n)) / math.sqrt(d))
    w = rng.standard_normal(n)

    def error(w):
        R = rng.standard_normal((k, n)) / math.sqrt(k)
        return np.linalg.norm(P @ (R.T @ (R @ w)) - P @ w) / np.linalg.norm(P @ w)

    zero_mean, with_mean = [[error(u) for _ in range(5)] for u in (w - w.mean(), w + 2)]
    assert max(with_mean) < eps
    assert min(zero_mean) > eps
    np.testing.assert_allclose(  # what there is instead: ‖P‖_F ‖w‖/√k
        np.mean(zero_mean), np.linalg.norm(P) * np.linalg.norm(w) / math.sqrt(k) / np.linalg.norm(P @ w), rtol=0.25
    )


def test_E38_only_one_of_six_is_ahead():
    """Lecture notes, downstream results.

    printed  "Linformer slightly outperforms RoBERTa at k=256".
    wrong    Of six rows with k = 256, 1 does.
    holds    With one projection for all layers, at n = 512.
    """
    averages = {name: sum(scores) / 4 for name, (*scores, _) in DOWNSTREAM.items()}
    for name, (*_, printed) in DOWNSTREAM.items():
        assert abs(averages[name] - printed) < 0.0051
    ahead = [name for name, average in averages.items() if average > averages["RoBERTa-base"]]
    assert ahead == ["Linformer, 256, shared kv, layer"]


def test_E38_sharing_across_layers_is_best_at_one_k_only():
    """Lecture notes: sharing across layers is said to be best. It is at k = 256, and not at k = 128."""
    averages = {name: sum(scores) / 4 for name, (*scores, _) in DOWNSTREAM.items()}
    for k, best in ((256, "shared kv, layer"), (128, "shared kv")):
        of_k = {name: average for name, average in averages.items() if name.startswith(f"Linformer, {k}")}
        assert max(of_k, key=of_k.get) == f"Linformer, {k}, {best}"


def test_E38_neither_k_nor_the_ratio_decides():
    """Lecture notes: "determined by the projected dimension k instead of the ratio n/k". Two of three kinds disagree."""
    averages = {name: sum(scores) / 4 for name, (*scores, _) in DOWNSTREAM.items()}
    agree = []
    for sharing in ("", ", shared kv", ", shared kv, layer"):
        long = averages[f"1024: Linformer, 256{sharing}"]
        same_k, same_ratio = (abs(long - averages[f"Linformer, {k}{sharing}"]) for k in (256, 128))
        agree.append(same_k < same_ratio)
    assert agree == [False, False, True]


def test_E54_a_transpose_is_missing():
    """Aalto (12): Softmax(1/√d_k X W_Q (E X W_K)) F X W_V. X W_Q is n × d, and E X W_K is k × d: one has to be turned."""
    rng = np.random.default_rng(8)
    n, k, d = 7, 3, 4
    Q, K, V = rng.standard_normal((3, n, d))
    E, F = rng.standard_normal((2, k, n))
    with pytest.raises(ValueError, match="matmul"):
        Q @ (E @ K)
    meant = softmax(Q @ (E @ K).T / math.sqrt(d))[0] @ (F @ V)
    np.testing.assert_allclose(linformer_attention(Q, K, V, E, F)[0], meant, rtol=0, atol=1e-14)


def test_E54_where_it_happens_to_fit_it_is_something_else():
    """Aalto, (12).

    printed  Softmax(1/√d_k X W_Q (E X W_K)) F X W_V.
    wrong    X W_Q is n × d, and E X W_K is k × d: no product. If k = d it exists, of the wrong axes, and is off by
             more than 0.1; no error is raised, and a model would train.
    holds    (E X W_K)ᵀ
    """
    rng = np.random.default_rng(9)
    n, d = 7, 4
    Q, K, V = rng.standard_normal((3, n, d))
    E, F = rng.standard_normal((2, d, n))
    printed = softmax(Q @ (E @ K) / math.sqrt(d))[0] @ (F @ V)
    assert np.abs(printed - linformer_attention(Q, K, V, E, F)[0]).max() > 0.1
    assert np.abs(printed - dot_product_attention(Q, K, V)[0]).max() > 0.1


def test_E75_a_quarter_of_a_square_is_a_square():
    """Borealis II, the summary after (20).

    printed  "longer sequences without a quadratic increases in computation", of all three families.
    wrong    The first of them begins with memory-compressed attention, whose matrix has n²/s entries: sixteen times as
             many for four times the tokens.
    holds    With k columns, as in Linformer, there are n k entries: four times as many.
    """
    rng = np.random.default_rng(75)
    squares, lines = [], []
    for n in (12, 48):
        Q, K, V = rng.standard_normal((3, 1, n, 4))
        average = np.full((1, 3, 4), 1 / 3)
        _, pullback = memory_compressed_attention(Q, K, V, average, average)
        assert pullback.A.shape[-2:] == (n, n // 3)
        squares.append(pullback.A.size)
        lines.append(linformer_attention(Q[0], K[0], V[0], rng.standard_normal((3, n)))[1].A.size)
    assert squares[1] == 16 * squares[0]
    assert lines[1] == 4 * lines[0]
