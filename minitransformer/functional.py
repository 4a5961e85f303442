"""The small differentiable functions that every model is made of.

Each returns `(Y, pullback)`, and `affine` and `normed` give Y alone. Arrays carry any number of batch axes in front; the
last axis is the one a function works along. Two or three lines over each pullback say where its gradient comes from;
chapters 00 to 03 derive them.
"""

import functools
import importlib
import math
from types import ModuleType
from typing import Literal

import numpy as np

from minitransformer.arrays import must_broadcast, one_dtype, scale_for, times, unless_hidden
from minitransformer.backend import current
from minitransformer.pullback import Pullback
from minitransformer.ranges import Fraction, NonNegativeNumber
from minitransformer.typing import Array, Bool, Float, Int, checked


def _rows(X: Array) -> Array:
    """All batch axes as one: (..., D) to (N, D)."""
    return X.reshape(math.prod(X.shape[:-1]), X.shape[-1])


def loops_in(name: str) -> ModuleType | None:
    """A module of compiled loops; None in the tier "numpy", where a function goes on to its definition."""
    return None if current() == "numpy" else _kernels(name)


@functools.cache
def _kernels(name: str) -> ModuleType:
    return importlib.import_module(f"minitransformer.kernels.{name}")


# ---------------------------------------------------------------------------------------------- softmax


class SoftmaxPullback(Pullback):
    """∂A_j/∂S_k = A_j ([j = k] − A_k), so dS = A ⊙ (dA − ⟨dA, A⟩), row by row."""

    A: Array

    def __call__(self, dA: Array) -> Array:
        return self.A * (dA - (dA * self.A).sum(-1, keepdims=True))


@checked
def softmax(S: Float[Array, "*batch n"], *, mask: Bool[Array, "..."] | None = None):
    """Softmax along the last axis, over the entries that the mask allows.

        A_j = exp S_j / Σ_k exp S_k

    Adding a constant to a row changes nothing; the largest entry is subtracted, so that exp can't overflow.
    mask     True where an entry takes part; must broadcast to S. A row with no such entry gives zeros.
    source   Borealis II (1); From GRU to attention, α_i ∝ exp(…)
    cost     O(size of S)
    """
    if mask is not None:
        S = np.where(must_broadcast(mask, S.shape), S, S.dtype.type(-np.inf))
    top = S.max(-1, keepdims=True, initial=-np.inf)
    A = np.exp(S - np.where(top == -np.inf, 0, top))
    total = A.sum(-1, keepdims=True)
    A /= np.where(total == 0, 1, total)
    return A, SoftmaxPullback(A)


# ----------------------------------------------------------------------- before and after it, in attention


class ScoresPullback(Pullback):
    """δS = scale (δQ Kᵀ + Q δKᵀ), so dQ = scale · dS K and dK = scale · dSᵀ Q."""

    Q: Array
    K: Array
    scale: float

    def __call__(self, dS: Array) -> tuple[Array, Array]:
        dS = self.scale * dS
        return times(dS, self.K), times(dS.mT, self.Q)


@checked
def scores(Q: Float[Array, "*batch n d"], K: Float[Array, "*batch m d"], *, scale: float | None = None):
    """S_ij = scale · ⟨q_i, k_j⟩: how well query i matches key j.

    scale    1/√d by default, which keeps the variance of a score at 1 when those of q and k are
    source   CS224N notes, e_ij; Aalto (3). "Divide by d" in three of the sources means √d (E30, E45, E69)
    cost     O(n m d)
    """
    one_dtype(Q=Q, K=K)
    s = Q.dtype.type(scale_for(Q.shape[-1], scale))
    return (s * Q) @ K.mT, ScoresPullback(Q, K, s)


class AggregatePullback(Pullback):
    """δY = δA V + A δV, so dA = dY Vᵀ and dV = Aᵀ dY."""

    A: Array
    V: Array

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        with np.errstate(invalid="ignore"):  # 0 · ∞
            dA = dY @ self.V.mT
        return unless_hidden(dA, self.A), times(self.A.mT, dY)


