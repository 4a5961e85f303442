"""Transformer-XL's scores and TENER's: entry by entry, the shift, and the limits in which they are something simpler."""

import math

import numpy as np
import pytest

import minitransformer as mt
from minitransformer.attention import attend, dot_product_attention
from minitransformer.positions.relative_sinusoids import (
    TENER,
    RelativeSinusoidParams,
    RelativeSinusoids,
    TransformerXLPositions,
    relative_shift,
    unshift,
)

XL, TEN = TransformerXLPositions(12, 3), TENER(3, 4)
BOTH = (XL, TEN, TENER(3, 4, scale=None))


def inputs(rng, n=5, m=7, groups=3):
    """Two samples, three heads of width 4; the queries are the last n of m positions."""
    return [rng.standard_normal(s) for s in ((2, 3, n, 4), (2, groups, m, 4), (2, groups, m, 2))]


def random_params(encoding, rng):
    return mt.random_like(encoding.init(rng, np.float64), rng)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 6), (3, 3), (3, 8), (2, 2)])
def test_the_shift_entry_by_entry(n, m, rng):
    T = rng.standard_normal((2, n, n + m))
    S = relative_shift(T)
    assert S.shape == (2, n, m)
    for b, i, j in np.ndindex(2, n, m):
        assert S[b, i, j] == T[b, i, j - i + n - 1]
    dS = rng.standard_normal(S.shape)
    dT = unshift(dS)
    assert dT.shape == T.shape
    assert math.isclose((dT * T).sum(), (dS * S).sum(), rel_tol=1e-12)  # one is the transpose of the other
    np.testing.assert_array_equal(relative_shift(dT), dS)
    assert (dT != 0).sum() == dS.size


def test_the_shift_of_nothing():
    assert relative_shift(np.zeros((2, 0, 4))).shape == unshift(np.zeros((2, 0, 4))).shape == (2, 0, 4)


@pytest.mark.parametrize("n", [7, 5, 1])
def test_transformer_xl_entry_by_entry(n, rng):
    """S_ij = [⟨q_i + u, k_j⟩ + ⟨q_i + v, W_krᵀ r_{i−j}⟩]/√d, r_t = [sin ω_f t | cos ω_f t]."""
    Q, K, V = inputs(rng, n)
    params = random_params(XL, rng)
    omega = [10000 ** (-2 * f / 12) for f in range(6)]
    S = np.zeros((2, 3, n, 7))
    for b, h, i, j in np.ndindex(S.shape):
        t = (i + 7 - n) - j
        r = np.array([math.sin(w * t) for w in omega] + [math.cos(w * t) for w in omega]) @ params.W_kr
        content = (Q[b, h, i] + params.u[h]) @ K[b, h, j]
        position = (Q[b, h, i] + params.v[h]) @ r[4 * h : 4 * h + 4]
        S[b, h, i, j] = (content + position) / math.sqrt(4)
    np.testing.assert_allclose(XL.scores(params, Q, K)[0], S, rtol=0, atol=1e-13)
    A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    Y, pullback = attend(XL, params, Q, K, V)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [7, 5, 1])
@pytest.mark.parametrize("scale", [1.0, None])
def test_tener_entry_by_entry(n, scale, rng):
    """S_ij = ⟨q_i + u, k_j⟩ + ⟨q_i + v, r_{i−j}⟩: no projection, and no division unless it is asked for."""
    Q, K, _ = inputs(rng, n)
    encoding = TENER(3, 4, scale=scale)
    params = random_params(encoding, rng)
    omega = [1.0, 1 / 10000]  # 10000^(−f/(d/2 − 1))
    S = np.zeros((2, 3, n, 7))
    for b, h, i, j in np.ndindex(S.shape):
        t = (i + 7 - n) - j
        r = np.array([math.sin(w * t) for w in omega] + [math.cos(w * t) for w in omega])
        S[b, h, i, j] = (Q[b, h, i] + params.u[h]) @ K[b, h, j] + (Q[b, h, i] + params.v[h]) @ r
    np.testing.assert_allclose(encoding.scores(params, Q, K)[0], S if scale else S / 2, rtol=0, atol=1e-13)


def test_without_position_vectors_it_is_dense_attention(rng):
    """W_kr = 0 and u = 0: nothing but content is left."""
    Q, K, V = inputs(rng)
    params = random_params(XL, rng)._replace(W_kr=np.zeros((12, 12)), u=np.zeros((3, 4)))
    for causal in (True, False):
        Y, _ = attend(XL, params, Q, K, V, causal=causal)
        np.testing.assert_allclose(Y, dot_product_attention(Q, K, V, causal=causal)[0], rtol=0, atol=1e-13)


