"""The loop of the convolutions gives what the definition gives, to the same bits on any number of threads."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.attention.depthwise import depthwise_convolution
from minitransformer.backend import available
from minitransformer.related import dynamic_convolution, lightweight_convolution

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")

TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


@st.composite
def cases(draw):
    """A function of X and its kernel; more tokens than a task has, fewer than taps, none, rows in any memory order."""
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    n, heads, width = (
        draw(st.sampled_from([0, 1, 2, 7, 64, 65, 130])),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 17)),
    )
    taps, causal, renormalise = draw(st.integers(1, 11)), draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    X = rng.standard_normal((*batch, n, heads * width)).astype(draw(st.sampled_from(["float32", "float64"])))
    if draw(st.booleans()):
        X = np.asfortranarray(X)
    mask = rng.random((*batch, n)) < 0.8 if draw(st.booleans()) else None
    options = {"causal": causal, "renormalise": renormalise, "mask": mask}
    kind = draw(st.sampled_from(["lightweight", "dynamic", "each token's own"]))
    if kind == "lightweight":
        return partial(lightweight_convolution, **options), X, rng.standard_normal((heads, taps))
    if kind == "dynamic":
        return partial(dynamic_convolution, **options), X, rng.standard_normal((X.shape[-1], heads, taps))
    shape = draw(st.sampled_from([(*batch, n), (n,), (*batch, 1), (1,), ()]))
    A = rng.standard_normal((*shape, heads, taps, 1))
    return partial(depthwise_convolution, causal=causal), X.reshape(*X.shape[:-1], heads, width), A


@given(cases())
def test_values_and_gradients(case):
    function, X, kernel = case
    with mt.backend("numpy"):
        Y, pullback = function(X.astype("f8"), kernel)
        dY = np.random.default_rng(1).standard_normal(Y.shape)
        want = (Y, *pullback(dY))
    with mt.backend("numba"):
        Y, pullback = function(X, kernel.astype(X.dtype))
        have = (Y, *pullback(dY.astype(X.dtype)))
    for h, w in zip(have, want, strict=True):
        assert (h.shape, h.dtype) == (w.shape, X.dtype)
        error = np.abs(h - w).max(initial=0) / (1 + np.abs(w).max(initial=0))
        assert error <= TOLERANCE[str(X.dtype)], f"differs by {error:.2g}"


@pytest.mark.parametrize("function", [lightweight_convolution, dynamic_convolution])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_same_bits_with_any_number_of_threads(function, dtype):
    from minitransformer.kernels.threads import limit

    rng, found = np.random.default_rng(2), []
    X = rng.standard_normal((3, 333, 24)).astype(dtype)
    kernel = rng.standard_normal((4, 7) if function is lightweight_convolution else (24, 4, 7)).astype(dtype)
    for threads in (1, 2, 3):
        with limit(threads):
            Y, pullback = function(X, kernel, causal=True)
            found.append((Y, *pullback(X)))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_scores_of_any_size_and_rows_without_a_tap():
    """Softmax takes its largest score off first; where all are −∞, a row of zeros, and no gradient."""
    from minitransformer.kernels.convolution import depthwise

    X, S = np.ones((1, 3, 1, 2)), np.array([[1e4, 1e4, -1e4], [-np.inf] * 3, [-1e300, 0, -np.inf]])[None, :, None]
    Y, pullback = depthwise(X, S, left=1, softmax=True)
    np.testing.assert_array_equal(pullback.A[0, :, 0], [[0.5, 0.5, 0], [0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(Y[0, :, 0, 0], [0.5, 0, 1])
    assert not pullback(Y)[1][0, 1].any()


@pytest.mark.parametrize("change", ["rows", "taps", "channels", "dtype"])
def test_one_token_refuses_rows_and_weights_that_do_not_fit(change):
    from minitransformer.kernels.convolution import last_of

    A, B, past = np.ones((2, 1, 6)), np.ones((2, 1, 6)), np.ones((2, 2, 6))
    kernel = {"rows": np.ones((4, 3, 3)), "taps": np.ones((3, 4)), "channels": np.ones((5, 3, 3))}.get(
        change, np.ones((3, 3))
    )
    assert last_of(A, B, past, np.ones((6, 3, 3)))[1].shape == past.shape
    with pytest.raises(ValueError, match="do not fit"):
        last_of(A, B, past.astype(np.float32) if change == "dtype" else past, kernel)
