"""What chapter 07 measures of a matrix: how much its largest singular values hold, and the two sides of Linformer's theorems."""

import math
from typing import NamedTuple

import numpy as np

from minitransformer.functional import softmax
from minitransformer.typing import Array


def held(A: Array) -> Array:
    """Part of the sum of singular values that the r largest hold, r = 1 … n: (*batch, n, m) to (*batch, min(n, m))."""
    return held_of(np.linalg.svd(A, compute_uv=False))


def held_of(sigma: Array) -> Array:
    """`held`, of singular values that are known, from the largest to the smallest, (*batch, n)."""
    return sigma.cumsum(-1) / sigma.sum(-1, keepdims=True)


def best_of_rank(A: Array, k: int) -> Array:
    """Σ_{r ≤ k} σ_r u_r v_rᵀ with the k largest singular values: no matrix of rank k is nearer to A, (n, m) to (n, m).

    source   Lecture notes, below Theorem 1, P_low; Eckart and Young 1936
    """
    u, sigma, v = np.linalg.svd(A, full_matrices=False)
    return (u[:, :k] * sigma[:k]) @ v[:k]


def random_attention(n: int, d: int, rng: np.random.Generator, *, sharpness: float = 1.0) -> tuple[Array, Array]:
    """Scores Q Kᵀ/√d of random queries and keys, times a sharpness, and their softmax, (n, n) each."""
    Q, K = rng.standard_normal((2, n, d))
    S = sharpness * Q @ K.T / math.sqrt(d)
    return S, softmax(S)[0]


def random_projection(k: int, n: int, rng: np.random.Generator) -> Array:
    """R (k, n) with entries of variance 1/k, so that Rᵀ R is the identity on average."""
    return rng.standard_normal((k, n)) / math.sqrt(k)


def rows_needed(n: int, eps: float) -> float:
    """k of Theorem 1: 5 ln n / (ε² − ε³)."""
    return 5 * math.log(n) / (eps**2 - eps**3)


def projected_errors(P: Array, w: Array, k: int, rng: np.random.Generator, *, draws: int = 20) -> Array:
    """‖P Rᵀ R w − P w‖/‖P w‖ for several draws of R (k, n)."""
    Pw = P @ w
    errors = []
    for _ in range(draws):
        R = random_projection(k, len(w), rng)
        errors.append(np.linalg.norm(P @ (R.T @ (R @ w)) - Pw) / np.linalg.norm(Pw))
    return np.array(errors)


def predicted_error(P: Array, w: Array, k: int) -> float:
    """Roughly the size of the `projected_errors`: ‖P‖_F ‖w‖ / (√k ‖P w‖)."""
    return float(np.linalg.norm(P) * np.linalg.norm(w) / math.sqrt(k) / np.linalg.norm(P @ w))


class TwoSides(NamedTuple):
    """The errors of Theorem 2, as means over the rows w of the scores.

    error       ‖softmax(w Eᵀ) F V − softmax(w) V‖ over what it is compared with, ‖softmax(w)‖ ‖V‖
    of_nothing  the same for zeros in place of the first product
    relative    the error over ‖softmax(w) V‖
    """

    error: float
    of_nothing: float
    relative: float


def two_sides(S: Array, V: Array, k: int, delta: float, rng: np.random.Generator) -> TwoSides:
    """Theorem 2 with E = δ R and F = e^(−δ) R, for scores S (n, n): E so small that the exponential is nearly linear."""
    R = random_projection(k, len(V), rng)
    A, _ = softmax(S)
    few, _ = softmax(S @ (delta * R).T)
    wanted, error = A @ V, few @ (math.exp(-delta) * R @ V) - A @ V
    bound = np.linalg.norm(A, axis=1) * np.linalg.norm(V)
    off, size = np.linalg.norm(error, axis=1), np.linalg.norm(wanted, axis=1)
    return TwoSides(*(float(x.mean()) for x in (off / bound, size / bound, off / size)))


def products(n: int, d: int, heads: int = 1, k: int | None = None) -> int:
    """Multiplications of one attention of n tokens in heads of width d: 2 n² d for each, or with k rows 4 n k d."""
    return heads * (2 * n * n * d if k is None else 4 * n * k * d)


def block_products(n: int, width: int, k: int | None = None) -> int:
    """Multiplications of a whole block: 12 n D² for projections and feed-forward network, and its attention."""
    return 12 * n * width**2 + products(n, width, k=k)
