"""The checker against a bank of wrong gradients: it must catch every one, and pass the right ones.

Each entry of the bank is a small function with its pullback, and one mistake. The docstring says which. Most are
mistakes that somebody has made in earnest: the loss often still falls with them.
"""

import inspect
import math
import re
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import pytest

import minitransformer as mt
from minitransformer import GradientError, check_pullback, checker
from minitransformer.functional import embedding, layer_norm, linear, softmax

rng = np.random.default_rng(0)
B, N, M, D, E, H, VOCABULARY = 2, 3, 4, 5, 6, 2, 7  # batch, queries, keys, widths, heads, tokens: all different
X = rng.standard_normal((B, N, D))
W = rng.standard_normal((D, E))
W_SQUARE = rng.standard_normal((D, D))
b = rng.standard_normal(E)
GAMMA, BETA = rng.standard_normal((2, D))
Q, K = rng.standard_normal((B, N, D)), rng.standard_normal((B, M, D))
SCORES = rng.standard_normal((B, N, N))
TABLE = rng.standard_normal((VOCABULARY, D))
TOKENS = np.array([[1, 6, 1], [5, 2, 1]])  # 1 is there three times, 0, 3 and 4 are not


class Params(NamedTuple):
    W: np.ndarray
    b: np.ndarray | None = None


class OtherParams(NamedTuple):
    W: np.ndarray
    b: np.ndarray | None = None


class Layer(NamedTuple):
    inner: Params


def rows(A):
    return A.reshape(-1, A.shape[-1])


BANK = {}


def wrong(message, *args, **options):
    """Put a function in the bank, with the arguments to check it at and what the checker should say."""

    def register(function):
        assert function.__doc__, f"say what is wrong with {function.__name__}"
        BANK[function.__name__] = function, args, message, options
        return function

    return register


# ------------------------------------------------------------------------------------- wrong numbers: linear


@wrong(r"^X\b.*the pullback says", X, W_SQUARE)
def transposed(X, W):
    """dX = dY Wᵀ, here without the transpose. W is square, so the shapes don't tell."""
    return X @ W, lambda dY: (dY @ W, rows(X).T @ rows(dY))


@wrong(r"^W\b.*the pullback says", X, W)
def batch_not_summed(X, W):
    """Every sample used W, and only the first contributes to its gradient."""
    return X @ W, lambda dY: (dY @ W.T, X[0].T @ dY[0])


@wrong(r"^W\b.*the pullback says", X, W)
def batch_averaged(X, W):
    """The mean over the batch where the sum belongs. The mean is the loss's business."""
    return X @ W, lambda dY: (dY @ W.T, rows(X).T @ rows(dY) / len(X))


@wrong(r"^b\b.*the pullback says", X, W, b)
def bias_of_the_first_token(X, W, b):
    """db sums over the batch, but not over the tokens."""
    return X @ W + b, lambda dY: (dY @ W.T, rows(X).T @ rows(dY), dY[:, 0].sum(0))


@wrong(r"^X\b.*the pullback says", X, W)
def wrong_sign(X, W):
    """Minus."""
    return X @ W, lambda dY: (-dY @ W.T, rows(X).T @ rows(dY))


@wrong(r"^W\b.*the pullback says 0,", X, W)
def zero_gradient(X, W):
    """A weight that is never trained."""
    return X @ W, lambda dY: (dY @ W.T, np.zeros_like(W))


@wrong(
    r"b: every derivative is zero: .*ignores a constant added to all scores", SCORES, np.array([[0.3], [-1.2], [0.7]])
)
def nothing_depends(S, b):
    """Softmax does not see what is added to a row: value and gradient agree on zero, and nothing was tested."""
    A, pullback = softmax(S + b)

    def backward(dA):
        dS = pullback(dA)
        return dS, dS.sum(0).sum(-1, keepdims=True)

    return A, backward


@wrong(r"b: the gradient should be zero but is", X, W, b, zero=("b",))
def not_zero_after_all(X, W, b):
    """A right gradient that was declared to be zero."""
    return linear(X, W, b)


@wrong(r"^b\b.*the pullback says", X, W, b, zero=("W",))
def wrong_after_a_zero(X, W, b):
    """W is not used, as was said; what comes after it is looked at all the same."""
    return X + b.sum(), lambda dY: (dY, np.zeros_like(W), np.full_like(b, 2 * dY.sum()))