@checked
def aggregate(A: Float[Array, "*batch n m"], V: Float[Array, "*batch m dv"]):
    """y_i = Σ_j A_ij v_j: the average of the values, with the weights of row i. Cost O(n m dv).

    A value of weight 0 does not count, be it NaN.
    """
    one_dtype(A=A, V=V)
    return times(A, V), AggregatePullback(A, V)


# ------------------------------------------------------------------------------------------ activations


class PointwisePullback(Pullback):
    """y = f(x) entry by entry, so dx = f′(x) dy."""

    slope: Array

    def __call__(self, dY: Array) -> Array:
        return self.slope * dY


@checked
def relu(X: Float[Array, "..."]):
    """max(x, 0), entry by entry. The slope at 0 is taken as 0."""
    if loops := loops_in("pointwise"):
        return loops.relu(X)
    return np.maximum(X, 0), PointwisePullback((X > 0).astype(X.dtype))


@checked
def sigmoid(X: Float[Array, "..."]):
    """σ(x) = 1 / (1 + e^−x), entry by entry; σ′ = σ (1 − σ)."""
    Y = (0.5 * (1 + np.tanh(0.5 * X))).astype(X.dtype)
    return Y, PointwisePullback(Y * (1 - Y))


@checked
def tanh(X: Float[Array, "..."]):
    """tanh x, entry by entry; tanh′ = 1 − tanh²."""
    Y = np.tanh(X)
    return Y, PointwisePullback(1 - Y * Y)


@checked
def silu(X: Float[Array, "..."]):
    """x σ(x), entry by entry, elsewhere called swish; the slope is σ (1 + x (1 − σ))."""
    gate, _ = sigmoid(X)
    return X * gate, PointwisePullback(gate * (1 + X * (1 - gate)))


@checked
def softplus(X: Float[Array, "..."]):
    """ln(1 + eˣ), entry by entry, which is positive; the slope is σ(x). ln σ(x) is −softplus(−x)."""
    return np.maximum(X, 0) + np.log1p(np.exp(-np.abs(X))), PointwisePullback(sigmoid(X)[0])


@checked
def gelu(X: Float[Array, "..."]):
    """x Φ(x), with Φ the normal distribution function; the slope is Φ(x) + x φ(x). What BERT uses.

    In float64 NumPy computes it in every tier.
    """
    if X.dtype == np.float32 and (loops := loops_in("pointwise")):
        return loops.gelu(X)
    cdf = (0.5 * (1 + _erf(X / math.sqrt(2)))).astype(X.dtype)
    pdf = np.exp(-0.5 * X * X) * X.dtype.type(1 / math.sqrt(2 * math.pi))
    return X * cdf, PointwisePullback(cdf + X * pdf)


def _erf(X: Array) -> Array:
    """SciPy's error function; where there is no SciPy, as in a browser, Python's own, one number after another."""
    try:
        from scipy.special import erf
    except ImportError:
        erf = np.vectorize(math.erf, otypes=[np.float64])
    return erf(X)


@checked
def gelu_tanh(X: Float[Array, "..."]):
    """x/2 (1 + tanh u), u = √(2/π) (x + 0.044715 x³): within 5·10⁻⁴ of `gelu`, without erf. What GPT-2 uses."""
    if loops := loops_in("pointwise"):
        return loops.gelu_tanh(X)
    c, a = math.sqrt(2 / math.pi), 0.044715
    square = X * X
    T = np.tanh(c * X * (1 + a * square))
    half = 0.5 * (1 + T)
    return X * half, PointwisePullback(half + 0.5 * c * X * (1 - T * T) * (1 + 3 * a * square))


# --------------------------------------------------------------------------------- linear and embedding


