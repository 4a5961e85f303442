"""The small functions: gradients by the checker, values against plain loops, identities, and bad input."""

import math
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from minitransformer import check_pullback, functional
from minitransformer.backend import available, backend
from minitransformer.functional import (
    aggregate,
    cross_entropy,
    dropout,
    embedding,
    gated,
    gelu,
    gelu_tanh,
    glu,
    layer_norm,
    layer_norm_outside,
    linear,
    relu,
    rms_norm,
    scores,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)
from minitransformer.typing import Array, Float, checked

fixed = np.random.default_rng(0)
X = fixed.standard_normal((2, 3, 5))
W, b = fixed.standard_normal((5, 4)), fixed.standard_normal(4)
GAMMA, BETA = fixed.standard_normal((2, 5))
TABLE = fixed.standard_normal((7, 4))
TOKENS = np.array([[1, 6, 1], [5, 2, 1]])


@pytest.fixture(autouse=True, params=sorted({available()[0], available()[-1]}))
def tier(request):
    """The definitions, and the loops that stand for them."""
    with backend(request.param):
        yield request.param


POINTWISE = [relu, sigmoid, tanh, silu, softplus, gelu, gelu_tanh]


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (softmax, (X,)),
        (linear, (X, W)),
        (linear, (X, W, b)),
        (embedding, (TOKENS, TABLE)),
        (layer_norm, (X, GAMMA, BETA)),
        (layer_norm_outside, (X, GAMMA, BETA)),
        (rms_norm, (X, GAMMA)),
        (dropout, (X, 0.3, np.random.default_rng(0))),
        (cross_entropy, (X, TOKENS % 5)),
        *[(f, (X,)) for f in POINTWISE],
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pullback_is_a_named_tuple(function, args):
    """Its fields can be looked at: that is how figures and the count of bytes get at them."""
    _, pullback = function(*args)
    assert isinstance(pullback, tuple)
    assert pullback._fields
    assert all(isinstance(field, (np.ndarray, np.floating, int)) or field is None for field in pullback)


# ---------------------------------------------------------------------------------------------- softmax


def test_softmax_gradient():
    check_pullback(softmax, X)


@pytest.mark.parametrize("shape", [(5,), (3, 1), (2, 3, 5), (2, 1, 5), (1, 1, 1)])
def test_softmax_gradient_with_a_mask(shape):
    mask = np.random.default_rng(3).random(shape) < 0.7
    mask.flat[0] = True
    check_pullback(lambda S: softmax(S, mask=mask), X)


def test_softmax_is_a_quotient_of_exponentials():
    A, _ = softmax(X)
    for index in np.ndindex(2, 3):
        S = X[index]
        total = sum(math.exp(s) for s in S)
        assert np.allclose(A[index], [math.exp(s) / total for s in S], rtol=1e-14)


@given(hnp.arrays(np.float64, hnp.array_shapes(max_side=6), elements=st.floats(-1e300, 1e300)), st.floats(-100, 100))
def test_softmax_of_any_row_is_a_distribution(S, constant):
    """No overflow at any size, and adding a constant to a row changes nothing."""
    A, _ = softmax(S)
    assert (A >= 0).all()
    assert np.allclose(A.sum(-1), 1, rtol=1e-12)
    small = S / 1e300
    assert np.allclose(softmax(small + constant)[0], softmax(small)[0], rtol=1e-12)


def test_softmax_gradient_sums_to_zero(rng):
    """Probability that goes to one entry is taken from the others."""
    _, pullback = softmax(X)
    assert np.allclose(pullback(rng.standard_normal(X.shape)).sum(-1), 0, atol=1e-15)


def test_softmax_mask_is_softmax_of_what_is_left():
    mask = np.array([True, False, True, True, False])
    A, _ = softmax(X, mask=mask)
    assert np.array_equal(A[..., ~mask], np.zeros((2, 3, 2)))
    assert np.allclose(A[..., mask], softmax(X[..., mask])[0], rtol=1e-14)


