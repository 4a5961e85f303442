"""Attention that is a convolution: SciPy's and NumPy's answers inside, the mean at the border, and how high a bias has to be."""

import numpy as np
import pytest
import scipy

from minitransformer.attention import MultiHeadAttention
from minitransformer.related import convolution_from_heads, convolve_with_heads, widened

rng = np.random.default_rng(0)
TEXT, PICTURE = rng.standard_normal((2, 11, 3)), rng.standard_normal((7, 9))


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_a_scalar_kernel_in_a_text(taps, tier):
    """Every channel is what np.convolve(…, "same") makes of it, but for the rows whose neighbours are outside."""
    w = np.random.default_rng(taps).standard_normal(taps)
    Y = convolve_with_heads(TEXT, w, (11,))
    inside = slice(taps // 2, 11 - (taps - 1) // 2)  # x_{i − o} for o from −⌊(taps − 1)/2⌋ to ⌊taps/2⌋
    for s, c in np.ndindex(2, 3):
        assert np.allclose(Y[s, inside, c], np.convolve(TEXT[s, :, c], w, "same")[inside], rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [(3, 3), (3, 5), (2, 4), (1, 3)])
def test_a_scalar_kernel_in_a_picture(size, tier):
    kernel = np.random.default_rng(1).standard_normal(size)
    Y = convolve_with_heads(PICTURE.reshape(63, 1), kernel, (7, 9)).reshape(7, 9)
    middle = [k % 2 - 1 for k in size]  # of two taps in the middle, the one that np.convolve takes
    wanted = scipy.ndimage.convolve(PICTURE, kernel, mode="constant", origin=middle)
    inside = tuple(slice(k // 2, n - (k - 1) // 2) for k, n in zip(size, (7, 9), strict=True))
    assert np.allclose(Y[inside], wanted[inside], rtol=0, atol=1e-13)


@pytest.mark.parametrize("channels", [(3, 2), (2, 3), (1, 7)])
@pytest.mark.parametrize("axes", [1, 2])
def test_a_full_kernel(axes, channels):
    """A matrix for each tap: output channel e is the sum over the input channels c of what kernel (c, e) makes of c."""
    C, E = channels
    shape, size = ((13,), (3,)) if axes == 1 else ((6, 7), (3, 3))
    kernel = np.random.default_rng(2).standard_normal((*size, C, E))
    X = np.random.default_rng(3).standard_normal((*shape, C))
    Y = convolve_with_heads(X.reshape(-1, C), kernel, shape).reshape(*shape, E)
    inside = (slice(1, -1),) * axes
    for e in range(E):
        wanted = sum(scipy.ndimage.convolve(X[..., c], kernel[..., c, e], mode="constant") for c in range(C))
        assert np.allclose(Y[..., e][inside], wanted[inside], rtol=0, atol=1e-13)


def test_with_zeros_around_it_all_is_exact():
    """Zero padding, as the name says: what stood outside are zeros then, not the mean."""
    kernel = np.random.default_rng(4).standard_normal((3, 5))
    framed = np.pad(PICTURE, ((1, 1), (2, 2)))
    Y = convolve_with_heads(framed.reshape(-1, 1), kernel, framed.shape).reshape(framed.shape)
    assert np.allclose(Y[1:-1, 2:-2], scipy.ndimage.convolve(PICTURE, kernel, mode="constant"), rtol=0, atol=1e-13)
    w = np.random.default_rng(5).standard_normal(5)
    padded = np.pad(TEXT, ((0, 0), (2, 2), (0, 0)))
    for s, c in np.ndindex(2, 3):
        Y = convolve_with_heads(padded, w, (15,))[s, 2:-2, c]
        assert np.allclose(Y, np.convolve(TEXT[s, :, c], w, "same"), rtol=0, atol=1e-13)


def test_without_them_a_head_without_its_neighbour_takes_the_mean():
    Y = convolve_with_heads(TEXT, np.array([0.0, 0.0, 1.0]), (11,))  # the one before
    assert np.allclose(Y[:, 1:], TEXT[:, :-1], rtol=0, atol=1e-14)
    assert np.allclose(Y[:, 0], TEXT.mean(1), rtol=0, atol=1e-14)


@pytest.mark.parametrize("height", [2.0, 5.0, 10.0, 20.0])
def test_how_far_a_finite_bias_is_from_a_shift(height):
    """A head gives its key e^β/(e^β + n − 1); the rest, (n − 1)/(e^β + n − 1), goes to the mean of the others."""
    n = 11
    Y = convolve_with_heads(TEXT, np.array([0.0, 1.0, 0.0]), (n,), height=height)
    share = (n - 1) / (np.exp(height) + n - 1)
    others = (TEXT.sum(1, keepdims=True) - TEXT) / (n - 1)
    assert np.allclose(Y - TEXT, share * (others - TEXT), rtol=1e-9, atol=1e-14)
    assert share < n * np.exp(-height)


def test_it_is_multi_head_attention_of_the_usual_form_and_its_gradient_that_of_the_convolution():
    kernel = np.random.default_rng(6).standard_normal((3, 3))
    attention, params = convolution_from_heads(kernel, (5, 6))
    assert isinstance(attention, MultiHeadAttention)
    assert attention.heads == attention.width == 9
    X = widened(np.random.default_rng(7).standard_normal((2, 30, 1)), 9)
    Y, pullback = attention(params, X)
    dY = widened(np.random.default_rng(8).standard_normal((2, 30, 1)), 9)
    inner = np.zeros((5, 6), bool)
    inner[2:-2, 2:-2] = True  # those whose gradient comes from the inside alone
    dY[:, ~np.pad(inner[1:-1, 1:-1], 1).reshape(-1)] = 0
    _, dX = pullback(dY)
    for s in range(2):
        wanted = scipy.ndimage.correlate(dY[s, :, 0].reshape(5, 6), kernel, mode="constant")
        assert np.allclose(dX[s, :, 0].reshape(5, 6), wanted, rtol=0, atol=1e-12)
    dparams, _ = pullback(Y)
    assert not dparams.W_q.any()  # with queries and keys of zero, content never comes in
    assert not dparams.W_k.any()


def test_float32_stays_float32_and_is_as_good_as_it_can_be():
    w = np.array([0.25, 0.5, 0.25], np.float32)
    Y = convolve_with_heads(TEXT.astype(np.float32), w, (11,))
    assert Y.dtype == np.float32
    assert np.allclose(Y[:, 1:-1, 0], convolve_with_heads(TEXT, w.astype(float), (11,))[:, 1:-1, 0], atol=1e-6)


def test_a_tap_beyond_the_text_sees_nothing_but_the_mean():
    Y = convolve_with_heads(TEXT[:, :2], np.array([0.0, 0, 0, 0, 1.0]), (2,))
    assert np.allclose(Y, TEXT[:, :2].mean(1, keepdims=True), rtol=0, atol=1e-14)


def test_what_is_refused():
    for kernel, shape in ((np.ones(3), (2, 3)), (np.ones((3, 3)), (9,)), (np.ones(0), (9,)), (np.ones(3), (2, 3, 4))):
        with pytest.raises(ValueError, match=r"kernel: shape .* should have the axes"):
            convolution_from_heads(kernel, shape)
    with pytest.raises(TypeError, match="kernel"):
        convolution_from_heads(np.ones(3, int), (9,))
    with pytest.raises(ValueError, match="X: 3 channels, more than the width 2"):
        widened(TEXT, 2)
    with pytest.raises(ValueError, match=r"X: 11 rows of 3 channels should be the 9 rows of \(9,\)"):
        convolve_with_heads(TEXT, np.ones(3), (9,))
    with pytest.raises(ValueError, match=r"kernel: shape \(3, 2, 4\) should end in \(3, E\), as X has 3 channels"):
        convolve_with_heads(TEXT, np.ones((3, 2, 4)), (11,))
    with pytest.raises(TypeError, match="X, kernel: should have one dtype"):
        convolve_with_heads(TEXT, np.ones(3, np.float32), (11,))
