"""The core of the book against three loops, against its own identities, and against the checker.

The tier "numpy" here, where every matrix is formed; that the other tiers agree with it is tested with the kernels.
"""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    aggregate,
    attend,
    block_pattern,
    block_sparse_attention,
    causal_mask,
    dot_product_attention,
    padding_mask,
    scores,
)
from minitransformer.attention.dot_product import attend_to_buffer
from minitransformer.backend import available
from minitransformer.positions import Shaw

pytestmark = pytest.mark.usefixtures("definitions")

fixed = np.random.default_rng(0)
B, N, M, D, DV = 2, 4, 5, 3, 6
Q, K, V = (fixed.standard_normal((B, *shape)) for shape in ((N, D), (M, D), (M, DV)))
MASK = fixed.random((B, N, M)) < 0.6
MASK[1, 2] = False  # a query that sees nothing
MASK[0, 1] = True


def loops(Q, K, V, *, causal=False, mask=None, scale=None):
    """Y_i = Σ_j exp(s_ij) v_j / Σ_j exp(s_ij), one query at a time, over the keys that it sees."""
    (n, d), (m, dv) = Q.shape, V.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    Y = np.zeros((n, dv))
    for i in range(n):
        seen = [j for j in range(m) if (mask is None or mask[i, j]) and not (causal and j > i + m - n)]
        weights = [math.exp(scale * sum(Q[i, k] * K[j, k] for k in range(d))) for j in seen]
        for j, w in zip(seen, weights, strict=True):
            Y[i] += w / sum(weights) * V[j]
    return Y


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "mask": {"mask": MASK},
    "causal and mask": {"causal": True, "mask": MASK},
    "scale": {"scale": 0.7},
    "negative scale": {"scale": -2},
    "padding": {"mask": padding_mask(np.array([5, 2]), M)},
    "one mask for all": {"mask": MASK[0]},
    "keys only": {"mask": MASK[0, 0]},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_against_three_loops(options):
    Y, pullback = dot_product_attention(Q, K, V, **options)
    for b in range(B):
        mask = None if "mask" not in options else np.broadcast_to(options["mask"], (B, N, M))[b]
        assert np.allclose(Y[b], loops(Q[b], K[b], V[b], **options | {"mask": mask}), rtol=1e-12, atol=1e-15)
    assert np.allclose(pullback.A @ V, Y, rtol=1e-12)


@given(
    n=st.integers(0, 6),
    m=st.integers(0, 6),
    d=st.integers(1, 4),
    dv=st.integers(1, 4),
    causal=st.booleans(),
    data=st.data(),
)
def test_any_lengths_against_three_loops(n, m, d, dv, causal, data):
    """Also n = 0, m = 0, one key, more queries than keys, and masks that hide everything from someone."""
    r = np.random.default_rng(data.draw(st.integers(0, 99)))
    Q, K, V = r.standard_normal((n, d)), r.standard_normal((m, d)), r.standard_normal((m, dv))
    mask = r.random((n, m)) < data.draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    Y, pullback = dot_product_attention(Q, K, V, causal=causal, mask=mask)
    assert np.allclose(Y, loops(Q, K, V, causal=causal, mask=mask), rtol=1e-10, atol=1e-13)
    assert [g.shape for g in pullback(Y)] == [(n, d), (m, d), (m, dv)]
    assert all(np.isfinite(g).all() for g in pullback(Y))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_gradient(options):
    check_pullback(partial(dot_product_attention, **options), Q, K, V)


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_gradient_with_other_batch_axes(batch, rng):
    args = (rng.standard_normal((*batch, *shape)) for shape in ((N, D), (M, D), (M, DV)))
    check_pullback(partial(dot_product_attention, causal=True), *args, entries=10)


def test_gradient_of_the_stages(rng):
    check_pullback(scores, Q, K)
    check_pullback(partial(scores, scale=0.3), Q, K)
    check_pullback(aggregate, rng.standard_normal((B, N, M)), V)


def test_the_three_stages_are_the_whole():
    S, _ = scores(Q, K)
    assert np.allclose(S[1, 2, 3], Q[1, 2] @ K[1, 3] / math.sqrt(D), rtol=1e-14)
    _, pullback = dot_product_attention(Q, K, V)
    A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    assert np.allclose(pullback.A, A, rtol=1e-13)
    assert np.allclose(aggregate(A, V)[0], A @ V, rtol=1e-14)


# ----------------------------------------------------------------------------------------- limiting cases


def test_zero_queries_give_the_mean_of_the_values():
    Y, _ = dot_product_attention(np.zeros_like(Q), K, V)
    assert np.allclose(Y, V.mean(-2, keepdims=True), rtol=1e-13)