def test_softmax_of_a_masked_row_is_zero_and_so_is_its_gradient(rng):
    mask = np.ones((2, 3, 5), bool)
    mask[0, 1] = False
    A, pullback = softmax(X, mask=mask)
    dS = pullback(rng.standard_normal(X.shape))
    assert not A[0, 1].any()
    assert not dS[0, 1].any()
    assert np.isfinite(A).all()
    assert np.isfinite(dS).all()
    assert np.allclose(A[0, 0].sum(), 1)
    assert np.array_equal(softmax(np.full((2, 3), -np.inf))[0], np.zeros((2, 3)))


def test_softmax_of_nothing_is_nothing():
    A, pullback = softmax(np.ones((2, 0)))
    assert A.shape == pullback(A).shape == (2, 0)
    assert softmax(np.ones((0, 3)))[0].shape == (0, 3)


@pytest.mark.parametrize("shape", [(4,), (2, 1), (2, 2, 3, 5), (1, 2, 3, 5), (3, 2, 5)])
def test_softmax_refuses_a_mask_that_does_not_fit(shape):
    with pytest.raises(
        ValueError, match=r"mask: shape \(.*\) does not broadcast to the shape of the scores, \(2, 3, 5\)"
    ):
        softmax(X, mask=np.ones(shape, bool))


@pytest.mark.parametrize("mask", [np.ones(5), np.ones(5, int), [True] * 5], ids=["float", "int", "list"])
def test_softmax_refuses_a_mask_of_numbers(mask):
    with pytest.raises(TypeError, match=r"parameter 'mask'|mask: a list should be an array"):
        softmax(X, mask=mask)


# ------------------------------------------------------------------------------------------ activations


@pytest.mark.parametrize("function", POINTWISE)
def test_activation_gradient(function):
    check_pullback(function, 2 * X)


