"""Linformer: the definition in loops, its limiting cases, what is shared by whom, padding, shorter inputs, gradients."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback, random_like, tree_map
from minitransformer.attention import dot_product_attention, padding_mask
from minitransformer.attention.compressed import Linformer, linformer_attention, memory_compressed_attention
from minitransformer.models import SequenceModel
from minitransformer.pullback import tree_items, tree_size

B, H, N, M, D, DV, K_ROWS, LONGEST = 2, 3, 5, 7, 4, 6, 2, 9


def arrays(heads=True, m=M, seed=0):
    """Q, K, V, E and F."""
    rng = np.random.default_rng(seed)
    own = (H, K_ROWS, LONGEST) if heads else (K_ROWS, LONGEST)
    shapes = (B, H, N, D), (B, H, m, D), (B, H, m, DV), own, own
    return [rng.standard_normal(shape) for shape in shapes]


def loops(Q, K, V, E, F):
    (n, d), (m, dv), k = Q.shape, V.shape, len(E)
    K_bar = [[sum(E[r, j] * K[j, a] for j in range(m)) for a in range(d)] for r in range(k)]
    V_bar = [[sum(F[r, j] * V[j, b] for j in range(m)) for b in range(dv)] for r in range(k)]
    Y = np.zeros((n, dv))
    for i in range(n):
        weights = [math.exp(sum(Q[i, a] * K_bar[r][a] for a in range(d)) / math.sqrt(d)) for r in range(k)]
        for b in range(dv):
            Y[i, b] = sum(weights[r] * V_bar[r][b] for r in range(k)) / sum(weights)
    return Y


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("one", [True, False])
def test_against_loops(heads, one):
    """Of an E for more keys the first columns are used."""
    Q, K, V, E, F = arrays(heads)
    Y, _ = linformer_attention(Q, K, V, E, None if one else F)
    for b, h in np.ndindex(B, H):
        own = [(X[h] if heads else X) for X in (E, E if one else F)]
        np.testing.assert_allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], *own), rtol=0, atol=1e-12)


@pytest.mark.parametrize("heads", [True, False])
def test_no_key(heads, tier):
    """A sum of nothing is zero, and so is the average of such sums."""
    Q, K, V, E, F = arrays(heads, m=0)
    Y, pullback = linformer_attention(Q, K, V, E, F)
    grads = pullback(np.ones_like(Y))
    assert not Y.any()
    assert [g.shape for g in grads] == [X.shape for X in (Q, K, V, E, F)]
    assert not any(g.any() for g in grads)


# ------------------------------------------------------------------------------------------------ limiting cases


def test_as_many_rows_as_keys_and_the_identity_is_dense():
    Q, K, V, *_ = arrays()
    Y, pullback = linformer_attention(Q, K, V, np.eye(M))
    want, dense = dot_product_attention(Q, K, V)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-14)
    for ours, theirs in zip(pullback(want), dense(want), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-14)


def test_averages_of_neighbours_are_a_convolution_with_its_stride():
    Q, K, V, *_ = arrays(m=6)
    E = np.kron(np.eye(2), np.full((1, 3), 1 / 3))
    want, _ = memory_compressed_attention(Q, K, V, *(np.full((H, 3, d), 1 / 3) for d in (D, DV)))
    np.testing.assert_allclose(linformer_attention(Q, K, V, E)[0], want, rtol=0, atol=1e-14)


def test_rows_of_the_identity_select_keys():
    Q, K, V, *_ = arrays()
    chosen = [4, 1, 6]
    want, _ = dot_product_attention(Q, K[..., chosen, :], V[..., chosen, :])
    np.testing.assert_allclose(linformer_attention(Q, K, V, np.eye(M)[chosen])[0], want, rtol=0, atol=1e-14)


def test_the_matrix_has_k_columns():
    _, pullback = linformer_attention(*arrays())
    assert pullback.A.shape == (B, H, N, K_ROWS)
    np.testing.assert_allclose(pullback.A.sum(-1), 1, atol=1e-14)


# -------------------------------------------------------------------------------------------------------- padding


def test_padding_is_zero_before_it_is_mixed():
    """More of it changes nothing; hidden after the mixing it could not be, for every row has some of it."""
    Q, K, V, E, F = arrays()
    longer = [np.concatenate([X, np.full_like(X[..., :2, :], np.nan)], -2) for X in (K, V)]
    mask = padding_mask(np.array([M, M]), LONGEST)[:, None]
    Y, pullback = linformer_attention(Q, *longer, E, F, mask=mask)
    want, shorter = linformer_attention(Q, K, V, E, F)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-14)
    dQ, dK, dV, dE, dF = pullback(want)
    for ours, theirs in zip((dQ, dK[..., :M, :], dV[..., :M, :], dE, dF), shorter(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)
    assert not dK[..., M:, :].any()
    assert not dE[..., M:].any(), "columns that nobody used"


def test_where_all_is_padding_there_is_zero():
    Q, K, V, E, F = arrays()
    with np.errstate(all="raise"):
        Y, pullback = linformer_attention(Q, K, V, E, F, mask=padding_mask(np.array([M, 0]), M)[:, None])
        grads = pullback(np.ones_like(Y))
    assert not Y[1].any()
    assert not any(dX[1].any() for dX in grads[:3])


def test_a_model_says_the_same_of_a_sequence_with_padding():
    for sharing in ("none", "layerwise"):
        model = SequenceModel(20, 16, 12, 2, 3, 10, f"linformer:k=4,sharing={sharing}")
        params = model.init(np.random.default_rng(0), np.float64)
        tokens = np.random.default_rng(1).integers(0, 20, (2, 16))
        whole, _ = model(params, tokens, lengths=np.array([16, 9]))
        np.testing.assert_allclose(whole[1, :9], model(params, tokens[1:, :9])[0][0], rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------------- sharing


@pytest.mark.parametrize(
    ("sharing", "mixing"), [("none", 2 * 2 * 3), ("headwise", 2 * 2), ("key-value", 2), ("layerwise", 1)]
)
def test_how_many_matrices_a_model_has(sharing, mixing):
    """Two layers of three heads."""
    model = SequenceModel(20, 16, 12, 2, 3, 10, f"linformer:k=4,sharing={sharing}")
    params = model.init(np.random.default_rng(0), np.float64)
    plain = SequenceModel(20, 16, 12, 2, 3, 10).init(np.random.default_rng(0))
    assert tree_size(params) - tree_size(plain) == mixing * 4 * 16
    tokens = np.random.default_rng(1).integers(0, 20, (2, 11))
    with mt.backend("numpy"):
        somewhere = tree_map(lambda a: 0.4 * a, random_like(params, np.random.default_rng(2)))
        check_pullback(partial(model, tokens=tokens), somewhere, entries=3)


def test_all_layers_have_one_e():
    model = SequenceModel(20, 16, 12, 3, 3, 10, "linformer:k=4,sharing=layerwise")
    params = model.init(np.random.default_rng(0))
    assert params.stack.shared["attention.core.E"].shape == (4, 16)
    assert not [path for path, _ in tree_items(params.stack.blocks) if path.endswith("core.E")]


def test_shared_by_heads_is_the_same_as_copies_for_each():
    Q, K, V, E, F = arrays(heads=False)
    Y, pullback = linformer_attention(Q, K, V, E, F)
    Z, own = linformer_attention(Q, K, V, np.tile(E, (H, 1, 1)), np.tile(F, (H, 1, 1)))
    assert np.array_equal(Y, Z)
    np.testing.assert_allclose(pullback(Y)[3], own(Y)[3].sum(0), rtol=0, atol=1e-13)


def test_at_the_start_a_sum_has_the_variance_of_a_key():
    params = Linformer(2, 4000, 8).init(np.random.default_rng(0), np.float64)
    K = np.random.default_rng(1).standard_normal((4000, 50))
    assert (params.E @ K).var() == pytest.approx(1, rel=0.15)


# ------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_gradient(heads, padded):
    mask = padding_mask(np.array([M, 4]), M)[:, None] if padded else None
    with mt.backend("numpy"):
        check_pullback(partial(linformer_attention, mask=mask), *arrays(heads), entries=30)
        check_pullback(partial(linformer_attention, mask=mask), *arrays(heads)[:4], entries=30)


# --------------------------------------------------------------------------------------------------------- errors


def test_what_does_not_fit():
    Q, K, V, E, F = arrays()
    with pytest.raises(ValueError, match="K: 7 keys, but E mixes at most 6"):
        linformer_attention(Q, K, V, E[..., :6], F[..., :6])
    with pytest.raises(TypeError, match="'F'"):
        linformer_attention(Q, K, V, E, F[..., :8])
    with pytest.raises(TypeError, match="E: shape"):
        linformer_attention(Q, K, V, E[:2], F[:2])
    with pytest.raises(ValueError, match=r"mask: shape .* a sum of keys has no score for a pair"):
        linformer_attention(Q, K, V, E, F, mask=np.ones((N, M), bool))
    model = SequenceModel(20, 8, 12, 1, 3, 10, "linformer:k=4")
    with pytest.raises(ValueError, match="K: 9 keys"):
        model(model.init(np.random.default_rng(0)), np.zeros((1, 9), int))