@wrong(r"X.*all entries, a random direction", rng.standard_normal((1000, 30)), entries=5)
def one_wrong_entry(X):
    """One entry of 30,000 is wrong. Five single entries won't find it; a dense direction feels all of them."""

    def backward(dY):
        dX = 3 * dY
        dX[700, 20] = 0
        return dX

    return 3 * X, backward


@wrong(r"^W\b.*the pullback says", X, W_SQUARE)
def shared_weight_counted_once(X, W):
    """W is used twice, so its gradient is a sum of two; one is forgotten. So go tied embeddings, and recurrence."""

    def backward(dY):
        dU = dY @ W.T
        return dU @ W.T, rows(X).T @ rows(dU)

    return X @ W @ W, backward


@wrong(r"^X\b.*the pullback says", X, W_SQUARE)
def residual_forgotten(X, W):
    """Y = X + X W, but the gradient goes through the layer only."""
    return X + X @ W, lambda dY: (dY @ W.T, rows(X).T @ rows(dY))


@wrong(r"X: the pullback is not linear in dY", X)
def slope_of_the_gradient(X):
    """ReLU lets a gradient pass where x > 0, not where dy > 0, which is not even linear."""
    return np.maximum(X, 0), lambda dY: np.where(dY > 0, dY, 0)


@wrong(r"^X\b.*the pullback says", X)
def half_of_a_product(X):
    """x · tanh x has two factors that depend on x."""
    return X * np.tanh(X), lambda dY: np.tanh(X) * dY


@wrong(r"^X\b.*the pullback says", X)
def dropout_not_rescaled(X):
    """Forward divides by 1 − rate, backward doesn't."""
    kept = np.random.default_rng(3).random(X.shape) < 0.8
    return X * kept / X.dtype.type(0.8), lambda dY: dY * kept


# ------------------------------------------------------------- wrong numbers: softmax, attention, norms, tables


@wrong(r"^S\b.*the pullback says", SCORES)
def detached_denominator(S):
    """The sum below the fraction also depends on S."""
    A, _ = softmax(S)
    return A, lambda dA: A * dA


@wrong(r"^S\b.*the pullback says", SCORES)
def softmax_along_the_wrong_axis(S):
    """⟨dA, A⟩ belongs to a row; here it is that of a column. The matrix is square, so the shapes don't tell."""
    A, _ = softmax(S)
    return A, lambda dA: A * (dA - (dA * A).sum(-2, keepdims=True))


@wrong(r"^Q\b.*the pullback says", Q, K)
def scale_forgotten(Q, K):
    """Forward divides by √d, backward doesn't."""
    s = Q.dtype.type(D**-0.5)
    return s * Q @ K.mT, lambda dS: (dS @ K, s * dS.mT @ Q)


@wrong(r"^K\b.*the pullback says", Q, K[:, :N])
def scores_not_transposed(Q, K):
    """dK = dSᵀ Q, here without the transpose: with as many keys as queries the shapes don't tell."""
    return Q @ K.mT, lambda dS: (dS @ K, dS @ Q)


@wrong(r"^X\b.*the pullback says", rng.standard_normal((B, H, N, 4)))
def heads_not_swapped_back(X):
    """Merging heads swaps two axes; a reshape alone has the same shape, and the loss even falls."""
    merged = X.swapaxes(-2, -3).reshape(B, N, H * 4)
    return merged, lambda dY: dY.reshape(B, H, N, 4)


def layer_norm_with(dX_of, eps=0.1):
    """A layer norm whose gradient with respect to X is made by the given function."""

    def function(X, gamma, beta):
        Y, right = layer_norm(X, gamma, beta, eps=eps)
        return Y, lambda dY: (dX_of(dY, gamma, right.Xhat, right.root), *right(dY)[1:])

    return function


def mean(G):
    return G.mean(-1, keepdims=True)


@wrong(r"^X\b.*the pullback says", X, GAMMA, BETA)
def gamma_forgotten(X, gamma, beta):
    """dY goes through the gain first. With gains of one nobody would notice."""
    return layer_norm_with(lambda G, gamma, Xhat, root: (G - mean(G) - Xhat * mean(G * Xhat)) / root)(X, gamma, beta)