@pytest.mark.parametrize(
    ("function", "one"),
    [
        (relu, lambda x: max(x, 0.0)),
        (sigmoid, lambda x: 1 / (1 + math.exp(-x))),
        (tanh, math.tanh),
        (silu, lambda x: x / (1 + math.exp(-x))),
        (softplus, lambda x: math.log1p(math.exp(x))),
        (gelu, lambda x: x * 0.5 * math.erfc(-x / math.sqrt(2))),
        (gelu_tanh, lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    ],
)
def test_activation_entry_by_entry(function, one):
    values = np.array([-30.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 30.0])
    assert np.allclose(function(values)[0], [one(x) for x in values], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("function", POINTWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activation_far_out(function, dtype):
    """No overflow, no NaN, neither forwards nor backwards."""
    values = np.array([-1e4, -100, 100, 1e4], dtype)
    Y, pullback = function(values)
    slope = pullback(np.ones_like(values))
    assert np.isfinite(Y).all()
    assert np.isfinite(slope).all()
    assert np.allclose(slope, [0, 0, 1, 1] if function not in (sigmoid, tanh) else 0, atol=1e-6)


def test_far_below_zero_softplus_keeps_its_digits():
    """ln(1 + e⁻⁴⁰) is e⁻⁴⁰ to the last digit, and not 0: a gate −softplus(−x) that is nearly open still fades a little."""
    assert math.isclose(softplus(np.array([-40.0]))[0][0], math.exp(-40), rel_tol=1e-12)


def test_without_scipy_gelu_is_the_same(monkeypatch):
    """As in a browser: Python's own erf, also where there is nothing to take it of."""
    there, _ = gelu(X)
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    np.testing.assert_allclose(gelu(X)[0], there, rtol=1e-12)
    assert gelu(np.zeros((0, 5)))[0].shape == (0, 5)


def test_slope_of_relu_at_zero_is_zero():
    assert relu(np.zeros(2))[1](np.ones(2)).tolist() == [0, 0]


def test_the_two_gelus_are_close_and_not_equal():
    x = np.linspace(-6, 6, 2001)
    distance = np.abs(gelu(x)[0] - gelu_tanh(x)[0]).max()
    assert 4e-4 < distance < 5e-4


@pytest.mark.parametrize("function", [*POINTWISE, softmax])
def test_integers_are_refused(function):
    with pytest.raises(TypeError, match=r"parameter '[XS]'"):
        function(np.arange(4))


# ---------------------------------------------------------------------------------------------- gates

GATE = {
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)),
    "relu": lambda a: max(a, 0.0),
    "gelu": lambda a: a * 0.5 * math.erfc(-a / math.sqrt(2)),
    "silu": lambda a: a / (1 + math.exp(-a)),
    "none": lambda a: a,
}
U_1, U_2, B_1, B_2 = W, fixed.standard_normal((5, 4)), b, fixed.standard_normal(4)


@pytest.mark.parametrize("tier", available())
@pytest.mark.parametrize("gate", GATE)
def test_gate_gradients(gate, tier):
    with backend(tier):
        check_pullback(partial(gated, gate=gate), 2 * X, X[::-1].copy())
        check_pullback(partial(glu, gate=gate), X, U_1, U_2)
        check_pullback(partial(glu, gate=gate), X, U_1, U_2, B_1, B_2)
        check_pullback(lambda X, U_1, U_2, b_2: glu(X, U_1, U_2, None, b_2, gate=gate), X, U_1, U_2, B_2)


@pytest.mark.parametrize("gate", GATE)
def test_a_gate_entry_by_entry(gate):
    """To the last digits: the loop of GELU has those of float32, and so leaves float64 to the definition."""
    values = np.linspace(-6, 6, 25)
    Y, _ = gated(values, np.full(25, 3.0), gate)
    np.testing.assert_allclose(Y, [3 * GATE[gate](a) for a in values], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("gate", GATE)
def test_a_gate_far_out_and_at_zero(gate, dtype):
    """No overflow, no NaN, neither forwards nor backwards; the gate of zero is σ(0) = ½, and nothing for the others."""
    values = np.array([[-1e4, -100, 0, 100, 1e4]], dtype)
    Y, pullback = gated(values, np.ones_like(values), gate)
    assert all(np.isfinite(G).all() for G in (Y, *pullback(np.ones_like(values))))
    assert Y[0, 2] == (0.5 if gate == "sigmoid" else 0)
    assert np.allclose(Y[0, 0], {"none": -1e4}.get(gate, 0))


def test_a_gate_without_weights_is_half_a_linear_map():
    """σ(0) = ½, so with U₁ = 0 the unit is X U₂ / 2; and the gradient of U₁ isn't zero: the gate can learn to open."""
    Y, pullback = glu(X, 0 * U_1, U_2)
    assert np.allclose(Y, X @ U_2 / 2, rtol=1e-14)
    assert np.abs(pullback(np.ones_like(Y))[1]).min() > 1e-3


def test_a_gate_that_is_refused():
    with pytest.raises(ValueError, match="gate"):
        gated(X, X, "tanh")
    with pytest.raises(TypeError, match="B"):
        gated(X, X[..., :4])
    with pytest.raises(TypeError, match="b_2"):
        glu(X, U_1, U_2, B_1, B_2[:3])


# ----------------------------------------------------------------------- before and after it, in attention


def test_a_scale_of_zero_is_a_scale():
    S, pullback = scores(X, X, scale=0.0)
    assert not S.any()
    assert not any(d.any() for d in pullback(np.ones_like(S)))


def test_a_nan_counts_where_it_has_a_weight():
    """In the gradient of the weights too: NaN where one is seen, and the others as they are, with weight or without."""
    Y, pullback = aggregate(np.array([[0.5, 0.5, 0, 0]]), np.array([[1], [np.nan], [np.nan], [3]]))
    assert np.isnan(Y).all()
    np.testing.assert_array_equal(pullback(np.ones((1, 1)))[0], [[1, np.nan, 0, 3]])


# --------------------------------------------------------------------------------- linear and embedding


@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 1, 3)])
def test_linear_gradient(batch, rng):
    X = rng.standard_normal((*batch, 5))
    check_pullback(linear, X, W, b)
    check_pullback(linear, X, W)


