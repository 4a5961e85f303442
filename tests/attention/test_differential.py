"""Differential attention: the definition in loops, its limiting cases, the core, and the checker, in every tier."""

import math
from functools import partial

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import check_pullback
from minitransformer.attention import (
    Differential,
    differential_attention,
    dot_product_attention,
    first_lambda,
    padding_mask,
)
from minitransformer.functional import rms_norm

pytestmark = pytest.mark.usefixtures("tier")

B, H, N, M, D, DV = 2, 4, 67, 70, 4, 6
TOLERANCE = {np.float64: 1e-12, np.float32: 2e-5}
dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def random_inputs(seed=0, n=N, m=M, dtype=np.float64):
    """Q_1, K_1, Q_2, K_2, V, and a λ of each head."""
    rng = np.random.default_rng(seed)
    shapes = *((B, H, rows, D) for rows in (n, m, n, m)), (B, H, m, DV), (H,)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def close(have, want):
    return np.abs(have - want).max() <= TOLERANCE[have.dtype.type] * (1 + np.abs(want).max())


def test_the_scale_is_that_of_both_scores():
    Q_1, K_1, Q_2, K_2, V, lambda_ = random_inputs()
    Y, _ = differential_attention(Q_1, K_1, Q_2, K_2, V, lambda_, scale=3 / math.sqrt(D))
    assert close(Y, differential_attention(3 * Q_1, K_1, 3 * Q_2, K_2, V, lambda_)[0])


def loops(Q_1, K_1, Q_2, K_2, V, lambda_):
    """Y_i = Σ_j (e^{S¹_ij} / Σ_l e^{S¹_il} − λ e^{S²_ij} / Σ_l e^{S²_il}) v_j."""
    Y = np.zeros((len(Q_1), V.shape[1]))
    for i in range(len(Q_1)):
        first, second = (
            [math.exp(sum(Q[i, c] * K[j, c] for c in range(D)) / math.sqrt(D)) for j in range(len(K))]
            for Q, K in ((Q_1, K_1), (Q_2, K_2))
        )
        for j in range(len(V)):
            Y[i] += (first[j] / sum(first) - lambda_ * second[j] / sum(second)) * V[j]
    return Y