@wrong(r"gamma: every entry is 1\.0; check at random values", X, np.ones(D), BETA)
def gamma_forgotten_at_ones(X, gamma, beta):
    """The same at gains of one: no difference can show it, so the checker refuses to look there."""
    return gamma_forgotten(X, gamma, beta)


@wrong(r"^X\b.*the pullback says", X, GAMMA, BETA)
def mean_taken_for_a_constant(X, gamma, beta):
    """μ depends on x: the part of the gradient along 1 should be gone."""
    return layer_norm_with(lambda dY, g, Xhat, root: (dY * g - Xhat * mean(dY * g * Xhat)) / root)(X, gamma, beta)


@wrong(r"^X\b.*the pullback says", X, GAMMA, BETA)
def deviation_taken_for_a_constant(X, gamma, beta):
    """σ depends on x: the part of the gradient along x̂ should be (nearly) gone."""
    return layer_norm_with(lambda dY, g, Xhat, root: (dY * g - mean(dY * g)) / root)(X, gamma, beta)


@wrong(r"^X\b.*the pullback says", X, GAMMA, BETA)
def epsilon_forgotten(X, gamma, beta):
    """Backward divides by σ instead of √(σ² + ε). Checked at ε = 0.1: at 10⁻¹² nothing could tell."""

    def dX_of(dY, g, Xhat, root):
        G = dY * g
        return (G - mean(G) - Xhat * mean(G * Xhat)) / np.sqrt(root**2 - root.dtype.type(0.1))

    return layer_norm_with(dX_of)(X, gamma, beta)


@wrong(r"^E\b.*the pullback says", TOKENS, TABLE, entries=VOCABULARY * D)
def scatter_off_by_one(tokens, E):
    """The gradient of token t lands in row t − 1."""

    def backward(dY):
        dE = np.zeros_like(E)
        np.add.at(dE, tokens - 1, dY)
        return dE

    return E[tokens], backward


@wrong(r"^E\b.*the pullback says", TOKENS, TABLE, entries=VOCABULARY * D)
def scatter_without_add(tokens, E):
    """`dE[tokens] += dY` keeps only one of several equal tokens."""

    def backward(dY):
        dE = np.zeros_like(E)
        dE[tokens] += dY
        return dE

    return E[tokens], backward


@wrong(r"^logits\b.*the pullback says", X, TOKENS % D)
def loss_averaged_forward_only(logits, targets):
    """The loss is a mean over positions; its gradient here is that of the sum."""
    P, _ = softmax(logits)
    losses = -np.log(np.take_along_axis(P, targets[..., None], -1))
    return losses.mean(), lambda dloss: dloss * (P - np.eye(D, dtype=P.dtype)[targets])


# --------------------------------------------------------------------------------------- not linear in dY


@wrong(r"X: the pullback is not linear in dY", X)
def adds_a_constant(X):
    """Weight decay does not belong into a pullback."""
    return 2 * X, lambda dY: 2 * dY + X.dtype.type(0.01)


@wrong(r"X: the pullback is not linear in dY", X)
def depends_on_the_square(X):
    """A pullback is linear in dY, whatever the function is."""
    return 2 * X, lambda dY: dY**2


@wrong(r"X: the pullback is not linear in dY", X)
def clips(X):
    """Clipping at 100 hides where gradients are large, and is right wherever they are small."""
    return 2 * X, lambda dY: np.clip(2 * dY, -100, 100)


@wrong(r"X: the pullback is not linear in dY", X)
def drops_what_is_small(X):
    """Setting tiny gradients to zero is right wherever they are large."""
    return 2 * X, lambda dY: np.where(np.abs(dY) < 1e-4, 0, 2 * dY)


# ----------------------------------------------------------------------------- changes what belongs to others


@wrong(r"X: changed by the forward pass", X)
def forward_changes_argument(X):
    """In-place arithmetic on an argument."""
    X *= 2
    return X.copy(), lambda dY: 2 * dY


@wrong(r"params\.b: changed by the forward pass", Params(W, b), X)
def forward_changes_parameter(params, X):
    """The same, in the depth of a tree."""
    np.add(params.b, X.dtype.type(1), out=params.b)
    return X @ params.W + params.b, lambda dY: (Params(rows(X).T @ rows(dY), rows(dY).sum(0)), dY @ params.W.T)