def test_linear_against_a_loop():
    Y, _ = linear(X, W, b)
    for i, t, e in np.ndindex(Y.shape):
        assert math.isclose(Y[i, t, e], sum(X[i, t, k] * W[k, e] for k in range(5)) + b[e], rel_tol=1e-12)


def test_linear_without_rows():
    Y, pullback = linear(np.ones((2, 0, 5)), W, b)
    dX, dW, db = pullback(Y)
    assert Y.shape == (2, 0, 4)
    assert dX.shape == (2, 0, 5)
    assert not dW.any()
    assert not db.any()


def test_linear_refuses_what_does_not_fit():
    with pytest.raises(TypeError, match=r"(?s)parameter 'W'.*f64\[4,5\].*'D E'"):
        linear(X, W.T)
    with pytest.raises(TypeError, match="parameter 'b'"):
        linear(X, W, b[:3])
    with pytest.raises(TypeError, match="parameter 'X'"):
        linear(X.astype(int), W)


def test_embedding_gradient():
    check_pullback(embedding, TOKENS, TABLE, entries=TABLE.size)


@given(
    hnp.arrays(np.int64, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), elements=st.integers(0, 6))
)
def test_embedding_gradient_is_a_scatter_add(tokens):
    """Any tokens, also none: a plain loop over them adds each row of dY to the row it came from."""
    Y, pullback = embedding(tokens, TABLE)
    dY = np.random.default_rng(0).standard_normal(Y.shape)
    expected = np.zeros_like(TABLE)
    for index in np.ndindex(tokens.shape):
        assert np.array_equal(Y[index], TABLE[tokens[index]])
        expected[tokens[index]] += dY[index]
    assert np.allclose(pullback(dY), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [7, -1, 1000])
def test_embedding_refuses_a_token_outside_the_vocabulary(bad):
    with pytest.raises(ValueError, match=f"tokens: {bad} is outside the vocabulary 0 … 6"):
        embedding(np.array([[1, 2], [bad, 3]]), TABLE)


def test_embedding_refuses_tokens_that_are_no_integers():
    for tokens in (TOKENS.astype(float), TOKENS > 2, [1, 2]):
        with pytest.raises(TypeError, match=r"parameter 'tokens'|tokens: a list should be an array"):
            embedding(tokens, TABLE)


# ---------------------------------------------------------------------------------------- normalisation

NORMS = [layer_norm, layer_norm_outside, lambda X, gamma, beta, eps: rms_norm(X, gamma, eps=eps)]
NORM_IDS = ["layer", "outside", "rms"]


@pytest.mark.parametrize("eps", [0.3, 0.0])
@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_norm_gradients(eps, batch, rng):
    """ε = 0.3 is as large as σ², so that a place where it is missing shows."""
    X = rng.standard_normal((*batch, 5))
    check_pullback(partial(layer_norm, eps=eps), X, GAMMA, BETA)
    check_pullback(partial(layer_norm_outside, eps=eps), X, GAMMA, BETA)
    check_pullback(partial(rms_norm, eps=eps), X, GAMMA)


@pytest.mark.parametrize("function", ["layer_norm", "layer_norm_outside", "rms_norm"])
def test_norms_against_a_loop(function):
    eps = 0.1
    for i, t in np.ndindex(2, 3):
        x = X[i, t]
        mu = sum(x) / 5
        variance = sum((v - mu) ** 2 for v in x) / 5
        square = sum(v * v for v in x) / 5
        if function == "layer_norm":
            expected = GAMMA * (x - mu) / math.sqrt(variance + eps) + BETA
            Y, _ = layer_norm(x, GAMMA, BETA, eps=eps)
        elif function == "layer_norm_outside":
            expected = GAMMA * (x - mu) / (math.sqrt(variance) + eps) + BETA
            Y, _ = layer_norm_outside(x, GAMMA, BETA, eps=eps)
        else:
            expected = GAMMA * x / math.sqrt(square + eps)
            Y, _ = rms_norm(x, GAMMA, eps=eps)
        assert np.allclose(Y, expected, rtol=1e-13)


