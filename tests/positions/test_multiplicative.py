"""Positions inside the product of query and key: against the definitions, published code, and the checker."""

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import (
    MultiHeadAttention,
    MultiHeadParams,
    SoftmaxAttention,
    attend,
    dot_product_attention,
)
from minitransformer.positions.multiplicative import Multiplicative, MultiplicativeParams
from minitransformer.positions.shaw import Shaw, ShawParams
from tests.positions.conftest import d, some

SHAPES = [(5, 5), (3, 7), (1, 6)]  # n, m
KINDS = ["M1", "M2", "M3", "M4"]


def setting(rng, kind, k):
    encoding = Multiplicative(d, k, kind)
    return encoding, random_like(encoding.init(rng, np.float64), rng)


@pytest.mark.each_pair
@pytest.mark.parametrize(("n", "m"), SHAPES)
@pytest.mark.parametrize("k", [0, 1, 2, 9])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_definition(rng, n, m, k, kind):
    encoding, params = setting(rng, kind, k)
    Q, K, _, _ = some(rng, n, m)
    S, _ = encoding.scores(params, Q, K)
    for b, h, i, j in np.ndindex(S.shape):
        q, key = Q[b, h, i], K[b, h, j]
        offset = max(-k, min(k, j - (i + m - n)))
        a = params.a[abs(offset)] if kind == "M1" else params.a[offset + k]
        score = {
            "M1": lambda q=q, key=key, a=a: q @ key * a,
            "M2": lambda q=q, key=key, a=a: q @ key * a,
            "M3": lambda q=q, key=key, a=a: (q * key * a).sum(),
            "M4": lambda q=q, key=key, a=a: q @ key + q @ a + key @ a,
        }[kind]()
        assert np.isclose(S[b, h, i, j], score / 2, rtol=0, atol=1e-12)  # √d = 2