@wrong(r"W: changed by the backward pass", X, W)
def backward_changes_argument(X, W):
    """An optimiser's step taken too early."""

    def backward(dY):
        dX, dW = dY @ W.T, rows(X).T @ rows(dY)
        np.subtract(W, X.dtype.type(0.1) * dW, out=W)
        return dX, dW

    return X @ W, backward


@wrong(r"dY: changed by the backward pass", X)
def backward_changes_dY(X):
    """The caller may need dY again: in a residual step it goes two ways."""

    def backward(dY):
        dY *= 2
        return dY

    return 2 * X, backward


@wrong(r"the value: changed by the backward pass", X)
def backward_changes_value(X):
    """Saves an allocation: the gradient is written where the value was. Right, and the value is gone."""
    Y = 2 * X
    return Y, lambda dY: np.multiply(2, dY, out=Y)


@wrong(r"tokens: changed by the backward pass", TOKENS, TABLE)
def backward_changes_tokens(tokens, E):
    """Sorting tokens in place to make the scatter-add fast."""

    def backward(dY):
        dE = np.zeros_like(E)
        np.add.at(dE, tokens, dY)
        tokens.sort()
        return dE

    return E[tokens], backward


@wrong(r"X: changed by the forward pass", X)
def float32_changes_argument(X):
    """Makes a copy of float64, but works in place on float32."""
    work = np.asarray(X, np.float32)
    work += 1
    return (X + 1 if X.dtype == np.float64 else work), lambda dY: dY


# ------------------------------------------------------------------------------------------- remembers badly


class _KeepsItsCache:
    def forward(self, X, W):
        self.cache = X, W
        return X @ W, self.backward

    def backward(self, dY):
        X, W = self.cache
        return dY @ W.T, rows(X).T @ rows(dY)


@wrong(r"calling the function again changed an earlier pullback \(stale state\)", X, W)
def stale_state(X, W, layer=_KeepsItsCache()):  # noqa: B008
    """A layer that keeps `self.cache`: used twice, both backward passes see the second input."""
    return layer.forward(X, W)


class _KeepsItsTokens:
    def forward(self, tokens, E):
        self.tokens = tokens
        return E[tokens], lambda dY: self.backward(dY, E)

    def backward(self, dY, E):
        dE = np.zeros_like(E)
        np.add.at(dE, self.tokens, dY)
        return dE


@wrong(r"E: calling the function again changed an earlier pullback \(stale state\)", TOKENS, TABLE)
def stale_tokens(tokens, E, layer=_KeepsItsTokens()):  # noqa: B008
    """The same where only the tokens are kept, which have no gradient themselves."""
    return layer.forward(tokens, E)


@wrong(r"the value: calling the function again changed an earlier value \(a shared work array\)", X)
def value_in_a_shared_array(X, work={}):  # noqa: B006
    """Saves an allocation: every call returns the same array."""
    Y = np.multiply(2, X, out=work.setdefault(X.dtype, np.empty_like(X)))
    return Y, lambda dY: 2 * dY


@wrong(r"X: calling the pullback again changed an earlier gradient \(a shared work array\)", X)
def gradient_in_a_shared_array(X, work={}):  # noqa: B006
    """Saves an allocation: every backward pass returns the same array."""
    return 2 * X, lambda dY: np.multiply(2, dY, out=work.setdefault(dY.dtype, np.empty_like(dY)))


@wrong(r"W: the pullback gave another answer when it was called a second time", X, W)
def accumulates(X, W):
    """Adds to the gradient of the last backward pass."""
    dW = np.zeros_like(W)

    def backward(dY):
        nonlocal dW
        dW = dW + rows(X).T @ rows(dY)
        return dY @ W.T, dW

    return X @ W, backward


@wrong(r"X: the pullback gave another answer when it was called a second time", X)
def draws_backwards(X, generator=np.random.default_rng(0)):  # noqa: B008
    """Dropout that draws a new mask in the backward pass."""
    return X, lambda dY: dY * (generator.random(dY.shape) < 0.8)


@wrong(r"with the same arguments, gave another value", X)
def draws_forwards(X, generator=np.random.default_rng(0)):  # noqa: B008
    """A right gradient of a function that is another one each time: nothing can be compared."""
    kept = generator.random(X.shape) < 0.8
    return X * kept, lambda dY: dY * kept


