"""Local blocks: pair by pair, their limiting case, and that nothing leaves them."""

import numpy as np
import pytest

from minitransformer.attention import Local, MultiHeadAttention, SoftmaxAttention, dot_product_attention
from minitransformer.models import Block, FeedForward, Stack
from minitransformer.pullback import NoParams


@pytest.mark.parametrize("causal", [False, True])
def test_pair_by_pair(causal):
    n, B = 50, 7
    mask = Local(B)(n, n, causal=causal).mask
    for i in range(n):
        for j in range(n):
            assert mask[i, j] == (i // B == j // B and (j <= i or not causal))


def test_it_is_the_blocks_one_by_one(tier, rng):
    """Cut, attend in each, put together again; the last block is shorter."""
    Q, K, V = rng.standard_normal((3, 2, 40, 4))
    Y, _ = SoftmaxAttention(Local(16))(NoParams(), Q, K, V)
    pieces = [dot_product_attention(*(X[:, b : b + 16] for X in (Q, K, V)))[0] for b in (0, 16, 32)]
    assert np.allclose(Y, np.concatenate(pieces, 1), atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_one_block_is_dense(causal, tier, rng):
    Q, K, V = rng.standard_normal((3, 2, 70, 4))
    Y, _ = SoftmaxAttention(Local(70))(NoParams(), Q, K, V, causal=causal)
    assert np.allclose(Y, dot_product_attention(Q, K, V, causal=causal)[0], atol=1e-13)


def test_nothing_crosses_a_block_however_many_layers(tier, rng):
    """The gradient is exactly zero."""
    layer = MultiHeadAttention(8, 2, core=SoftmaxAttention(Local(10)))
    stack = Stack((Block(layer, FeedForward(8, 12)),) * 4)
    Y, pullback = stack(stack.init(rng, np.float64), rng.standard_normal((1, 35, 8)))
    dY = np.zeros_like(Y)
    dY[:, 10:20] = rng.standard_normal((10, 8))
    _, dX = pullback(dY)
    assert dX[:, 10:20].all()
    assert not dX[:, :10].any()
    assert not dX[:, 20:].any()


def test_blocks_cost_n_times_b_not_b_squared():
    """n / B blocks of B² pairs."""
    n, B = 320, 16
    assert Local(B)(n, n, causal=False).mask.sum() == n * B
    assert Local(64)(n, n, causal=False).pairs == n * 64, "and that is what is computed"


def test_at_most_a_block_is_remembered(rng):
    core = SoftmaxAttention(Local(9))
    Q, K, V = rng.standard_normal((3, 2, 100, 4))
    whole, _ = core(NoParams(), Q, K, V, causal=True)
    state = None
    for t in range(100):
        y, state = core.step(NoParams(), *(X[:, t : t + 1] for X in (Q, K, V)), state=state)
        assert np.allclose(y[:, 0], whole[:, t], atol=1e-14)
        assert state.keys.shape[-2] <= 8


def test_no_block_is_refused():
    with pytest.raises(ValueError, match="block: 0"):
        Local(0)
