"""Layers that see a window next to layers that see everything: what they connect, and what they remember."""

import numpy as np
import pytest

from minitransformer.attention import Local, MultiHeadAttention, SoftmaxAttention, Strided, Window, cache_bytes
from minitransformer.models import LanguageModel

pytestmark = pytest.mark.usefixtures("definitions")

GIB = 2**30


def reached(patterns, n):
    """Which inputs each output depends on, by its gradient: the pattern of the Jacobian of these layers."""
    rng = np.random.default_rng(0)
    X, pullbacks = rng.standard_normal((n, 8)), []
    for pattern in patterns:
        layer = MultiHeadAttention(8, 2, core=SoftmaxAttention(pattern))
        X, pullback = layer(layer.init(rng, np.float64), X, causal=True)
        pullbacks.append(pullback)
    J = np.zeros((n, n), bool)
    for i in range(n):
        dX = np.zeros((n, 8))
        dX[i] = rng.standard_normal(8)
        for pullback in reversed(pullbacks):
            _, dX = pullback(dX)
        J[i] = np.abs(dX).max(1) > 0
    return J


def test_dense_and_banded_in_turns_connect_everything():
    """As in GPT-3: two layers are enough, in either order."""
    full = np.tril(np.ones((20, 20), bool))
    np.testing.assert_array_equal(reached((None, Window(2)), 20), full)
    np.testing.assert_array_equal(reached((Window(2), None), 20), full)


def test_windows_alone_reach_as_far_as_they_add_up():
    n, w, depth = 30, 4, 3
    i, j = np.arange(n)[:, None], np.arange(n)
    far = (j <= i) & (i - j < depth * (w - 1) + 1)
    np.testing.assert_array_equal(reached((Window(w - 1),) * depth, n), far)


def test_chunks_never_connect_and_one_dense_layer_connects_them():
    n, w = 24, 6
    i, j = np.arange(n)[:, None], np.arange(n)
    np.testing.assert_array_equal(reached((Local(w),) * 5, n), (j <= i) & (i // w == j // w))
    np.testing.assert_array_equal(reached((Local(w),) * 3 + (None,), n), j <= i)


def test_how_many_keys_a_token_sees():
    """A window: min(i + 1, w). A chunk: i mod w + 1, which is (w + 1)/2 on average."""
    n, w = 48, 8
    window, chunk = (pattern(n, n, causal=True).mask.sum(1) for pattern in (Window(w - 1), Local(w)))
    np.testing.assert_array_equal(window, np.minimum(np.arange(n) + 1, w))
    np.testing.assert_array_equal(chunk, np.arange(n) % w + 1)
    assert chunk.mean() == (w + 1) / 2


def test_cache_sizes_of_models():
    """128k tokens in bfloat16; shapes as their configurations say."""
    n = 2**17
    assert cache_bytes((None,) * 36, n, groups=8, d=64) == 9 * GIB
    assert cache_bytes((Window(127), None) * 18, n, groups=8, d=64) / GIB == pytest.approx(4.50, abs=0.005)
    assert cache_bytes((*(Local(8192),) * 3, None) * 12, n, groups=8, d=128) / GIB == pytest.approx(7.1, abs=0.05)
    assert cache_bytes((Window(1023, global_tokens=64),), n, groups=1, d=1) == 4 * (1024 + 64)
    five = (*(Window(1023),) * 5, None) * 10
    assert cache_bytes((None,) * 60, n, groups=16, d=128) == 60 * GIB
    assert cache_bytes(five, n, groups=16, d=128) / GIB == pytest.approx(10.4, abs=0.05)


def test_the_saving_tends_to_p_plus_one():
    """But for short texts it is less: 2.7 times at 4,096 tokens for 5 : 1 and w = 1,024."""
    five = (*(Window(1023),) * 5, None)
    saved = {n: cache_bytes((None,) * 6, n, groups=1, d=1) / cache_bytes(five, n, groups=1, d=1) for n in (4096, 2**30)}
    assert saved[4096] == pytest.approx(2.67, abs=0.01)
    assert saved[2**30] == pytest.approx(6, abs=0.001)
    assert cache_bytes((Window(1023), None), 10, groups=1, d=1) == 2 * 10 * 2 * 2, "a short text has no more to keep"
    assert cache_bytes((Strided(16),), 100, groups=3, d=5, each=4) == 100 * 3 * 5 * 2 * 4


def test_that_is_what_a_model_keeps():
    names = ("window:radius=7", "window:radius=7,global_tokens=2", "local:block=6", "softmax")
    model = LanguageModel(40, 96, 12, 4, 2, 10, attention=names)
    params = model.init(np.random.default_rng(0))
    _, state = model.step(params, np.arange(50)[None] % 40)
    for _ in range(30):
        _, state = model.step(params, np.array([[3]]), state)
    rows = [block.keys.shape[-2] for block in state.blocks]
    assert rows == [8 - 1, 10 - 1, 6 - 1, 80], "its own key is not in the cache yet when a token asks for the others"