# ---------------------------------------------------------------------------------------------- wrong form


@wrong(r"X: the gradient has shape \(5, 6\), the array \(2, 3, 5\)", X, W)
def wrong_order(X, W):
    """Gradients come in the order of the signature."""
    return X @ W, lambda dY: (rows(X).T @ rows(dY), dY @ W.T)


@wrong(r"^U\b.*the pullback says", X, X[::-1] + 1)
def wrong_order_of_equal_shapes(U, V):
    """The same where the shapes don't tell."""
    return U * V, lambda dY: (dY * U, dY * V)


@wrong(r"should return 2 gradients \(X, W\); got ndarray", X, W)
def one_gradient_missing(X, W):
    """Every real argument has one."""
    return X @ W, lambda dY: dY @ W.T


@wrong(r"should return 2 gradients \(X, W\); got 3", X, W)
def one_gradient_too_many(X, W):
    """And no more than one."""
    return X @ W, lambda dY: (dY @ W.T, rows(X).T @ rows(dY), None)


@wrong(r"should return 2 gradients \(X, W\); got list", X, W)
def gradients_in_a_list(X, W):
    """A tuple is promised."""
    return X @ W, lambda dY: [dY @ W.T, rows(X).T @ rows(dY)]


@wrong(r"E: the gradient of an array is a tuple of 2; tokens, of integers, should get none", TOKENS, TABLE)
def gradient_of_tokens(tokens, E):
    """Tokens are not real numbers, and have no gradient; None in its place shifts all others."""
    return E[tokens], lambda dY: (None, embedding(tokens, E)[1](dY))


@wrong(r"params\.b: the gradient is missing", Params(W, b), X)
def parameter_forgotten(params, X):
    """A tree with a hole."""
    return X @ params.W + params.b, lambda dY: (Params(rows(X).T @ rows(dY)), dY @ params.W.T)


@wrong(r"params\.b: has a gradient, but is no array of real numbers", Params(W), X)
def gradient_of_nothing(params, X):
    """This layer has no bias, and yet a gradient of it."""
    return X @ params.W, lambda dY: (Params(rows(X).T @ rows(dY), rows(dY).sum(0)), dY @ params.W.T)


@wrong(r"W: the gradient of an array is a list", X, W)
def a_list_for_an_array(X, W):
    """The rows of dW, which NumPy would take for an array."""
    return X @ W, lambda dY: (dY @ W.T, list(rows(X).T @ rows(dY)))


@wrong(r"params: the gradient of a Params is a tuple", Params(W, b), X)
def tuple_for_a_named_tuple(params, X):
    """The gradient of a tree is a tree of the same type."""
    return X @ params.W + params.b, lambda dY: ((rows(X).T @ rows(dY), rows(dY).sum(0)), dY @ params.W.T)


@wrong(r"layer\.inner: the gradient of a Params is a OtherParams", Layer(Params(W)), X)
def wrong_type_inside(layer, X):
    """... all the way down, even if the names of the fields agree."""
    W = layer.inner.W
    return X @ W, lambda dY: (Layer(OtherParams(rows(X).T @ rows(dY))), dY @ W.T)


@wrong(r"params: the gradient has the parts \['W', 'c'\], the tree \['W', 'b'\]", {"W": W, "b": b}, X)
def wrong_keys(params, X):
    """Dicts are trees too."""
    return X @ params["W"] + params["b"], lambda dY: (
        {"W": rows(X).T @ rows(dY), "c": rows(dY).sum(0)},
        dY @ params["W"].T,
    )


@wrong(r"b: the gradient has shape \(2, 3, 6\), the array \(6,\)", X, W, b)
def broadcast_not_summed(X, W, b):
    """b was broadcast along batch and tokens, so its gradient is a sum along both."""
    return X @ W + b, lambda dY: (dY @ W.T, rows(X).T @ rows(dY), dY)


@wrong(r"b: the gradient has shape \(1, 6\), the array \(6,\)", X, W, b)
def axis_kept(X, W, b):
    """Right numbers, and one axis too many: the next step of an optimiser would broadcast."""
    return X @ W + b, lambda dY: (dY @ W.T, rows(X).T @ rows(dY), rows(dY).sum(0, keepdims=True))


