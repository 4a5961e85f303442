"""DeBERTa's three terms: entry by entry, with both indices, with buckets, and without positions."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import attend, dot_product_attention
from minitransformer.positions.deberta import DeBERTa, deberta_buckets

TERMS = (("c2p", "p2c"), ("c2p",), ("p2c",))
ENCODINGS = (
    DeBERTa(12, 3, 4),
    DeBERTa(12, 3, 3, index="code"),
    DeBERTa(12, 3, 6, index="code", buckets=4),
    DeBERTa(12, 3, 6, buckets=5),
    DeBERTa(12, 3, 3, terms=("c2p",)),
    DeBERTa(12, 3, 3, terms=("p2c",)),
)


def inputs(rng, n=5, m=7, groups=3):
    """Two samples, three heads of width 4; the queries are the last n of m positions."""
    return [rng.standard_normal(s) for s in ((2, 3, n, 4), (2, groups, m, 4), (2, groups, m, 2))]


def random_params(encoding, rng, biases=False):
    params = mt.random_like(encoding.init(rng, np.float64), rng)
    if biases and params.W_kr is not None:
        params = params._replace(b_kr=rng.standard_normal(12))
    if biases and params.W_qr is not None:
        params = params._replace(b_qr=rng.standard_normal(12))
    return params


@pytest.mark.each_pair
@pytest.mark.parametrize("n", [7, 5, 1])
@pytest.mark.parametrize("index", ["paper", "code"])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("k", [1, 3, 9])
def test_entry_by_entry(n, index, terms, k, rng):
    """δ(i,j) = clip(i − j + k, 0, 2k − 1); the index of the last term is δ(j,i) in the paper and δ(i,j) in the code."""
    Q, K, V = inputs(rng, n)
    encoding = DeBERTa(12, 3, k, index=index, terms=terms)
    P, W_kr, W_qr, b_kr, b_qr = params = random_params(encoding, rng, biases=True)
    S = np.zeros((2, 3, n, 7))
    for b, h, row, j in np.ndindex(S.shape):
        i, head = row + 7 - n, slice(4 * h, 4 * h + 4)
        here, there = (min(max(t + k, 0), 2 * k - 1) for t in (i - j, j - i))
        S[b, h, row, j] = Q[b, h, row] @ K[b, h, j]
        if "c2p" in terms:
            S[b, h, row, j] += Q[b, h, row] @ (P[here] @ W_kr + b_kr)[head]
        if "p2c" in terms:
            S[b, h, row, j] += K[b, h, j] @ (P[there if index == "paper" else here] @ W_qr + b_qr)[head]
    S /= math.sqrt(4 * (1 + len(terms)))
    np.testing.assert_allclose(encoding.scores(params, Q, K)[0], S, rtol=0, atol=1e-12)
    A = np.exp(S) / np.exp(S).sum(-1, keepdims=True)
    Y, pullback = attend(encoding, params, Q, K, V)
    np.testing.assert_allclose(pullback.A, A, rtol=0, atol=1e-12)
    np.testing.assert_allclose(Y, A @ V, rtol=0, atol=1e-12)


@pytest.mark.each_pair
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 3])
def test_gradients(encoding, causal, groups, rng):
    mask = rng.random((2, 3, 5, 7)) < 0.7
    mask[0, 1, 3] = False  # a query that sees nobody
    for biases in (False, True):
        # what the bias of a key for positions adds to a row of scores, ⟨q_i, b_kr⟩, is the same for all of them: softmax
        zero = ("params.b_kr",) if biases and "c2p" in encoding.terms else ()
        check_pullback(
            partial(attend, encoding, causal=causal, mask=mask),
            random_params(encoding, rng, biases),
            *inputs(rng, groups=groups),
            entries=12,
            zero=zero,
        )


@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("causal", [True, False])
def test_without_positions_it_is_dense_attention(terms, causal, rng):
    """P = 0 leaves ⟨q_i, k_j⟩/√(3d)."""
    Q, K, V = inputs(rng)
    encoding = DeBERTa(12, 3, 4, terms=terms)
    params = random_params(encoding, rng)._replace(P=np.zeros((8, 12)))
    expected, _ = dot_product_attention(Q, K, V, causal=causal, scale=1 / math.sqrt((1 + len(terms)) * 4))
    np.testing.assert_allclose(attend(encoding, params, Q, K, V, causal=causal)[0], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_constant_content_sees_the_distance_only(encoding, rng):
    params = random_params(encoding, rng)
    Q, K = (np.broadcast_to(rng.standard_normal((2, 3, 1, 4)), (2, 3, 7, 4)) for _ in range(2))
    S, _ = encoding.scores(params, Q, K)
    np.testing.assert_allclose(S[..., 1:, 1:], S[..., :-1, :-1], rtol=0, atol=1e-13)
    assert np.abs(S[..., 0, 2] - S[..., 2, 0]).min() > 1e-3  # before is not the same as behind


def test_the_two_indices_are_two_models(rng):
    """With the same weights they differ. A table read backwards makes one the other, where no distance is clipped."""
    Q, K, _ = inputs(rng, n=7)
    paper, code = (DeBERTa(12, 3, 4, index=index, terms=("p2c",)) for index in ("paper", "code"))
    params = random_params(paper, rng)
    S, _ = paper.scores(params, Q, K)
    T, _ = code.scores(params, Q, K)
    assert np.abs(S - T).max() > 1
    np.testing.assert_allclose(np.diagonal(S, 0, -2, -1), np.diagonal(T, 0, -2, -1), rtol=0, atol=1e-13)  # distance 0
    inner = np.abs(np.arange(7)[:, None] - np.arange(7)) < 4
    backwards = np.concatenate([params.P[:1], params.P[:0:-1]])  # row k + t becomes row k − t
    R, _ = code.scores(params._replace(P=backwards), Q, K)
    np.testing.assert_allclose(R[..., inner], S[..., inner], rtol=0, atol=1e-13)


@pytest.mark.parametrize("index", ["paper", "code"])
def test_beyond_the_span_all_distances_are_one(index, rng):
    """Keys with the same content, 3 or more behind the query, have the same score; ahead of it from 4 … on."""
    encoding = DeBERTa(12, 3, 4, index=index)
    Q, K, _ = inputs(rng, n=12, m=12)
    K = np.broadcast_to(K[..., :1, :], K.shape)
    S, _ = encoding.scores(random_params(encoding, rng), Q, K)
    for i in range(12):
        for far in (S[..., i, : max(i - 3, 0)], S[..., i, i + 4 :]):
            np.testing.assert_allclose(far, far[..., :1] + np.zeros(far.shape), rtol=0, atol=1e-13)
    assert np.abs(S[..., 11, 8] - S[..., 11, 9]).min() > 1e-6


@pytest.mark.parametrize(("buckets", "longest"), [(2, 5), (5, 20), (6, 20), (8, 32), (256, 512)])
def test_buckets_distance_by_distance(buckets, longest):
    e = buckets // 2
    found = deberta_buckets(np.arange(-1000, 1001), buckets=buckets, longest=longest)
    for t, b in zip(range(-1000, 1001), found, strict=True):
        size = abs(t)
        if size > e:
            size = e + math.ceil((e - 1) * math.log(size / e) / math.log((longest - 1) / e))
        assert b == math.copysign(size, t)
    assert (np.diff(found) >= 0).all()
    assert found[1000 + longest - 1] == 2 * e - 1  # the longest distance has the last bucket


def test_published_buckets():
    """Made with make_log_bucket_position of transformers 5.23: 8 buckets up to 32, for the distances 0 … 40."""
    published = [0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6, *[7] * 16, *[8] * 9]
    found = deberta_buckets(np.arange(41), buckets=8, longest=32)
    np.testing.assert_array_equal(found, published)
    np.testing.assert_array_equal(deberta_buckets(-np.arange(41), buckets=8, longest=32), -found)


def test_many_buckets_are_none(rng):
    """Where every distance has a bucket of its own, version 2 is version 1."""
    Q, K, _ = inputs(rng, n=7)
    one, two = DeBERTa(12, 3, 14, index="code"), DeBERTa(12, 3, 30, index="code", buckets=14)
    params = random_params(one, rng)
    np.testing.assert_array_equal(one.scores(params, Q, K)[0], two.scores(params, Q, K)[0])


def test_distances_that_share_a_bucket_share_a_row():
    """8 buckets up to 32: the 4 + 4 rows of distances up to 4 are their own, and 5, 6 and 7 have one."""
    rows = DeBERTa(12, 3, 32, buckets=8).rows(np.array([-40, -7, -5, -4, 0, 4, 5, 6, 7, 8, 40]))
    np.testing.assert_array_equal(rows - 8, [-8, -5, -5, -4, 0, 4, 5, 5, 5, 6, 7])


def test_initial_parameters():
    params = DeBERTa(96, 4, 50).init(np.random.default_rng(3), np.float64)
    assert params.P.shape == (100, 96)
    assert abs(params.P.std() / 0.02 - 1) < 0.05
    for W in (params.W_kr, params.W_qr):
        assert W.shape == (96, 96)
        assert abs(W.std() * math.sqrt(96) - 1) < 0.05
    assert params.b_kr is params.b_qr is None
    assert DeBERTa(96, 4, 512, buckets=256).init(np.random.default_rng(3)).P.shape == (512, 96)


def test_what_it_says_about_itself():
    assert DeBERTa.shared == ("P",)
    assert DeBERTa.acts_on == ("scores",)
    assert math.isclose(DeBERTa(12, 3, 4).scale, 1 / math.sqrt(3 * 4))
    assert math.isclose(DeBERTa(12, 3, 4, terms=("p2c",)).scale, 1 / math.sqrt(2 * 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DeBERTa(12, 5, 4), "width: 12 is not divisible into 5 heads"),
        (lambda: DeBERTa(12, 3, 4, buckets=1), "buckets: 1 should be at least 2, half of it below 3, the longest"),
        (lambda: DeBERTa(12, 3, 4, buckets=6), "buckets: 6 should be at least 2, half of it below 3, the longest"),
        (lambda: deberta_buckets(np.arange(9), buckets=1, longest=9), "buckets: 1 should be at least 2"),
        (lambda: deberta_buckets(np.arange(9), buckets=4, longest=3), "buckets: 4 .* half of it below 2, the longest"),
        (lambda: DeBERTa(12, 3, 4, terms=()), r'terms: \(\) should be "c2p", "p2c" or both'),
        (lambda: DeBERTa(12, 3, 4, terms=("p2p",)), "terms: .*'p2p'"),
        (lambda: DeBERTa(12, 3, 4, terms=("c2p", "c2p")), "terms: "),
    ],
)
def test_what_it_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_shapes_and_types_are_refused(rng):
    Q, K, V = inputs(rng)
    encoding = DeBERTa(12, 3, 4)
    params = random_params(encoding, rng)
    with pytest.raises(ValueError, match="Q: 5 queries for 4 keys"):
        attend(encoding, params, Q, K[..., :4, :], V[..., :4, :])
    with pytest.raises(ValueError, match=r"Q: shape \(2, 3, 5, 4\) should be \(…, 2, n, d\), with 2 heads"):
        attend(DeBERTa(12, 2, 4), params, Q, K, V)
    with pytest.raises(TypeError, match=r"P: shape \(8, 12\) should be \(10, 12\)"):
        attend(DeBERTa(12, 3, 5), params, Q, K, V)
    for bias in ("b_kr", "b_qr"):
        odd = random_params(encoding, rng, biases=True)._replace(**{bias: np.zeros(11)})
        with pytest.raises(TypeError, match=rf"{bias}: shape \(11,\) should be \(12,\)"):
            encoding.scores(odd, Q, K)
    with pytest.raises(TypeError, match=r"params\.W_qr: should be an array \(12, 12\), is None"):
        attend(encoding, params._replace(W_qr=None), Q, K, V)
    with pytest.raises(TypeError, match=r"params\.W_qr: should be None, is an array \(12, 12\)"):
        attend(DeBERTa(12, 3, 4, terms=("c2p",)), params, Q, K, V)
    with pytest.raises(TypeError, match=r"^terms: \['c2p'\] should be tuple\[str, \.\.\.\]"):
        DeBERTa(12, 3, 4, terms=["c2p"])  # a list is made a tuple only where anything may stand
