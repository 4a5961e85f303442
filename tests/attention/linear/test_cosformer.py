"""cosFormer: linear and quadratic forms, positions and their largest, the clamp of the authors' code, decoding, gradients."""

import math
from functools import partial

import numpy as np
import pytest

from minitransformer import check_pullback
from minitransformer.attention.linear import CosFormer, cosformer_attention, cosformer_features
from minitransformer.models import LanguageModel
from minitransformer.pullback import NoParams

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, M, D, DV, LONGEST = 2, 3, 4, 6, 5, 7, 9


def heads(rng, n=N, m=M):
    return [rng.standard_normal(shape) for shape in ((B, H, n, D), (B, H, m, D), (B, H, m, DV))]


def loops(Q, K, V, longest, causal):
    """The weights pair by pair, with the cosine of the distance itself."""
    n, m = len(Q), len(K)
    Y = np.zeros((n, V.shape[1]))
    for i in range(n):
        at, total = i + m - n, 0.0
        for j in range(at + 1 if causal else m):
            alike = sum(max(q, 0) * max(k, 0) for q, k in zip(Q[i], K[j], strict=True))
            w = alike * math.cos(math.pi / 2 * (at - j) / longest)
            total += w
            Y[i] += w * V[j]
        Y[i] = Y[i] / total if total else 0
    return Y


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("longest", [M, LONGEST, 100])
def test_linear_is_quadratic(longest, causal, rng):
    """The cosine of a difference, taken apart into features."""
    Q, K, V = heads(rng)
    Y, pullback = cosformer_attention(Q, K, V, longest=longest, causal=causal)
    for b, h in np.ndindex(B, H):
        assert np.allclose(Y[b, h], loops(Q[b, h], K[b, h], V[b, h], longest, causal), rtol=1e-11, atol=1e-13)
    assert (pullback.A >= 0).all()


def test_at_the_distance_zero_the_weight_is_one():
    """And M/3 positions on, cos 30° = √3/2, whatever the positions are."""
    x, longest = np.ones((1, 1)), 30
    at = [cosformer_features(x, longest=longest, first=first)[0][0] for first in (0, 7, 17, 29)]
    assert np.allclose([f @ f for f in at], 1, rtol=1e-14)
    assert np.allclose(at[1] @ at[2], math.sqrt(3) / 2)
    assert all(f.min() >= 0 for f in at), "angles from 0 to a right one"


def test_positions_count_from_one():
    F, _ = cosformer_features(np.ones((2, 1)), longest=3, first=1)
    assert np.allclose(F, [[math.cos(math.pi / 3), math.sin(math.pi / 3)], [0, 1]])


def test_far_away_everything_is_next_to_each_other(rng):
    """Limiting case: as M grows the cosine becomes one, and what is left is attention by relu(q) and relu(k)."""
    Q, K, V = heads(rng)
    Y, _ = cosformer_attention(Q, K, V, longest=10**8, causal=True)
    W = np.tri(N, M, M - N) * (np.maximum(Q, 0) @ np.maximum(K, 0).mT)
    total = W.sum(-1, keepdims=True)
    assert np.allclose(Y, W @ V / np.where(total > 0, total, 1), rtol=1e-12)


def test_the_longest_is_fixed_or_a_new_token_would_change_the_old_ones(rng):
    """The authors' code takes the present length for M: the weights of the past then change with each token."""
    Q, K, V = heads(rng, n=M)
    now, _ = cosformer_attention(*(X[..., :4, :] for X in (Q, K, V)), longest=4, causal=True)
    later, _ = cosformer_attention(Q, K, V, longest=6, causal=True)
    assert np.abs(later[..., :4, :] - now).max() > 0.01
    fixed, _ = cosformer_attention(*(X[..., :4, :] for X in (Q, K, V)), longest=6, causal=True)
    assert np.allclose(later[..., :4, :], fixed, rtol=1e-12)


def test_a_query_without_a_positive_entry_gives_zeros(rng):
    Q, K, V = heads(rng)
    Q[0, 0, 1] = -np.abs(Q[0, 0, 1])
    Y, pullback = cosformer_attention(Q, K, V, longest=LONGEST)
    assert not Y[0, 0, 1].any()
    dQ, _, _ = pullback(np.ones_like(Y))
    assert not dQ[0, 0, 1].any()
    assert np.isfinite(dQ).all()


def test_no_clamp_so_the_length_of_a_query_cancels(rng):
    """With denominators of at least 10⁻⁶, as in the authors' code, a query a million times shorter gets nearly nothing."""
    Q, K, V = heads(rng)
    Y, _ = cosformer_attention(Q, K, V, longest=LONGEST)
    assert np.allclose(cosformer_attention(1e-8 * Q, K, V, longest=LONGEST)[0], Y, rtol=1e-10)
    FQ, FK = (cosformer_features(X, longest=LONGEST, first=first)[0] for X, first in ((1e-8 * Q, M - N), (K, 0)))
    W = FQ @ FK.mT
    clamped = W @ V / np.maximum(W.sum(-1, keepdims=True), 1e-6)
    assert np.linalg.norm(clamped) < 0.5 * np.linalg.norm(Y)


def test_a_decoder_counts_its_positions(rng, tier):
    """Steps are the whole, and what a model says of a text goes no further than its longest."""
    model = LanguageModel(20, 8, 12, 2, 3, 10, "cosformer")
    params = model.init(rng, np.float64)
    tokens = rng.integers(0, 20, (2, 8))
    whole, _ = model(params, tokens)
    _, state = model.step(params, tokens[:, :5])
    logits, state = model.step(params, tokens[:, 5:], state)
    assert np.allclose(logits, whole[:, 5:], atol=1e-12)
    core = CosFormer(LONGEST)
    Q, K, V = heads(rng, n=LONGEST, m=LONGEST)
    _, state = core.step(NoParams(), Q, K, V)
    with pytest.raises(ValueError, match="first: -1 should be at least 0"):
        cosformer_features(np.ones((3, 2)), longest=9, first=-1)
    with pytest.raises(ValueError, match="X: position 10 is beyond the longest, 9"):
        core.step(NoParams(), *(X[..., :1, :] for X in (Q, K, V)), state=state)


@pytest.mark.parametrize("causal", [False, True])
def test_gradient(causal, rng):
    check_pullback(partial(cosformer_attention, longest=LONGEST, causal=causal), *heads(rng), entries=40)
    check_pullback(partial(CosFormer(LONGEST), causal=causal), NoParams(), *heads(rng), entries=20)


def test_what_does_not_fit(rng):
    Q, K, V = heads(rng)
    with pytest.raises(ValueError, match="K: position 6 is beyond the longest, 5"):
        cosformer_attention(Q, K, V, longest=5)
    with pytest.raises(ValueError, match="Q: 6 queries"):
        cosformer_attention(K, Q, V[..., :N, :], longest=LONGEST)
    with pytest.raises(ValueError, match="Q: 6 queries"):
        CosFormer(LONGEST)(NoParams(), K, Q, V[..., :N, :])