@wrong(r"the value: the value is float64 for float32 arguments", Q, K)
def value_leaves_float32(Q, K):
    """np.sqrt of an integer is a float64, and makes everything float64 that it touches."""
    s = 1 / np.sqrt(D)
    return s * (Q @ K.mT), lambda dS: (dS @ K * np.float32(s), dS.mT @ Q * np.float32(s))


@wrong(r"Q: the gradient is float64 for float32 arguments", Q, K)
def gradient_leaves_float32(Q, K):
    """The same on the way back."""
    s = 1 / np.sqrt(D)
    return (Q * float(s)) @ K.mT, lambda dS: (dS @ K * s, dS.mT @ Q * s)


@wrong(r"X: the gradient is float32 for float64 arguments", X)
def gradient_leaves_float64(X):
    """Digits thrown away."""
    return 2 * X, lambda dY: (2 * dY).astype(np.float32)


@wrong(r"the value: the value is float32 for float64 arguments", X)
def value_leaves_float64(X):
    """Digits thrown away on the way forth."""
    return (2 * X).astype(np.float32), lambda dY: 2 * dY


@wrong(r"X: the gradient in float32 is another than in float64", X)
def wrong_in_float32_only(X):
    """Two kernels, one for each type, and a mistake in the one that the differences (in float64) don't see."""
    return 2 * X, lambda dY: 2 * dY if dY.dtype == np.float64 else dY


@wrong(r"the value: the value in float32 is another than in float64", X)
def another_value_in_float32(X):
    """The same on the way forth."""
    return (2 * X if X.dtype == np.float64 else X), lambda dY: 2 * dY


@wrong(r"X: the gradient is not finite", X)
def not_a_number(X):
    """0/0 in a row that is masked."""
    return 2 * X, lambda dY: np.where(np.arange(D) == 2, np.nan, 2 * dY)


@wrong(r"the value: the value is not finite", X)
def infinite_value(X):
    """log 0."""
    Y = np.where(np.arange(D) == 2, -np.inf, X).astype(X.dtype)
    return Y, lambda dY: dY * (np.arange(D) != 2)


@wrong(r"X.*: the pullback says .*, the difference quotient nan", np.array([1e-7, 2.0]))
def ends_beside_what_is_given(X):
    """A root, and a number so near to 0 that the step leads below it: there is no quotient to compare with."""
    with np.errstate(invalid="ignore"):
        Y = np.sqrt(X)
    return Y, lambda dY: dY / (2 * Y)


_said = []


@wrong(r"^the value: calling the function again, with the same arguments, gave another value", X)
def not_a_number_the_second_time(X):
    """Work memory that was not cleared: what is no number is no other number either, if one asks whether it is larger."""
    _said.append(1)
    return 2 * X * (1 if len(_said) % 2 else np.nan), lambda dY: 2 * dY


@wrong(r"params.b: has a gradient, but should not be trained", Params(W, b), untrained=("params.b",))
def trains_what_should_stand_still(params):
    """Drawn features that a gradient moves."""
    return params.W + params.b, lambda dY: Params(dY, dY.sum(0))


@wrong(r"should return its value and a pullback, which can be called; it returned ndarray$", X[:2])
def value_alone(X):
    """Two rows are no pair."""
    return X**2


@wrong(r"it returned \(ndarray, int\)$", X)
def number_as_pullback(X):
    """A pair, but nothing to call."""
    return X**2, 3


@wrong(r"it returned NoneType$", X)
def nothing_returned(X):
    """A forgotten return."""


@wrong(r"no real-valued argument, an array or a tree of arrays: nothing to check", TOKENS)
def nothing_real(tokens):
    """A function of tokens alone has no gradient."""
    return np.zeros(3), lambda dY: ()


# ------------------------------------------------------------------------------------------------ the tests


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"^function: int should be a function that returns its value and a pullback$"):
        check_pullback(3, X)
    with pytest.raises(
        GradientError, match=r"^the function should return its value and a pullback, .* returned ndarray$"
    ):
        check_pullback(np.tanh, X)


class WithoutSignature:
    __signature__ = 3

    def __call__(self, X):
        return np.tanh(X)