class LinearPullback(Pullback):
    """δY = δX W + X δW + δb, so dX = dY Wᵀ, dW = Xᵀ dY and db = Σ dY, the last two summed over every row of the batch."""

    X: Array
    W: Array
    b: Array | None

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        X, dY = _rows(self.X), _rows(dY)
        if loops := loops_in("matmul"):
            dX, (dW, db) = loops.times(dY, self.W.T), loops.transposed_times(X, dY)
        else:
            dX, dW, db = dY @ self.W.T, X.T @ dY, dY.sum(0)
        dX = dX.reshape(self.X.shape)
        return (dX, dW) if self.b is None else (dX, dW, db)


@checked
def linear(X: Float[Array, "*batch D"], W: Float[Array, "D E"], b: Float[Array, "E"] | None = None):
    """Y = X W + b for each row of X.

    cost     O(rows · D · E) time; remembers X
    raises   TypeError for a wrong shape, or a mixture of dtypes
    """
    one_dtype(X=X, W=W, b=b)
    if b is not None and b.shape != W.shape[1:]:
        raise TypeError(f"b: shape {b.shape} should be {W.shape[1:]}")
    rows = _rows(X)  # all rows in one product: NumPy would otherwise make one for each sample
    if loops := loops_in("matmul"):
        Y = loops.times(rows, W, b)
    else:
        Y = rows @ W
        if b is not None:
            Y += b
    return Y.reshape(*X.shape[:-1], W.shape[-1]), LinearPullback(X, W, b)


@checked
def affine(
    X: Float[Array, "*batch D"], W: Float[Array, "D E"], b: Float[Array, "E"] | None = None
) -> Float[Array, "*batch E"]:
    """X W + b without a pullback: what generation needs, a row at a time."""
    return X @ W if b is None else X @ W + b


class EmbeddingPullback(Pullback):
    """Row t of Y is row tokens[t] of E, so dE[v] is the sum of the rows of dY where the token was v: a scatter-add."""

    tokens: Array
    vocabulary: int

    def __call__(self, dY: Array) -> Array:
        if loops := loops_in("pointwise"):
            return loops.scatter_add(self.tokens, dY, self.vocabulary)
        tokens, dY = self.tokens.reshape(-1), _rows(dY)
        dE = np.zeros((self.vocabulary, dY.shape[-1]), dY.dtype)
        if tokens.size:
            order = np.argsort(tokens, kind="stable")  # equal tokens become neighbours, and are summed as one slice
            values, starts = np.unique(tokens[order], return_index=True)
            dE[values] = np.add.reduceat(dY[order], starts)
        return dE


@checked
def refuse_unknown(tokens: Int[Array, "*batch"], vocabulary: int, name: str = "tokens") -> None:
    """Raise ValueError for a token outside 0 … vocabulary − 1."""
    if tokens.size and not (0 <= tokens.min() and tokens.max() < vocabulary):
        bad = tokens[(tokens < 0) | (tokens >= vocabulary)].flat[0]
        raise ValueError(f"{name}: {bad} is outside the vocabulary 0 … {vocabulary - 1}")


@checked
def embedding(tokens: Int[Array, "*batch"], E: Float[Array, "vocabulary D"]):
    """Y[t] = E[tokens[t]]: look up a row of the table for each token.

    source   Aalto 2.1.1
    raises   ValueError for a token outside 0 … vocabulary − 1
    """
    refuse_unknown(tokens, len(E))
    return E[tokens], EmbeddingPullback(tokens.copy(), len(E))


# ---------------------------------------------------------------------------------------------- gates

Gate = Literal["sigmoid", "relu", "gelu", "silu", "none"]


class GatedProductPullback(Pullback):
    """y = f(a) b, a product: db = f(a) dy, and f(a) gets b dy, so that da = f′(a) b dy."""

    F: Array
    B: Array
    activation: Pullback

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        return self.activation(self.B * dY), self.F * dY


