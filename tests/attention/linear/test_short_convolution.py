"""The short convolution, by itself and in front of a memory: against loops, tap by tap, and in pieces."""

import math

import numpy as np
import pytest

from minitransformer import check_pullback, random_like
from minitransformer.attention import SSD, GatedDelta, short_convolution
from minitransformer.attention.linear.short_convolution import Kernel
from tests.pieces import in_pieces

pytestmark = pytest.mark.usefixtures("definitions")

B, H, N, D, TAPS = 2, 3, 7, 4, 3
CORES = {
    "gated-delta": GatedDelta(H, D, taps=TAPS),
    "kimi": GatedDelta(H, D, channelwise=True, taps=TAPS),
    "ssd": SSD(H, D, taps=TAPS),
    "one tap": SSD(H, D, taps=1),
}
every = pytest.mark.parametrize("name", CORES)


def swish(x):
    return x / (1 + math.exp(-x))


def of_row(X, theta, b):
    """X (n, d), θ (taps, d), b (d,): one number at a time, and nothing in front of the text."""
    taps = len(theta)
    Y = np.zeros_like(X)
    for t, c in np.ndindex(X.shape):
        terms = [theta[s, c] * X[t - taps + 1 + s, c] for s in range(taps) if t - taps + 1 + s >= 0]
        Y[t, c] = swish(sum(terms) + b[c])
    return Y


def inputs(core, seed=0):
    rng = np.random.default_rng(seed)
    params = random_like(core.init(rng, np.float64), rng)
    return params, *(rng.standard_normal((B, H, N, width)) for width in (D, D, D, *core.streams.values()))


# ---------------------------------------------------------------------------------------------- by itself


@pytest.mark.parametrize("taps", [1, 2, 4, N + 2])
@pytest.mark.parametrize("biased", [False, True])
def test_against_loops(taps, biased, rng):
    X, theta, b = rng.standard_normal((B, H, N, D)), rng.standard_normal((H, taps, D)), rng.standard_normal((H, D))
    Y, _ = short_convolution(X, theta, b if biased else None)
    for i, h in np.ndindex(B, H):
        np.testing.assert_allclose(Y[i, h], of_row(X[i, h], theta[h], biased * b[h]), rtol=1e-12, atol=1e-14)
    alone, _ = short_convolution(X[0, 1], theta[1], b[1] if biased else None)
    np.testing.assert_array_equal(alone, Y[0, 1])


def test_each_channel_is_numpys_convolution(rng):
    """`np.convolve` turns its kernel round, so that ours is its mirror image: the last tap is that of the row itself."""
    X, theta = rng.standard_normal((N, D)), rng.standard_normal((TAPS, D))
    Y, _ = short_convolution(X, theta)
    A = np.stack([np.convolve(X[:, c], theta[::-1, c])[:N] for c in range(D)], -1)
    np.testing.assert_allclose(Y, A / (1 + np.exp(-A)), rtol=1e-12)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(N, D), (B, N, D), (B, H, N, D)])
def test_gradient(biased, shape, rng):
    """θ and b of one for all, or of each head."""
    own = shape[-3:-2] if len(shape) > 3 else ()
    b = (rng.standard_normal((*own, D)),) if biased else ()
    check_pullback(short_convolution, rng.standard_normal(shape), rng.standard_normal((*own, TAPS, D)), *b)


def test_rows_that_stood_before_are_not_moved(rng):
    X, theta, before = rng.standard_normal((N, D)), rng.standard_normal((TAPS, D)), rng.standard_normal((TAPS - 1, D))
    check_pullback(lambda X, theta: short_convolution(X, theta, before=before.astype(X.dtype)), X, theta)
    Y, pullback = short_convolution(X, theta, before=before)
    whole, _ = short_convolution(np.concatenate([before, X]), theta)
    np.testing.assert_array_equal(Y, whole[TAPS - 1 :])
    np.testing.assert_array_equal(pullback.rows[N:], X[N - TAPS + 1 :])


def test_what_comes_later_changes_no_bit(rng):
    X, theta = rng.standard_normal((B, N, D)), rng.standard_normal((TAPS, D))
    Y, _ = short_convolution(X, theta)
    X[:, 4:] = np.nan
    np.testing.assert_array_equal(short_convolution(X, theta)[0][:, :4], Y[:, :4])


def test_float32_stays(rng):
    X, theta = (rng.standard_normal(shape).astype("f") for shape in ((N, D), (TAPS, D)))
    Y, pullback = short_convolution(X, theta, np.ones(D, "f"))
    assert {array.dtype for array in (Y, *pullback(Y))} == {np.dtype("f")}


def test_what_is_refused():
    X, theta = np.ones((B, N, D)), np.ones((TAPS, D))
    with pytest.raises(TypeError, match="theta"):
        short_convolution(X, theta[:, :3])
    with pytest.raises(
        TypeError, match=r"theta: axes \(3,\) of heads should be the last ones in front of the rows, \(2,\)"
    ):
        short_convolution(X, np.ones((3, TAPS, D)))
    with pytest.raises(ValueError, match="theta: no taps"):
        short_convolution(X, theta[:0])
    with pytest.raises(ValueError, match="before: 3 rows for 3 taps, should be 2"):
        short_convolution(X, theta, before=X[:, :3])


