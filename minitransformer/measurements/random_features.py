"""What chapter 10 knows of random features without drawing any: variances, bounds, and a kernel as a series.

Everywhere SM = exp ⟨x, y⟩, z = x + y, and an estimate is the mean over m directions w. Rows are pairs: x and y (*batch, d).
"""

import numpy as np

from minitransformer.typing import Array


def square(x: Array) -> Array:
    """‖x‖² of each row."""
    return np.vecdot(x, x)


def softmax_kernel(x: Array, y: Array) -> Array:
    """SM = exp ⟨x, y⟩."""
    return np.exp(np.vecdot(x, y))


def variance_positive(x: Array, y: Array, m: int) -> Array:
    """e^‖z‖² SM² (1 − e^−‖z‖²)/m: it goes to zero with SM.

    One draw is e^(⟨w, z⟩ − (‖x‖² + ‖y‖²)/2), and E e^(2 ⟨w, z⟩) = e^(2 ‖z‖²).
    """
    zz = square(x + y)
    return softmax_kernel(x, y) ** 2 * np.expm1(zz) / m


def variance_hyperbolic(x: Array, y: Array, m: int) -> Array:
    """(1 − e^−‖z‖²)/2 times that of positive features, for m directions, and so 2 m features."""
    return variance_positive(x, y, m) * -np.expm1(-square(x + y)) / 2


def variance_trigonometric(x: Array, y: Array, m: int) -> Array:
    """e^‖z‖² SM⁻² (1 − e^−‖x − y‖²)²/(2 m): it grows as SM goes to zero, and is zero at x = y."""
    return np.exp(square(x + y)) / softmax_kernel(x, y) ** 2 * np.expm1(-square(x - y)) ** 2 / (2 * m)


def bound_orthogonal(x: Array, y: Array, m: int) -> Array:
    """Above the variance of positive features with orthogonal rows, for m ≤ d.

    That of independent ones, less 2 (m − 1)/(m (d + 2)) · (SM − e^−(‖x‖² + ‖y‖²)/2)².
    """
    gain = softmax_kernel(x, y) - np.exp(-(square(x) + square(y)) / 2)
    return variance_positive(x, y, m) - 2 * (m - 1) / (m * (x.shape[-1] + 2)) * gain**2


def smreg(x: Array, y: Array, terms: int = 200) -> Array:
    """The kernel whose features have directions of the length √d, as a series.

        SMREG = e^−(‖x‖² + ‖y‖²)/2 Σ_k (‖z‖²/2)^k/k! · d^k/(d (d + 2) … (d + 2k − 2))

    Without the last factor it would be SM; each is at most 1.
    """
    d, half = x.shape[-1], square(x + y) / 2
    term = np.exp(-(square(x) + square(y)) / 2)
    total = term.copy()
    for k in range(1, terms):
        term = term * half / k * d / (d + 2 * k - 2)
        total += term
    return total