def test_a_key_that_fits_much_better_takes_all():
    keys = K.copy()
    keys[:, 3] = 100 * Q[:, 0] / np.linalg.norm(Q[:, :1], axis=-1) ** 2 * math.sqrt(D)  # score of query 0: 100
    Y, pullback = dot_product_attention(Q, keys, V)
    assert np.allclose(pullback.A[:, 0], np.eye(M)[3], atol=1e-30)
    assert np.allclose(Y[:, 0], V[:, 3])


def test_one_key_gets_the_whole_weight():
    Y, pullback = dot_product_attention(Q, K[:, :1], V[:, :1])
    assert np.array_equal(pullback.A, np.ones((B, N, 1)))
    dQ, dK, _ = pullback(Y)
    assert not dQ.any()
    assert not dK.any(), "with one key there is no choice, and nothing to learn about it"


def test_adding_the_same_to_every_score_of_a_row_changes_nothing(rng):
    """A key bias c adds ⟨q_i, c⟩ to all scores of row i."""
    c = rng.standard_normal(D)
    assert np.allclose(dot_product_attention(Q, K + c, V)[0], dot_product_attention(Q, K, V)[0], rtol=1e-12)


def test_huge_scores_do_not_overflow():
    for dtype in (np.float32, np.float64):
        Y, pullback = dot_product_attention(*(1e4 * X.astype(dtype) for X in (Q, K, V)))
        assert np.isfinite(Y).all()
        assert all(np.isfinite(g).all() for g in pullback(Y))


def test_a_query_that_sees_nothing_gives_zeros_and_zero_gradient():
    Y, pullback = dot_product_attention(Q, K, V, mask=MASK)
    assert not Y[1, 2].any()
    dY = np.zeros_like(Y)
    dY[1, 2] = 1
    assert not any(g.any() for g in pullback(dY))
    Y, pullback = dot_product_attention(Q, K, V, mask=np.zeros((N, M), bool))
    assert not Y.any()
    assert not any(g.any() for g in pullback(np.ones_like(Y)))


def test_a_hidden_key_gets_no_gradient(rng):
    mask = np.ones(M, bool)
    mask[2] = False
    dQ, dK, dV = dot_product_attention(Q, K, V, mask=mask)[1](rng.standard_normal((B, N, DV)))
    assert not dK[:, 2].any()
    assert not dV[:, 2].any()
    assert dQ.any()


# -------------------------------------------------------------------------------------------- invariants


@pytest.mark.parametrize("t", range(M))
def test_causal_outputs_before_t_do_not_change_at_all(t, rng):
    """Bit by bit: the shapes stay the same, so BLAS does the same operations, and what is hidden is exactly zero."""
    X = rng.standard_normal((B, M, D))
    changed = X.copy()
    changed[:, t] += 10
    before, _ = dot_product_attention(X, X, X, causal=True)
    after, _ = dot_product_attention(changed, changed, changed, causal=True)
    assert np.array_equal(before[:, :t], after[:, :t])
    assert not np.isclose(before[:, t:], after[:, t:]).all(-1).any(), "and all the others do"


def test_causal_gradient_comes_from_later_outputs_only(rng):
    X = rng.standard_normal((B, M, D))
    _, pullback = dot_product_attention(X, X, X, causal=True)
    dY = np.zeros((B, M, D))
    dY[:, 2] = 1
    for g in pullback(dY):
        assert not g[:, 3:].any()


def test_causal_with_cached_keys_is_the_end_of_the_whole(rng):
    X = rng.standard_normal((B, M, D))
    whole, _ = dot_product_attention(X, X, X, causal=True)
    for first in range(M):
        part, _ = dot_product_attention(X[:, first:], X, X, causal=True)
        assert np.allclose(part, whole[:, first:], rtol=1e-13)


def test_causal_is_the_causal_mask():
    assert np.array_equal(
        dot_product_attention(Q, K, V, causal=True)[0], dot_product_attention(Q, K, V, mask=causal_mask(N, M))[0]
    )


def test_padding_does_not_change_what_is_real(rng):
    """Other lengths are other shapes, for which BLAS may sum in another order: equal to rounding, not to the bit."""
    padded = [np.concatenate([X, 100 * rng.standard_normal((B, 3, X.shape[-1]))], 1) for X in (Q, K, V)]
    mask = padding_mask(np.array([M, M]), M + 3)
    Y, pullback = dot_product_attention(*padded, mask=mask)
    right, right_pullback = dot_product_attention(Q, K, V)
    assert np.allclose(Y[:, :N], right, rtol=1e-12)
    dY = rng.standard_normal(Y.shape)
    dY[:, N:] = 0  # nobody reads the output of padding
    for g, r in zip(pullback(dY), right_pullback(dY[:, :N]), strict=True):
        assert np.allclose(g[:, : r.shape[1]], r, rtol=1e-11, atol=1e-14)
        assert not g[:, r.shape[1] :].any()