@pytest.mark.each_pair
@pytest.mark.parametrize(("n", "m", "k"), [(5, 5, 2), (3, 7, 2), (1, 6, 2), (4, 6, 0), (4, 6, 9)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients(rng, n, m, k, kind, causal):
    encoding, params = setting(rng, kind, k)
    Q, K, V, mask = some(rng, n, m)
    check_pullback(lambda params, Q, K, V: attend(encoding, params, Q, K, V, causal=causal, mask=mask), params, Q, K, V)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_neutral_factors_are_dense_attention(rng, kind, causal):
    """Factors of one, as they are at the start, or vectors of zero in M4, where they are added."""
    Q, K, V, mask = some(rng, 4, 6)
    encoding = Multiplicative(d, 2, kind)
    params = encoding.init(rng, np.float64)
    if kind == "M4":
        params = MultiplicativeParams(np.zeros_like(params.a))
    Y, pullback = attend(encoding, params, Q, K, V, causal=causal, mask=mask)
    dense, dense_pullback = dot_product_attention(Q, K, V, causal=causal, mask=mask)
    np.testing.assert_allclose(Y, dense, rtol=0, atol=1e-13)
    for ours, theirs in zip(pullback(Q)[1:], dense_pullback(Q), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_each_kind_holds_the_one_before(rng):
    """M1 in M2 with a symmetric table, M2 in M3 with constant vectors; M4 is Shaw's keys and as much for the queries."""
    Q, K, _, _ = some(rng, 5, 7)
    a = rng.standard_normal(4)
    both_sides = np.concatenate([a[:0:-1], a])
    M1, _ = Multiplicative(d, 3, "M1").scores(MultiplicativeParams(a), Q, K)
    M2, _ = Multiplicative(d, 3, "M2").scores(MultiplicativeParams(both_sides), Q, K)
    M3, _ = Multiplicative(d, 3, "M3").scores(MultiplicativeParams(both_sides[:, None] * np.ones(d)), Q, K)
    np.testing.assert_allclose(M2, M1, rtol=0, atol=1e-13)
    np.testing.assert_allclose(M3, M1, rtol=0, atol=1e-13)

    a = rng.standard_normal((7, d))
    Q, K, _, _ = some(rng, 6, 6)
    M4, _ = Multiplicative(d, 3, "M4").scores(MultiplicativeParams(a), Q, K)
    keys, _ = Shaw(d, 3, values=False).scores(ShawParams(a), Q, K)
    queries, _ = Shaw(d, 3, values=False).scores(ShawParams(a[::-1].copy()), K, Q)  # seen from the keys
    np.testing.assert_allclose(M4, keys + queries.mT - Q @ K.mT / 2, rtol=0, atol=1e-13)


def test_published_numbers():
    """H = 2, d = 2, n = 4, all projections the identity, X = sin(0²), sin(1²), … Made with transformers 4.46.3:

    BertSelfAttention, "relative_key_query", its table cos 0 … cos 13 with the rows reversed (it counts i − j)
    """
    X = np.sin(np.arange(16) ** 2).reshape(1, 4, 4)
    a = MultiplicativeParams(np.cos(np.arange(14)).reshape(7, 2))
    params = MultiHeadParams(np.eye(4), np.eye(4), np.eye(4), np.eye(4), core=a)
    Y, _ = MultiHeadAttention(4, 2, bias=False, core=SoftmaxAttention(encoding=Multiplicative(2, 3, "M4")))(params, X)
    np.testing.assert_allclose(
        Y[0],
        [
            [-0.018650380344, 0.478811686158, -0.611940636821, 0.2331319542],
            [0.029373987074, -0.202583130495, -0.377761421631, 0.131075187406],
            [0.382558704244, -0.492992733294, -0.579345018104, 0.351524633332],
            [-0.087322280743, -0.124931602622, 0.018465349149, -0.809515953395],
        ],
        rtol=0,
        atol=1e-11,
    )


def test_a_small_factor_is_no_penalty(rng):
    """Three keys at one distance each. The far one has the lowest score; a factor of 0.1 for it lifts it above the others."""
    Q = np.array([[1.0, 0, 0, 0]])
    K = np.array([[-8.0, 0, 0, 0], [-2.0, 0, 0, 0], [-3.0, 0, 0, 0]])
    V = np.eye(3, d)
    dense, _ = dot_product_attention(Q, K, V)
    Y, _ = attend(Multiplicative(d, 2, "M1"), MultiplicativeParams(np.array([1, 1, 0.1])), Q, K, V)
    assert dense[0].argmax() == 1
    assert dense[0, 0] < 0.05
    assert Y[0].argmax() == 0


def test_parameters(rng):
    shapes = {kind: Multiplicative(d, 3, kind).init(rng).a.shape for kind in KINDS}
    assert shapes == {"M1": (4,), "M2": (7,), "M3": (7, d), "M4": (7, d)}
    for kind in KINDS[:3]:
        assert (Multiplicative(d, 3, kind).init(rng).a == 1).all()
    a = Multiplicative(d, 3, "M4").init(rng).a
    assert a.dtype == np.float32
    assert 0.01 < a.std() < 0.03
    assert Multiplicative(d, 3) == Multiplicative(d, 3, "M1")
    assert Multiplicative(d, 3).shared == ()
    with pytest.raises(AttributeError):
        Multiplicative(d, 3).clip = 2


def test_bad_sizes():
    with pytest.raises(ValueError, match="kind: no 'M5'; there are M1, M2, M3, M4"):
        Multiplicative(4, 2, "M5")
    with pytest.raises(ValueError, match="d: 0 should be at least 1"):
        Multiplicative(0, 2)
    with pytest.raises(ValueError, match="clip: -1 should be at least 0"):
        Multiplicative(4, -1)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_arguments(rng, kind):
    encoding, params = setting(rng, kind, 2)
    Q, K, V, _ = some(rng, 4, 4)
    with pytest.raises(TypeError, match=r"a: shape \(.*\) should be \("):
        attend(Multiplicative(d, 3, kind), params, Q, K, V)
    with pytest.raises(TypeError, match="should have one dtype"):
        attend(encoding, encoding.init(rng), Q, K, V)
    with pytest.raises(ValueError, match="4 queries for 3 keys"):
        attend(encoding, params, Q, K[..., :3, :], V[..., :3, :])