@pytest.mark.parametrize("eps", [0.3, 1e-5, 0.0])
def test_layer_norm_has_mean_0_and_a_known_deviation(eps):
    """std = √(σ²/(σ² + ε)): one only if ε is nothing beside σ²."""
    Y, _ = layer_norm(X, np.ones(5), np.zeros(5), eps=eps)
    assert np.allclose(Y.mean(-1), 0, atol=1e-15)
    assert np.allclose(Y.std(-1), np.sqrt(X.var(-1) / (X.var(-1) + eps)), rtol=1e-13)
    Y, _ = layer_norm_outside(X, np.ones(5), np.zeros(5), eps=eps)
    assert np.allclose(Y.std(-1), X.std(-1) / (X.std(-1) + eps), rtol=1e-13)


@given(st.floats(0.01, 100), st.floats(-100, 100))
def test_layer_norm_does_not_see_scale_and_shift(a, c):
    assert np.allclose(
        layer_norm(a * X + c, GAMMA, BETA, eps=0.0)[0], layer_norm(X, GAMMA, BETA, eps=0.0)[0], rtol=1e-7, atol=1e-9
    )
    assert np.allclose(rms_norm(a * X, GAMMA, eps=0.0)[0], rms_norm(X, GAMMA, eps=0.0)[0], rtol=1e-12)


def test_rms_norm_does_see_a_shift():
    assert not np.allclose(rms_norm(X + 1, GAMMA)[0], rms_norm(X, GAMMA)[0], atol=0.1)


@pytest.mark.parametrize("function", [layer_norm, layer_norm_outside])
def test_gradient_of_layer_norm_is_orthogonal_to_1(function, rng):
    """Moving every entry of x by the same amount changes nothing, at any ε."""
    dX, _, _ = function(X, GAMMA, BETA, eps=0.3)[1](rng.standard_normal(X.shape))
    assert np.allclose(dX.sum(-1), 0, atol=1e-14)


@pytest.mark.parametrize("function", [layer_norm, layer_norm_outside])
def test_gradient_of_layer_norm_is_orthogonal_to_xhat_without_epsilon(function, rng):
    """Nor does stretching x − μ, but only if ε = 0: then the norm of x̂ is fixed."""
    dY, Xhat = rng.standard_normal(X.shape), X - X.mean(-1, keepdims=True)
    dX, _, _ = function(X, GAMMA, BETA, eps=0.0)[1](dY)
    assert np.allclose((dX * Xhat).sum(-1), 0, atol=1e-14)
    dX, _, _ = function(X, GAMMA, BETA, eps=0.3)[1](dY)
    assert (np.abs((dX * Xhat).sum(-1)) > 1e-3).all()


def test_gradient_of_rms_norm_is_orthogonal_to_x_without_epsilon(rng):
    dX, _ = rms_norm(X, GAMMA, eps=0.0)[1](rng.standard_normal(X.shape))
    assert np.allclose((dX * X).sum(-1), 0, atol=1e-14)
    assert (np.abs(dX.sum(-1)) > 1e-3).all(), "but not to 1"


@pytest.mark.parametrize("norm", NORMS, ids=NORM_IDS)
def test_norm_of_a_constant_row_is_finite(norm, rng):
    """σ = 0 for the layer norms, mean square 0 for RMS: ε keeps the value and the gradient finite."""
    Y, pullback = norm(np.zeros((2, 5)), GAMMA, BETA, eps=1e-5)
    assert np.allclose(Y, BETA if len(pullback(Y)) == 3 else 0)
    assert all(np.isfinite(g).all() for g in pullback(rng.standard_normal((2, 5))))


def test_default_epsilons():
    """10⁻⁵ for the layer norms, 10⁻⁶ for RMS (T5), seen at rows that are no larger than that."""
    small = 1e-3 * X
    assert np.array_equal(layer_norm(small, GAMMA, BETA)[0], layer_norm(small, GAMMA, BETA, eps=1e-5)[0])
    assert np.array_equal(
        layer_norm_outside(small, GAMMA, BETA)[0], layer_norm_outside(small, GAMMA, BETA, eps=1e-5)[0]
    )
    assert np.array_equal(rms_norm(small, GAMMA)[0], rms_norm(small, GAMMA, eps=1e-6)[0])


