"""16 numbers of a token: the error of a layer that keeps only these."""

import numpy as np
import pytest

from minitransformer.attention import dot_product_attention
from minitransformer.measurements.equal_caches import HEADS, TOKENS, WIDTH, errors, inputs


def means(r, falls):
    return np.mean([errors(r, np.random.default_rng(seed), falls=falls) for seed in range(10)], 0)


def test_tokens_have_mean_square_one_and_directions_that_fall():
    X = inputs(np.random.default_rng(3), 1)
    assert X.shape == (TOKENS, WIDTH)
    np.testing.assert_allclose((X**2).mean(), 1)
    sigma = np.linalg.svd(X, compute_uv=False)
    slope = np.polyfit(np.log(np.arange(1, 33)), np.log(sigma[:32]), 1)[0]
    assert -1.2 < slope < -0.8


def test_only_what_the_tokens_hold_can_be_left_out():
    flat, falling = means(16, 0), means(16, 1)
    assert flat[2] > 0.9 * flat[1]
    assert falling[2] < 0.15 < 0.7 < min(falling[0], falling[1])


def test_a_row_as_wide_as_the_token_loses_nothing():
    found = errors(WIDTH, np.random.default_rng(0))
    assert max(found.weights, found.inputs) < 1e-12


def test_every_head_a_group_of_its_own_loses_nothing():
    assert errors(2 * WIDTH, np.random.default_rng(0)).heads < 1e-12


def test_one_head_shared_is_multi_query_attention():
    """One key and value, by loops over the heads."""
    rng, d = np.random.default_rng(5), WIDTH // HEADS
    X = inputs(rng, 1)
    W_q, W_k, W_v, W_o = (rng.standard_normal((WIDTH, WIDTH)) / 8 for _ in range(4))
    Y = {}
    for shared in (True, False):
        parts = []
        for h in range(HEADS):
            its = [W[:, h * d : (h + 1) * d] for W in (W_q, W_k, W_v)]
            if shared:
                its[1:] = [sum(W[:, j * d : (j + 1) * d] for j in range(HEADS)) / HEADS for W in (W_k, W_v)]
            parts.append(dot_product_attention(*(X @ W for W in its), causal=True)[0])
        Y[shared] = np.concatenate(parts, 1) @ W_o
    want = np.linalg.norm(Y[True] - Y[False]) / np.linalg.norm(Y[False])
    np.testing.assert_allclose(errors(16, np.random.default_rng(5)).heads, want)


@pytest.mark.parametrize("r", [0, 8, 24, 48, 256])
def test_a_number_that_no_groups_have_is_refused(r):
    with pytest.raises(ValueError, match="16 times a divisor of 8"):
        errors(r, np.random.default_rng(0))
