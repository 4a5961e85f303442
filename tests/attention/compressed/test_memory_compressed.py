"""Memory-compressed attention: the definition in loops, its limiting cases, what is causal and what is hidden, gradients."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import causal_mask, dot_product_attention, padding_mask
from minitransformer.attention.compressed import MemoryCompressed, compress, memory_compressed_attention

B, H, N, M, D, DV, S = 2, 3, 5, 11, 4, 6, 3  # the last block is not full


def arrays(full, seed=0, n=N, m=M, s=S):
    """Q, K, V, both kernels, and the null."""
    rng = np.random.default_rng(seed)
    shapes = [(B, H, n, D), (B, H, m, D), (B, H, m, DV)]
    shapes += [(H, s, d, d) if full else (H, s, d) for d in (D, DV)] + [(H, D), (H, DV)]
    return [rng.standard_normal(shape) for shape in shapes]


def loops(Q, K, V, theta_k, theta_v, null_k=None, null_v=None, causal=False, there=None):
    """One head of one sample, entry by entry. Kernels as matrices: a depthwise one is diagonal."""
    (n, d), (m, dv), s = Q.shape, V.shape, len(theta_k)
    there = [True] * m if there is None else there

    def block(X, theta, b):
        x = np.zeros(X.shape[1])
        for t in range(s):
            if b * s + t < m and there[b * s + t]:
                for c in range(X.shape[1]):
                    for e in range(X.shape[1]):
                        x[e] += X[b * s + t, c] * theta[t, c, e]
        return x

    Y = np.zeros((n, dv))
    for i in range(n):
        position, keys, values = i + m - n, [], []
        if null_k is not None:
            keys, values = [null_k], [null_v]
        for b in range(-(-m // s)):
            over = b * s + s - 1 <= position
            if any(there[b * s : b * s + s]) and (over or not causal):
                keys.append(block(K, theta_k, b))
                values.append(block(V, theta_v, b))
        weights = [math.exp(sum(Q[i, a] * key[a] for a in range(d)) / math.sqrt(d)) for key in keys]
        for weight, value in zip(weights, values, strict=True):
            Y[i] += weight / sum(weights) * value
    return Y


def matrices(theta):
    return theta if theta.ndim == 4 else theta[..., None] * np.eye(theta.shape[-1])


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("null", [True, False])
def test_against_loops(full, causal, null):
    Q, K, V, theta_k, theta_v, *nulls = arrays(full)
    there = np.array([[True] * 3 + [False] * 3 + [True, False, True, True, False], [True] * 7 + [False] * 4])
    Y, _ = memory_compressed_attention(
        Q, K, V, theta_k, theta_v, *(nulls if null else ()), causal=causal, mask=there[:, None, None]
    )
    for b, h in np.ndindex(B, H):
        own = [X[h] for X in (matrices(theta_k), matrices(theta_v), *(nulls if null else ()))]
        want = loops(Q[b, h], K[b, h], V[b, h], *own, causal=causal, there=there[b])
        np.testing.assert_allclose(Y[b, h], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_where_all_keys_are_hidden(causal, tier):
    """There is the null, which stands nowhere and can't be hidden, or nothing."""
    Q, K, V, *rest = arrays(True)
    for given, want in ((rest, np.broadcast_to(rest[-1][:, None], (B, H, N, DV))), (rest[:2], np.zeros((B, H, N, DV)))):
        Y, pullback = memory_compressed_attention(Q, K, V, *given, causal=causal, mask=np.zeros((1, M), bool))
        gradients = pullback(np.ones_like(Y))
        np.testing.assert_allclose(Y, want, rtol=0, atol=1e-12)
        assert not any(gradient.any() for gradient in gradients[:5])