def test_norms_refuse_what_does_not_fit():
    with pytest.raises(TypeError, match=r"(?s)parameter 'gamma'.*f64\[4\].*'D'"):
        layer_norm(X, b, BETA)
    with pytest.raises(TypeError, match="parameter 'beta'"):
        layer_norm_outside(X, GAMMA, b)
    with pytest.raises(TypeError, match="parameter 'X'"):
        rms_norm(np.arange(5), GAMMA)
    for norm in NORMS:
        with pytest.raises(TypeError, match="should have one dtype"):
            norm(X, GAMMA.astype(np.float32), BETA.astype(np.float32), eps=0.1)
        with pytest.raises(ValueError, match=r"X: shape \(2, 0\); a row of no numbers has no mean"):
            norm(np.ones((2, 0)), np.ones(0), np.ones(0), eps=0.1)


# ------------------------------------------------------------------------------------ dropout and loss


def test_dropout_gradient():
    check_pullback(lambda X: dropout(X, 0.4, np.random.default_rng(5)), X)
    check_pullback(lambda X: dropout(X, 0.4, None), X)


def test_dropout_keeps_the_mean():
    """Each entry survives with probability 0.8 and is then divided by 0.8. Bounds of five standard errors."""
    ones = np.ones(100_000)
    Y, _ = dropout(ones, 0.2, np.random.default_rng(0))
    assert set(np.unique(Y)) == {0.0, float(1 / np.float64(0.8))}
    assert abs((Y == 0).mean() - 0.2) < 5 * math.sqrt(0.2 * 0.8 / ones.size)
    assert abs(Y.mean() - 1) < 5 * math.sqrt(0.2 / 0.8 / ones.size)


def test_dropout_follows_its_generator():
    """Same seed, same entries, in both dtypes; and the generator moves on."""
    one = dropout(X, 0.5, np.random.default_rng(1))[0]
    assert np.array_equal(one, dropout(X, 0.5, np.random.default_rng(1))[0])
    assert np.array_equal(one == 0, dropout(X.astype(np.float32), 0.5, np.random.default_rng(1))[0] == 0)
    generator = np.random.default_rng(1)
    assert not np.array_equal(dropout(X, 0.5, generator)[0], dropout(X, 0.5, generator)[0])


def test_dropout_remembers_the_same_entries():
    Y, pullback = dropout(X, 0.5, np.random.default_rng(1))
    assert np.array_equal(pullback(X), Y)


@pytest.mark.parametrize(("rate", "generator"), [(0.0, np.random.default_rng(0)), (0.5, None), (0, None)])
def test_dropout_does_nothing_without_rate_or_generator(rate, generator):
    """Not even draw: what the generator is used for next does not depend on it."""
    state = generator and generator.bit_generator.state
    Y, pullback = dropout(X, rate, generator)
    assert state == (generator and generator.bit_generator.state)
    assert np.array_equal(Y, X)
    assert np.array_equal(pullback(X), X)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2.0, float("nan")])
def test_dropout_refuses_a_rate_that_is_no_probability(rate):
    with pytest.raises(ValueError, match=rf"rate: {rate} should be (in \[0, 1\)|a number)"):
        dropout(X, rate, np.random.default_rng(0))


TARGETS = np.array([[0, 4, 2], [4, 1, 1]])
ALLOWED = np.array([[True, False, True], [True, True, False]])


@pytest.mark.parametrize("tier", available())
def test_targets_that_change_between_the_passes_change_nothing(tier):
    """As in a buffer that the next batch is read into."""
    with backend(tier):
        targets = TARGETS.copy()
        loss, pullback = cross_entropy(X, targets)
        want = pullback(np.ones_like(loss))
        targets[:] = 10**6
        np.testing.assert_array_equal(pullback(np.ones_like(loss)), want)