@pytest.mark.parametrize("encoding", BOTH)
def test_u_favours_keys_and_only_v_and_q_see_positions(encoding, rng):
    """Without queries, S_ij = scale [⟨u, k_j⟩ + ⟨v, r_{i−j}⟩]: a term of the key, and one of the distance."""
    Q, K, _ = inputs(rng, n=7)
    params = random_params(encoding, rng)
    without_u, _ = encoding.scores(params._replace(u=0 * params.u), 0 * Q, K)
    for S in without_u.reshape(-1, 7, 7):
        for o in range(-6, 7):
            np.testing.assert_allclose(np.diagonal(S, o), np.diagonal(S, o)[0], rtol=0, atol=1e-13)
    of_key = encoding.scores(params, 0 * Q, K)[0] - without_u
    np.testing.assert_allclose(of_key, of_key[..., :1, :] + np.zeros((7, 1)), rtol=0, atol=1e-13)


@pytest.mark.parametrize("encoding", BOTH)
def test_the_same_query_everywhere_sees_the_distance_only(encoding, rng):
    """u = v = 0 and constant content: scores are constant along every diagonal."""
    params = random_params(encoding, rng)
    params = params._replace(u=0 * params.u, v=0 * params.v)
    Q, K = np.broadcast_to(rng.standard_normal((2, 3, 1, 4)), (2, 3, 7, 4)), np.ones((2, 3, 7, 4))
    S, _ = encoding.scores(params, Q, K)
    np.testing.assert_allclose(S[..., 1:, 1:], S[..., :-1, :-1], rtol=0, atol=1e-13)
    assert np.abs(S[..., 0, 3] - S[..., 3, 0]).min() > 1e-3  # and before is not the same as behind


@pytest.mark.parametrize("encoding", [XL, TEN])
def test_sines_are_odd_and_cosines_even(encoding):
    R = encoding.table(-5, 11)
    half = R.shape[1] // 2
    np.testing.assert_array_equal(R[::-1], np.concatenate([-R[:, :half], R[:, half:]], 1))
    np.testing.assert_array_equal(R[5], [0] * half + [1] * half)


@pytest.mark.parametrize("encoding", BOTH)
def test_a_single_sample_needs_no_batch_axis(encoding, rng):
    Q, K, V = inputs(rng)
    params = random_params(encoding, rng)
    Y, pullback = attend(encoding, params, Q[0], K[0], V[0])
    np.testing.assert_allclose(Y, attend(encoding, params, Q, K, V)[0][0], rtol=0, atol=1e-13)
    assert pullback(Y)[0].u.shape == (3, 4)


def test_initial_parameters():
    rng = np.random.default_rng(3)
    params = TransformerXLPositions(96, 4).init(rng, np.float64)
    assert params.u.shape == params.v.shape == (4, 24)
    assert params.W_kr.shape == (96, 96)
    assert abs(params.u.std() / 0.02 - 1) < 0.3
    assert abs(params.W_kr.std() * math.sqrt(96) - 1) < 0.05
    params = TENER(4, 96).init(rng, np.float64)
    assert params.W_kr is None
    assert abs(params.v.std() * math.sqrt(50) - 1) < 0.2


def test_what_they_say_about_themselves():
    assert XL.shared == ("u", "v")
    assert TransformerXLPositions(12, 3, tied=False).shared == ()
    assert XL.scale is None
    assert TEN.shared == ()
    assert TEN.scale == 1
    assert XL.acts_on == TEN.acts_on == ("scores",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransformerXLPositions(12, 5), "width: 12 is not divisible into 5 heads"),
        (lambda: TransformerXLPositions(9, 3), "width: sines and cosines come in pairs, and 9 is not"),
        (lambda: TENER(3, 5), "^d: sines and cosines come in pairs, and 5 is not"),
        (lambda: TENER(3, 4, scale=0), "scale: 0 should be above 0"),
    ],
)
def test_what_they_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_shapes_and_types_are_refused(rng):
    Q, K, V = inputs(rng)
    params = random_params(XL, rng)
    with pytest.raises(ValueError, match="Q: 5 queries for 4 keys"):
        attend(XL, params, Q, K[..., :4, :], V[..., :4, :])
    with pytest.raises(TypeError, match=r"params\.u: shape \(3, 4\) should be \(2, 6\)"):
        attend(TransformerXLPositions(12, 2), params, Q, K, V)
    with pytest.raises(TypeError, match=r"params\.v: shape \(1, 4\) should be \(3, 4\)"):
        attend(XL, params._replace(v=params.v[:1]), Q, K, V)
    with pytest.raises(TypeError, match="params: should be NoParams, is RelativeSinusoidParams"):
        RelativeSinusoids().scores(RelativeSinusoidParams(params.u, params.v), Q, K)
    with pytest.raises(TypeError, match="RelativeSinusoids has no sinusoids"):
        RelativeSinusoids().table(0, 3)
