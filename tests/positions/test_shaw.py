"""Shaw's vectors for offsets: against the definition, published code, dense attention, and the checker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    MultiHeadAttention,
    MultiHeadParams,
    SoftmaxAttention,
    attend,
    dot_product_attention,
)
from minitransformer.positions.shaw import Shaw, ShawParams, by_clipped_offset, sum_by_clipped_offset
from tests.positions.conftest import d, some

SHAPES = [(5, 5), (3, 7), (1, 6)]  # n, m


def definition(params, Q, K, V, k, causal, mask):
    """n × m × d numbers and all: the vector of each pair, added to its key and to its value."""
    n, m = Q.shape[-2], K.shape[-2]
    row = np.array([[np.clip(j - (i + m - n), -k, k) + k for j in range(m)] for i in range(n)])
    keys = K[..., None, :, :] + params.a_k[row]
    S = (Q[..., :, None, :] * keys).sum(-1) / np.sqrt(d)
    seen = np.broadcast_to(mask, S.shape)
    if causal:
        seen = seen & np.array([[j <= i + m - n for j in range(m)] for i in range(n)])
    E = np.exp(S) * seen
    A = E / np.where(E.sum(-1, keepdims=True) == 0, 1, E.sum(-1, keepdims=True))
    values = V[..., None, :, :] + (0 if params.a_v is None else params.a_v[row])
    return (A[..., None] * values).sum(-2), A


# --------------------------------------------------------------------------- rows of offsets, there and back


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 8))
def test_every_pair_gets_the_number_of_its_offset(n, m, k):
    """Also for more rows than columns, which is how a key sees the queries."""
    R = np.random.default_rng(0).standard_normal((2, n, 2 * k + 1))
    S = by_clipped_offset(R, m)
    assert S.shape == (2, n, m)
    for i, j in np.ndindex(n, m):
        np.testing.assert_array_equal(S[:, i, j], R[:, i, np.clip(j - (i + m - n), -k, k) + k])


@given(st.integers(0, 7), st.integers(0, 7), st.integers(0, 8))
def test_spreading_and_summing_are_each_others_gradient(n, m, k):
    rng = np.random.default_rng(0)
    R, dS = rng.standard_normal((2, n, 2 * k + 1)), rng.standard_normal((2, n, m))
    dR = sum_by_clipped_offset(dS, k)
    assert dR.shape == R.shape
    assert np.isclose((dR * R).sum(), (dS * by_clipped_offset(R, m)).sum(), rtol=0, atol=1e-12)


# -------------------------------------------------------------------------------------------- the encoding


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("k", [0, 1, 2, 9])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_it_is_the_definition(rng, n, m, k, causal, values):
    encoding = Shaw(d, k, values=values)
    params = random_like(encoding.init(rng, np.float64), rng)
    Q, K, V, mask = some(rng, n, m)
    Y, pullback = attend(encoding, params, Q, K, V, causal=causal, mask=mask)
    expected, A = definition(params, Q, K, V, k, causal, mask)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-13)
    np.testing.assert_allclose(Y, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("values", "groups"), [(True, 4), (True, 2), (False, 2)])
def test_gradients(rng, n, m, causal, values, groups):
    """Also with keys and values that pairs of heads share."""
    encoding = Shaw(d, 2, values=values)
    params = random_like(encoding.init(rng, np.float64), rng)
    Q, K, V, mask = some(rng, n, m, 4, groups)
    check_pullback(lambda params, Q, K, V: attend(encoding, params, Q, K, V, causal=causal, mask=mask), params, Q, K, V)


def test_published_numbers():
    """H = 2, d = 2, n = 4, all projections the identity, X = sin(0²), sin(1²), … Made with transformers 5.23:

    keys   Wav2Vec2BertSelfAttention, "relative_key", both limits 1, its table cos 0 … cos 5
    both   VitsAttention, window_size 3 (it has zeros beyond the window: all offsets lie within), cos 0 … 13 and cos 100 … 113
    """
    X = np.sin(np.arange(16) ** 2).reshape(1, 4, 4)
    params = MultiHeadParams(np.eye(4), np.eye(4), np.eye(4), np.eye(4))

    keys = params._replace(core=ShawParams(np.cos(np.arange(6)).reshape(3, 2)))
    Y, _ = MultiHeadAttention(4, 2, bias=False, core=SoftmaxAttention(encoding=Shaw(2, 1, values=False)))(keys, X)
    np.testing.assert_allclose(
        Y[0],
        [
            [0.007511241241, -0.105525061286, -0.553904761604, 0.114432197581],
            [-0.025136829943, -0.225749433129, -0.753233876923, -0.756334519615],
            [0.343007446053, -0.248448578125, -0.502912301216, 0.198698313833],
            [-0.239035228028, -0.401121318565, 0.357074469055, -0.690737544991],
        ],
        rtol=0,
        atol=1e-11,
    )

    tables = (np.cos(np.arange(start, start + 14)).reshape(7, 2) for start in (0, 100))
    both = params._replace(core=ShawParams(*tables))
    Y, _ = MultiHeadAttention(4, 2, bias=False, core=SoftmaxAttention(encoding=Shaw(2, 3)))(both, X)
    np.testing.assert_allclose(
        Y[0],
        [
            [0.344192856632, 0.803095875142, -0.79745045111, 0.277237920764],
            [-0.339284322104, -0.332605203714, -0.579032586472, -0.253726054833],
            [0.766730669639, -0.09171537887, -0.387464180898, 0.717782150616],
            [0.019075087084, -0.422723519714, 0.801603465537, -0.204270492365],
        ],
        rtol=0,
        atol=1e-11,
    )


@pytest.mark.parametrize("causal", [False, True])
def test_zeros_are_dense_attention(rng, causal):
    Q, K, V, mask = some(rng, 4, 6)
    zeros = np.zeros((5, d))
    Y, pullback = attend(Shaw(d, 2), ShawParams(zeros, zeros), Q, K, V, causal=causal, mask=mask)
    dense, dense_pullback = dot_product_attention(Q, K, V, causal=causal, mask=mask)
    np.testing.assert_allclose(Y, dense, rtol=0, atol=1e-13)
    for ours, theirs in zip(pullback(Q)[1:], dense_pullback(Q), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_without_offsets_to_tell_apart_the_keys_vector_is_lost(rng):
    """k = 0: every key gets the same vector, every score of a row the same number, and softmax does not see it."""
    Q, K, V, mask = some(rng, 5, 5)
    params = ShawParams(rng.standard_normal((1, d)))
    Y, pullback = attend(Shaw(d, 0, values=False), params, Q, K, V, mask=mask)
    np.testing.assert_allclose(Y, dot_product_attention(Q, K, V, mask=mask)[0], rtol=0, atol=1e-13)
    assert np.abs(pullback(Q)[0].a_k).max() < 1e-13


def test_beyond_the_clip_all_offsets_are_alike(rng):
    n, k = 9, 2
    Q, K, _, _ = some(rng, n, n)
    S, _ = Shaw(d, k, values=False).scores(ShawParams(rng.standard_normal((5, d))), Q, K)
    extra = S - Q @ K.mT / np.sqrt(d)
    for i in range(n):
        for side in (extra[..., i, i + k :], extra[..., i, : max(i - k + 1, 0)]):
            if side.shape[-1]:
                np.testing.assert_allclose(side, side[..., :1] * np.ones(side.shape[-1]), rtol=0, atol=1e-13)
        if 0 < i < n - 1:
            assert np.abs(extra[..., i, i - 1] - extra[..., i, i + 1]).min() > 1e-4


def test_parameters(rng):
    encoding = Shaw(d, 3)
    params = encoding.init(rng)
    assert [a.shape for a in params] == [(7, d), (7, d)]
    assert {a.dtype for a in params} == {np.dtype(np.float32)}
    assert 0.01 < params.a_k.std() < 0.03
    assert Shaw(d, 3, values=False).init(rng).a_v is None
    assert encoding.shared == ()
    with pytest.raises(AttributeError):
        encoding.clip = 2


def test_bad_sizes():
    with pytest.raises(ValueError, match="d: 0 should be at least 1"):
        Shaw(0, 2)
    with pytest.raises(ValueError, match="clip: -1 should be at least 0"):
        Shaw(4, -1)


def test_bad_arguments(rng):
    Q, K, V, _ = some(rng, 4, 4)
    good = random_like(Shaw(d, 2).init(rng, np.float64), rng)
    with pytest.raises(TypeError, match=r"a_k: shape \(5, 4\) should be \(7, 4\)"):
        attend(Shaw(d, 3), good, Q, K, V)
    with pytest.raises(TypeError, match=r"a_v: shape \(4, 4\) should be \(5, 4\)"):
        attend(Shaw(d, 2), good._replace(a_v=good.a_v[1:]), Q, K, V)
    with pytest.raises(TypeError, match=r"params\.a_v: should be an array \(5, 4\), is None"):
        attend(Shaw(d, 2), good._replace(a_v=None), Q, K, V)
    with pytest.raises(TypeError, match=r"params\.a_v: should be None, is an array \(5, 4\)"):
        attend(Shaw(d, 2, values=False), good, Q, K, V)
    wide = ShawParams(*rng.standard_normal((2, 5, 6)))
    with pytest.raises(ValueError, match="Q: heads of width 4, but the positions are for heads of width 6"):
        attend(Shaw(6, 2), wide, Q, K, V)
    with pytest.raises(ValueError, match="V: heads of width 3, but the positions are for heads of width 4"):
        attend(Shaw(d, 2), good, Q, K, V[..., :3])
    with pytest.raises(TypeError, match="should have one dtype"):
        attend(Shaw(d, 2), Shaw(d, 2).init(rng), Q, K, V)
    with pytest.raises(ValueError, match="4 queries for 3 keys"):
        attend(Shaw(d, 2), good, Q, K[..., :3, :], V[..., :3, :])
    with pytest.raises(ValueError, match="mask: shape"):
        attend(Shaw(d, 2), good, Q, K, V, mask=np.ones((4, 5), bool))