def test_against_loops():
    arrays = random_inputs(n=5, m=7)
    Y, _ = differential_attention(*arrays)
    for sample in range(B):
        for head in range(H):
            want = loops(*(X[sample, head] for X in arrays[:-1]), arrays[-1][head])
            assert np.allclose(Y[sample, head], want, rtol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
def test_gradient(causal):
    check_pullback(partial(differential_attention, causal=causal), *random_inputs(1, n=5, m=7), entries=20)


def test_gradient_in_tiles():
    mask = padding_mask(np.array([M, 50]), M)[:, None]
    check_pullback(partial(differential_attention, mask=mask), *random_inputs(2), entries=6)


@dtypes
def test_the_second_softmax_gets_minus_lambda_times_what_the_first_gets(dtype):
    """dA_2 = −λ dA_1 and dλ = −⟨dA_1, A_2⟩."""
    Q_1, K_1, Q_2, K_2, V, lambda_ = random_inputs(3, dtype=dtype)
    Y, pullback = differential_attention(Q_1, K_1, Q_2, K_2, V, lambda_)
    dY = np.random.default_rng(4).standard_normal(Y.shape).astype(dtype)
    _, _, dQ_2, dK_2, _, dlambda = pullback(dY)
    _, second = dot_product_attention(Q_2, K_2, V)
    want = second(-lambda_[:, None, None] * dY)
    assert close(dQ_2, want[0])
    assert close(dK_2, want[1])
    assert close(dlambda, -((dY @ V.mT) * second.A).sum((0, -2, -1)))


@dtypes
def test_without_lambda_it_is_attention_of_the_first(dtype):
    Q_1, K_1, Q_2, K_2, V, lambda_ = random_inputs(5, dtype=dtype)
    Y, pullback = differential_attention(Q_1, K_1, Q_2, K_2, V, 0 * lambda_)
    assert close(Y, dot_product_attention(Q_1, K_1, V)[0])
    dQ_1, _, dQ_2, dK_2, _, dlambda = pullback(Y)
    assert np.abs(dQ_1).max() > 0
    assert (dQ_2 == 0).all()
    assert (dK_2 == 0).all()
    assert np.abs(dlambda).min() > 0  # so λ can leave zero


@dtypes
def test_twice_the_same_softmax_is_one_minus_lambda_of_it_and_a_norm_undoes_that(dtype):
    Q, K, _, _, V, _ = random_inputs(6, dtype=dtype)
    lambda_ = np.full(H, 0.3, dtype)
    Y, _ = differential_attention(Q, K, Q, K, V, lambda_)
    same, _ = dot_product_attention(Q, K, V)
    assert close(Y, dtype(0.7) * same)
    gain = np.ones(DV, dtype)
    assert close(rms_norm(Y, gain, eps=0.0)[0], rms_norm(same, gain, eps=0.0)[0])


@dtypes
def test_rows_sum_to_one_minus_lambda_and_some_weights_are_negative(dtype):
    *arrays, lambda_ = random_inputs(7, dtype=dtype)
    A = differential_attention(*arrays, lambda_)[1].A
    assert close(A.sum(-1), np.broadcast_to(1 - lambda_[:, None], A.shape[:-1]))
    assert (A < 0).any()


def test_what_both_give_to_a_key_cancels():
    """Two softmaxes that agree on nineteen keys and differ on one: at λ = 1 nothing but that difference is left."""
    rng = np.random.default_rng(8)
    K, V = rng.standard_normal((2, 1, 20, D))
    Q = rng.standard_normal((1, 1, D))
    K_2 = K.copy()
    K_2[0, 5] -= 4 * Q[0, 0]
    A = differential_attention(Q, K, Q, K_2, V, np.ones(1))[1].A[0, 0]
    assert A[5] > 0.02
    assert (np.delete(A, 5) < 0).all()
    assert A[5] == pytest.approx(-np.delete(A, 5).sum())


# --------------------------------------------------------------------------------------------- the core


def core_and_arrays(seed=9, n=9, dtype=np.float64):
    core, rng = Differential(heads=H, d=D, lambda_init=0.4), np.random.default_rng(seed)
    params = mt.tree_map(lambda a: rng.standard_normal(a.shape).astype(dtype) / 2, core.init(rng, dtype))
    return core, params, *(rng.standard_normal((B, H, n, D)).astype(dtype) for _ in range(3))


@dtypes
def test_the_core_is_the_function_of_pairs_of_heads(dtype):
    """Heads 2p and 2p + 1 are a pair, their values are one of twice the width; then a norm, times 1 − λ₀."""
    core, params, Q, K, V = core_and_arrays(dtype=dtype)
    a_1, c_1, a_2, c_2, gain = params
    lambda_ = math.exp(a_1 @ c_1) - math.exp(a_2 @ c_2) + 0.4
    Z, pullback = core(params, Q, K, V, causal=True)
    for p in range(H // 2):
        own = [X[:, 2 * p + s] for s in (0, 1) for X in (Q, K)]
        values = np.concatenate([V[:, 2 * p], V[:, 2 * p + 1]], -1)
        Y, _ = differential_attention(*own, values, np.full(B, lambda_, dtype), causal=True)
        want = dtype(0.6) * gain * Y / np.sqrt((Y * Y).mean(-1, keepdims=True) + dtype(1e-5))
        assert close(Z[:, 2 * p], want[..., :D])
        assert close(Z[:, 2 * p + 1], want[..., D:])
    assert close(pullback.A.sum(-1), np.full((B, H // 2, 9), 1 - lambda_, dtype))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_gradient_of_the_core(causal, padded):
    core, *arrays = core_and_arrays(10)
    mask = padding_mask(np.array([9, 6]), 9)[:, None] if padded else None
    check_pullback(partial(core, causal=causal, mask=mask), *arrays, entries=20)


def test_lambda_begins_near_its_first_value():
    """In the mean, for the vectors are drawn; and every layer of the paper has a first value of its own."""
    rng, begins = np.random.default_rng(11), []
    for _ in range(200):
        a_1, c_1, a_2, c_2, gain = Differential(2, 32).init(rng, np.float64)
        begins.append(math.exp(a_1 @ c_1) - math.exp(a_2 @ c_2) + 0.8)
        assert (gain == 1).all()
    assert abs(np.mean(begins) - 0.8) < 0.03
    assert 0.05 < np.std(begins) < 0.12
    assert [round(first_lambda(layer), 3) for layer in (0, 1, 2, 9)] == [0.2, 0.356, 0.471, 0.76]


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"^heads: 3 should be even; differential attention subtracts"):
        Differential(3, 4)
    core, params, Q, K, V = core_and_arrays()
    with pytest.raises(ValueError, match=r"^mask: shape \(4, 9, 9\) should be one for all heads"):
        core(params, Q, K, V, mask=np.ones((H, 9, 9), bool))
    with pytest.raises(ValueError, match=r"^lambda_: shape \(3,\) does not broadcast"):
        differential_attention(Q, K, Q, K, V, np.ones(3))
