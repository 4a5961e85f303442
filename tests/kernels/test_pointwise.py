"""The compiled loops of a training step give what the definitions give: values, gradients, and the same errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minitransformer as mt
from minitransformer.backend import available
from minitransformer.functional import cross_entropy, embedding, gated, gelu, gelu_tanh, layer_norm, relu, rms_norm
from minitransformer.positions.rope import rotate
from minitransformer.training.optimiser import AdamW, AdamWState

pytestmark = pytest.mark.skipif("numba" not in available(), reason="needs Numba")

TOLERANCE = {"float32": 4e-6, "float64": 1e-14}
ACTIVATIONS = [relu, gelu, gelu_tanh]


@pytest.fixture(autouse=True)
def tier():
    with mt.backend("numba"):
        yield


def both(function, *args, dY=None, **options):
    """Value and gradients of the definition in float64 and of the loops, for one dY."""
    with mt.backend("numpy"):
        exact = [np.asarray(a, "f8") if np.asarray(a).dtype.kind == "f" else a for a in args]
        Y, pullback = function(*exact, **options)
        dY = np.random.default_rng(9).standard_normal(np.shape(Y)) if dY is None else dY
        want = Y, pullback(np.asarray(dY).astype(args[0].dtype).astype("f8"))
    Y, pullback = function(*args, **options)
    return want, (Y, pullback(np.asarray(dY).astype(args[0].dtype)))


def leaves(tree):
    return [np.asarray(leaf) for _, leaf in mt.tree_items(tree)]


def assert_close(want, have, dtype):
    for w, h in zip(leaves(want), leaves(have), strict=True):
        assert h.shape == w.shape
        assert h.dtype == dtype
        assert np.isfinite(h).all()
        error = np.abs(h - w).max(initial=0) / (1 + np.abs(w).max(initial=0))
        assert error <= TOLERANCE[str(h.dtype)], f"differs by {error:.2g}"


@st.composite
def arrays(draw):
    """Any number of batch axes, also of length zero, small or cut into parts; rows in any memory order."""
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,), (2, 0), (400,), (37, 13)]))
    shape = (*batch, draw(st.integers(1, 70) | st.sampled_from([1, 16, 64, 96, 129])))
    X = np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape) * draw(st.sampled_from([0.1, 1, 4]))
    X = X.astype(draw(st.sampled_from(["float32", "float64"])))
    order = draw(st.sampled_from(["as it is", "columns first", "every other", "read-only"]))
    if order == "columns first":
        X = np.asfortranarray(X)
    elif order == "every other":
        X = np.repeat(X, 2, axis=-1)[..., ::2]
    elif order == "read-only":
        X.flags.writeable = False
    return X


# ------------------------------------------------------------------------------------------- agreement


@pytest.mark.parametrize("function", ACTIVATIONS)
@given(arrays())
def test_activations_agree(function, X):
    before = X.copy()
    want, have = both(function, X)
    assert_close(want, have, X.dtype)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("gate", ["sigmoid", "relu", "gelu", "silu", "none"])
@given(arrays())
def test_gates_agree(gate, A):
    B = np.asarray(np.random.default_rng(3).standard_normal(A.shape), A.dtype)
    before = A.copy(), B.copy()
    want, have = both(gated, A, B, gate=gate)
    assert_close(want, have, A.dtype)
    np.testing.assert_array_equal((A, B), before)


@pytest.mark.parametrize("function", [layer_norm, rms_norm])
@given(arrays(), st.sampled_from([0.0, 100.0]))
def test_norms_agree(function, X, mean):
    if mean:  # the mean is large: its rounding is what any method in the dtype has to live with
        X = (X + X.dtype.type(mean)).astype(X.dtype)
    gains = np.random.default_rng(1).standard_normal((2, X.shape[-1])).astype(X.dtype)
    before = X.copy()
    want, have = both(function, X, *gains[: 2 if function is layer_norm else 1], eps=0.1)
    if not mean or X.dtype == np.float64:
        scale = 1 if not mean else 100
        for w, h in zip(leaves(want), leaves(have), strict=True):
            assert h.dtype == X.dtype
            allowed = TOLERANCE[str(X.dtype)] * scale * (1 + np.abs(w).max(initial=0))
            assert (np.abs(h - w) <= allowed).all()
    np.testing.assert_array_equal(X, before)


@given(arrays(), st.booleans(), st.sampled_from([1.0, 50.0, 1e4]))
def test_cross_entropy_agrees(X, masked, size):
    rng = np.random.default_rng(2)
    X = (X * size).astype(X.dtype)
    targets = rng.integers(0, X.shape[-1], X.shape[:-1]).astype(rng.choice(["int32", "int64"]))
    mask = np.asarray(rng.random(X.shape[:-1]) < 0.6) if masked else None
    (loss, dX), (loss_, dX_) = both(cross_entropy, X, np.asarray(targets), mask=mask, dY=np.float64(1.5))
    tolerance = TOLERANCE[str(X.dtype)]
    assert dX_.dtype == np.asarray(loss_).dtype == X.dtype
    assert np.isclose(loss_, loss, rtol=10 * tolerance, atol=10 * tolerance)
    largest = max(1, np.abs(X).max(initial=0))  # a logit is known to its own rounding, and so is a probability
    assert np.abs(dX_ - dX).max(initial=0) <= largest * tolerance * np.abs(dX).max(initial=0)


@given(
    st.sampled_from([(), (3,), (2, 3), (0,), (700,), (20, 50)]),
    st.integers(1, 70) | st.sampled_from([64, 128, 130]),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from(["int64", "int32"]),
)
def test_scatter_add_agrees(batch, width, dtype, integers):
    rng = np.random.default_rng(3)
    tokens = np.asarray(rng.integers(0, 7, batch)).astype(integers)
    _, pullback = embedding(tokens, np.ones((9, width), dtype))
    dY = rng.standard_normal((*batch, width)).astype(dtype)
    want = np.zeros((9, width))
    np.add.at(want, tokens.reshape(-1), dY.reshape(-1, width).astype("f8"))
    assert_close(want, pullback(dY), dtype)
    assert_close(want, pullback(np.asfortranarray(dY)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_adamw_agrees_and_changes_nothing(dtype):
    rng = np.random.default_rng(4)
    shapes = [(0,), (5,), (3, 4), (2, 3, 5), (130, 260), (40_001,)]
    params, grads = ([np.asarray(rng.standard_normal(s)).astype(dtype) for s in shapes] for _ in range(2))
    m, v = ([np.asarray(rng.random(s)).astype(dtype) for s in shapes] for _ in range(2))
    grads[4] = np.asfortranarray(grads[4])
    before = mt.tree_map(np.copy, (params, grads, m, v))
    optimiser = AdamW(betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)
    with mt.backend("numpy"):
        exact = [mt.tree_map(lambda a: a.astype("f8"), tree) for tree in (params, grads, m, v)]
        want = optimiser.update(exact[0], exact[1], AdamWState(3, *exact[2:]), 0.1)
    have = optimiser.update(params, grads, AdamWState(3, m, v), 0.1)
    assert have[1].step == want[1].step == 4
    for part in ((want[0], have[0]), (want[1].m, have[1].m), (want[1].v, have[1].v)):
        assert_close(*part, dtype)
    for old, new in zip(leaves(before), leaves((params, grads, m, v)), strict=True):
        np.testing.assert_array_equal(old, new)


# ------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("function", ACTIVATIONS)
def test_activations_are_exact_to_a_few_last_bits(function):
    x = np.concatenate([np.linspace(-9, 9, 20_001), np.logspace(-30, 30, 999), -np.logspace(-30, 2, 999)]).astype("f4")
    with mt.backend("numpy"):
        want, pullback = function(x[np.abs(x) < 1e15].astype("f8"))
        slope = pullback.slope
    have, pullback = function(x[np.abs(x) < 1e15])
    assert np.abs(have - want).max(where=np.abs(want) < 10, initial=0) < 1e-6
    positive = want > 0
    assert np.abs(have[positive] / want[positive] - 1).max() < 4e-7
    assert np.abs(pullback.slope - slope).max() < 1e-6


def test_the_polynomial_of_gelu_is_the_one_that_goes_through_chebyshev_s_points():
    from numpy.polynomial import chebyshev
    from scipy.special import erfcx

    from minitransformer.kernels.pointwise import K, R

    def tail(t):  # R(t) = e^(a²/2) Φ(−a), with a = K (1 + t)/(1 − t)
        return erfcx(K * (1 + t) / (1 - t) / np.sqrt(2)) / 2

    exact = chebyshev.cheb2poly(chebyshev.chebinterpolate(tail, 10))[::-1]
    np.testing.assert_allclose(R, exact, rtol=1e-6, atol=1e-11)


def test_what_callers_open_is_still_there():
    rng = np.random.default_rng(6)
    X = rng.standard_normal((2, 3, 5))
    gamma, beta = rng.standard_normal((2, 5))
    targets = rng.integers(0, 5, (2, 3))
    calls = [
        (lambda: layer_norm(X, gamma, beta), ("Xhat", "root")),
        (lambda: rms_norm(X, gamma), ("Xhat", "root")),
        (lambda: relu(X), ("slope",)),
        (lambda: gelu_tanh(X), ("slope",)),
        (lambda: gated(X, X + 1), ("F", "B")),
        (lambda: cross_entropy(X, targets), ("P", "weight")),
    ]
    for call, names in calls:
        with mt.backend("numpy"):
            want = call()[1]
        have = call()[1]
        assert type(have) is not type(want)
        assert isinstance(have, tuple)
        for name in names:
            np.testing.assert_allclose(getattr(have, name), getattr(want, name), rtol=1e-12, atol=1e-15)
    assert layer_norm(X, gamma, beta)[1].X is X


# ---------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("width", [3, 40])
def test_logits_of_any_size(dtype, width):
    logits = np.zeros((2, width), dtype)
    logits[0, 0] = logits[1, 1] = 1e4
    loss, pullback = cross_entropy(logits, np.array([1, 1]))
    assert loss == 5e3
    np.testing.assert_allclose(pullback(np.float32(1))[:, :2], [[0.5, -0.5], [0, 0]], atol=1e-6)
    logits[:, -1] = -np.inf
    assert np.isfinite(cross_entropy(logits, np.array([1, 1]))[1](np.float32(1))).all()
    logits[0, 2] = np.nan
    assert np.isnan(cross_entropy(logits, np.array([1, 1]))[0])
    tiny = np.full((1, width), np.finfo(dtype).tiny)
    assert np.isclose(cross_entropy(tiny, np.array([0]))[0], np.log(width), rtol=1e-6)


def test_a_nan_is_not_swept_under_the_carpet():
    X = np.random.default_rng(7).standard_normal((4, 40)).astype("f4")
    X[1, 3] = np.nan
    for function in ACTIVATIONS:
        Y, _ = function(X)
        assert np.isnan(Y[1, 3])
        assert np.isfinite(np.delete(Y, 43)).all()
    for gate in ("sigmoid", "relu", "gelu", "silu", "none"):
        for Y in (gated(X, np.ones_like(X), gate)[0], *gated(X, np.ones_like(X), gate)[1](np.ones_like(X))):
            assert np.isfinite(np.delete(Y, 43)).all()
        assert np.isnan(gated(X, np.ones_like(X), gate)[0][1, 3])
    Y, _ = layer_norm(X, np.ones(40, "f4"), np.ones(40, "f4"))
    assert np.isnan(Y[1]).all()
    assert np.isfinite(Y[[0, 2, 3]]).all()


def test_bad_arguments_are_the_same_error_in_both_tiers():
    X = np.ones((2, 3, 5))
    calls = [
        lambda: cross_entropy(X, np.full((2, 3), 5)),
        lambda: cross_entropy(X, np.full((2, 3), -1)),
        lambda: cross_entropy(X, np.zeros((2, 2), int)),
        lambda: layer_norm(X, np.ones(4), np.ones(5)),
        lambda: layer_norm(X, np.ones(5, "f4"), np.ones(5)),
        lambda: rms_norm(X, np.ones(5, "f4")),
        lambda: embedding(np.array([7]), X[0]),
        lambda: gelu(np.arange(3)),
        lambda: gated(X, X[0]),
    ]
    for call in calls:
        said = set()
        for tier in ("numpy", "numba"):
            with mt.backend(tier), pytest.raises((TypeError, ValueError)) as error:
                call()
            said.add(str(error.value))
        assert len(said) == 1


def test_a_gradient_of_another_shape_is_refused():
    X = np.ones((2, 5))
    for pullback in (relu(X)[1], layer_norm(X, X[0], X[0])[1]):
        with pytest.raises(ValueError, match=r"dY: shape \(3, 5\) should be that of Y, \(2, 5\)"):
            pullback(np.ones((3, 5)))
    with pytest.raises(ValueError, match=r"dY: shape \(3, 5\) should be that of Y, \(2, 5\)"):
        embedding(np.array([0, 1]), X)[1](np.ones((3, 5)))


def test_the_same_bits_every_time_with_any_number_of_threads():
    from minitransformer.kernels.threads import limit

    rng = np.random.default_rng(8)
    X, dY = rng.standard_normal((2, 1100, 129)).astype("f4")
    gamma, beta = rng.standard_normal((2, 129)).astype("f4")
    tokens = rng.integers(0, 9, 1100)

    def everything():
        found = []
        for function in ACTIVATIONS:
            Y, pullback = function(X)
            found += [Y, pullback(dY)]
        for Y, pullback in (layer_norm(X, gamma, beta), rms_norm(X, gamma)):
            found += [Y, pullback(dY)]
        Y, pullback = gated(X, dY)
        found += [Y, *pullback(dY)]
        loss, pullback = cross_entropy(X, tokens)
        optimiser = AdamW()
        found += [loss, pullback(loss), embedding(tokens, X[:9])[1](dY)]
        return leaves([*found, optimiser.update(X, dY, optimiser.init(X), 0.1)[0]])

    results = []
    for threads in (1, 2, 3):
        with limit(threads):
            results.append(everything())
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------------------------- rotations


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize(
    ("shape", "pairs"), [((7, 6), 3), ((2, 3, 5, 8), 3), ((5, 5), 0), ((0, 4, 4), 2), ((2, 0, 4), 2), ((9, 700, 8), 4)]
)
def test_rotations(shape, pairs, layout, dtype):
    rng = np.random.default_rng(pairs)
    X = rng.standard_normal(shape).astype(dtype)
    X.flags.writeable = False
    angles = rng.standard_normal((shape[-2], pairs)).astype(dtype)
    want, have = both(lambda X: rotate(X, angles=angles.astype(X.dtype), layout=layout, magnitude=1.5), X)
    assert_close(want, have, dtype)
    X = np.asfortranarray(X)
    assert_close(want[:1], (rotate(X, angles=angles, layout=layout, magnitude=1.5)[0],), dtype)