# --------------------------------------------------------------------------------------- in front of a memory


@every
def test_a_memory_takes_what_the_convolution_gives(name):
    """The same as the core without taps, on arrays that went through the loops above."""
    core, (params, *arrays) = CORES[name], inputs(CORES[name])
    plain = type(core)(**{key: value for key, value in vars(core).items() if key != "taps"})
    theta, b = params.kernel
    b = np.zeros((3 * H, D)) if b is None else b
    convolved = [np.zeros((B, H, N, D)) for _ in range(3)]
    for k, i, h in np.ndindex(3, B, H):
        convolved[k][i, h] = of_row(arrays[k][i, h], theta[k * H + h], b[k * H + h])
    Y, _ = plain(params._replace(kernel=None), *convolved, *arrays[3:])
    np.testing.assert_allclose(core(params, *arrays)[0], Y, rtol=1e-9, atol=1e-12)


@every
@pytest.mark.parametrize("edges", [(0, 1, 2, 3, 4, 5, 6, 7), (0, 4, 5, 7), (0, 7), (0, 0, 7)])
def test_steps_are_the_whole(name, edges):
    core, (params, *arrays) = CORES[name], inputs(CORES[name], 3)
    said, state = in_pieces(core, params, arrays, edges)
    np.testing.assert_allclose(said, core(params, *arrays)[0], rtol=1e-10, atol=1e-13)
    assert state.length == 7
    assert state.rows.shape == (B, 3 * H, core.taps - 1, D)
    assert state.rows.base is None, "nothing of a long text is held on to"


@pytest.mark.parametrize("edges", [(0, 1, 2, 7), (0, 0, 4, 7)])
def test_steps_of_heads_of_one_channel(edges, tier):
    """A kernel of one channel looks like one that all channels of a head share, for which there is a loop."""
    core, rng = GatedDelta(H, 1, taps=TAPS), np.random.default_rng(0)
    params = random_like(core.init(rng, np.float64), rng)
    arrays = [rng.standard_normal((B, H, N, width)) for width in (1, 1, 1, *core.streams.values())]
    said, _ = in_pieces(core, params, arrays, edges)
    np.testing.assert_allclose(said, core(params, *arrays)[0], rtol=1e-10, atol=1e-13)


@every
def test_padding_in_front_is_the_start_of_the_text(name):
    """What is not there counts as zeros, NaN included, as what stands in front of a text does; of each head if need be."""
    core, (params, *arrays) = CORES[name], inputs(CORES[name], 2)
    there = np.arange(N) >= 3
    without, _ = core(params, *(X[..., there, :] for X in arrays))
    for X in arrays:
        X[..., ~there, :] = np.nan
    for mask in (there[None], np.broadcast_to(there, (B, H, 1, N))):
        Y, pullback = core(params, *arrays, mask=mask)
        np.testing.assert_allclose(Y[..., there, :], without, rtol=1e-10, atol=1e-13)
    for d in pullback(np.where(there[:, None], Y, 0))[1:4]:
        assert not d[..., ~there, :].any()


def test_by_itself_a_memory_does_not_know_what_stands_beside_what():
    """Where nothing fades the past is a sum over tokens, in any order; two taps tie a token to the one before it."""
    others = [1, 0, 3, 2, 5, 4, 6]  # each pair of tokens the other way round
    plain, tied = SSD(H, D), SSD(H, D, taps=2)
    for core, knows in ((plain, False), (tied, True)):
        params, Q, K, V, delta, gate = inputs(core, 5)
        params, delta = params._replace(A=np.full(H, -800.0)), np.ones_like(delta)  # nothing fades, and all is written
        there, _ = core(params, Q, K, V, delta, gate)
        turned, _ = core(params, *(X[..., others, :] for X in (Q, K, V)), delta, gate)
        assert np.allclose(there[..., -1, :], turned[..., -1, :], rtol=1e-10) != knows


def test_how_kernels_start():
    """Uniform on ±1/√taps, b = 0, and one of Mamba's only."""
    kernel = SSD(8, 64, taps=4).init(np.random.default_rng(0)).kernel
    assert kernel.theta.shape == (24, 4, 64)
    assert kernel.theta.dtype == np.float32
    assert abs(kernel.theta.std() * math.sqrt(3) - 0.5) < 0.01
    assert 0.49 < abs(kernel.theta).max() <= 0.5
    assert kernel.b.shape == (24, 64)
    assert not kernel.b.any()
    assert GatedDelta(8, 64, taps=4).init(np.random.default_rng(0)).kernel.b is None
    assert GatedDelta(8, 64).init(np.random.default_rng(0)).kernel is None
    assert SSD(8, 64, taps=4).remembers == "S, d·dv for each head, and 3 tokens"
    assert isinstance(kernel, Kernel)