@checked
def gated(A: Float[Array, "*batch E"], B: Float[Array, "*batch E"], gate: Gate = "sigmoid"):
    """Y = f(A) ⊙ B, entry by entry: f(A) says how much of B goes through.

    gate     f. With "sigmoid" the gate lies between 0 and 1; "none" is f(a) = a, the product alone
    returns  Y and a pullback: dA, dB = pullback(dY)
    raises   TypeError for different shapes or dtypes
    """
    one_dtype(A=A, B=B)
    if not (gate == "gelu" and A.dtype == np.float64) and (loops := loops_in("pointwise")):
        return loops.gated(A, B, gate)
    F, activation = _GATE_FUNCTIONS[gate](A)
    return F * B, GatedProductPullback(F, B, activation)


class GLUPullback(Pullback):
    """X reaches Y by both products: dX = dA U₁ᵀ + dB U₂ᵀ, with dA and dB from the gate."""

    linear_1: LinearPullback
    linear_2: LinearPullback
    gated: Pullback

    def __call__(self, dY: Array) -> tuple[Array, ...]:
        dA, dB = self.gated(dY)
        (dX, dU_1, *db_1), (dX_2, dU_2, *db_2) = self.linear_1(dA), self.linear_2(dB)
        return dX + dX_2, dU_1, dU_2, *db_1, *db_2


@checked
def glu(
    X: Float[Array, "*batch D"],
    U_1: Float[Array, "D E"],
    U_2: Float[Array, "D E"],
    b_1: Float[Array, "E"] | None = None,
    b_2: Float[Array, "E"] | None = None,
    *,
    gate: Gate = "sigmoid",
):
    """The gated linear unit: two linear maps of each row, one of which opens and closes the other.

        GLU[X] = f(X U₁ + b₁) ⊙ (X U₂ + b₂),    f = σ

    Each row is treated alone: nothing is mixed along the sequence. Where U₁ = 0 and b₁ = 0, σ is a half everywhere, and
    what is left is half a linear map.
    gate     f: "relu", "gelu" and "silu" give ReGLU, GEGLU and SwiGLU, "none" the bilinear layer
    source   Borealis II (24), without biases; Dauphin et al. 2017, with them; the other gates: Shazeer 2020
    cost     O(rows · D · E) time, twice that of `linear`; remembers X and both products
    returns  Y and a pullback: dX, dU_1, dU_2 = pullback(dY), and then the gradients of the biases, if there are any
    raises   TypeError for a wrong shape, or a mixture of dtypes
    """
    one_dtype(X=X, U_1=U_1, U_2=U_2, b_1=b_1, b_2=b_2)
    (A, linear_1), (B, linear_2) = linear(X, U_1, b_1), linear(X, U_2, b_2)
    Y, pullback = gated(A, B, gate)
    return Y, GLUPullback(linear_1, linear_2, pullback)


_GATE_FUNCTIONS = {
    "sigmoid": sigmoid,
    "relu": relu,
    "gelu": gelu,
    "silu": silu,
    "none": lambda A: (A, UnchangedPullback()),
}


# ---------------------------------------------------------------------------------------- normalisation


class LayerNormPullback(Pullback):
    """x̂ = (x − μ)/√(σ² + ε) depends on x directly, through μ and through σ. With G = dY ⊙ γ,

    dX = (G − mean G − x̂ · mean(G ⊙ x̂)) / √(σ² + ε): what is left of G without its parts along 1 and x̂.
    """

    Xhat: Array
    gamma: Array
    root: Array

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        G = dY * self.gamma
        dX = G - G.mean(-1, keepdims=True) - self.Xhat * (G * self.Xhat).mean(-1, keepdims=True)
        return dX / self.root, _rows(dY * self.Xhat).sum(0), _rows(dY).sum(0)


def refuse_empty_rows(X: Array) -> None:
    """Raise ValueError for rows of no numbers, which have no mean."""
    if X.shape[-1] == 0:
        raise ValueError(f"X: shape {X.shape}; a row of no numbers has no mean")