@pytest.mark.parametrize("full", [True, False])
def test_no_key(full):
    """There is the null, or nothing."""
    Q, K, V, *rest = arrays(full, m=0)
    Y, pullback = memory_compressed_attention(Q, K, V, *rest)
    assert np.allclose(Y, rest[-1][:, None])
    assert [g.shape for g in pullback(Y)] == [X.shape for X in (Q, K, V, *rest)]
    Y, pullback = memory_compressed_attention(Q, K, V, *rest[:2])
    assert not Y.any()
    assert [g.shape for g in pullback(Y)] == [X.shape for X in (Q, K, V, *rest[:2])]


# ------------------------------------------------------------------------------------------------ limiting cases


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_stride_of_one_is_dense(full, causal):
    """Every block is a key, and the kernel is the identity."""
    Q, K, V, *_ = arrays(full)
    ones = [np.tile(np.eye(d) if full else np.ones(d), (H, 1, *(1,) * (1 + full))) for d in (D, DV)]
    Y, pullback = memory_compressed_attention(Q, K, V, *ones, causal=causal)
    want, dense = dot_product_attention(Q, K, V, causal=causal)
    np.testing.assert_allclose(Y, want, rtol=0, atol=1e-13)
    for ours, theirs in zip(pullback(want), dense(want), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_equal_neighbours_merge_without_loss():
    """s equal keys have the s-fold weight of one, and so has every other block; the factor cancels."""
    rng = np.random.default_rng(1)
    Q = rng.standard_normal((B, H, N, D))
    K, V = (np.repeat(rng.standard_normal((B, H, 4, d)), S, axis=-2) for d in (D, DV))
    mean_k, mean_v = (np.full((H, S, d), 1 / S) for d in (D, DV))
    Y, _ = memory_compressed_attention(Q, K, V, mean_k, mean_v)
    np.testing.assert_allclose(Y, dot_product_attention(Q, K, V)[0], rtol=0, atol=1e-14)


def test_unequal_neighbours_do_not():
    Q, K, V, *_ = arrays(False, m=12)
    mean_k, mean_v = (np.full((H, S, d), 1 / S) for d in (D, DV))
    Y, _ = memory_compressed_attention(Q, K, V, mean_k, mean_v)
    assert np.abs(Y - dot_product_attention(Q, K, V)[0]).max() > 0.1


def test_at_the_start_a_block_is_its_average():
    core = MemoryCompressed(H, D, stride=S)
    for convolution in ("full", "depthwise"):
        params = MemoryCompressed(H, D, stride=S, convolution=convolution).init(np.random.default_rng(0), np.float64)
        K = arrays(True, m=12)[1]
        np.testing.assert_allclose(compress(K, params.theta_k)[0], K.reshape(B, H, 4, S, D).mean(-2), atol=1e-15)
        assert params.theta_k.shape == ((H, S, D, D) if convolution == "full" else (H, S, D))
    params = core.init(np.random.default_rng(0))
    assert params.theta_k.dtype == np.float32
    assert not params.null_k.any()  # equally good for every query
    assert not params.null_v.any()


def test_the_matrix_has_a_column_for_each_block():
    Q, K, V, *rest = arrays(True)
    _, pullback = memory_compressed_attention(Q, K, V, *rest)
    assert pullback.A.shape == (B, H, N, 1 + 4)
    np.testing.assert_allclose(pullback.A.sum(-1), 1, atol=1e-14)


# -------------------------------------------------------------------------------------------------- who sees what


def test_a_block_is_seen_when_it_is_over():
    """Query i sees block b if its last position, (b + 1) s − 1, is at most i."""
    Q, K, V, *rest = arrays(True, n=M)
    _, pullback = memory_compressed_attention(Q, K, V, *rest, causal=True)
    seen = pullback.A[0, 0] > 0
    assert seen[:, 0].all(), "the null key is always there"
    assert np.array_equal(seen[:, 1:], causal_mask(M)[:, [2, 5, 8, 10]] & [True, True, True, False])


def test_without_a_null_the_first_queries_see_nothing():
    Q, K, V, theta_k, theta_v, *_ = arrays(True, n=M)
    with np.errstate(all="raise"):
        Y, pullback = memory_compressed_attention(Q, K, V, theta_k, theta_v, causal=True)
        dQ, *_ = pullback(np.ones_like(Y))
    assert not Y[..., : S - 1, :].any()
    assert not dQ[..., : S - 1, :].any()
    assert Y[..., S - 1, :].all()


@pytest.mark.parametrize("full", [True, False])
def test_what_is_hidden_is_not_there(full):
    """Be it NaN: a row in the middle counts zero, a block of hidden rows is no key."""
    Q, K, V, *rest = arrays(full)
    there = np.array([True] * 2 + [False] * 4 + [True] * 5)
    Y, pullback = memory_compressed_attention(Q, K, V, *rest, mask=there[None])
    K[..., ~there, :] = V[..., ~there, :] = np.nan
    Z, again = memory_compressed_attention(Q, K, V, *rest, mask=there[None])
    assert np.array_equal(Y, Z)
    assert pullback.A[0, 0, 0, 2] == 0
    assert np.delete(pullback.A, 2, -1).all()
    for a, b in zip(pullback(Y), again(Y), strict=True):
        assert np.array_equal(a, b)
    assert not again(Y)[1][..., ~there, :].any()


@pytest.mark.parametrize("full", [True, False])
def test_more_padding_changes_nothing(full):
    Q, K, V, *rest = arrays(full)
    longer = [np.concatenate([X, np.full_like(X, 7)], -2) for X in (K, V)]
    Y, _ = memory_compressed_attention(Q, *longer, *rest, mask=padding_mask(np.array([M, M]), 2 * M)[:, None])
    np.testing.assert_allclose(Y, memory_compressed_attention(Q, K, V, *rest)[0], rtol=0, atol=1e-13)


# ------------------------------------------------------------------------------------------------------ gradients


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("m", [M, 12, 2])
def test_gradient_of_compress(full, m):
    K, theta = arrays(full, m=m)[1], arrays(full)[3]
    Y, _ = compress(K, theta)
    assert Y.shape == (B, H, -(-m // S), D)
    check_pullback(compress, K, theta, zero=())


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_gradient(full, causal, padded):
    mask = padding_mask(np.array([M, 7]), M)[:, None] if padded else None
    function = partial(memory_compressed_attention, causal=causal, mask=mask)
    with mt.backend("numpy"):
        check_pullback(function, *arrays(full, n=M), entries=20)
        check_pullback(function, *arrays(full, n=M)[:5], entries=20)


def test_a_state_is_a_block_for_each_stride():
    """What waits and what is compressed, not all keys and values; and the room it takes doubles, as in any buffer."""
    core = MemoryCompressed(H, D, stride=4, convolution="depthwise")
    params = core.init(np.random.default_rng(0), np.float64)
    Q, K, V = np.random.default_rng(1).standard_normal((3, B, H, 103, D))
    _, state = core.step(params, Q, K, V)
    assert (state.length, state.blocks.length, state.K.shape[-2]) == (103, 1 + 25, 3)
    _, state = core.step(params, Q[..., :1, :], K[..., :1, :], V[..., :1, :], state=state)
    assert (state.length, state.blocks.length, state.K.shape[-2]) == (104, 1 + 26, 0)


# --------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({3: np.ones((H, S, D, D + 1))}, TypeError, "theta"),
        ({3: np.ones((H, 0, D))}, TypeError, "theta"),
        ({3: np.ones((H + 1, S, D))}, TypeError, "theta_k"),
        ({6: None}, TypeError, "null_k, null_v"),
    ],
)
def test_what_does_not_fit(change, error, message):
    given = dict(enumerate(arrays(False))) | change
    with pytest.raises(error, match=message):
        memory_compressed_attention(*given.values())


def test_a_mask_of_pairs():
    with pytest.raises(ValueError, match=r"mask: shape .* a block of keys has no score for a pair"):
        memory_compressed_attention(*arrays(True), mask=np.ones((N, M), bool))