def test_behind_the_door_a_bias_of_another_width_is_refused_too():
    """Compiled code would read past its end."""

    @checked
    def own(X: Float[Array, "*batch D"], W: Float[Array, "D E"]):
        return linear(X, W, b[:1])

    with pytest.raises(TypeError, match=r"^b: shape \(1,\) should be \(4,\)"):
        own(X, W)


def test_cross_entropy_gradient():
    check_pullback(cross_entropy, X, TARGETS)
    check_pullback(lambda logits: cross_entropy(logits, TARGETS, mask=ALLOWED), X)


@pytest.mark.parametrize("mask", [None, ALLOWED])
def test_cross_entropy_against_a_loop(mask):
    losses = []
    for i, t in np.ndindex(TARGETS.shape):
        if mask is None or mask[i, t]:
            total = sum(math.exp(s) for s in X[i, t])
            losses.append(-math.log(math.exp(X[i, t, TARGETS[i, t]]) / total))
    loss, _ = cross_entropy(X, TARGETS, mask=mask)
    assert math.isclose(loss, sum(losses) / len(losses), rel_tol=1e-13)


def test_cross_entropy_of_equal_logits_is_log_of_the_vocabulary():
    assert math.isclose(cross_entropy(np.zeros((2, 3, 5)), TARGETS)[0], math.log(5), rel_tol=1e-15)


def test_cross_entropy_gradient_is_probability_in_the_wrong_places():
    """It sums to zero over the vocabulary, and is negative at the target only. Masked positions get none."""
    _, pullback = cross_entropy(X, TARGETS, mask=ALLOWED)
    dlogits = pullback(np.float64(1))
    assert np.allclose(dlogits.sum(-1), 0, atol=1e-16)
    assert np.array_equal(dlogits < 0, (np.arange(5) == TARGETS[..., None]) & ALLOWED[..., None])
    assert not dlogits[~ALLOWED].any()
    assert np.array_equal(pullback(np.float64(1)), dlogits), "it can be called twice"


def test_cross_entropy_of_huge_logits():
    """Neither overflow nor log 0: the loss of a wrong and certain answer is the difference of the logits."""
    logits = np.array([[1e4, 0, 0], [0, 1e4, 0]])
    loss, pullback = cross_entropy(logits, np.array([1, 1]))
    assert loss == 5e3
    assert np.allclose(pullback(np.float64(1)), [[0.5, -0.5, 0], [0, 0, 0]])


def test_cross_entropy_with_nothing_allowed_is_zero():
    loss, pullback = cross_entropy(X, TARGETS, mask=np.zeros((2, 3), bool))
    assert loss == 0
    assert not pullback(np.float64(1)).any()
    assert cross_entropy(np.ones((0, 3)), np.zeros(0, int))[0] == 0


@pytest.mark.parametrize("bad", [5, -1, -100])
def test_cross_entropy_refuses_a_target_outside_the_vocabulary(bad):
    """There is no magic number for "ignore": that is what the mask is for."""
    with pytest.raises(ValueError, match=f"targets: {bad} is outside the vocabulary 0 … 4"):
        cross_entropy(X, np.where(ALLOWED, TARGETS, bad))


def test_cross_entropy_refuses_what_does_not_fit():
    with pytest.raises(TypeError, match=r"(?s)parameter 'targets'.*'\*batch'"):
        cross_entropy(X, TARGETS[:, :2])
    with pytest.raises(TypeError, match="parameter 'targets'"):
        cross_entropy(X, TARGETS.astype(float))
    with pytest.raises(TypeError, match="parameter 'mask'"):
        cross_entropy(X, TARGETS, mask=ALLOWED[0])
    with pytest.raises(TypeError, match="parameter 'logits'"):
        cross_entropy(TARGETS, TARGETS[:, 0])


def test_all_that_it_offers_is_listed():
    """Every pullback, and every function that checks its arguments; the others are helpers."""
    own = [name for name, thing in vars(functional).items() if getattr(thing, "__module__", "") == functional.__name__]
    offered = [name for name in own if name.endswith("Pullback") or hasattr(getattr(functional, name), "__wrapped__")]
    assert set(functional.__all__) == {name for name in offered if not name.startswith("_")}