@checked
def layer_norm(
    X: Float[Array, "*batch D"], gamma: Float[Array, "D"], beta: Float[Array, "D"], *, eps: NonNegativeNumber = 1e-5
):
    """Give each row mean 0 and variance 1, then a learned gain and bias.

        Y = γ ⊙ (x − μ)/√(σ² + ε) + β,    μ = (1/D) Σ x_j,    σ² = (1/D) Σ (x_j − μ)²

    source   Lecture notes, Layer normalization, where the 1/D of μ, the square of σ, γ and β are missing (E27, E28)
    """
    one_dtype(X=X, gamma=gamma, beta=beta)
    refuse_empty_rows(X)
    if loops := loops_in("norms_and_loss"):
        return loops.layer_norm(X, gamma, beta, eps)
    centred = X - X.mean(-1, keepdims=True)
    root = np.sqrt((centred * centred).mean(-1, keepdims=True) + X.dtype.type(eps))
    Xhat = centred / root
    return Xhat * gamma + beta, LayerNormPullback(Xhat, gamma, root)


class LayerNormOutsidePullback(Pullback):
    """With c = x − μ and G = dY ⊙ γ:  dc = G/(σ + ε) − c ⟨G, c⟩ / (D σ (σ + ε)²),  dX = dc − mean dc."""

    centred: Array
    gamma: Array
    sigma: Array
    eps: float

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        c, below = self.centred, self.sigma + self.eps
        G = dY * self.gamma
        along = (G * c).mean(-1, keepdims=True)
        sigma = np.where(self.sigma == 0, 1, self.sigma)  # a constant row has c = 0
        dc = G / below - c * along / (sigma * below**2)
        return dc - dc.mean(-1, keepdims=True), _rows(dY * c / below).sum(0), _rows(dY).sum(0)


@checked
def layer_norm_outside(
    X: Float[Array, "*batch D"], gamma: Float[Array, "D"], beta: Float[Array, "D"], *, eps: NonNegativeNumber = 1e-5
):
    """Layer normalisation with ε added to the deviation, outside the root.

        Y = γ ⊙ (x − μ)/(σ + ε) + β

    source   CS224N notes; a legitimate variant with a different gradient (E68)
    """
    one_dtype(X=X, gamma=gamma, beta=beta)
    refuse_empty_rows(X)
    centred = X - X.mean(-1, keepdims=True)
    sigma = np.sqrt((centred * centred).mean(-1, keepdims=True))
    eps_ = X.dtype.type(eps)
    return centred / (sigma + eps_) * gamma + beta, LayerNormOutsidePullback(centred, gamma, sigma, eps_)


class RMSNormPullback(Pullback):
    """As layer norm without the mean: dX = (G − x̂ · mean(G ⊙ x̂)) / √(mean x² + ε), G = dY ⊙ γ."""

    Xhat: Array
    gamma: Array
    root: Array

    def __call__(self, dY: Array) -> tuple[Array, Array]:
        G = dY * self.gamma
        dX = (G - self.Xhat * (G * self.Xhat).mean(-1, keepdims=True)) / self.root
        return dX, _rows(dY * self.Xhat).sum(0)


@checked
def rms_norm(X: Float[Array, "*batch D"], gamma: Float[Array, "D"], *, eps: NonNegativeNumber = 1e-6):
    """Give each row a root mean square of 1, then a learned gain; no mean, no bias.

        Y = γ ⊙ x / √((1/D) Σ x_j² + ε)

    source   the normalisation of T5
    """
    one_dtype(X=X, gamma=gamma)
    refuse_empty_rows(X)
    if loops := loops_in("norms_and_loss"):
        return loops.rms_norm(X, gamma, eps)
    root = np.sqrt((X * X).mean(-1, keepdims=True) + X.dtype.type(eps))
    Xhat = X / root
    return Xhat * gamma, RMSNormPullback(Xhat, gamma, root)


