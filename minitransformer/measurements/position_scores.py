"""The scores of any encoding before softmax, with parameters whose effect can be seen, and whether only offsets count."""

from functools import cache
from typing import Any

import numpy as np

from minitransformer.attention import scores
from minitransformer.positions import FIRE, Encoding, KerpleLog, OffsetBias, RoPE, ScoreEncoding, rotate
from minitransformer.positions.encoding import pair_scores
from minitransformer.positions.fire import START
from minitransformer.pullback import Tree
from minitransformer.typing import Array

THRESHOLD = 24  # n₀ of FIRE, |L| in its paper


def scores_of(encoding: Encoding, params: Tree, Q: Array, K: Array) -> Array:
    """The scores before softmax, (*batch, H, n, m), whichever stage the encoding acts on."""
    if isinstance(encoding, (OffsetBias, ScoreEncoding)):
        return pair_scores(encoding, params, Q, K, causal=False)[0]
    if isinstance(encoding, RoPE):
        m = K.shape[-2]
        angles, magnitude = encoding.angles(m)
        turned = [
            rotate(X, angles=angles[m - X.shape[-2] :], layout=encoding.layout, magnitude=magnitude)[0] for X in (Q, K)
        ]
        return scores(*turned)[0]
    raise TypeError(f"{type(encoding).__name__}: no scores known")


def with_some_parameters(encoding: Any, rng: np.random.Generator) -> Tree:
    """Parameters whose effect can be seen: tables and vectors of variance 1, other values as the encoding draws them."""
    params = encoding.init(rng, np.float64)
    if isinstance(encoding, FIRE):
        f = {name: np.zeros_like(getattr(params, name)) for name in ("W_1", "b_1", "W_2", "b_2")}
        f["W_1"][:, 0], f["W_2"][0] = 1, -4  # one hidden number, the same for all heads
        return params._replace(L_mult=np.full(1, THRESHOLD / START), **f)
    if isinstance(encoding, KerpleLog):
        return params._replace(p=np.ones_like(params.p), a=np.ones_like(params.a))
    drawn = {
        name: rng.standard_normal(value.shape)
        for name, value in params._asdict().items()
        if value is not None and name in ("table", "theta", "a_k", "a_v", "a", "u", "v", "P")
    }
    return params._replace(**drawn)


def varies_along_diagonals(S: Array) -> float:
    """0 if S_ij of each head is a function of j − i: the largest range of the scores of one diagonal, in units of that of S."""
    n = S.shape[-1]
    return float(max(np.ptp(np.diagonal(S, o, -2, -1), -1).max() for o in range(1 - n, n)) / np.ptp(S))


def fit_offsets(S: Array) -> tuple[Array, float]:
    """S_ij ≈ r_i + p_{j−i} by least squares: p of the offsets −(n − 1) … n − 1, but for a constant; and how good it is.

    That is the part of the variance within rows that p explains: 1 if only the offset counts.
    """
    within, inverse = _offsets(len(S))
    y = (S - S.mean(1, keepdims=True)).ravel()
    p = inverse @ (within.T @ y)
    rest = y - within @ p
    return p, float(1 - rest @ rest / (y @ y))


@cache
def _offsets(n: int) -> tuple[Array, Array]:
    """X (n², 2n − 1), whose row is one-hot in the offset of a pair, less the mean of all pairs of its query; and (XᵀX)⁺."""
    i, j = np.indices((n, n))
    offset = np.eye(2 * n - 1)[j - i + n - 1]
    within = (offset - offset.mean(1, keepdims=True)).reshape(n * n, -1)
    return within, np.linalg.pinv(within.T @ within, hermitian=True)