def test_samples_do_not_see_each_other():
    """Bit by bit, as the shapes stay the same."""
    changed = [X.copy() for X in (Q, K, V)]
    for X in changed:
        X[1] = 1e3
    (Y, p), (Z, q) = dot_product_attention(Q, K, V), dot_product_attention(*changed)
    assert np.array_equal(Y[0], Z[0])
    assert all(np.array_equal(g[0], h[0]) for g, h in zip(p(Y), q(Y), strict=True))


def test_order_of_keys_does_not_matter(rng):
    order = rng.permutation(M)
    assert np.allclose(
        dot_product_attention(Q, K[:, order], V[:, order])[0], dot_product_attention(Q, K, V)[0], rtol=1e-12
    )


def test_equivariance_and_what_breaks_it(rng):
    """Sa[P X] = P Sa[X], until a causal mask or positions tell the rows apart."""
    X, order = rng.standard_normal((B, M, D)), np.array([3, 0, 4, 1, 2])
    position = np.arange(M)[:, None] / M

    def sa(X, **options):
        return dot_product_attention(X, X, X, **options)[0]

    assert np.allclose(sa(X[:, order]), sa(X)[:, order], rtol=0, atol=1e-12)
    assert not np.allclose(sa(X[:, order], causal=True), sa(X, causal=True)[:, order], atol=0.01)
    assert not np.allclose(sa(X[:, order] + position), sa(X + position)[:, order], atol=0.01)


def test_gauge_freedom(rng):
    """Scores see Q Kᵀ only, so Q R and K R⁻ᵀ give the same for any invertible R."""
    R = rng.standard_normal((D, D))
    Y, _ = dot_product_attention(Q @ R, K @ np.linalg.inv(R).T, V)
    assert np.allclose(Y, dot_product_attention(Q, K, V)[0], rtol=1e-10)


# --------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "name"),
    [
        ((Q, K[..., :2], V), "K"),
        ((Q, K, V[:, :4]), "V"),
        ((Q[0], K, V), "K"),
        ((Q, K[:1], V), "V"),
        ((Q[0, 0], K, V), "Q"),
        ((Q.astype(int), K, V), "Q"),
        ((Q, K.astype(np.float16), V), "K"),
        ((Q, K, V.tolist()), "V"),
    ],
)
def test_wrong_shapes_and_types_are_refused(args, name):
    with pytest.raises(TypeError, match=rf"parameter '{name}'|{name}: a list should be an array"):
        dot_product_attention(*args)


@pytest.mark.parametrize("position", range(3))
def test_mixed_dtypes_are_refused(position):
    args = [Q, K, V]
    args[position] = args[position].astype(np.float32)
    with pytest.raises(TypeError, match=r"Q, K, V: should have one dtype, got .*float32"):
        dot_product_attention(*args)
    with pytest.raises(TypeError, match="Q, K: should have one dtype"):
        scores(Q, K.astype(np.float32))
    with pytest.raises(TypeError, match="A, V: should have one dtype"):
        aggregate(MASK.astype(np.float32), V)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(M, N), (N, M + 1), (3, N, M), (1, B, N, M), (B, 1, N, M), (N,)])
def test_a_mask_that_does_not_fit_is_refused(shape, causal):
    with pytest.raises(
        ValueError, match=r"mask: shape \(.*\) does not broadcast to the shape of the scores, \(2, 4, 5\)"
    ):
        dot_product_attention(Q, K, V, mask=np.ones(shape, bool), causal=causal)


@pytest.mark.parametrize("mask", [np.ones((N, M)), np.ones((N, M), int), "causal"], ids=["float", "int", "text"])
def test_a_mask_of_another_type_is_refused(mask):
    with pytest.raises(TypeError, match="parameter 'mask'"):
        dot_product_attention(Q, K, V, mask=mask)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 3, 4, 7])
def test_attention_to_the_first_keys_of_a_buffer(tier, groups, n):
    """As causal attention to these keys alone, whatever stands behind them, and however queries and keys lie in memory."""
    rng = np.random.default_rng(0)
    Q = rng.standard_normal((2, 4, 9, 5))
    K, V = rng.standard_normal((2, groups, 20, 5)), rng.standard_normal((2, groups, 20, 3))
    K[..., 13:, :] = V[..., 13:, :] = np.nan
    bias, mask = rng.standard_normal((4, n + 12)), rng.random((n, 13)) < 0.7
    for queries in (Q[..., :n, :], np.ascontiguousarray(Q[..., :n, :]), np.asfortranarray(Q[..., :n, :])):
        for options in ({}, {"bias": bias}, {"mask": mask}, {"bias": bias, "mask": mask, "scale": 0.3}):
            Y = attend_to_buffer(queries, K, V, 13, **options)
            plain, _ = dot_product_attention(queries, K[..., :13, :], V[..., :13, :], causal=True, **options)
            assert np.allclose(Y, plain, atol=1e-12)