@checked
def normed(
    X: Float[Array, "*batch D"], gamma: Float[Array, "D"], beta: Float[Array, "D"] | None, *, eps: NonNegativeNumber
) -> Float[Array, "*batch D"]:
    """Layer norm, or RMS norm where there is no β, without a pullback: what generation needs, a row at a time."""
    if (loops := loops_in("few_rows")) and (Y := loops.normed(X, gamma, beta, eps)) is not None:
        return Y
    return (rms_norm(X, gamma, eps=eps) if beta is None else layer_norm(X, gamma, beta, eps=eps))[0]


# ------------------------------------------------------------------------------------ dropout and loss


class UnchangedPullback(Pullback):
    """Y = X, so dX = dY."""

    def __call__(self, dY: Array) -> Array:
        return dY


@checked
def dropout(X: Float[Array, "..."], rate: Fraction, rng: np.random.Generator | None):
    """Set each entry to zero with probability `rate`, and divide the others by 1 − rate.

    Without a generator, or at rate 0, Y is X: the same memory, no copy.
    Y = X ⊙ M / (1 − rate), so dX = dY ⊙ M / (1 − rate): the same entries, remembered.
    raises   ValueError unless 0 ≤ rate < 1
    """
    if rng is None or rate == 0:
        return X, UnchangedPullback()
    slope = (rng.random(X.shape, np.float32) >= rate).astype(X.dtype) / X.dtype.type(1 - rate)
    return X * slope, PointwisePullback(slope)


class CrossEntropyPullback(Pullback):
    """∂(−log P_t)/∂logits = P − one-hot(t): probability that went to the wrong places. Averaged, as the loss is."""

    P: Array
    targets: Array
    weight: Array

    def __call__(self, dloss: Array) -> Array:
        dlogits = self.P.copy()
        rows = _rows(dlogits)
        rows[np.arange(len(rows)), self.targets.reshape(-1)] -= 1
        dlogits *= (dloss * self.weight)[..., None]
        return dlogits


@checked
def cross_entropy(
    logits: Float[Array, "*batch vocabulary"],
    targets: Int[Array, "*batch"],
    *,
    mask: Bool[Array, "*batch"] | None = None,
):
    """Mean of −log P(target) over the positions that the mask allows, in nats, with P = softmax(logits).

    Divide by ln 2 for bits. If no position is allowed the loss is zero.
    raises   ValueError for a target outside the vocabulary
    """
    refuse_unknown(targets, logits.shape[-1], "targets")
    weight = np.ones(targets.shape, logits.dtype) if mask is None else mask.astype(logits.dtype)
    weight /= max(weight.sum(), 1)
    if loops := loops_in("norms_and_loss"):
        return loops.cross_entropy(logits, targets.copy(), weight)
    shifted = logits - logits.max(-1, keepdims=True)
    P = np.exp(shifted)
    total = P.sum(-1, keepdims=True)
    P /= total
    losses = np.log(total[..., 0]) - np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
    return (losses * weight).sum(), CrossEntropyPullback(P, targets.copy(), weight)


__all__ = [
    "AggregatePullback",
    "CrossEntropyPullback",
    "EmbeddingPullback",
    "GLUPullback",
    "GatedProductPullback",
    "LayerNormOutsidePullback",
    "LayerNormPullback",
    "LinearPullback",
    "PointwisePullback",
    "RMSNormPullback",
    "ScoresPullback",
    "SoftmaxPullback",
    "UnchangedPullback",
    "affine",
    "aggregate",
    "cross_entropy",
    "dropout",
    "embedding",
    "gated",
    "gelu",
    "gelu_tanh",
    "glu",
    "layer_norm",
    "layer_norm_outside",
    "linear",
    "normed",
    "refuse_unknown",
    "relu",
    "rms_norm",
    "scores",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