def test_a_function_without_a_signature_is_refused_for_what_it_returns():
    with pytest.raises((TypeError, ValueError)):
        inspect.signature(WithoutSignature())
    with pytest.raises(
        GradientError, match=r"^the function should return its value and a pullback, .* returned ndarray$"
    ):
        check_pullback(WithoutSignature(), X)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"step": 0}, ValueError, "step: 0 should be above 0"),
        ({"step": -1e-6}, ValueError, "step: -1e-06 should be above 0"),
        ({"step": math.nan}, ValueError, "step: nan should be a number up to 3.4e+38"),
        ({"tolerance": -1}, ValueError, "tolerance: -1 should be at least 0"),
        ({"entries": -1}, ValueError, "entries: -1 should be at least 0"),
        ({"entries": 2.5}, TypeError, "entries: 2.5 should be int"),
        ({"seed": -1}, ValueError, "seed: -1 should be at least 0"),
        ({"seed": None}, TypeError, "seed: None should be int"),
    ],
    ids=str,
)
def test_numbers_that_can_not_be_are_refused_by_their_names(options, error, says):
    with pytest.raises(error, match=f"^{re.escape(says)}$"):
        check_pullback(np.tanh, X, **options)


@pytest.mark.parametrize("name", ["zero", "untrained"])
def test_a_single_path_is_no_text(name):
    """Of zero="QK", the letters Q and K were taken for paths."""
    for paths in ("XY", 3):
        with pytest.raises(
            TypeError, match=rf"^{name}: {paths!r} should be a tuple of paths, such as \('params.b_k',\)$"
        ):
            check_pullback(lambda X: (X, lambda dY: dY), X, **{name: paths})


@pytest.mark.parametrize("name", BANK)
def test_wrong_gradient_is_caught(name):
    function, args, message, options = BANK[name]
    with pytest.raises(GradientError, match=message):
        check_pullback(function, *args, **options)


def test_the_bank_leaves_its_arguments_alone():
    """Entries that change arguments change copies of the checker's, not the bank's: the order of tests is free."""
    assert TOKENS.tolist() == [[1, 6, 1], [5, 2, 1]]
    assert np.array_equal(X, np.random.default_rng(0).standard_normal((B, N, D)))