# ------------------------------------------------------------------------------------- what is no number


@pytest.mark.parametrize("n", [3, 70])
@pytest.mark.parametrize("hides", ["mask", "causal", "pattern", "encoding"])
@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_a_value_that_is_hidden_does_not_reach_y(tier, n, hides, what):
    """In a product of matrices 0 · NaN is NaN. Here key 5 is hidden from all queries, or from those before it."""
    rng = np.random.default_rng(0)
    Q, K, V = rng.standard_normal((3, 2, n, 4))
    at = min(5, n - 1)
    mask = np.ones((n, n), bool)
    mask[:, at] = False
    run = {
        "mask": lambda V: dot_product_attention(Q, K, V, mask=mask)[0],
        "causal": lambda V: dot_product_attention(Q, K, V, causal=True)[0][:, :at],
        "pattern": lambda V: block_sparse_attention(Q, K, V, block_pattern(n, n, lambda i, j: (j != at) | (i < 0)))[0],
        "encoding": lambda V: attend(shaw, params, Q, K, V, mask=mask)[0],
    }[hides]
    shaw = Shaw(4, 2)
    params = shaw.init(rng, np.float64)
    broken = V.copy()
    broken[0, at] = what
    np.testing.assert_allclose(run(broken), run(V), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n", [3, 70])
@pytest.mark.parametrize("which", [0, 1, 2], ids="QKV")
@pytest.mark.parametrize("note", [0, 1954, 2**21 + 3, 2**22 - 1])
def test_whatever_nan_goes_in_nan_comes_out(tier, n, which, note):
    arrays = np.random.default_rng(1).standard_normal((3, 2, n, 4)).astype(np.float32)
    arrays[which].view(np.uint32)[0, 1, 2] = 0x7FC00000 + note
    Y, _ = dot_product_attention(*arrays)
    assert np.isnan(Y[0, 1 if which == 0 else slice(None)]).any()
    assert np.isfinite(Y[1]).all()


@pytest.mark.parametrize("n", [2, 70])
def test_keys_of_no_width_are_all_alike(tier, n):
    """d = 0: every score is an empty sum, so Y is the plain mean of the values; there is no √0 to divide by."""
    V = np.random.default_rng(2).standard_normal((n, 3))
    Y, pullback = dot_product_attention(np.ones((n, 0)), np.ones((n, 0)), V)
    dQ, dK, dV = pullback(np.ones_like(Y))
    np.testing.assert_allclose(Y, np.broadcast_to(V.mean(0), (n, 3)), atol=1e-14)
    assert dQ.shape == dK.shape == (n, 0)
    np.testing.assert_allclose(dV, 1)


@pytest.mark.parametrize("n", [6, 8, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tier", available()[1:])
def test_a_bias_of_minus_infinity_hides_an_offset_on_the_way_back_too(tier, n, dtype):
    """A window, said by a bias. Tiles are filled up with rows that are not there, and have no neighbours in the bias."""
    X = np.random.default_rng(0).standard_normal((2, n, 8)).astype(dtype)
    offsets = np.arange(-(n - 1), n)
    bias = np.where(offsets < -3, -np.inf, 0).astype(dtype)
    with mt.backend("numpy"):
        want = dot_product_attention(X, X, X, bias)[1](X)
    with mt.backend(tier):
        gradients = dot_product_attention(X, X, X, bias)[1](X)
    for found, wanted in zip(gradients, want, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_comes_back(tier, dtype):
    """It is no weight of one."""
    Q, K, V = np.random.default_rng(0).standard_normal((3, 2, 70, 8)).astype(dtype)
    K[0, 5, 3] = np.nan
    with np.errstate(invalid="ignore"):
        _, pullback = dot_product_attention(Q, K, V)
        dQ, _, dV = pullback(np.ones_like(V))
    assert np.isnan(dQ[0]).all()
    assert np.isnan(dV[0]).all()
    assert np.isfinite(dV[1]).all()


def test_keys_and_values_of_other_samples(tier):
    with pytest.raises((TypeError, ValueError), match="batch"):
        dot_product_attention(np.ones((3, 4, 5, 6)), np.ones((2, 2, 5, 6)), np.ones((2, 2, 5, 6)))
