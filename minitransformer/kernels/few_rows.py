"""A few rows through the layers of a block, as in generation: one new token.

    normed                  γ ⊙ (x − μ)/√(σ² + ε) + β
    feed_forward            f(x W₁ + b₁) W₂ + b₂
    gated_feed_forward      (f(x U₁ + b₁) ⊙ (x U₂ + b₂)) W + b

Why this is fast. A row has so little arithmetic that the calls around it take longer: here each layer is one call with one
result, and nothing is remembered for a backward pass. For each x, W is read once, row by row, and the sums run along its rows.
"""

import numpy as np

from minitransformer.arrays import FEW
from minitransformer.kernels.compiling import compiled, inside
from minitransformer.kernels.norms_and_loss import squares, total
from minitransformer.kernels.pointwise import GATES, GELU, GELU_TANH, RELU, activate_some, open_gate
from minitransformer.kernels.threads import borrowed
from minitransformer.typing import Array

KINDS = {"relu": RELU, "gelu": GELU, "gelu_tanh": GELU_TANH}


@compiled
def norm_rows(X, gamma, beta, eps, centre):
    """γ ⊙ (x − μ)/√(σ² + ε) + β for each row x of X; with `centre` = False, μ is 0 and σ² is the mean of x²."""
    one, D, Y = X.dtype.type(1), X.dtype.type(X.shape[1]), np.empty(X.shape, X.dtype)
    for i in range(len(X)):
        x, y = X[i], Y[i]
        m = total(x) / D if centre else X.dtype.type(0)
        r = one / np.sqrt(squares(x, m) / D + X.dtype.type(eps))
        for j in range(len(x)):
            y[j] = (x[j] - m) * r * gamma[j] + beta[j]
    return Y


@inside
def add_rows(X, W, start, end, Y):
    """Y += X W, of the rows start … end − 1 of W alone: four at a time."""
    X, W, Y = borrowed((X, W, Y))
    fours = end - (end - start) % 4
    for i in range(len(X)):
        x, y = X[i], Y[i].copy()
        for k in range(start, fours, 4):
            x0, x1, x2, x3 = x[k], x[k + 1], x[k + 2], x[k + 3]
            w0, w1, w2, w3 = W[k], W[k + 1], W[k + 2], W[k + 3]
            for c in range(len(y)):
                y[c] += (x0 * w0[c] + x1 * w1[c]) + (x2 * w2[c] + x3 * w3[c])
        for k in range(fours, end):
            w, x0 = W[k], x[k]
            for c in range(len(y)):
                y[c] += x0 * w[c]
        for c in range(len(y)):
            Y[i, c] = y[c]


@inside
def product(X, W, b):
    """X W + b."""
    Y = np.empty((len(X), W.shape[1]), X.dtype)
    for i in range(len(Y)):
        for c in range(len(b)):
            Y[i, c] = b[c]
    add_rows(X, W, 0, len(W), Y)
    return Y


@compiled
def two_layers(X, W_1, b_1, W_2, b_2, kind):
    """f(X W₁ + b₁) W₂ + b₂."""
    F = product(X, W_1, b_1)
    f = F.reshape(-1)
    activate_some(kind, f, f)
    return product(F, W_2, b_2)


@compiled
def gated_layers(X, U_1, b_1, U_2, b_2, W, b, gate):
    """(f(X U₁ + b₁) ⊙ (X U₂ + b₂)) W + b."""
    A, B = product(X, U_1, b_1), product(X, U_2, b_2)
    a = A.reshape(-1)
    open_gate(gate, a, B.reshape(-1), a)
    return product(A, W, b)


def _few(X: Array, *pairs: tuple[Array, tuple[int, ...]]) -> bool:
    """Whether X has few rows, and each array of the pairs has its dtype and the shape beside it."""
    return X.size <= FEW * X.shape[-1] and all(a.dtype == X.dtype and a.shape == shape for a, shape in pairs)


def normed(X: Array, gamma: Array, beta: Array | None, eps: float) -> Array | None:
    """Layer norm, or RMS norm if β is None, of a few rows; None if these loops can't take the arrays."""
    D = X.shape[-1:]
    if not _few(X, (gamma, D), (gamma if beta is None else beta, D)):
        return None
    shift = np.zeros(D, X.dtype) if beta is None else beta
    return norm_rows(X.reshape(-1, *D), gamma, shift, eps, beta is not None).reshape(X.shape)


def feed_forward(X: Array, W_1: Array, b_1: Array, W_2: Array, b_2: Array, kind: str) -> Array | None:
    """f(x W₁ + b₁) W₂ + b₂ for a few rows x; None if these loops can't take the arrays."""
    D, hidden = X.shape[-1], len(b_1)
    layers = (W_1, (D, hidden)), (b_1, (hidden,)), (W_2, (hidden, D)), (b_2, (D,))
    if not _few(X, *layers) or (kind == "gelu" and X.dtype != np.float32):
        return None
    return two_layers(X.reshape(-1, D), W_1, b_1, W_2, b_2, KINDS[kind]).reshape(X.shape)


def gated_feed_forward(
    X: Array, U_1: Array, b_1: Array, U_2: Array, b_2: Array, W: Array, b: Array, gate: str
) -> Array | None:
    """(f(x U₁ + b₁) ⊙ (x U₂ + b₂)) W + b for a few rows x; None if these loops can't take the arrays."""
    D, hidden = X.shape[-1], len(b_1)
    first = (U_1, (D, hidden)), (b_1, (hidden,)), (U_2, (D, hidden)), (b_2, (hidden,))
    if not _few(X, *first, (W, (hidden, D)), (b, (D,))) or (gate == "gelu" and X.dtype != np.float32):
        return None
    return gated_layers(X.reshape(-1, D), U_1, b_1, U_2, b_2, W, b, GATES[gate]).reshape(X.shape)