RIGHT = {
    "linear": (linear, (X, W, b)),
    "softmax": (softmax, (SCORES,)),
    "layer norm": (layer_norm, (X, GAMMA, BETA)),
    "embedding": (embedding, (TOKENS, TABLE)),
    "a tree": (lambda p, X: (X @ p.W, lambda dY: (Params(rows(X).T @ rows(dY)), dY @ p.W.T)), (Params(W), X)),
    "an empty tree": (lambda p, X: (2 * X, lambda dY: ((), 2 * dY)), ((), X)),
    "a tree of values": (lambda X: ((X, 2 * X), lambda dY: dY[0] + 2 * dY[1]), (X,)),
    "a scalar": (lambda x: (x * x, lambda dy: 2 * x * dy), (np.float64(3),)),
    "None and a generator": (lambda X, b, g: (3 * X, lambda dY: 3 * dY), (X, None, np.random.default_rng(0))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_gradient_passes(name):
    function, args = RIGHT[name]
    assert check_pullback(function, *args).error < 1e-8


def test_bias_of_the_keys_has_no_effect():
    """b_k adds the same to every score of a row: its gradient is zero by construction, and has to be named."""

    def attention(Q, K, V, b_k):
        S = Q @ (K + b_k).mT
        A, softmax_pullback = softmax(S)

        def backward(dY):
            dS = softmax_pullback(dY @ V.mT)
            dK = dS.mT @ Q
            return dS @ (K + b_k), dK, A.mT @ dY, rows(dK).sum(0)

        return A @ V, backward

    args = Q, K, K[..., :3] + 1, rng.standard_normal(D)
    check_pullback(attention, *args, zero=("b_k",))
    with pytest.raises(GradientError, match=r"b_k: every derivative is zero.*name it in `zero`"):
        check_pullback(attention, *args)


def test_what_is_returned():
    """All entries of small arrays, `entries` of large ones, and dense directions; the worst error has a name."""
    found = check_pullback(linear, X, W, b, entries=8)
    assert found.derivatives == 8 + 8 + 6 + 3 * checker.DENSE
    assert found.worst in ("X", "W", "b")
    assert 0 < found.error < 1e-8


@pytest.mark.parametrize(
    ("array", "wrong", "said"),
    [
        (X, lambda dX: -dX, r"\); the whole gradient has the opposite sign$"),
        (X[0, 0, :1], lambda dX: -dX, r"\); the whole gradient has the opposite sign$"),
        (X, lambda dX: 2 * dX, r"\); the whole gradient is 2 times what it should be$"),
        (X[0, 0, :1], lambda dX: 2 * dX, r"allowed 1e-06\)$"),  # a single number is a multiple of every other
        (X, lambda dX: dX * np.array([1, 1, 1, 1, -1], dX.dtype), r"allowed 1e-06\)$"),
        (X, lambda dX: 0 * dX, r"allowed 1e-06\)$"),
    ],
)
def test_a_reversed_sign_and_a_common_factor_are_told(array, wrong, said):
    with pytest.raises(GradientError, match=said):
        check_pullback(lambda X: (X**2, lambda dY: wrong(2 * X * dY)), array)


def test_the_worst_is_where_it_was_found():
    """The first of two arrays has a gradient that is off by 10⁻⁷ of its size, and the second is right."""

    def off(a, b):
        return a + b, lambda dY: (dY * a.dtype.type(1 + 1e-7), dY)

    found = check_pullback(off, X, X + 1)
    assert found.worst == "a"
    assert 0.1e-7 < found.error < 3e-7


def test_small_slopes_are_measured_in_thousandths():
    """Beside a value of 1, a slope of 10⁻⁵ is known to five digits: the others are rounding in the value."""
    check_pullback(lambda x: (1 + 1e-5 * x, lambda dY: 1e-5 * dY), X)


def test_an_array_that_has_no_effect_may_be_constant():
    check_pullback(lambda x, ones: (2 * x, lambda dY: (2 * dY, 0 * dY)), X, np.ones_like(X), zero=["ones"])


@pytest.mark.parametrize(("off", "message"), [(0.8e-9, None), (1.2e-9, r"x.*: the pullback says .* allowed 1e-06")])
def test_an_error_of_a_small_slope_is_one_of_a_thousandth(off, message):
    """Where a gradient is smaller than 10⁻³, a millionth of that is allowed."""
    first = []

    def slow(x):
        def pullback(dY):
            first.append(float(dY[0]))
            return 1e-5 * dY + off * dY / first[0]

        return 1e-5 * x, pullback

    with pytest.raises(GradientError, match=message) if message else nullcontext():
        check_pullback(slow, np.ones(1))


@pytest.mark.parametrize(
    ("slope", "message"), [(0.9e-7, None), (1.1e-7, "bias: the gradient should be zero but is 1.1e-07")]
)
def test_a_gradient_that_should_be_zero_is_below_a_ten_millionth(slope, message, monkeypatch):
    monkeypatch.setattr(checker, "DENSE", 0)  # a random direction would have another length than the one entry
    first = []

    def added(x, bias):
        def pullback(dY):
            first.append(dY.flat[0])
            return dY, np.full(1, slope * dY.flat[0] / first[0], dY.dtype)

        return x + 0 * bias, pullback

    with pytest.raises(GradientError, match=message) if message else nullcontext():
        check_pullback(added, X, np.ones(1), zero=["bias"])


def test_cotangent_is_not_the_argument():
    """Arguments are often the first numbers of default_rng(0). With dY = X a layer norm would look constant."""
    seen = []

    def function(X):
        return 2 * X, lambda dY: seen.append(dY) or 2 * dY

    check_pullback(function, np.random.default_rng(0).standard_normal((3, 4)))
    assert not np.allclose(seen[0], np.random.default_rng(0).standard_normal((3, 4)))


def test_arguments_of_the_caller_stay_as_they_are():
    """Also integers, and although the function below writes into everything that it is given."""
    X32, tokens = X.astype(np.float32), TOKENS.copy()

    def vandal(tokens, X):
        X[:] = 0
        return X, lambda dY: dY

    with pytest.raises(GradientError, match="X: changed"):
        check_pullback(vandal, tokens, X32)
    assert np.array_equal(X32, X.astype(np.float32))
    assert mt.tree_size((X32, tokens)) == X.size + TOKENS.size
